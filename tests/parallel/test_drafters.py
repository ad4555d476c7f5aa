"""Drafters: a model of its own, trees of drafts, and blocks that are filled in by one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.parallel import Job, build_mesh
from tspsim.parallel.drafting import draft_passes, drafting
from tspsim.serving.speculation import AcceptanceModel
from tspsim.step.bound import bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import Question, look_up
from tspsim.step.simulation import run_plan, scheduled

LARGE = architecture(1024, layers=4, heads=16, kv_heads=8, head_dim=64, vocab=32000)
SMALL = architecture(512, layers=3, heads=8, kv_heads=8, head_dim=64, vocab=32000)
TP8 = {"name": "P", "tp": 8}
WORK = {"batch": 8, "context": 4096}


def step(model: str, drafts: dict[str, Any] | None, plan: dict[str, Any] = TP8, **work: Any) -> Any:
    more = {"pass_": "verify", "speculation": drafts} if drafts else {"pass_": "decode"}
    (found,) = tspsim.simulate(question(model, [plan], **{**WORK, **more, **work})).plans
    return found


def job(model: str, drafts: dict[str, Any]) -> Job:
    asked = look_up(tspsim.load(question(model, [TP8], pass_="verify", speculation=drafts, **WORK)))
    return asked.job(asked.plans[0])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "large").mkdir()
    return model_file(tmp_path / "large", LARGE), model_file(tmp_path, SMALL)


@pytest.mark.parametrize("plan", [TP8, {"name": "P", "tp": 8, "dcp": 2}], ids=["tp", "dcp"])
def test_a_draft_model_takes_its_own_steps_weights_and_caches(files: tuple[str, str], plan: dict[str, Any]) -> None:
    """k decode steps of it behind the step that verifies, each as it takes alone."""
    large, small = files
    both = step(large, {"tokens": 4, "draft": "model", "model": small}, plan)
    alone, drafting = step(large, {"tokens": 4, "draft": "ngram"}, plan), step(small, None, plan)
    assert both.step_time_s - alone.step_time_s == pytest.approx(4 * drafting.step_time_s, rel=1e-6)
    weights, caches = (both.memory.parts[part] - alone.memory.parts[part] for part in ("weights", "kv_cache"))
    assert weights == drafting.memory.parts["weights"]
    assert caches == pytest.approx(drafting.memory.parts["kv_cache"], rel=2e-3)


def test_a_tree_of_one_branch_is_a_chain_and_a_wider_one_takes_longer(files: tuple[str, str]) -> None:
    large, _ = files
    chain = step(large, {"tokens": 3, "draft": "eagle"})
    trees = [step(large, {"tokens": sum(tree), "draft": "eagle", "tree": tree}) for tree in ([1] * 3, [2] * 3, [4] * 3)]
    assert trees[0].step_time_s == chain.step_time_s and trees[0].tokens_per_step == chain.tokens_per_step
    times = [tree.step_time_s for tree in trees]
    assert times == sorted(times) and times[0] < times[2]


def test_a_tree_has_a_pass_a_depth_and_a_block_one_for_all(files: tuple[str, str]) -> None:
    large, _ = files
    tree = job(large, {"tokens": 9, "draft": "eagle", "tree": [2, 4, 3]})
    assert [drafting(tree, number).rows for number in range(draft_passes(tree))] == [
        ((queries, 4096, 8),) for queries in (1, 2, 4)
    ]
    block = job(large, {"tokens": 15, "draft": "dflash"})
    assert draft_passes(block) == 1 and drafting(block).rows == ((16, 4096, 8),)
    assert tree.rows == ((10, 4096, 8),) and block.rows == ((16, 4096, 8),)
    few, many = (step(large, {"tokens": k, "draft": "dflash"}).step_time_s for k in (3, 15))
    slow = step(large, {"tokens": 15, "draft": "eagle"}).step_time_s
    assert few <= many < slow


def test_acceptance_of_a_tree_is_stated_by_depth(files: tuple[str, str]) -> None:
    """1 + Σ_i Π_{j ≤ i} a_j over depths; without it a tree accepts what one draft a depth would."""
    large, _ = files
    shares = [0.95, 0.9, 0.8]
    stated = job(large, {"tokens": 12, "draft": "eagle", "tree": [4, 4, 4], "positions": shares})
    assert stated.work.load.advance == pytest.approx(1 + 0.95 + 0.95 * 0.9 + 0.95 * 0.9 * 0.8)
    usual = job(large, {"tokens": 12, "draft": "eagle", "tree": [4, 4, 4]})
    chain = job(large, {"tokens": 3, "draft": "eagle"})
    assert usual.work.load.advance == chain.work.load.advance
    served = AcceptanceModel(tuple(shares), sampled=True, verified=12)
    assert (served.drafts, served.query_len) == (12, 13)
    assert served.tokens_a_step == pytest.approx(stated.work.load.advance)


def test_folded_equals_every_rank_and_no_step_lies_below_its_bound(files: tuple[str, str]) -> None:
    large, small = files
    for drafts in (
        {"tokens": 4, "draft": "model", "model": small},
        {"tokens": 6, "draft": "eagle", "tree": [2, 4]},
        {"tokens": 7, "draft": "dflash"},
        {"tokens": 3, "draft": "eagle"},
        {"tokens": 3, "draft": "ngram"},
    ):
        asked = tspsim.load(question(large, [TP8], pass_="verify", speculation=drafts, **WORK))
        (ceiling,), found = bounds(asked).plans, look_up(asked)
        folded, whole = (run_plan(found, found.plans[0], every_rank=every) for every in (False, True))
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12)
        assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
        assert folded.tokens_per_s <= ceiling.tokens_per_s * (1 + 1e-9)
        assert 0.9 * folded.step_time_s < path_s(found) <= folded.step_time_s * (1 + 1e-9)


def path_s(asked: Question) -> float:
    """The longest path through a step, layers of its draft among them."""
    plan, device, cluster = asked.plans[0], asked.device, asked.cluster
    found = scheduled(asked, plan)
    stack = found.work.stack
    cost = stack.cost(Costs(device), device, found.capture)
    bound = LowerBound(cluster, cost, max(device.peak_flops_per_s.values()), stack.slowdown(device))
    return bound.step_s(found, build_mesh(found.plan, cluster.gpus, cluster.gpus_per_node))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("drafter", ["eagle", "dflash", "model"])
def test_a_draft_s_weights_come_once_a_pass_in_the_bound_too(files: tuple[str, str], drafter: str) -> None:
    """Links were counted as if every draft layer were as many as the model has: 4 to 9 times the step of 32 layers."""
    large, small = files
    drafts = {"tokens": 4, "draft": drafter, **({"model": small} if drafter == "model" else {})}
    plan = {"name": "P", "tsp": 4, "decode_form": "travel"}
    asked = look_up(tspsim.load(question(large, [plan], pass_="verify", speculation=drafts, batch=1, context=4096)))
    planned, device, cluster = scheduled(asked, asked.plans[0]), asked.device, asked.cluster
    bound = LowerBound(cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    step_s = run_plan(asked, planned.plan).step_time_s
    bound_s = bound.step_s(planned, build_mesh(planned.plan, cluster.gpus, cluster.gpus_per_node))
    assert 0.8 * step_s < bound_s <= step_s * (1 + 1e-9)


def test_an_engine_serves_them_as_their_programs_say() -> None:
    """Steps of a run against every kernel of their programs, and room for caches."""
    asked: dict[str, Any] = {
        "name": "drafts",
        "cluster": "hgx-h100-8",
        "workload": {"model": "llama-3.3-70b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 8}, "prompt": "1Ki", "output": 64, "requests": 8},
        "plans": [{"name": "P", "tp": 8}],
    }

    def served(drafts: dict[str, Any]) -> Any:
        return tspsim.simulate(asked | {"workload": {**asked["workload"], "speculation": drafts}}).plans[0]

    model = {"tokens": 4, "draft": "model", "model": "llama-3.1-8b", "rate": 0.7}
    one, own = served({"tokens": 4, "draft": "ngram", "rate": 0.7}), served(model)
    tree = served({"tokens": 8, "draft": "eagle", "tree": [4, 4], "positions": [0.9, 0.8]})
    assert own.ran and own.settings["engine"]["kv_tokens"] < 0.8 * one.settings["engine"]["kv_tokens"]
    assert own.serving["tpot_s"]["mean"] > one.serving["tpot_s"]["mean"]
    assert tree.ran and any("2.62 tokens" in note for note in tree.notes)


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ({"tokens": 3, "draft": "model"}, "needs model"),
        ({"tokens": 3, "draft": "eagle", "model": "llama-3.1-8b"}, "use draft: model"),
        ({"tokens": 3, "draft": "model", "model": "qwen3-8b"}, "what one drafts the other cannot verify"),
        ({"tokens": 3, "draft": "model", "model": "qwen3-30b-a3b"}, "experts"),
        ({"tokens": 4, "draft": "eagle", "tree": [2, 1]}, "2 + 1 are 3 drafts, and tokens 4"),
        ({"tokens": 3, "draft": "ngram", "tree": [2, 1]}, "drafts no tree; use mtp or eagle"),
        ({"tokens": 3, "draft": "eagle", "tree": [2, 1], "positions": [0.5]}, "a tree 2 deep; state one a depth"),
        ({"tokens": 3, "draft": "eagle", "tree": [2, 1], "accepted": 3.5}, "3 drafts"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_said(drafts: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        asked = question("llama-3.3-70b", [TP8], cluster="mi355x-8", pass_="verify", speculation=drafts, **WORK)
        look_up(tspsim.load(asked))
    assert said in str(error.value) or drafts.get("accepted"), error.value
    assert "speculation" in str(error.value)
