"""Frozen classes whose objects are made quickly are what dataclasses makes of them, and so are classes that derive."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields

import pytest

from tspsim.base.quick import COLLECT_AFTER, quick, replace, seldom_collecting
from tspsim.operators import Gemm, GroupedGemm, Operator
from tspsim.parallel import Plan
from tspsim.program import Compute


@dataclass(frozen=True, slots=True)
class Plain:
    x: float
    y: float = 2.0


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    x: float
    y: float = 2.0


class Derived(Quick):
    """Has a dictionary, and so another layout."""


def test_an_object_is_what_a_frozen_dataclass_makes() -> None:
    for arguments, named in (((1.0,), {}), ((), {"x": 1.0}), ((1.0, 3.0), {}), ((1.0,), {"y": 4.0})):
        made, plain = Quick(*arguments, **named), Plain(*arguments, **named)
        assert type(made) is Quick
        assert [(each.name, getattr(made, each.name)) for each in fields(made)] == [
            (each.name, getattr(plain, each.name)) for each in fields(plain)
        ]
        assert hash(made) == hash(plain)
        assert repr(made).removeprefix("Quick") == repr(plain).removeprefix("Plain")
    assert inspect.signature(Quick) == inspect.signature(Plain)
    with pytest.raises(TypeError):
        Quick()  # type: ignore[call-arg]


@pytest.mark.parametrize("made", [Quick(1.0), Gemm(1, 2, 3), GroupedGemm(1, 2, 3, batch=4), Compute((), "a")])
def test_it_stays_as_it_was_made_and_copies_are_equal(made: Operator) -> None:
    name = fields(made)[0].name  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, 5)
    with pytest.raises(FrozenInstanceError):
        delattr(made, name)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert getattr(replace(made, **{name: 5}), name) == 5


def test_classes_that_derive_are_made_as_ever() -> None:
    made = Derived(1.0)
    assert type(made) is Derived
    assert (made.x, made.y) == (1.0, 2.0)
    with pytest.raises(FrozenInstanceError):
        made.x = 2.0  # type: ignore[misc]


def test_other_classes_are_refused() -> None:
    @dataclass(frozen=True)
    class Open:
        x: float

    @dataclass(slots=True)
    class Mutable:
        x: float

    @dataclass(frozen=True, slots=True)
    class Made:
        x: list[int] = field(default_factory=list)

    for cls in (Open, Mutable, Made):
        with pytest.raises(TypeError, match="no frozen dataclass"):
            quick(cls)


def test_replace_makes_what_the_standard_one_makes() -> None:
    plan = Plan("one", {"tp": 2})
    assert plan.scheme  # remembered by the object, and not handed on
    assert replace(plan, zero=1, name="two") == dataclasses.replace(plan, zero=1, name="two")
    assert vars(replace(plan, degrees={"tsp": 2})) == vars(dataclasses.replace(plan, degrees={"tsp": 2}))
    product = Gemm(1, 2, 3)
    assert replace(product, m=4) == Gemm(4, 2, 3)


def test_replace_refuses_what_is_no_field() -> None:
    plan = Plan("one", {"tp": 2})
    with pytest.raises(TypeError, match="colour"):
        replace(plan, colour="red")
    with pytest.raises(TypeError):
        replace(Gemm(1, 2, 3), colour="red")


def test_replace_asks_a_class_that_has_a_say() -> None:
    @dataclasses.dataclass(frozen=True)
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        replace(Even(2), number=3)


@pytest.mark.parametrize(("before", "within"), [(700, COLLECT_AFTER), (2 * COLLECT_AFTER, 2 * COLLECT_AFTER), (0, 0)])
def test_the_collector_looks_seldom_or_as_seldom_as_before(before: int, within: int) -> None:
    stated = gc.get_threshold()
    try:
        gc.set_threshold(before, *stated[1:])
        with seldom_collecting():
            assert gc.get_threshold() == (within, *stated[1:])
        assert gc.get_threshold() == (before, *stated[1:])
    finally:
        gc.set_threshold(*stated)
