"""What a first answer tabulates: no more than it needs, and what longer ways find."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.hardware.limits import FloatArray
from tspsim.operators import BatchQuantity, RowSums
from tspsim.serving.cached_attention import ALIKE, CachedAttention
from tspsim.serving.oracle import Oracle
from tspsim.serving.shape import Shape
from tspsim.serving.work import StepWork

KINDS = {
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "delta": ("kimi-linear-48b", "hgx-h100-8", "vllm", {"tp": 4}),
    "stages": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4, "pp": 2}),
}


def fresh(kind: str) -> Oracle:
    model, cluster, stack, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    plans = [{"name": "P", **degrees}]
    return tspsim.predict({"name": "cold", "cluster": cluster, "workload": work, "plans": plans})


oracle_of = cache(fresh)


def shapes_of(kind: str) -> list[Shape]:
    mixed = oracle_of(kind)._costs._mixed
    return [shape for shape in mixed._shape_of.values() if shape is not None]


def test_steps_of_stages_that_differ_in_contexts_share_a_program() -> None:
    """Each of six mean contexts had one."""
    oracle, draw = fresh("stages"), random.Random(5)
    programs = oracle._costs.programs
    before = programs.written
    rows = [(1, draw.randint(100, 4000), 1) for _ in range(99)]
    assert float(oracle(rows)) > 0.0
    assert programs.written - before <= 2
    # What they become is what would be written.
    for context in (64, 900, 30_000):
        job = programs.decoding((context,) * 12)
        (found, layout), (written, other) = programs.laid_out(job), programs.written_out(job)[0]
        assert layout is other and found == written


@pytest.mark.parametrize("kind", [*KINDS])
def test_kernels_of_rows_are_those_of_a_job(kind: str) -> None:
    """Made of rows alone, without a pass of a job."""
    looked_at = 0
    for shape in shapes_of(kind):
        measured = shape.measured
        works = [measured.work(n, cached) for n in (17, 300, 9000) for cached in (0, 700)]
        works += [measured.decoding(batch, context) for batch in (1, 60) for context in (1, 5000)]
        for part, positions in measured.where.items():
            for work in works if positions and part not in (BatchQuantity.TOKENS, BatchQuantity.EXPERTS) else ():
                (job,) = measured.programs.together(work)
                made = measured._made(part, work) if measured._alike else None
                if made is not None:
                    assert made == measured.programs.calls_of_rows(job, measured.layout, positions)
                    looked_at += 1
    assert looked_at > (0 if kind == "stages" else 20)


class Counted:
    """A vector over sequences and contexts, with the numbers of sequences at which it was looked up."""

    def __init__(self, value: Callable[[int, int], FloatArray]) -> None:
        self.value, self.batches = value, list[int]()

    def __call__(self, batch: int, context: int) -> FloatArray:
        self.batches.append(batch)
        return self.value(batch, context)


@pytest.mark.parametrize("kind", ["latents", "delta"])
def test_contexts_that_no_kernel_reads_are_not_tabulated(kind: str) -> None:
    shapes = [shape for shape in shapes_of(kind) if shape.kind.decodes]
    assert shapes
    for shape in shapes:
        assert not shape._decode._reads_contexts
        vectors = [shape._decoding_at(40, context).tolist() for context in (1, 64, 700, 30_000)]
        assert vectors == [vectors[0]] * len(vectors)
        counted = Counted(shape._decode._value)
        shape._decode._value = counted
        for mean in (300.0, 5000.0, 700.0):
            shape._decode(2007, mean)
        assert len(set(counted.batches)) == len(counted.batches) <= 4


def test_lines_of_longest_contexts_are_made_together() -> None:
    """One call of the kernel's model for all of them, and the lines are those that are made one by one."""
    calls: list[int] = []

    def over(batches: FloatArray, contexts: FloatArray) -> FloatArray:
        calls.append(len(batches))
        taken_s: FloatArray = 1e-6 * np.maximum(batches * contexts / 9.0, contexts * np.ceil(batches / 7.0))
        return taken_s

    draw = random.Random(3)
    contexts = [draw.randint(5000, 9000) for _ in range(5)] + [draw.randint(10, 300) for _ in range(60)]
    sums: Any = [StepWork((), contexts).sums(1) for _ in range(2)]
    assert isinstance(sums[0], RowSums)
    together, alone = CachedAttention(over), CachedAttention(over)
    seconds = together(sums[0])
    assert len(calls) <= 4
    for number in range(1, len(contexts) + ALIKE):
        for octave in range(1, 16):
            alone._line(number, octave)
    calls.clear()
    assert alone(sums[1]) == seconds and len(calls) <= 1
    for number, lines in together._lines.items():
        assert lines == {octave: alone._lines[number][octave] for octave in lines}


def test_a_pass_of_a_job_has_what_the_job_found() -> None:
    programs = oracle_of("latents")._costs.programs
    for contexts in ((64,) * 3, (900, 7)):
        job = programs.decoding(contexts)
        facts = "batch", "rows", "capture", "group_tokens", "tokens", "forwards", "micro_batches", "stated"
        found = [getattr(job, fact) for fact in facts]
        own = job.at(0)
        assert {"rows", "capture", "stated"} <= vars(own).keys()
        assert [getattr(own, fact) for fact in facts] == found
        assert [getattr(replace(job, pass_index=0), fact) for fact in facts] == found
