"""`tspsim check-plugin`: what a package brings is held against the contract that the package's own objects keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import newcomers, serving_newcomers
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.registry import Registry
from tspsim.cli import main
from tspsim.network import CollectiveAlgorithm, scheduled
from tspsim.network.collectives.algorithm import ALGORITHMS
from tspsim.parallel import CONTEXT_METHODS
from tspsim.parallel.context.attention import others_context
from tspsim.parallel.partition import local_segments
from tspsim.serving.routers import ROUTERS
from tspsim.step.question import look_up
from tspsim.studies.contract import check, probes, registries
from tspsim.studies.contract.steps import below_paths

#: Kinds that are quickly held; all of them in the slow walk.
QUICK = ("collective_algorithms", "decode_exchanges", "decode_forms", "drafts")


def shipped(quick: bool) -> list[str]:
    every = {group.removeprefix("tspsim."): registry for group, registry in registries().items()}
    return [f"{group}/{name}" for group, registry in every.items() if (group in QUICK) == quick for name in registry]


@pytest.mark.parametrize("name", shipped(quick=True))
def test_what_ships_keeps_its_contract(name: str) -> None:
    found = check(name)
    assert found.broken == () and found.held


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped(quick=False))
def test_all_that_ships_keeps_its_contract(name: str) -> None:
    assert check(name).broken == ()


def attends_alone(builder: Any, job: Any, layer: Any, position: int, after: int) -> int:
    """It forgot to send: keys and values of others are attended, and never came."""
    plan, work = job.plan, job.work
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    return builder.compute("attention", layer.attention(segments, causal=work.causal), after=[after])


def attends_little(builder: Any, job: Any, layer: Any, position: int, after: int) -> int:
    """It sends, and leaves out half of what it should attend."""
    plan, work, size = job.plan, job.work, 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    after = builder.collective("all_gather", "sp", size, "K,V", after=[after], stream="context")
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    return builder.compute("attention", layer.attention(segments[:1], causal=work.causal), after=[after])


def fails(builder: Any, job: Any, layer: Any, position: int, after: int) -> int:
    raise ZeroDivisionError("not ready")


MUTE = replace(newcomers.ANNOUNCE, choices=lambda plan: (), options=(), name="mute", forward=attends_alone)
WRONG = {
    "mute": (replace(MUTE, received_bytes=lambda job: 0.0), "ranks receive what attention needs"),
    "liar": (replace(MUTE, name="liar", received_bytes=others_context), "bytes received are those of the closed form"),
    "lazy": (replace(MUTE, name="lazy", forward=attends_little), "all of the model's work is done"),
    "forgetful": (replace(newcomers.ANNOUNCE, name="forgetful", buffers=lambda job: []), "memory names what is kept"),
    "broken": (replace(MUTE, name="broken", forward=fails), "it runs"),
}


@pytest.fixture
def registered() -> Iterator[None]:
    added: list[tuple[Registry[Any], Any]] = [(CONTEXT_METHODS, method) for method, _ in WRONG.values()]
    added += [(CONTEXT_METHODS, newcomers.ANNOUNCE), (ROUTERS, serving_newcomers.BY_LENGTH), (ROUTERS, Away())]
    added += [(ALGORITHMS, CollectiveAlgorithm("silent", ("all_gather",), "sends half", half))]
    for registry, thing in added:
        registry.register(thing)
    yield
    for registry, thing in added:
        registry.remove(thing.name)


def half(group: Any, kind: Any) -> list[Any]:
    after = group.ranks[1:] + group.ranks[:1]
    return [scheduled(group, "ring", group.ranks, after, 0.5 * kind.passed_on(group.size), node_steps=group.size)]


class Away:
    """A router that sends to a replica that is not there."""

    name, summary = "away", "to nobody"

    def open(self, replicas: Any) -> Any:
        return lambda request: len(replicas)


@pytest.mark.in_turn(5)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", WRONG)
def test_a_method_that_cheats_is_told_by_the_law_that_it_breaks(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    law = WRONG[name][1]
    assert main(["check-plugin", name, "--json", str(tmp_path / "a.json")]) == 2
    printed = capsys.readouterr()
    assert f"broken  {law}" in printed.out and printed.err.count("\n") == 1
    assert printed.err.startswith(f"tspsim: context_methods/{name}: breaks ")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["broken"] and {each["law"] for each in told["findings"] if each["outcome"] == "broken"} >= {law}


@pytest.mark.usefixtures("registered")
def test_strangers_of_other_kinds_are_held_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-plugin", "announce"]) == 0
    assert main(["check-plugin", "by_length"]) == 0
    assert "kept" in capsys.readouterr().out
    assert main(["check-plugin", "collective_algorithms/silent"]) == 2
    assert "receives" in capsys.readouterr().err
    assert main(["check-plugin", "away"]) == 2
    assert "it runs" in capsys.readouterr().err


def test_names_of_nobody_and_of_several_are_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for name, told in (
        ("rng", "did you mean 'ring'?"),
        ("ring", "write collective_algorithms/ring or context_methods/ring"),
        ("context_method/ring", "did you mean 'context_methods'?"),
    ):
        assert main(["check-plugin", name]) == 2
        assert told in capsys.readouterr().err


def test_what_needs_keys_or_a_scenario_of_its_own_takes_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check-plugin", "lengths/uniform", "--with", "of=600", "--with", "from=0.2"]) == 0
    assert "every request is answered" in capsys.readouterr().out
    assert main(["check-plugin", "attention_kinds/gqa"]) == 0
    assert "give --scenario FILE" in capsys.readouterr().out
    work = {"model": probes.Models(tmp_path).dense, "pass": "forward", "sequence": "1Ki"}
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps(probes.question(work, {"tp": 8})))
    assert main(["check-plugin", "attention_kinds/gqa", "--scenario", str(own)]) == 0
    assert "folded ranks are what every rank is" in capsys.readouterr().out


def test_bounds_of_a_model_of_unlike_layers_hold_a_plugin_to_what_is_true(tmp_path: Path) -> None:
    """A window in every other layer: one layer, taken for all, said 1.9 times what a step takes."""
    unlike = replace(architecture(1024, layers=4, heads=16, head_dim=64, vocab=32000), window=512, full_every=2)
    asked = question(model_file(tmp_path, unlike), [{"name": "P", "tp": 8}], pass_="training", sequence=16384)
    found = look_up(tspsim.load(asked))
    (answer,) = tspsim.simulate(asked).plans
    held = below_paths(found, found.job(found.plans[0]), answer, "P", {"tp": 8})
    assert held.outcome == "kept", held
