"""Frozen classes whose objects are made quickly are what dataclasses makes of them, and so are classes that derive."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from tspsim._quick import quick
from tspsim.operators import Gemm, GroupedGemm, Operator
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
    assert getattr(replace(made, **{name: 5}), name) == 5  # type: ignore[type-var]


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
