"""docs/purchase.md says what the package says now, and its commands are those that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents
from pydantic import BaseModel

from tspsim.scenario import Offer, load
from tspsim.scenario.project import Failures, Parts, Power, Project
from tspsim.studies import Sweep
from tspsim.studies.axes import Point

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "purchase.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return documents.script("generate_purchase")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", ["offers", "project", "verdict", "faults"])
def test_what_is_committed_is_what_the_package_says(generator: ModuleType, name: str) -> None:
    (committed,) = generator.pages.block(name).findall(TEXT)
    assert committed == f"{generator.TABLES[name]()}\n", "run python docs/generate_purchase.py"


def sweeps() -> list[tuple[str, list[str]]]:
    """The sweeps of the page: scenario and axes."""
    commands = "".join(re.findall(r"```shell\n(.*?)```", TEXT, re.DOTALL)).replace("\\\n", " ").splitlines()
    found = []
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[:2] == ["tspsim", "sweep"]:
            found.append((words[2], [words[i + 1] for i, word in enumerate(words) if word == "--over"]))
    return found


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("scenario", "over"), sweeps(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_sweep_of_the_page_runs_at_its_ends(scenario: str, over: list[str]) -> None:
    """First and last point, with few tokens and at most 16 nodes, to be quick."""
    sweep = Sweep(scenario, over)

    def brief(point: Point) -> list[str]:
        question = sweep.scenario_at(point)
        nodes = getattr(question.cluster, "nodes", 1)
        return [*point.overrides, "workload.sequence=4Ki", f"cluster.nodes={min(16, nodes)}"]

    from tspsim.step.simulation import simulate
    from tspsim.studies.axes import choose

    for point in (sweep.points[0], sweep.points[-1]):
        result = simulate(choose(load(scenario, brief(point)), point.plans))
        assert any(plan.ran for plan in result.plans)


@pytest.mark.parametrize("section", [Offer, Project, Failures, Power, Parts])
def test_every_key_of_a_purchase_is_described(section: type[BaseModel]) -> None:
    for name in section.model_fields:
        told = name if not name.endswith("_power") else "nic_power"  # the others follow: nic_power, …
        assert re.search(rf"[`{{ ]{told}[`:]", TEXT), f"{section.__name__}.{name}"


def test_the_page_has_the_sweeps_that_the_issue_asks_for() -> None:
    assert len(sweeps()) == 5
    first = Sweep(*sweeps()[0])
    assert len(first.points) == 8 * 4
    assert first.scenario_at(first.points[-1]).workload.sequence == 2**20
