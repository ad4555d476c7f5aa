"""Layers that repeat are assigned once: the same kernels to the same operators as if every layer were looked at."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tspsim.traces import match
from tspsim.traces.assignment import Taker, assigned
from tspsim.traces.kinds import KINDS
from tspsim.traces.worth import EMPTY, HEAVIER, LEFT, OWN, Worth, table

LAYER = (
    "norm",
    "quantize",
    "gemm",
    "rope",
    "attention",
    "gemm",
    "norm",
    "router",
    "grouped_gemm",
    "activation",
    "gemm",
)


def step(layers: int, seed: int) -> tuple[list[Taker], list[str]]:
    """Operators of alike layers, and kernels of which a few are left out, doubled or small ones put between."""
    draw = random.Random(seed)
    kernels = ["embedding"]
    for kind in LAYER * layers:
        kernels += [kind] * draw.choices((0, 1, 2), (1, 60, 1))[0]
        kernels += ["copy"] * draw.choices((0, 1), (20, 1))[0]
    codes = np.array([KINDS.index(kind) for kind in kernels])
    takers: dict[str, Taker] = {}
    for number, kind in enumerate(dict.fromkeys(LAYER)):
        worth = Worth(*(column[codes] for column in table(kind, kind == "attention", False)))
        heavy = kind in ("gemm", "attention", "grouped_gemm")
        takers[kind] = Taker(number, worth, HEAVIER * OWN if heavy else EMPTY)
    return [takers[kind] for kind in LAYER * layers], kernels


@pytest.mark.parametrize("seed", range(6))
def test_blocks_with_a_memory_are_one_block_without(seed: int) -> None:
    takers, kernels = step(24, seed)
    alike = np.array([KINDS.index(kind) for kind in kernels])
    left = np.where(np.isin(kernels, ["gemm", "attention", "grouped_gemm"]), HEAVIER * OWN, LEFT)
    whole = slice(0, len(kernels))
    one, worth = assigned(takers, alike, left, [0], [whole])
    begins = list(range(0, len(takers), len(LAYER)))
    several, same = assigned(takers, alike, left, begins, [whole] * len(begins))
    assert same == worth and (one == several).all()
    # Windows around every layer, wide enough for what is left out.
    per = len(kernels) / len(begins)
    windows = [slice(max(0, int(n * per) - 60), min(len(kernels), int((n + 1) * per) + 60)) for n in range(len(begins))]
    windows[-1] = slice(windows[-1].start, len(kernels))
    near, same = assigned(takers, alike, left, begins, windows)
    assert same == worth and (one == near).all()


def test_alike_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tspsim.traces import assignment

    layers = 80
    takers, _ = step(layers, 1)
    kernels = list(LAYER * layers)
    codes = np.array([KINDS.index(kind) for kind in kernels])
    own = [
        Taker(
            taker.number,
            Worth(*(column[codes] for column in table(kind, kind == "attention", False))),
            taker.empty,
        )
        for taker, kind in zip(takers[: len(LAYER)], LAYER, strict=True)
    ] * layers
    rows = 0
    plain = assignment._row

    def counted(*given: object) -> object:
        nonlocal rows
        rows += 1
        return plain(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(assignment, "_row", counted)
    begins = list(range(0, len(own), len(LAYER)))
    windows = match._windows([*begins, len(own)], len(kernels), 40)
    given, _ = assigned(own, codes, np.full(len(codes), LEFT), begins, windows)
    assert (given == np.arange(len(own))).all()
    assert rows < len(own)  # without a memory three times as many
