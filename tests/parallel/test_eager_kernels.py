"""What eager PyTorch runs where one fused kernel could: counts, laws between both, and times that others measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import load_device
from tspsim.operators import Computes, MemoryBound, Role
from tspsim.parallel import load_stack
from tspsim.parallel.eager_kernels import (
    COMPLEX_ROTATION,
    EAGER_KERNELS,
    FUSED_BYTES,
    HALVES_ROTATION,
    HEADS_AROUND_SCORES,
    LAYER_NORM,
    MATRIX_ROTATION,
    POINTWISE,
    RMS_NORM,
    SWIGLU,
    WIDE_SCORES,
    Chain,
)
from tspsim.step.question import look_up
from tspsim.traces.simulated import Simulated

BACK = Computes.INPUT_GRADIENT


def moved(chain: Chain) -> float:
    return sum(kernel.read + kernel.written for kernel in chain)


@pytest.mark.parametrize(
    ("both", "forward", "backward", "kernels"),
    [
        (RMS_NORM, 36.0, 92.0, (6, 13)),
        (LAYER_NORM, 4.0, 10.0, (1, 2)),
        (COMPLEX_ROTATION, 20.0, 20.0, (3, 3)),
        (HALVES_ROTATION, 20.0, 30.0, (5, 9)),
        (MATRIX_ROTATION, 36.0, 36.0, (4, 4)),
        (SWIGLU, 10.0, 18.0, (2, 3)),
        (POINTWISE, 4.0, 6.0, (1, 1)),
        (WIDE_SCORES, 32.0, 36.0, (6, 6)),
        (HEADS_AROUND_SCORES, 16.0, 24.0, (4, 6)),
    ],
)  # fmt: skip
def test_bytes_an_element_are_those_that_pytorch_s_dispatcher_counts(
    both: Any, forward: float, backward: float, kernels: tuple[int, int]
) -> None:
    """Operators of PyTorch 2.13 on a CPU, seen by a TorchDispatchMode: bytes of distinct tensors in and out, over
    elements; modules as in the models' repositories (docs/eager-kernels.md). Of residual sums and sums of gradients
    another 6 each. The dispatcher has no copy in ``masked_fill``, which makes one, and one kernel for both gradients of
    a LayerNorm, which are two on a GPU."""
    assert (moved(both.forward), moved(both.backward)) == (forward, backward)
    assert (len(both.forward), len(both.backward)) == kernels


@given(
    st.sampled_from(EAGER_KERNELS.values()), st.sampled_from(sorted(FUSED_BYTES)), st.booleans(), st.booleans(),
    st.integers(1, 16), st.sampled_from(Role), st.integers(1, 1 << 20),
)  # fmt: skip
def test_a_fused_kernel_never_moves_more_than_eager_ones(
    kind: Any, op: str, back: bool, gated: bool, groups: int, role: Role, rows: int
) -> None:
    fused = MemoryBound(op, 4096.0 * rows, rows, role=role, computes=BACK if back else Computes.OUTPUT)
    ran = kind.run(fused, gated=gated, groups=groups)
    assert ran.size_bytes >= fused.size_bytes and ran.calls >= 1
    device = load_device("h100")
    assert device.time(ran).seconds >= device.time(fused).seconds * (1.0 - 1e-12)
    assert (ran.name, ran.role, ran.computes, ran.op) == (fused.name, fused.role, fused.computes, fused.op)


def test_an_activation_moves_ten_bytes_an_element_and_a_norm_a_sum_more() -> None:
    kind = EAGER_KERNELS.get("torchtitan")
    silu = kind.run(MemoryBound("swiglu", 6.0, 1, role=Role.ACTIVATION))
    assert (silu.size_bytes, silu.calls) == (10.0, 2)
    gelu = MemoryBound("swiglu", 4.0, 1, role=Role.ACTIVATION)
    assert kind.run(gelu, gated=False).size_bytes == 4.0
    norm = kind.run(MemoryBound("add_rmsnorm", 8.0, 1, role=Role.NORM))
    assert norm.size_bytes == 42.0 + 3 * 3.0
    # Keys and values of one head are written for four query heads: two of five heads that a rotation turns are theirs.
    alone, repeated = (kind.run(MemoryBound("rope", 4.0, 1, role=Role.ROPE), groups=n).size_bytes for n in (1, 4))
    assert repeated - alone == pytest.approx((2 + 4 * 2 + 4 * 3.0) * 2 / 5)


def test_several_kernels_start_several_times() -> None:
    device = load_device("mi300x")
    one, three = (MemoryBound("swiglu", 3e6, 100, calls=calls) for calls in (1, 3))
    start_s = device.streaming(1.0).seconds
    more_s = device.time(three).seconds - device.time(one).seconds
    assert more_s == pytest.approx(2 * start_s, rel=0.02)
    assert device.time(MemoryBound("swiglu", 1e6, 100)).seconds * 3 == pytest.approx(device.time(three).seconds)


def kinds(model: str, pass_: str, sequences: int, sequence: int, stack: str) -> Counter[str]:
    """Milliseconds of a step's kernels by kind, on one H100."""
    work: dict[str, Any] = {"model": model, "pass": pass_, "sequence": sequence, "sequences_per_replica": sequences}
    plan: dict[str, Any] = {"name": "one"}
    if pass_ == "training":
        work["optimizer"] = {"weights": 2, "gradients": 2, "state": 4}
        plan |= {"micro_batch": sequences, "recomputation": "none"}
    cluster = {"device": "h100", "nodes": 1, "gpus_per_node": 1}
    work["stack"] = stack
    asked = look_up(tspsim.load({"name": "one", "cluster": cluster, "workload": work, "plans": [plan]}))
    found = Counter[str]()
    for operation in Simulated(asked, asked.plans[0]).lane(0).operations:
        found[operation.kind] += 1e3 * operation.seconds
    return found


@pytest.mark.parametrize(
    ("model", "pass_", "sequences", "sequence", "measured_ms"),
    [("llama-3.2-3b", "training", 2, 4096, 140.0), ("qwen3-8b", "forward", 4, 2048, 107.0)],
)
def test_eager_kernels_of_hugging_face_on_one_h100(
    model: str, pass_: str, sequences: int, sequence: int, measured_ms: float
) -> None:
    """A profile of a step and of a forward (docs/hugging-face-eager.md), on which nothing here is fitted."""
    found = kinds(model, pass_, sequences, sequence, "hf-trainer")
    assert found["norm"] + found["rope"] + found["activation"] == pytest.approx(measured_ms, rel=0.07)


@pytest.mark.parametrize("factor", ["traffic_factor", "expert_activation_factor"])
def test_kernels_are_counted_or_multiplied(tmp_path: Path, factor: str) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"name: mine\neager: {{value: torchtitan, source: counted}}\n{factor}: {{value: 3, source: guessed}}\n"
    )
    with pytest.raises(InputError, match="state one of the two"):
        load_stack(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("name: mine\neager: {value: torchtitn, source: counted}\n")
    with pytest.raises(InputError, match="torchtitan"):
        load_stack(str(tmp_path / "mine.yaml"))
    assert not load_stack("torchtitan-eager").stack().compiles and load_stack("torchtitan").stack().compiles
