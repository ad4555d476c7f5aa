"""Random steps that serve, over keys that divide contexts, draft and choose: folded and whole, bounds, more work."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.engine import question

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.parallel import build_mesh
from tspsim.step.bound import bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan, scheduled

KI = 1024
CLUSTERS = {"hgx-b300-8": 8, "mi355x-8": 8, "hgx-h200-8": 8, "b200-2x8": 16, "mi355x-2x8": 16}
MODELS = (
    "glm-5.1", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "kimi-k2.6", "kimi-linear-48b",
    "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "zaya1-8b",
)  # fmt: skip
PRECISIONS: tuple[Any, ...] = (
    None, "fp8", "mxfp6", "mxfp4", {"kv": "fp8"}, {"weights": {"attention": "mxfp6", "experts": "mxfp6"}},
)  # fmt: skip
#: A key of the work, and what more of it is.
MORE = {"batch": (1, 2.0), "context": (1, 1.125), "sequence": (16, 1.25), "cached": (0, 2.0)}


def plan_of(draw: random.Random, gpus: int) -> dict[str, Any]:
    size = draw.choice([2, 4, 8, 8, gpus])
    shares = [ranks for ranks in (2, 4, 8, 16) if ranks <= size]
    ways: list[dict[str, Any]] = [
        {"tp": size}, {"tp": size, "dcp": draw.choice(shares)}, {"tp": size, "kvp": draw.choice(shares)},
        {"tsp": size}, {"tsp": size, "decode_form": draw.choice(["tree", "sequences", "travel"])},
        {"sp": size}, {"tp": 2, "sp": max(1, size // 2)}, {},
    ]  # fmt: skip
    further: list[dict[str, Any]] = [
        {"ep": draw.choice([size, 8, gpus])},
        {"index_exchange": draw.choice(["exact", "scores", "replicated", "union"])},
        {"decode_exchange": draw.choice(["tree", "gather_scatter", "ring", "hop_b", "all_to_all"])},
        {"offload_weights": draw.choice([2, 8])}, {"expert_dispatch": draw.choice(["gather", "links", "ranks"])},
    ]  # fmt: skip
    plan = {"name": "P", **draw.choice(ways)}
    for chance, keys in zip((0.5, 0.25, 0.25, 0.1, 0.15), further, strict=True):
        plan |= keys if draw.random() < chance else {}
    return plan


def case(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    cluster, model = draw.choice(list(CLUSTERS)), draw.choice(MODELS)
    pass_ = draw.choice(["decode", "verify", "verify", "prefill", "mixed"])
    work: dict[str, Any] = {}
    if pass_ != "prefill":
        work |= {"batch": draw.choice([1, 3, 16, 64, 200]), "context": draw.choice([64, 1000, 4 * KI, 32 * KI])}
    if pass_ in ("prefill", "mixed"):
        work["sequence"] = draw.choice([300, 2 * KI] if pass_ == "mixed" else [300, 4 * KI, 32 * KI])
        work |= {"cached": draw.choice([512, 8 * KI])} if draw.random() < 0.4 else {}
    if pass_ == "verify":
        drafts: dict[str, Any] = {"tokens": draw.choice([1, 2, 4, 7])}
        drafts["draft"] = draw.choice(["mtp", "eagle", "dflash", "ngram", "model"])
        drafts |= {"model": "llama-3.2-1b"} if drafts["draft"] == "model" else {}
        tree = [draw.choice([1, 2, 3]) for _ in range(draw.choice([1, 2, 3]))]
        drafts |= {"tree": tree, "tokens": sum(tree)} if drafts["draft"] in ("mtp", "eagle") else {}
        work["speculation"] = drafts
    precision = draw.choice(PRECISIONS)
    work |= {"precision": precision} if precision is not None else {}
    work |= {"stack": draw.choice(["vllm", "sglang"])} if draw.random() < 0.3 else {}
    return question(model, [plan_of(draw, CLUSTERS[cluster])], cluster=cluster, pass_=pass_, **work)


def step_s(asked: dict[str, Any]) -> float:
    """Of its one plan; 0: it is not legal, or has no room."""
    try:
        return float(tspsim.simulate(asked).plans[0].step_time_s)
    except InputError:
        return 0.0


def holds(seed: int) -> bool:
    """Every law of one case; False where it does not run."""
    asked = case(seed)
    try:
        found = look_up(tspsim.load(asked))
        planned = scheduled(found, found.plans[0])
        folded = run_plan(found, planned.plan)
    except InputError:
        return False
    if not folded.ran:
        return False
    whole = run_plan(found, planned.plan, every_rank=True)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9), asked
    assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer, asked
    (ceiling,) = bounds(tspsim.load(asked)).plans
    assert folded.tokens_per_s <= ceiling.tokens_per_s * (1 + 1e-9) and folded.mfu <= 1.0, asked
    device, stack = found.device, planned.work.stack
    cost = stack.cost(Costs(device), device, planned.capture)
    bound = LowerBound(found.cluster, cost, max(device.peak_flops_per_s.values()), stack.slowdown(device))
    mesh = build_mesh(planned.plan, found.cluster.gpus, found.cluster.gpus_per_node)
    assert bound.step_s(planned, mesh) <= folded.step_time_s * (1 + 1e-9), asked
    for key, (plus, times) in MORE.items():
        work = asked["workload"]
        if key in work:
            for more in {int(work[key] + plus), int(work[key] * times)}:
                longer = step_s({**asked, "workload": {**work, key: more}})
                assert not longer or longer >= folded.step_time_s * (1 - 1e-6), (key, more, asked)
    return True


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 16), pytest.param(16, 240, marks=pytest.mark.slow), pytest.param(240, 440, marks=pytest.mark.slow)],
)
def test_laws_hold_over_keys_of_contexts_drafts_and_choice(first: int, last: int) -> None:
    """Of the cases a third runs; the others are not legal, or have no room."""
    assert sum(map(holds, range(first, last))) > (last - first) // 6
