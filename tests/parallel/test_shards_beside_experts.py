"""Sequence shards beside experts in steps that decode: what moves, what a rank holds, folding, bounds, services.

vLLM's prefill context parallelism leaves everything outside attention to all ranks of it (RFC 25749), and ATOM's
spreads experts over them (ROCm/ATOM 1553): every rank multiplies its experts of all tokens, and one sum over the group
ends it.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.engine import question

import tspsim
from tspsim.parallel import scheme_of, write_program
from tspsim.program import Compute
from tspsim.step.bound import bounds
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan

BATCH, CONTEXT = 8, 16384
#: Layers, of them dense, h.
SOLD = {"glm-5.1": (78, 3, 6144), "deepseek-v3.2": (61, 3, 7168)}
WORK: dict[str, dict[str, Any]] = {
    "decode": {},
    "mixed": {"sequence": 1024},
    "verify": {"speculation": {"tokens": 2, "draft": "ngram"}},
}


def asked(name: str, plan: dict[str, Any], pass_: str = "decode") -> dict[str, Any]:
    work = {"precision": "fp8", "batch": BATCH, "context": CONTEXT, **WORK[pass_]}
    return question(name, [{"name": "P", **plan}], cluster="hgx-b300-8", pass_=pass_, **work)


def ran(question_: dict[str, Any], **how: Any) -> Any:
    found = look_up(tspsim.load(question_))
    answer = run_plan(found, found.plans[0], **how)
    assert answer.ran, answer.error
    return answer


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", SOLD)
@pytest.mark.parametrize(
    ("plan", "sums", "experts"),
    [
        ({"sp": 8, "ep": 8}, 0, 2 * 7 / 8 * BATCH),
        ({"tp": 2, "sp": 4, "ep": 8}, 2 * 1 / 2 * BATCH, 2 * 7 / 8 * BATCH),
        # Four of eight ranks have other tokens: halves of a replica's go to all experts, come back, and are gathered.
        ({"sp": 2, "ep": 8, "expert_dispatch": "gather"}, 0, 2 * 7 * BATCH / 2 + 1 / 2 * BATCH),
        ({"sp": 2, "tp": 2, "ep": 8, "expert_dispatch": "gather"}, BATCH, 2 * 7 * BATCH / 4 + 3 / 4 * BATCH + BATCH),
    ],
    ids=["sp", "tp and sp", "dp and sp", "dp, tp and sp"],
)
def test_rows_are_summed_over_the_group_or_travel_once(
    name: str, plan: dict[str, Any], sums: float, experts: float
) -> None:
    """In rows of h of two bytes: of a dense layer's sum, and of a layer's experts (with their shared ones' sum)."""
    layers, dense, hidden = SOLD[name]
    moved = ran(asked(name, plan)).communication_bytes_per_layer["mlp"]
    expected = (dense * sums + (layers - dense) * experts) / layers * hidden * 2
    assert float(moved) == pytest.approx(expected, rel=1e-9)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("name", "pass_", "plan"),
    [
        ("glm-5.1", "decode", {"sp": 8, "ep": 8}),
        ("deepseek-v3.2", "mixed", {"tp": 2, "sp": 4, "ep": 8}),
        ("glm-5.1", "verify", {"sp": 2, "ep": 8}),
        pytest.param("kimi-linear-48b", "mixed", {"sp": 8, "ep": 4}, marks=pytest.mark.slow),
        pytest.param("kimi-k2.6", "verify", {"sp": 4, "tp": 2, "ep": 8}, marks=pytest.mark.slow),
        pytest.param("gpt-oss-120b", "decode", {"sp": 4, "tp": 2, "ep": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_folded_is_every_rank_and_not_below_its_bound(name: str, pass_: str, plan: dict[str, Any]) -> None:
    whole = asked(name, plan, pass_)
    if not name.startswith(("glm", "deepseek")):
        del whole["workload"]["precision"]
    folded, every = ran(whole), ran(whole, every_rank=True)
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)
    assert folded.communication_bytes_per_layer == every.communication_bytes_per_layer
    (ceiling,) = bounds(tspsim.load(whole)).plans
    assert folded.tokens_per_s <= ceiling.tokens_per_s * (1 + 1e-9)


def test_experts_are_those_of_the_same_group_without_shards() -> None:
    """An eighth of the experts a rank and all tokens: the kernels of tp 8 with ep 8; the weights of dp 8 with ep 8."""
    kernels = []
    for axis in ("sp", "tp"):
        found = look_up(tspsim.load(asked("glm-5.1", {axis: 8, "ep": 8})))
        job = found.job(found.plans[0])
        computed = [each for each, _ in write_program(scheme_of(job.plan), job).counted() if isinstance(each, Compute)]
        kernels.append({operator for each in computed for operator in each.operators if operator.role.routed})
    assert kernels[0] == kernels[1] and kernels[0]
    shards, replicas = (ran(asked("glm-5.1", {axis: 8, "ep": 8})) for axis in ("sp", "dp"))
    assert shards.memory.parts["weights"] == replicas.memory.parts["weights"]


def test_a_service_divides_prompts_and_decodes_on_the_same_experts() -> None:
    """GLM-5.1 on eight B300: whose prompts are divided answers first (SGLang's users measure the same: vLLM 47846)."""
    scenario = {
        "name": "served", "cluster": "hgx-b300-8",
        "workload": {"model": "glm-5.1", "precision": "fp8", "stack": "sglang"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 2}, "prompt": "32Ki", "output": 64, "requests": 4},
        "plans": [{"name": "SP8", "sp": 8, "ep": 8}, {"name": "TP8", "tp": 8, "ep": 8}],
    }  # fmt: skip
    shards, heads = tspsim.simulate(scenario).plans
    assert shards.ran and heads.ran
    assert shards.serving["ttft_s"]["mean"] < 0.5 * heads.serving["ttft_s"]["mean"]
