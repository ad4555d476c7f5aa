"""Steps of which a few places decide: what all places together say."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.program.layout import InstructionLayout
from tspsim.serving.leads import Leads
from tspsim.serving.oracle import Oracle
from tspsim.serving.shape import Shape

#: Model, cluster, stack and degrees: a host that is late in the first layer, captured pieces, recurrences, two stages.
KINDS = {
    "windows": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "delta": ("qwen3-next-80b-a3b", "hgx-h100-8", "vllm", {"tp": 4}),
    "pipeline": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4, "pp": 2}),
}


@cache
def oracle_of(kind: str) -> Oracle:
    model, cluster, stack, degrees = KINDS[kind]
    work: dict[str, Any] = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    return tspsim.predict({"name": "l", "cluster": cluster, "workload": work, "plans": [{"name": "P", **degrees}]})


@pytest.mark.parametrize("kind", KINDS)
def test_leading_places_take_what_all_places_do(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, draw = oracle_of(kind), random.Random(1)
    batches = []
    for _ in range(40):
        pieces = draw.choice((1, 1, 2, 9))
        chunks = [(draw.randint(17, 1024), draw.choice((0, draw.randint(1, 6000))), 1) for _ in range(pieces)]
        batches.append(chunks + [(1, draw.randint(100, 4000), 1) for _ in range(draw.randint(1, 90))])
    led = [float(oracle(batch)) for batch in batches]
    monkeypatch.setattr(Shape, "_found", lambda *_: None)
    for shape in oracle._costs._mixed._shape_of.values():
        assert shape is not None
        monkeypatch.setattr(shape, "_lead_of", {})
    assert led == pytest.approx([float(oracle(batch)) for batch in batches], rel=1e-12)


def test_most_steps_are_led() -> None:
    """One chunk of a prompt beside sequences was priced by arrays over all places where the host is late."""
    oracle, draw, led = oracle_of("delta"), random.Random(2), 0
    for _ in range(30):
        batch = [(draw.randint(17, 1024), draw.choice((0, 900)), 1), (1, draw.randint(100, 4000), draw.randint(1, 90))]
        work = oracle.work(batch)
        queries, before = work.columns
        tokens = sum(queries) + work.sequences
        shape = oracle._costs._mixed._found(True, True, sum(before) > 0, tokens <= oracle._costs._mixed._most)
        assert shape is not None
        arrays: list[Any] = []
        layout = shape.layout
        object.__setattr__(shape, "layout", _Watched(layout, arrays))
        shape.seconds(work, tokens, work.outputs, sum(before))
        object.__setattr__(shape, "layout", layout)
        led += not arrays
    assert led == 30


class _Watched:
    """A layout that notes whose ends are asked for over all places."""

    def __init__(self, layout: InstructionLayout, asked: list[Any]) -> None:
        self._layout, self._asked = layout, asked

    def ends_s(self, from_places: Any) -> float:
        self._asked.append(from_places)
        return self._layout.ends_s(from_places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)


class _Line:
    """A part's vector over a number: so many seconds for each at every place."""

    def __init__(self, follows: Any) -> None:
        self.follows = follows

    def at_place(self, place: int) -> Any:
        return lambda number: float(self.follows[place, 0]) * number


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 2))
def test_a_lead_is_the_longest_of_all_places_or_none(seed: int, places: int, stages: int) -> None:
    """Kernels of random lengths behind random launches, of one stage or two."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, (stages, places))
    follows, issued = [], []
    for own in kinds:
        ones = (own[:, None] == np.arange(3)).astype(float)
        follows.append(np.cumsum(ones[::-1], axis=0)[::-1])
        issued.append(np.cumsum(rng.random(places) * rng.choice([0.1, 1.0])))
    every, starts = np.concatenate(follows), tuple(np.arange(stages) * places)
    layout: Any = type("Layout", (), {"issued_s": np.concatenate(issued), "starts": tuple(int(s) for s in starts)})
    leads = Leads(layout, [(_Line(every[:, 1:2]), every[:, 1:2])], every[:, 2:3])
    start, grown = every[:, 0] * rng.random(), every[:, 0] * rng.random()
    lead = leads.of(10, 15, start, grown)
    for tokens in (10, 17, 25):
        number, priced_s = float(rng.random()), float(rng.random())
        total = layout.issued_s + start + grown * ((tokens - 10) / 15)
        total = total + every[:, 1] * number + every[:, 2] * priced_s
        exact_s = float(np.maximum.reduceat(total, list(starts)).sum())
        seconds = None if lead is None else lead.makespan_s(tokens, (number,), [priced_s])
        assert seconds is None or seconds == pytest.approx(exact_s, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kernel_runs_more_often_from_a_later_place(kind: str) -> None:
    """What a lead assumes of a layout."""
    for shape in oracle_of(kind)._costs._mixed._shape_of.values():
        assert shape is not None
        runs, starts = shape.layout.follows, (*shape.layout.starts, len(shape.layout.follows))
        for first, behind in pairwise(starts):
            assert (np.diff(runs[first:behind], axis=0) <= 0.0).all()
