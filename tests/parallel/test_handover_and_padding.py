"""EnergonAI's two claims: pipelines that hand over without waiting, and batches without padding."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import load_cluster, point_to_point
from tspsim.scenario import load
from tspsim.step.result import PlanResult

SEQUENCE, HIDDEN = 2048, 4096
LENGTHS = {"kind": "lognormal", "median": 1024, "sigma": 1.0, "floor": 64}


def piped(stages: int, micro_batches: int, schedule: str, **more: Any) -> float:
    """Seconds of a forward of tsp-8b."""
    question = {
        "name": "pipeline",
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": stages},
        "workload": {
            "model": "tsp-8b",
            "pass": "forward",
            "sequence": SEQUENCE,
            "sequences_per_replica": micro_batches,
            **more,
        },
        "plans": [{"name": "P", "pp": stages, "micro_batch": 1, "schedule": schedule}],
    }
    (plan,) = tspsim.simulate(question).plans
    assert plan.ran, plan.error
    return plan.step_time_s


@pytest.mark.parametrize(("stages", "messages"), [(2, 1), (4, 2)])
def test_a_blocking_stage_takes_its_messages_beside_its_work(stages: int, messages: int) -> None:
    """A micro-batch more takes f where nobody waits, f + x between two stages and f + 2x between more; what messages
    cost kernels beside them (at most an eighth of x here) is then not paid."""
    alone = point_to_point(load_cluster("hgx-h100-8"), 0, 1, SEQUENCE * HIDDEN * 2)
    message_s = alone.latency_s + alone.fluid_s
    slopes = [(piped(stages, 16, each) - piped(stages, 8, each)) / 8 for each in ("1f1b", "blocking")]
    more_s = slopes[1] - slopes[0]
    assert 0.8 * messages * message_s < more_s < 1.01 * messages * message_s


def test_one_micro_batch_alone_has_nothing_to_wait_beside() -> None:
    assert piped(4, 1, "blocking") == pytest.approx(piped(4, 1, "1f1b"), rel=1e-9)


def unequal(lengths: dict[str, Any], **keys: Any) -> PlanResult:
    question = {
        "name": "padding",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {
            "model": "llama-3.1-8b",
            "pass": "forward",
            "sequence": "8Ki",
            "global_batch": 64,
            "lengths": lengths,
        },
        "plans": [{"name": "P", "rank_tokens": "8Ki", **keys}],
    }
    (plan,) = tspsim.simulate(question).plans
    assert plan.ran, plan.error
    return plan


def test_sequences_of_one_length_gain_nothing() -> None:
    same = {"kind": "fixed", "of": 1024}
    assert unequal(same).step_time_s == unequal(same, padded=True).step_time_s


def test_products_of_padded_sequences_take_b_max_over_sigma_as_long() -> None:
    """Of 64 sequences of 105,090 tokens in all the longest has 7,272: 4.43 times the tokens; attention pays more."""
    lean, padded = unequal(LENGTHS), unequal(LENGTHS, padded=True)
    drawn = load(
        {
            "name": "x",
            "cluster": {"device": "h100", "nodes": 1},
            "workload": {
                "model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 64, "lengths": LENGTHS,
            },
            "plans": [{"name": "P"}],
        }
    ).workload.unequal()  # fmt: skip
    more = 64 * max(drawn.tokens) / drawn.total
    assert padded.compute_by_kind_s["gemm"] / lean.compute_by_kind_s["gemm"] == pytest.approx(more, rel=0.02)
    assert padded.compute_by_kind_s["attention"] / lean.compute_by_kind_s["attention"] > more
    assert padded.tokens_per_step == lean.tokens_per_step == drawn.total
    assert any("padding to the longest" in note for note in padded.notes)


def test_what_they_are_not_of_is_told() -> None:
    with pytest.raises(InputError, match="blocking is of passes without a backward"):
        piped(2, 4, "blocking", **{"pass": "training"})
    question = {
        "name": "x",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": 2048},
        "plans": [{"name": "P", "padded": True}],
    }
    with pytest.raises(InputError, match="is of sequences of unequal length"):
        tspsim.simulate(question)
