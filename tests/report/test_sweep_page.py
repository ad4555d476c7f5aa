"""The page of a sweep says what moves what, draws it whatever was swept, and tells every refused run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.report.sweep import page
from tspsim.report.sweep.effects import effect_of, headline, loss_in_words, scaling, sentences
from tspsim.report.sweep.view import SweepView
from tspsim.step.cells import Cell
from tspsim.step.result import Memory, PlanResult, Range, Result
from tspsim.studies.table import Table, make_columns, numbers_of

NODES, SEQUENCE = "cluster.nodes", "workload.sequence"
Rate = Callable[[Mapping[str, Any], str], float | None]


def table(axes: Mapping[str, Sequence[Cell]], plans: Sequence[str], rate: Rate, **more: Any) -> Table:
    """A sweep whose rates are made up; None refuses."""
    rows, results = [], []
    steps = zip(*axes.values(), strict=True) if more.get("zipped") else product(*axes.values())
    for point, cells in enumerate(steps):
        at = dict(zip(axes, cells, strict=True))
        gpus = 8 * int(at.get(NODES, 1))
        made = []
        for name in plans:
            value = rate(at, name)
            plan = PlanResult(name, {"dp": gpus}, Memory({"weights": 1e9}, 2e9), error="needs <more> memory")
            if value is not None:
                tokens = 1000 * gpus
                plan = PlanResult(
                    name, {"dp": gpus}, Memory({"weights": 1e9}, 2e9), step_time_s=tokens / value,
                    tokens_per_step=tokens, gpus=gpus, range=Range(0.9 * value, 1.1 * value, "made up"),
                    breakdown_s={"compute": tokens / value, "exposed_communication": {}, "bubble": 0.0, "idle": 0.0},
                    communication_bytes_per_layer={"total": 1.0}, communication_bytes_per_step={"total": 1.0}, mfu=0.5,
                )  # fmt: skip
            document = {"cluster": "c", "device": "h100", "gpus": gpus, "plan": plan.to_json()}
            rows.append({"point": point, **at, "plan": name, **numbers_of(document)})
            made.append(plan)
        results.append(Result({"name": str(point)}, {"gpus": gpus, "device": {"name": "h100"}}, tuple(made)))
    columns = make_columns(rows, ("point", *axes, "plan", "cluster", "device", "gpus"))
    return Table(tuple(axes), columns, tuple(results), **more)


def power(nodes: float, length: float, factor: float = 1.0) -> Rate:
    """Rates that are a product of powers of the axes, and a factor for plan B."""

    def rate(at: Mapping[str, Any], plan: str) -> float:
        return 1e5 * at.get(NODES, 1) ** nodes * at.get(SEQUENCE, 1) ** length * (factor if plan == "B" else 1.0)

    return rate


def figures(text: str) -> dict[str, Any]:
    found = re.search(r'id="report-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    drawn: dict[str, Any] = json.loads(found[1])["figures"]
    return drawn


def words(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text.partition("<main>")[2].partition("</main>")[0])).split())


@settings(max_examples=25)
@given(st.floats(-2, 2), st.floats(-2, 2), st.lists(st.integers(0, 7), max_size=2, unique=True))
def test_an_effect_is_that_of_the_axis_alone_whatever_the_others_do(n: float, s: float, refused: list[int]) -> None:
    """Rates that are products of powers: the geometric mean finds each exponent, also where runs are refused."""
    cells = list(product((1, 2, 4), (1024, 8192), "AB"))
    lost = [cells[each] for each in refused if cells[each][0] not in (1, 4)]  # the ends of nodes stay
    made = power(n, s)
    view = SweepView(
        table(
            {NODES: (1, 2, 4), SEQUENCE: (1024, 8192)}, "AB",
            lambda at, plan: None if (at[NODES], at[SEQUENCE], plan) in lost else made(at, plan),
        ),
        "t",
    )  # fmt: skip
    for axis, exponent, span in ((view.axes[0], n, 4.0), (view.axes[1], s, 8.0)):
        effect = effect_of(view, axis, view.measures[0])
        assert effect is not None
        assert effect.ends == pytest.approx(span**exponent, rel=1e-9)
        assert effect.reach == pytest.approx(span ** abs(exponent), rel=1e-9)


@pytest.mark.parametrize(
    ("made", "told", "others"),
    [
        (
            power(0.9, -0.2),
            "Tokens/s rises 6.5 times from 1 to 8 nodes",
            "nodes has the largest effect; sequence 1.52 times",
        ),
        (
            power(0.1, -1.0),
            "Tokens/s falls 8.0 times from 1Ki to 8Ki tokens of sequence",
            "sequence has the largest effect",
        ),
        (
            power(0.0, -1.0, 9.0),
            "Tokens/s is highest with B, 9.0 times between best and worst",
            "the plan has the largest effect",
        ),
    ],
)
def test_the_headline_names_the_axis_with_the_largest_effect(made: Rate, told: str, others: str) -> None:
    view = SweepView(table({NODES: (1, 2, 4, 8), SEQUENCE: (1024, 8192)}, "AB", made), "t")
    first, further = headline(view, view.measures[0])
    assert first == told and further.startswith(others)


def test_a_peak_and_a_change_of_leaders_are_told() -> None:
    rates = {("A", 1): 9.0, ("A", 2): 10.0, ("A", 4): 5.0, ("B", 1): 3.0, ("B", 2): 9.0, ("B", 4): 8.0}
    view = SweepView(table({NODES: (1, 2, 4)}, "AB", lambda at, plan: rates[plan, at[NODES]]), "t")
    assert headline(view, view.measures[0])[0].startswith("Tokens/s peaks at 2 nodes")
    assert "Leading plans along nodes: A at 1 to 2, B at 4." in sentences(view, view.measures[0])


def test_a_plan_that_does_not_lead_everywhere_is_told_beside_the_best_point() -> None:
    rates = {("A", 1): 9.0, ("A", 2): 9.0, ("A", 4): 9.0, ("B", 1): 8.0, ("B", 2): 8.0, ("B", 4): 90.0}
    view = SweepView(table({NODES: (1, 2, 4)}, "AB", lambda at, plan: rates[plan, at[NODES]]), "t")
    told = [headline(view, view.measures[0])[0], *sentences(view, view.measures[0])]
    assert any("highest most often (2 of 3 times) with A" in each for each in told)
    assert any(each.startswith("Best: 90") and each.endswith("B.") for each in told)


def test_of_plans_that_lead_as_often_none_leads_most_often() -> None:
    rates = {("A", 1): 9.0, ("A", 2): 9.0, ("B", 1): 8.0, ("B", 2): 18.0}
    view = SweepView(table({NODES: (1, 2)}, "AB", lambda at, plan: rates[plan, at[NODES]]), "t")
    told = [headline(view, view.measures[0])[0], *sentences(view, view.measures[0])]
    assert any("highest as often (1 of 2 times each) with A and B" in each for each in told)
    assert not any("most often" in each for each in told)


def test_weak_scaling_tells_its_loss_and_the_axis_shows_it() -> None:
    text = page(table({NODES: (1, 4, 16)}, "AB", power(0.99, 0.0)), "t", plotly_js="p.js")
    view = SweepView(table({NODES: (1, 4, 16)}, "A", power(0.99, 0.0)), "t")
    kind, lines = scaling(view)
    lost = 1 - 16**-0.01
    assert kind == "weak" and lines[0].loss == pytest.approx(lost)
    assert loss_in_words(lines) == f"Against 8 GPUs A loses {100 * lost:.2g} % at 128 GPUs."
    drawn = figures(text)["efficiency"]
    low, high = drawn["layout"]["yaxis"]["range"]
    assert 90 < low < 100 * (1 - lost) and 100 < high < 105  # a flat line at the top tells nothing
    assert drawn["data"][0]["text"][-1].strip() == f"−{100 * lost:.2g} %"


@pytest.mark.parametrize(
    ("axes", "more", "drawn"),
    [
        ({SEQUENCE: (1024, 2048)}, {}, {"lines"}),
        ({"workload.stack": ("a", "b", "c")}, {}, {"lines"}),
        ({NODES: (1, 2), "plans.A.overlap": (True, False)}, {}, {"lines", "heat", "reach", "strands", "efficiency"}),
        ({NODES: (1, 2), SEQUENCE: (1, 2), "a.b": ("x", None)}, {}, {"strands", "reach", "efficiency"}),
        ({NODES: (1, 2, 4), SEQUENCE: (4, 2, 1)}, {"zipped": True}, {"lines", "efficiency"}),
        ({"plans": ("A", "B")}, {}, set()),
    ],
)  # fmt: skip
def test_every_shape_of_a_sweep_has_its_figures_and_every_axis_its_title(
    axes: Mapping[str, Sequence[Cell]], more: dict[str, Any], drawn: set[str]
) -> None:
    for plans in ("A", "AB"):
        found = figures(page(table(axes, plans, power(1.0, -0.5, 1.3), **more), "t", plotly_js="p.js"))
        further = {"reach"} if len(plans) > 1 and axes.keys() != {"plans"} else set()
        assert drawn - {"strands"} <= set(found) <= drawn | further | {"reach", "strands"}
        for figure in found.values():
            for choice in figure.get("choices", [figure]):
                for name, axis in choice["layout"].items():
                    if name.startswith(("xaxis", "yaxis")) and axis.get("visible", True):
                        assert axis["title"]["text"], name


def test_refused_runs_are_told_and_leave_gaps() -> None:
    def rate(at: Mapping[str, Any], plan: str) -> float | None:
        return None if at[SEQUENCE] == 4096 or plan == "B" else 1.0 / at[SEQUENCE]

    axes = {SEQUENCE: (1024, 2048, 4096), NODES: (1, 2)}
    text = page(table(axes, "AB", rate), "<i>t</i>", "what <b>", plotly_js="p.js")
    told = words(text)
    assert "8 of 12 rows are refused" in told and told.count("needs <more> memory") == 8
    assert "<i>t</i>" in told and "what <b>" in told and "4 of 12 rows ran" in told
    drawn = figures(text)
    line = next(trace for trace in drawn["lines"]["choices"][0]["data"] if "A" in trace["name"])
    assert line["y"][2] is None and line["y"][0] is not None and line["connectgaps"] is False
    heat = drawn["heat"]["choices"][0]["data"]
    assert [row[2] for row in heat[0]["z"]] == [None, None] and "refused" in heat[1]["hovertext"][0]
    nothing = words(page(table(axes, "A", lambda _at, _plan: None), "t", plotly_js="p.js"))
    assert "No plan ran at any point." in nothing and nothing.count("needs <more> memory") == 6


def test_quantities_have_their_units() -> None:
    made = table({"prices.gpu_hour": (1.0, 2.0), "x.wait": (0.001, 0.02)}, "A", power(0, 0), units={
        "prices.gpu_hour": "USD/h", "x.wait": "s",
    })  # fmt: skip
    price, wait = SweepView(made, "t").axes
    assert (price.title, price.words(2.0)) == ("gpu hour, USD/h", "2 USD/h")
    assert (wait.title, wait.words(0.02)) == ("wait, s", "20.0 ms")


def test_a_large_sweep_stays_a_page() -> None:
    """Ten thousand rows: some hundred in the ranking, some hundred strands, told as such."""
    axes = {NODES: range(1, 18), SEQUENCE: range(1, 18), "a.b": range(17)}
    made = table({name: tuple(values) for name, values in axes.items()}, "A", power(1.0, -0.3))
    text = page(made, "t", plotly_js="p.js")
    assert len(text) < 3_000_000 and "400 of 4,913 rows are drawn" in text
    strands = figures(text)["strands"]["choices"][0]["data"]
    assert sum(trace["x"].count(None) for trace in strands[:-1]) == 400
    assert not any(math.isnan(y) for trace in strands for y in trace["y"] if y is not None)
