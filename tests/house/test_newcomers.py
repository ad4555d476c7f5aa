"""A context method and a scheme from outside: registered here, they run and are planned, bounded, remembered, reported;
and a contract that everything registered keeps, the package's own and these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import documents, newcomers

import tspsim
from tspsim.answer import schema
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.operators import Operator
from tspsim.parallel import CONTEXT_METHODS, SCHEMES
from tspsim.parallel.step import Writer
from tspsim.program import Compute
from tspsim.step.bound import bounds
from tspsim.step.question import look_up
from tspsim.step.simulation import scheduled
from tspsim.steps import FORWARD, Task
from tspsim.studies.contract import steps
from tspsim.studies.planner.candidate import plan_keys
from tspsim.studies.planner.space import RECOMPUTATION, Space

ROOT = Path(tspsim.__file__).parent.parent
#: Where the documents are: the package may be installed elsewhere.
CHECKOUT = Path(__file__).resolve().parents[2]
SMALL = """
name: small
layers: 4
hidden: 1024
attention: {heads: 16, kv_heads: 16, head_dim: 64}
mlp: {width: 4096, gated: true}
embedding: {vocab: 32000, tied: false}
source: made up for a test
"""
#: Plans of everything that is registered once :func:`registered` has run.
METHODS = [{"sp": 4, "exchange": name} for name in (*CONTEXT_METHODS.names(), newcomers.ANNOUNCE.name)]
NEWCOMERS = [{"sp": 8, "exchange": "announce"}, {"tp": 2, "sp": 4, "exchange": "announce"}, {"wp": 8}]
ALONE = [{axis: 4} for scheme in SCHEMES.values() for axis in scheme.axes] + [{"wp": 4}]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    CONTEXT_METHODS.register(newcomers.ANNOUNCE)
    SCHEMES.register(newcomers.WHOLE)
    yield
    CONTEXT_METHODS.remove(newcomers.ANNOUNCE.name)
    SCHEMES.remove(newcomers.WHOLE.name)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def question(model: str, *plans: dict[str, Any], pass_: str = "forward", **work: Any) -> dict[str, Any]:
    return {
        "name": "newcomers",
        "cluster": "mi300x-8",
        "workload": {"model": model, "pass": pass_, "sequence": "8Ki", **work},
        "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
    }


@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize("keys", NEWCOMERS, ids=str)
def test_they_run_below_their_bound_and_are_remembered(model: str, keys: dict[str, Any], pass_: str) -> None:
    asked = question(model, keys, pass_=pass_)
    (plan,) = tspsim.simulate(asked).plans
    (bound,) = bounds(tspsim.load(asked)).plans
    assert plan.ran and plan.tokens_per_s <= bound.tokens_per_s * (1 + 1e-9)
    assert plan.block_forward_tokens_per_s <= bound.block_tokens_per_s * (1 + 1e-9)
    assert plan.memory.parts["gathered_context"] > 0
    assert ("in_flight_weights" in plan.memory.parts) == ("wp" in keys)


def test_their_keys_are_read_told_and_checked(model: str) -> None:
    asked = question(model, {"sp": 8, "exchange": "announce", "announced_parts": "2"}, {"wp": 2, "pp": 2}, {"cp": 4})
    scenario = tspsim.load(asked)
    told = scenario.to_dict()["plans"]
    assert (told[0]["announced_parts"], told[1]["wp"], told[2]["sp"]) == (2, 2, 4)
    assert tspsim.load(asked | {"plans": told}).plans == scenario.plans
    first, second, third = tspsim.simulate(asked).plans
    assert first.settings["exchange"] == "announce" and first.settings["announced_parts"] == 2
    assert second.degrees["wp"] == 2 and third.degrees["sp"] == 4
    entry = schema.schema("scenario")["$defs"]["PlanSpec"]["properties"]
    assert "announce" in entry["exchange"]["enum"] and {"wp", "announced_parts", "cp"} <= entry.keys()
    for keys, said in (
        ({"exchange": "anounce"}, "did you mean 'announce'"),
        ({"announced_part": 2}, "did you mean 'announced_parts'"),
        ({"announced_parts": 0}, "plans.P0.announced_parts"),
        ({"wp": "many"}, "plans.P0.wp"),
        ({"wp": 2, "tp": 2}, "wp: 2 is a scheme of its own"),
        ({"wp": 2, "schedule": "zb-h1", "pp": 2}, "use 1f1b"),
        ({"cp": 2, "sp": 2}, "cp and sp are one axis"),
    ):
        with pytest.raises(InputError) as error:
            look_up(tspsim.load(question(model, keys, pass_="training", sequences_per_replica=2)))
        assert said in str(error.value), error.value


def test_what_a_newcomer_leaves_open_is_chosen_for_the_machine(model: str) -> None:
    (plan,) = tspsim.simulate(question(model, {"sp": 8, "exchange": "announce"})).plans
    assert plan.settings["chosen"] == ["announced_parts"] and plan.settings["announced_parts"] == 1
    assert any("K and V announced in 1 parts (`announced_parts`)" in note for note in plan.notes)


def test_the_planner_tries_them(model: str) -> None:
    asked = look_up(tspsim.load(question(model, {"dp": 8}, global_batch=8)))
    space = Space(asked.model, asked.work, asked.cluster, 8)
    tried = {(family.plan.scheme, family.plan.exchange) for family in space.families()}
    assert {("whole", "all_gather"), ("tensor", "announce"), ("folded", "all_gather")} <= tried
    plans = [
        plan
        for family in space.families()
        if family.plan.degree("wp") == 8 or (family.plan.sp == 8 and family.plan.exchange == "announce")
        for staged in space.within_stage(family)
        for layout in space.layouts(staged)
        for plan in space.plans(layout)
    ]
    assert space.left()["chosen for the machine"] == ("announced_parts",), "as its option says"
    names = {plan.name for plan in plans}
    assert "WP8-DP1 mb1 keep" in names and "SP8-DP1 announce mb1 keep a1" in names
    for each in plans:
        again = look_up(tspsim.load(question(asked.scenario.workload.model, plan_keys(each.plan), global_batch=8)))
        assert again.plans[0].degrees == each.plan.degrees and again.plans[0].options == each.plan.options


def test_a_search_goes_through_them(model: str) -> None:
    """A family has no schedule yet, but the options of its method."""
    few = {"cluster": {"device": "mi300x", "gpus_per_node": 4}, "plans": []}
    planned = tspsim.plan(question(model, global_batch=1) | few, top=1, budget="none")
    assert planned.best and planned.best[0].result.ran


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize("keys", [*METHODS, *ALONE], ids=str)
def test_everything_registered_keeps_the_contract(model: str, keys: dict[str, Any], pass_: str) -> None:
    """The laws of `tspsim check-plugin`: bytes, work, bounds, memory, folding."""
    held = list(steps.hold(question(model, keys, pass_=pass_), pass_))
    assert [each for each in held if each.outcome == "broken"] == []
    assert {"it runs", "memory names what is kept", "folded ranks are what every rank is"} <= {
        each.law for each in held if each.outcome == "kept"
    }
    assert all(each.summary for each in (*SCHEMES.values(), *CONTEXT_METHODS.values()))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("keys", [*METHODS, *ALONE], ids=str)
def test_forwards_run_the_same_kernels_whatever_is_made_again(model: str, keys: dict[str, Any]) -> None:
    """Bounds write the forward of a plan once for all that its backward may make again."""
    asked = look_up(tspsim.load(question(model, keys, pass_="training")))
    job = scheduled(asked, asked.plans[0])

    def kernels(again: str) -> Counter[Operator]:
        writer = Writer(job.scheme, job.with_recomputation(again), {})
        writer.visit(Task(FORWARD, 0, 0), job.chunks(0)[0])
        found: Counter[Operator] = Counter()
        for instruction, times in writer.builder.program().counted():
            for operator in instruction.operators if isinstance(instruction, Compute) else ():
                found[operator] += times
        return found

    kept = kernels("none")
    assert kept and all(kernels(again) == kept for again in RECOMPUTATION)


def test_reports_and_the_catalogue_tell_of_them(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = question(model, {"sp": 8, "exchange": "announce"}, {"wp": 8})
    (tmp_path / "new.yaml").write_text(json.dumps(asked))
    assert main(["run", "new.yaml", "--html", "new.html", "--json", "new.json"]) == 0
    page = (tmp_path / "new.html").read_text(encoding="utf-8")
    assert "announced parts" in page and "The weights of WP come before a layer begins" in page
    told = json.loads((tmp_path / "new.json").read_text())
    assert [plan["settings"]["exchange"] for plan in told["plans"]] == ["announce", "all_gather"]
    generate = documents.script("generate")
    tables = generate.registered()
    assert newcomers.ANNOUNCE.summary in tables and newcomers.WHOLE.summary in tables


def test_a_package_s_entry_points_are_found(model: str, tmp_path: Path) -> None:
    """A tiny installed package: its module, and metadata that names the objects."""
    site, metadata = tmp_path / "site", tmp_path / "site" / "strangers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "strangers.py").write_text(Path(newcomers.__file__).read_text(encoding="utf-8"))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[tspsim.context_methods]\nannounce = strangers:ANNOUNCE\n\n[tspsim.schemes]\nwhole = strangers:WHOLE\n"
    )
    (tmp_path / "new.yaml").write_text(json.dumps(question(model, {"sp": 8, "exchange": "announce"}, {"wp": 8})))
    done = subprocess.run(
        [sys.executable, "-m", "tspsim", "run", "new.yaml", "--json", "-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert [plan["tokens_per_s"] > 0 for plan in told["plans"]] == [True, True]


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        SCHEMES.register(newcomers.WHOLE)
