"""Kernels that rotate, join and copy heads around attention, by its kind and a stack's version."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tspsim
from tspsim.operators import Computes, MemoryBound, Role
from tspsim.parallel import load_stack

ROTATION = MemoryBound("rope", 1000.0, 10, role=Role.ROPE)
GRADIENT = replace(ROTATION, computes=Computes.INPUT_GRADIENT)


@pytest.mark.parametrize(
    ("stack", "kind", "forward", "backward"),
    [
        ("automodel", "mla", 1.8, 1.9),
        ("automodel", "gqa", 1.0, 1.0),
        ("automodel@2025.10", "mla", 2.6, 2.5),
        ("automodel@2025.10", "gqa", 4.5, 5.0),
        ("automodel@flex", "gqa", 9.2, 13.4),
        ("megatron-core", "mla", 1.0, 1.0),
        ("megatron-core", "gqa", 1.0, 1.0),
        ("megatron-core@unfused", "mla", 3.0, 3.6),
        ("megatron-core@unfused-padded", "mla", 3.0, 3.6),
        ("megatron-core@unfused", "gqa", 1.0, 1.0),
        ("megatron-core@graphs", "gqa", 1.0, 1.0),
        ("megatron-core@yarn", "gqa", 6.0, 7.0),
        ("megatron-core@graphs-yarn", "gqa", 6.0, 7.0),
        ("megatron-core@whole-graphs-yarn", "gqa", 6.0, 7.0),
    ],
)
def test_kernels_around_attention_are_of_a_kind_of_attention_and_a_version(
    stack: str, kind: str, forward: float, backward: float
) -> None:
    here = load_stack(stack).stack().on("h100", kind)
    ran = [kernel.hbm_bytes / 1000.0 for kernel in here.run([ROTATION, GRADIENT])]
    assert ran == pytest.approx([forward, backward])


def test_counts_of_automodels_source() -> None:
    """Elements that kernels move for a token and head, over those of a rotation of queries and keys in place.

    DeepSeek's heads are of 128 + 64 and 128 (160 in the mean), gpt-oss's 64 and 8 of 64, with scaled outputs in bytes.
    """
    names = ("automodel", "automodel@2025.10", "automodel@flex")
    fused, unfused, flex = (dict(load_stack(name).stack().rotation_factors) for name in names)
    joined, summed = 2 * 192 + 2 * 192 + 2 * 128, 2 * 192 + 64 + 2 * 256
    assert fused["mla"] == pytest.approx([(2 * 64 + joined) / 640, (4 * 64 + summed) / 640], abs=0.05)
    complex_numbers = 64 * (2 + 4 + 4 + 4 + 4 + 2) / 2
    assert unfused["mla"] == pytest.approx([(complex_numbers + joined) / 640, (complex_numbers + summed) / 640])

    # Four products read and write half of the heads' tensors, then a difference, a sum and their concatenation.
    halves = 4 * 2 * 0.5 + 2 * 3 * 0.5 + 2
    assert unfused["gqa"] == pytest.approx([halves / 2, (halves + 1) / 2])

    turned = 2 * (64 + 8) * 64
    outputs = [size * 64 * 64 / 2 for size in (2 + 4 + 4 + 2 + 2 + 2, 2 + 4 + 4 + 4 + 4 + 2 + 2 + 4 + 4 + 4 + 2 + 2)]
    contiguous = [2 * (64 + 2 * 8) * 64, 0]
    moved = [(size + copied) / turned for size, copied in zip(outputs, contiguous, strict=True)]
    assert flex["gqa"] == pytest.approx([moved[0] + halves / 2, moved[1] + (halves + 1) / 2], abs=0.06)


def test_counts_of_megatron_cores_source() -> None:
    """Elements moved for one that is turned, by kernels: times cosines, half negated, halves joined, times sines, sum,
    joined with an empty rest; in a backward both products, half negated, joined, sum, the rest's zeros and their sum.
    DeepSeek's heads turn 64 of 192, are parted into even and odd ones first, and values of 128 are copied."""
    yarn, mla = (load_stack(f"megatron-core@{name}").stack() for name in ("yarn", "unfused"))
    forward, backward = 2 + 1 + 2 + 2 + 3 + 2, 2 * 2 + 1 + 2 + 3 + 1 + 3
    assert dict(yarn.rotation_factors)["gqa"] == pytest.approx((forward / 2, backward / 2))
    around = (forward + 2) * 64 + 2 * 2 * 192 + 2 * 128
    assert dict(mla.rotation_factors)["mla"][0] == pytest.approx(around / 640)


def test_versions_with_yarn_differ_from_those_without_in_rotation_alone() -> None:
    for name in ("graphs", "whole-graphs"):
        plain, yarn = (load_stack(f"megatron-core@{name}{more}").stack() for more in ("", "-yarn"))
        assert replace(yarn, name=plain.name, rotation_factors=(), engine=plain.engine) == plain


def test_a_step_takes_longer_by_what_they_move() -> None:
    def step_s(stack: str) -> float:
        question = {
            "name": "attention",
            "cluster": {"device": "h100", "nodes": 1},
            "workload": {
                "model": "gpt-oss-20b", "pass": "training", "sequence": 4096, "sequences_per_replica": 2,
                "stack": stack,
            },
            "plans": [{"name": "P", "ep": 8, "zero": 3, "micro_batch": 2}],
        }  # fmt: skip
        return tspsim.simulate(question).plan("P").step_time_s

    assert 1.07 < step_s("automodel@flex") / step_s("automodel") < 1.15
