"""Paths, lists and ranges of a sweep, and the points they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.studies.axes import MOST_POINTS, choose, column, expand, points, read_axis, split


@pytest.mark.parametrize(
    ("item", "values"),
    [
        ("1..128*2", ["1", "2", "4", "8", "16", "32", "64", "128"]),
        ("32Ki..256Ki*2", ["32768", "65536", "131072", "262144"]),
        ("1..9", [str(n) for n in range(1, 10)]),
        ("0..10+5", ["0", "5", "10"]),
        ("1..10*10", ["1", "10"]),
        ("1..99*10", ["1", "10"]),
        ("0.1..0.5+0.1", ["0.1", "0.2", "0.3", "0.4", "0.5"]),
        ("1k..3k+1k", ["1000", "2000", "3000"]),
        ("1e3..2e3+1e3", ["1000", "2000"]),
        ("1..4*2 USD/h", ["1 USD/h", "2 USD/h", "4 USD/h"]),
        ("100..400*2 Gb/s", ["100 Gb/s", "200 Gb/s", "400 Gb/s"]),
        ("5..5", ["5"]),
        ("../models/mine.yaml", ["../models/mine.yaml"]),
        ("'1..3'", ["'1..3'"]),
        ("1...3", ["1...3"]),
    ],
)
def test_ranges(item: str, values: list[str]) -> None:
    assert expand(item) == values


@pytest.mark.parametrize("item", ["9..1", "1..9*1", "1..9*0.5", "0..9*2", "1..9+0", "1..1e9", "1..2*1.0000001"])
def test_a_range_that_is_empty_endless_or_too_long_is_refused(item: str) -> None:
    with pytest.raises(InputError, match="range"):
        expand(item)


@given(first=st.integers(1, 10**6), factor=st.integers(2, 9), steps=st.integers(0, 12))
def test_a_geometric_range_hits_its_end_exactly(first: int, factor: int, steps: int) -> None:
    last = first * factor**steps
    assert [int(value) for value in expand(f"{first}..{last}*{factor}")] == [
        first * factor**step for step in range(steps + 1)
    ]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ["a", "b"]),
        (" a , b ", ["a", "b"]),
        ("{device: h100, nodes: 2},x", ["{device: h100, nodes: 2}", "x"]),
        ("[TSP8, TP8],[SP8]", ["[TSP8, TP8]", "[SP8]"]),
        ("\"a,b\",'c,d'", ['"a,b"', "'c,d'"]),
        ("{x: 'a}b,c'},d", ["{x: 'a}b,c'}", "d"]),
        ("it's,fine", ["it's", "fine"]),
    ],
)
def test_values_are_split_at_commas_that_nothing_holds(text: str, items: list[str]) -> None:
    assert split(text) == items


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b", "[a,b", "'a"])
def test_an_empty_value_or_an_open_bracket_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        split(text)


@pytest.mark.parametrize(
    ("texts", "cells"),
    [
        (["1", "128Ki"], (1, 131072)),
        (["1", "2.5"], (1.0, 2.5)),
        (["true", "false", "null"], (True, False, None)),
        (["1 USD/h", "2.5 USD/h"], (1.0, 2.5)),
        (["5 us", "1 ms"], (5e-06, 1e-3)),
        (["192 GB", "80 GiB"], (192e9, 80 * 2.0**30)),
        (["8", "null"], (8, None)),
        (["8", "eight"], ("8", "eight")),
        (["zigzag", "contiguous"], ("zigzag", "contiguous")),
        (["{nodes: 2}", "4"], ("{nodes: 2}", "4")),
    ],
)
def test_a_column_has_one_type(texts: list[str], cells: tuple[object, ...]) -> None:
    made = column(texts)
    assert made == cells
    assert [type(cell) for cell in made] == [type(cell) for cell in cells]


def test_the_first_axis_of_a_product_is_the_slowest() -> None:
    made = points([read_axis("a=1,2"), read_axis("b=x,y,z")], zipped=False)
    assert [point.cells for point in made] == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]
    assert [point.number for point in made] == list(range(6))
    assert made[4].overrides == ("a=2", "b=y")


def test_zipped_axes_step_together_and_need_one_length() -> None:
    made = points([read_axis("a=1..3"), read_axis("b=x,y,z")], zipped=True)
    assert [point.cells for point in made] == [(1, "x"), (2, "y"), (3, "z")]
    with pytest.raises(InputError, match="a 3, b 2"):
        points([read_axis("a=1..3"), read_axis("b=x,y")], zipped=True)


def test_plans_are_chosen_by_name_and_other_axes_come_first() -> None:
    axis = read_axis("plans=TSP8,[TP8, SP8],8")
    assert [axis.chosen_plans(step) for step in range(3)] == [("TSP8",), ("TP8", "SP8"), ("8",)]
    whole = read_axis("plans=[{name: A, tp: 8}]")
    assert whole.chosen_plans(0) is None
    (point,) = points([read_axis("plans=TP8"), read_axis("plans.TP8.overlap=true")], zipped=False)
    assert (point.plans, point.overrides) == (("TP8",), ("plans.TP8.overlap=true",))


def test_a_path_swept_twice_or_undone_by_a_later_one_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        points([read_axis("a=1"), read_axis("a=2")], zipped=False)
    with pytest.raises(InputError, match=r"undo 'cluster\.nodes'"):
        points([read_axis("cluster.nodes=1"), read_axis("cluster=x")], zipped=False)


def test_too_many_points_are_refused_before_they_are_made() -> None:
    side = read_axis("a=1..2000")
    other = read_axis("b=1..2000")
    with pytest.raises(InputError, match=f"{MOST_POINTS:,}"):
        points([side, other], zipped=False)


@pytest.mark.parametrize("text", ["workload.sequence", "=1", "a..b=1", ".a=1", "a="])
def test_an_axis_needs_a_path_and_values(text: str) -> None:
    with pytest.raises(InputError, match="--over"):
        read_axis(text)


def test_chosen_plans_keep_the_order_of_the_names_and_stand_once() -> None:
    import tspsim

    scenario = tspsim.load("tsp-vs-tpsp-1024-mi300x")
    assert [plan.name for plan in choose(scenario, ["TP8", "TSP8", "TP8"]).plans] == ["TP8", "TSP8"]
    with pytest.raises(InputError, match="TSP8"):
        choose(scenario, ["TSP9"])
