"""Drafters on other GPUs under traffic: steps against the engine's run of all replicas, services against one replica
that drafts for itself, rooms of both kinds of GPUs, several in step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.serving.costs import costs_of as plain_costs_of
from tspsim.serving.pooled_drafts import PooledDraftCosts, costs_of
from tspsim.serving.programs import StepPrograms
from tspsim.serving.work import StepWork
from tspsim.step.question import look_up
from tspsim.steps import MIXED_STEP, VERIFY_STEP, Load, PromptChunk

LARGE = architecture(2048, layers=6, heads=16, kv_heads=8, head_dim=128, vocab=32000)
SMALL = architecture(512, layers=3, heads=8, kv_heads=8, head_dim=64, vocab=32000)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "large").mkdir()
    return model_file(tmp_path / "large", LARGE), model_file(tmp_path, SMALL)


def costs(files: tuple[str, str], **keys: Any) -> tuple[PooledDraftCosts, StepPrograms]:
    """Tabulated steps of a plan on eight H100, and its whole programs."""
    drafts = {"tokens": 4, "draft": "model", "model": files[1]}
    asked = look_up(
        tspsim.load(
            question(
                files[0], [{"name": "P", **keys}], cluster={"device": "h100", "nodes": 1}, pass_="verify",
                batch=4, context=1024, speculation=drafts,
            )
        )
    )  # fmt: skip
    plan, speculation = asked.plans[0], asked.work.load.speculation
    found = costs_of(asked, plan, speculation=speculation)
    assert isinstance(found, PooledDraftCosts)
    return found, StepPrograms(asked, plan, speculation)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize(("tp", "verifying"), [(4, 1), (2, 3)])
def test_a_step_is_what_the_engine_finds_of_all_replicas(
    files: tuple[str, str], tp: int, verifying: int, turns: int
) -> None:
    """Sequences that decode, alone and beside a prompt: the tabulated V, D and messages, and every rank's program."""
    replicas = verifying + 1
    tabulated, programs = costs(files, tp=tp, draft_replicas=1, draft_turns=turns)
    held, context = 8 * verifying, 4096
    decoding = Load(batch=held, contexts=(context,), speculation=programs.speculation)
    whole = programs.simulated(programs.job(VERIFY_STEP, decoding)).seconds
    # A replica's part of the plan's batch, of those that verify.
    work = StepWork((), (context,) * (held * replicas // verifying), 5)
    assert tabulated.seconds([work] * verifying) == pytest.approx(whole, rel=2e-3)
    pieces = (PromptChunk(512, 0), *[PromptChunk(512, 0)] * (verifying - 1))
    mixed = Load(
        prompts=len(pieces), prompt_chunks=pieces, batch=held, contexts=(context,), speculation=programs.speculation
    )
    whole = programs.simulated(programs.job(MIXED_STEP, mixed)).seconds
    chunks = (PromptChunk(512, 0),) * (len(pieces) * replicas // verifying)
    beside = StepWork(chunks, (context,) * (held * replicas // verifying), 5)
    assert tabulated.seconds([beside] * verifying) == pytest.approx(whole, rel=5e-3)


def served(files: tuple[str, str], gpus: int, plan: dict[str, Any], **more: Any) -> Any:
    asked: dict[str, Any] = {
        "name": "served", "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": gpus},
        "workload": {
            "model": files[0], "stack": more.pop("stack", "vllm"),
            "speculation": {"tokens": 4, "accepted": 3.0, "draft": "model", "model": files[1]} | more.pop("drafts", {}),
        },
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 12}, "prompt": "1Ki", "output": 64, "requests": 24},
        "plans": [{"name": "P", **plan}],
    }  # fmt: skip
    (found,) = tspsim.simulate(asked, **more).plans
    assert found.ran, found.error
    return found


def test_one_replica_that_drafts_for_one_is_a_replica_that_drafts_for_itself_and_messages(
    files: tuple[str, str],
) -> None:
    """V + D + x against V + D: the same requests take some 20 us a step longer, on twice the GPUs."""
    apart = served(files, 8, {"tp": 4, "draft_replicas": 1})
    itself = served(files, 4, {"tp": 4})
    longer = apart.serving["wall_s"] / itself.serving["wall_s"]
    step_s = itself.serving["decode_step"]["parts_s"]
    assert 1.0 < longer < 1.0 + 40e-6 / sum(step_s.values())
    parts = apart.serving["decode_step"]["parts_s"]
    assert parts["drafts from other GPUs"] > 0.0
    assert any("replica 1 drafts" in note for note in apart.notes)
    turned = served(files, 8, {"tp": 4, "draft_replicas": 1, "draft_turns": 2})
    assert turned.serving["wall_s"] != apart.serving["wall_s"]
    each = served(files, 8, {"tp": 4, "draft_replicas": 1, "draft_turns": 2}, every_step=True)
    assert each.serving["wall_s"] == pytest.approx(turned.serving["wall_s"], rel=1e-9)


def test_several_that_one_replica_drafts_for_step_together(files: tuple[str, str]) -> None:
    """Three engines, each with its own limits and caches; SGLang's share nothing of each other's budget."""
    found = served(files, 8, {"tp": 2, "draft_replicas": 1}, stack="sglang")
    assert any("3 replicas that one drafts for begin every step together" in note for note in found.notes)
    assert found.settings["replicas"] == 1 and found.settings["attention_replicas"] == 3
    assert found.serving["requests"] == 24
    alone = served(files, 2, {"tp": 2}, stack="sglang")
    assert found.settings["engine"]["chunked_prefill_size"] == alone.settings["engine"]["chunked_prefill_size"]
    two = served(files, 8, {"tp": 2, "draft_replicas": 2})
    assert two.settings["replicas"] == 2 and two.settings["attention_replicas"] == 1


def test_a_drafter_that_keeps_more_than_the_model_decides_how_much_a_replica_holds(files: tuple[str, str]) -> None:
    """The small model verified for by the large one: as many sequences as the large one holds alone, over those that it
    drafts for."""
    own, _ = costs(files, tp=4, draft_replicas=1)
    turned, _ = costs(files[::-1], tp=4, draft_replicas=1)
    asked = look_up(
        tspsim.load(
            question(files[0], [{"name": "P", "tp": 4}], cluster={"device": "h100", "nodes": 1}, pass_="decode",
                     batch=4, context=1024)
        )
    )  # fmt: skip
    alone = plain_costs_of(asked, asked.plans[0]).capacity
    assert turned.capacity.sessions(4096) == pytest.approx(alone.sessions(4096), rel=2e-3)
    assert own.capacity.sessions(4096) == pytest.approx(alone.sessions(4096), rel=2e-3)
    several, _ = costs(files[::-1], tp=2, draft_replicas=1)
    single, _ = costs(files[::-1], tp=2, draft_replicas=2)
    assert several.capacity.sessions(4096) * 3 == pytest.approx(single.capacity.sessions(4096), rel=1e-6)


@pytest.mark.parametrize(
    ("chunks", "held"),
    [([(512, 0)] * 4, 0), ([(512, 0)] * 12, 32), ([(2048, 16384)], 8), ([(1024, 0, False)], 32)],
    ids=["prompts", "prompts and sequences", "behind a context", "a piece that does not end"],
)
def test_steps_with_prompts_behind_which_a_model_drafts_are_those_of_their_programs(
    files: tuple[str, str], chunks: list[tuple[int, ...]], held: int
) -> None:
    """Up to 18 % off where what drafts add was one ratio a number of tokens."""
    tabulated, _ = costs(files, tp=4, draft_replicas=1)
    itself = plain_costs_of(tabulated.question, tabulated.plan, speculation=tabulated.speculation)
    work = StepWork([PromptChunk(*chunk) for chunk in chunks], (8192,) * held, 5)
    assert itself.seconds([work]) == pytest.approx(itself.programs.together_s(work), rel=5e-3)


def test_other_drafters_stay_where_the_model_is(files: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=r"what a draft model of its own makes \(`draft: model`\)"):
        served(files, 8, {"tp": 4, "draft_replicas": 1}, drafts={"draft": "eagle", "model": None})
