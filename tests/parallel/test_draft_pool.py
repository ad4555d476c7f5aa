"""A draft model on GPUs of its own: steps against those of the two models alone, memory, messages, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.bound import bounds
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan

LARGE = architecture(2048, layers=6, heads=16, kv_heads=8, head_dim=128, vocab=32000)
SMALL = architecture(512, layers=3, heads=8, kv_heads=8, head_dim=64, vocab=32000)
#: Drafts a step; contexts; sequences of all replicas.
DRAFTS, CONTEXT, ALL = 4, 4096, 64


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "large").mkdir()
    return model_file(tmp_path / "large", LARGE), model_file(tmp_path, SMALL)


def ran(model: str, gpus: int, batch: int, drafts: dict[str, Any] | None, **plan: Any) -> Any:
    """A step of a node of H100 with so many GPUs."""
    more: dict[str, Any] = {"pass_": "verify", "speculation": drafts} if drafts else {"pass_": "decode"}
    machine = {"device": "h100", "nodes": 1, "gpus_per_node": gpus}
    asked = question(model, [{"name": "P", **plan}], cluster=machine, batch=batch, context=CONTEXT, **more)
    (found,) = tspsim.simulate(asked).plans
    assert found.ran, found.error
    return found


def alone(files: tuple[str, str], tp: int, verified: int, drafted: int) -> tuple[float, float]:
    """Seconds that one replica verifies so many sequences, and that one drafts for so many, each by itself."""
    large, small = files
    verify = ran(large, tp, verified, {"tokens": DRAFTS, "draft": "ngram"}, tp=tp).step_time_s
    return verify, DRAFTS * ran(small, tp, drafted, None, tp=tp).step_time_s


@pytest.mark.parametrize(("tp", "drafting"), [(2, 1), (4, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_a_step_is_what_both_models_take_alone_one_after_the_other_or_in_turn(
    files: tuple[str, str], tp: int, drafting: int
) -> None:
    """V + D, and max(V₁, D₂) + max(V₂, D₁) of halves, and a few messages of 10 us."""
    large, small = files
    replicas = 8 // tp
    verifying = replicas - drafting
    batch = 24 if verifying == 3 else ALL
    drafts = {"tokens": DRAFTS, "draft": "model", "model": small}
    whole, turns = (
        ran(large, 8, batch, drafts, tp=tp, draft_replicas=drafting, draft_turns=parts).step_time_s for parts in (1, 2)
    )
    verified, drafted = batch * replicas // verifying, batch * replicas // drafting
    both = alone(files, tp, verified, drafted)
    assert sum(both) < whole < sum(both) + 80e-6
    halves = alone(files, tp, verified // 2, drafted // 2)
    assert 2 * max(halves) < turns < 2 * max(halves) + 80e-6


def test_sequences_that_do_not_come_out_even_are_those_of_the_busiest_replica(files: tuple[str, str]) -> None:
    """32 over three replicas: 11 are verified by one, as though all had 11, and drafted by the fourth."""
    large, small = files
    drafts = {"tokens": DRAFTS, "draft": "model", "model": small}
    whole = ran(large, 8, 8, drafts, tp=2, draft_replicas=1).step_time_s
    both = sum(alone(files, 2, 11, 33))
    assert both < whole < both + 80e-6


def test_the_fuller_kind_of_gpu_is_kept_and_folding_changes_nothing(files: tuple[str, str]) -> None:
    large, small = files
    drafts = {"tokens": DRAFTS, "draft": "model", "model": small}
    apart, beside = (ran(large, 8, 16, drafts, tp=4, **keys) for keys in ({"draft_replicas": 1}, {}))
    own = ran(large, 4, 32, {"tokens": DRAFTS, "draft": "ngram"}, tp=4)
    for part in ("weights", "kv_cache"):
        assert apart.memory.parts[part] == pytest.approx(own.memory.parts[part], rel=1e-9)
    assert apart.memory.parts["weights"] < beside.memory.parts["weights"] and "draft_pool" not in apart.memory.parts
    larger = ran(small, 8, 16, {"tokens": DRAFTS, "draft": "model", "model": large}, tp=4, draft_replicas=1)
    kept = sum(larger.memory.parts[part] for part in ("weights", "kv_cache", "draft_pool"))
    full = ran(large, 4, 32, None, tp=4).memory.parts
    assert kept == pytest.approx(full["weights"] + full["kv_cache"], rel=2e-3)
    machine = {"device": "h100", "nodes": 1}
    plans = [{"name": "P", "tp": 2, "draft_replicas": 2, "draft_turns": 2}]
    asked = tspsim.load(
        question(large, plans, cluster=machine, pass_="verify", batch=8, context=CONTEXT, speculation=drafts)
    )
    found, (ceiling,) = look_up(asked), bounds(asked).plans
    folded, every = (run_plan(found, found.plans[0], every_rank=whole) for whole in (False, True))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)
    assert folded.communication_bytes_per_layer == every.communication_bytes_per_layer
    assert folded.tokens_per_s <= ceiling.tokens_per_s
    assert any("replicas 2 to 3 draft" in note for note in folded.notes)


@pytest.mark.parametrize(
    ("keys", "work", "said"),
    [
        ({"tp": 4, "draft_replicas": 1}, {"speculation": {"tokens": 4, "draft": "eagle"}}, "a draft model of its own"),
        ({"tp": 4, "draft_turns": 2}, {}, "needs draft_replicas"),
        ({"tp": 2, "draft_replicas": 3}, {}, "1 are left"),
        ({"tp": 2, "draft_replicas": 4}, {}, "0 are left"),
        ({"tp": 4, "draft_replicas": 1, "draft_turns": 2}, {"batch": 1}, None),
        ({"tp": 2, "pp": 2, "draft_replicas": 1}, {}, "pp: 2 beside draft_replicas"),
        ({"tp": 4, "dcp": 2, "draft_replicas": 1}, {}, "beside draft_replicas is not built"),
    ],
    ids=str,
)
def test_what_it_is_not_built_for_is_said(
    keys: dict[str, Any], work: dict[str, Any], said: str | None, files: tuple[str, str]
) -> None:
    large, small = files
    drafts = {"tokens": 4, "draft": "model", "model": small}
    asked = {"batch": 8, "context": CONTEXT, "pass_": "verify", "speculation": drafts, **work}
    stated = question(large, [{"name": "P", **keys}], cluster={"device": "h100", "nodes": 1}, **asked)
    if said is None:
        assert tspsim.simulate(stated).plans[0].ran
        return
    with pytest.raises(InputError) as error:
        look_up(tspsim.load(stated))
    assert said in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 2])
def test_more_sequences_contexts_and_drafts_never_take_less(turns: int, files: tuple[str, str]) -> None:
    large, small = files
    keys = {"tp": 4, "draft_replicas": 1, "draft_turns": turns}

    def step_s(batch: int = 16, context: int = CONTEXT, drafts: int = DRAFTS) -> float:
        spoken = {"tokens": drafts, "draft": "model", "model": small}
        work = {"pass_": "verify", "batch": batch, "context": context, "speculation": spoken}
        (found,) = tspsim.simulate(question(large, [{"name": "P", **keys}], cluster="hgx-h100-8", **work)).plans
        return float(found.step_time_s)

    for times in (
        [step_s(batch=batch) for batch in (2, 3, 16, 17, 64)],
        [step_s(context=context) for context in (64, 4096, 4097, 16384)],
        [step_s(drafts=drafts) for drafts in (1, 2, 4, 7)],
    ):
        assert times == sorted(times)
