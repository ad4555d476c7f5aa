"""Step times for other schedulers and simulators: a callable of a batch.

``predict(scenario, plan)`` resolves names once. The callable then answers batches from tables that fill on demand. An
answer is the number of seconds, with its range as attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import InputError, UnknownNameError, describe
from ..parallel import Plan
from ..scenario import Scenario, load
from ..step.question import look_up
from ..steps import Batch, PromptChunk
from .costs import ProgramCosts, costs_of
from .work import StepWork

#: Batches whose answer is kept, and of which it is known that they were asked.
MOST_KEPT, MOST_ASKED = 1 << 14, 1 << 17
#: Prompts of a batch that are taken out of its columns one by one; of more every row is looked at.
FEW_PROMPTS = 16

Row = tuple[int, int, int]


class Seconds(float):
    """Seconds of a step; ``low`` and ``high`` are its 90 % range."""

    __slots__ = ("_costs", "_work")
    _costs: ProgramCosts
    _work: StepWork

    @classmethod
    def of(cls, seconds: float, costs: ProgramCosts, work: StepWork) -> Seconds:
        answer = cls(seconds)
        answer._costs, answer._work = costs, work
        return answer

    @property
    def low(self) -> float:
        """Lower end of the 90 % range."""
        return float(self) * self._costs.range_of(self._work)[0]

    @property
    def high(self) -> float:
        """Upper end of the 90 % range."""
        return float(self) * self._costs.range_of(self._work)[1]


class Oracle:
    """Seconds of a step of one plan's engine, of any batch.

    >>> import tspsim
    >>> scenario = {"name": "d", "cluster": "mi300x-8", "workload": {"model": "qwen3-8b", "pass": "decode",
    ...             "stack": "vllm", "batch": 1, "context": 1}, "plans": [{"name": "TP1", "tp": 1}]}
    >>> oracle = tspsim.predict(scenario, "TP1")
    >>> step = oracle([(1, 1024, 32)])                    # 32 sequences decode after 1,024 tokens
    >>> bool(0 < step.low < step < step.high), bool(oracle([(512, 0, 1), (1, 1024, 32)]) > step)
    (True, True)
    """

    def __init__(self, costs: ProgramCosts, plan: Plan, drafts: int = 0) -> None:
        self.plan = plan
        #: Positions of a decoding sequence: one, and its drafts.
        self.query_len = 1 + drafts
        self._costs = costs
        #: By the hash of their rows, which is looked up and kept under without being made again.
        self._kept: dict[int, tuple[tuple[Sequence[int], ...], Seconds]] = {}
        #: Hashes of batches asked once. Only a batch that comes again is kept: most of a stream never do, and Python's
        #: garbage collector would walk all of their rows.
        self._asked: set[int] = set()

    def __call__(self, batch: Batch | Iterable[Sequence[int]]) -> Seconds:
        """Seconds from the begin of the step to the begin of the next.

        Parameters
        ----------
        batch
            Rows of (query tokens, tokens in the cache before, count), or a :class:`tspsim.steps.Batch`. Rows of
            the query length of a decoding sequence (one, and its drafts) and a cached token decode;
            others are chunks of prompts.

        Raises
        ------
        InputError
            A row is no three whole numbers, or the batch is empty.
        """
        rows: tuple[Sequence[int], ...] = tuple(batch.rows if isinstance(batch, Batch) else batch)
        try:
            key = hash(rows)
        except TypeError:  # lists
            rows = tuple(map(tuple, rows))
            key = hash(rows)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == rows:
            return kept[1]
        work = self.work(rows)
        answer = Seconds.of(self._costs.seconds([work]), self._costs, work)
        if key in self._asked:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = rows, answer
        elif len(self._asked) < MOST_ASKED:
            self._asked.add(key)
        else:
            self._asked = {key}
        return answer

    def work(self, rows: Iterable[Sequence[int]]) -> StepWork:
        """The batch as an engine's scheduler gives it."""
        rows = tuple(rows)
        if not rows:
            raise InputError("an empty batch takes no step", key="batch")
        own = self.query_len
        columns = _columns(rows, own)
        if columns is None:
            wrong = next(row for row in rows if _columns((row,), own) is None)
            what = "a row is three whole numbers: query tokens, tokens in the cache before, how many"
            raise InputError(f"{what}; not {describe(wrong)}", key="batch")
        queries, contexts, total, shortest, prompts, in_front, singly = columns
        if singly and prompts <= FEW_PROMPTS:
            chunks: tuple[PromptChunk, ...] = ()
            if not prompts:
                rest = contexts
            elif in_front:
                chunks = tuple(map(PromptChunk, queries[:prompts], contexts))
                rest = contexts[prompts:]
            else:
                places = [place for other in set(queries) - {own} for place in _places(queries, other)]
                places.sort()
                left = list(contexts)
                for place in reversed(places):
                    del left[place]
                chunks = tuple([PromptChunk(queries[place], contexts[place]) for place in places])
                rest = tuple(left)
            if shortest or 0 not in rest:
                cached = total - sum([chunk[1] for chunk in chunks]) if chunks else total
                return StepWork.listed(chunks, rest, own, cached)
        if not singly:
            rows = tuple([row for row in rows for _ in range(row[2])])
        decoding = [context for query, context, _ in rows if query == own and context]
        others = [PromptChunk(query, context) for query, context, _ in rows if query != own or not context]
        return StepWork(others, decoding, own)

    def breakdown(self, batch: Batch | Iterable[Sequence[int]]) -> dict[str, float]:
        """Seconds of a step by part: attention, experts, products, collectives, host."""
        return self._costs.breakdown(self.work(batch.rows if isinstance(batch, Batch) else batch))


def _places(values: tuple[int, ...], wanted: int) -> Iterator[int]:
    """Where a value stands."""
    place = -1
    for _ in range(values.count(wanted)):
        place = values.index(wanted, place + 1)
        yield place


class _Columns(NamedTuple):
    """Rows as columns, and facts of them."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    #: Sum and least of the contexts.
    total: int
    shortest: int
    #: Rows with another query length than a decoding sequence's.
    prompts: int
    #: Whether these are the first rows.
    in_front: bool
    #: Whether every row is one sequence.
    singly: bool


def _columns(rows: tuple[Sequence[int], ...], own: int) -> _Columns | None:
    """Rows by whole columns (no loop in Python), where decoding sequences have ``own`` query tokens; None where a row
    is not three whole numbers, the first and the last above zero."""
    try:
        queries, contexts, counts = zip(*rows, strict=True)
        # A sum is a whole number where all of its terms are.
        total = sum(contexts)
        whole = type(sum(queries)) is type(total) is type(sum(counts)) is int
    except (TypeError, ValueError):
        return None
    prompts = len(queries) - queries.count(own)
    first = queries[:prompts]
    # As most engines list them: prompts first.
    in_front = own not in first
    singly = counts.count(1) == len(counts)
    if not whole or (prompts and min(first if in_front else queries) <= 0) or not (singly or min(counts) > 0):
        return None
    shortest = min(contexts)
    return _Columns(queries, contexts, total, shortest, prompts, in_front, singly) if shortest >= 0 else None


def predict(scenario: Scenario | str | Path | Mapping[str, Any], plan: str | None = None, *, drafts: int = 0) -> Oracle:
    """A callable from batches to seconds of a step, for other schedulers and simulators.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` returns or takes; it must serve (``pass`` of prefill, decode or mixed, or
        traffic). Its stated batch does not matter.
    plan
        Name of the plan; default: the first.
    drafts
        Tokens that every decoding sequence verifies beside its own.

    Raises
    ------
    InputError
        The scenario is wrong, does not serve, or has no such plan.
    """
    resolved = scenario if isinstance(scenario, Scenario) else load(scenario)
    question = look_up(resolved)
    if not question.work.step.serves and resolved.traffic is None:
        why = "an oracle answers steps that serve; set it to decode, prefill or mixed"
        raise InputError(why, key="workload.pass")
    chosen = question.plans[0]
    if plan is not None:
        named = [candidate for candidate in question.plans if candidate.name == plan]
        if not named:
            raise UnknownNameError("plan", plan, [candidate.name for candidate in question.plans])
        chosen = named[0]
    return Oracle(costs_of(question, chosen), chosen, drafts)
