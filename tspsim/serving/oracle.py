"""Step times for other schedulers and simulators: a callable of a batch.

``predict(scenario, plan)`` resolves names once. The callable then answers batches from tables that fill on demand. An
answer is the number of seconds, with its range as attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import index, not_
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UnknownNameError, describe
from ..parallel import Plan
from ..scenario import Scenario, load
from ..step.question import look_up
from ..steps import Batch, Speculation
from .costs import ProgramCosts, costs_of, undrafted
from .work import StepWork

#: Sequences of a batch.
MOST_SEQUENCES = 1 << 20

Row = tuple[int, int, int]


class Seconds(float):
    """Seconds of a step; ``low`` and ``high`` are its 90 % range."""

    __slots__ = ("_costs", "_factors", "_work")
    _costs: ProgramCosts
    _work: StepWork
    _factors: tuple[float, float] | None

    @property
    def low(self) -> float:
        """Lower end of the 90 % range."""
        return float(self) * (self._factors or self._found())[0]

    @property
    def high(self) -> float:
        """Upper end of the 90 % range."""
        return float(self) * (self._factors or self._found())[1]

    def _found(self) -> tuple[float, float]:
        factors = self._factors = self._costs.ranges.of(self._work, float(self))
        return factors


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

    def __init__(self, costs: ProgramCosts, plan: Plan) -> None:
        self.plan = plan
        #: Positions of a decoding sequence: one, and its drafts.
        self.query_len: int = costs.programs.query_len
        self._costs = costs
        costs.prepare()
        most = costs.capacity_tokens
        #: Tokens that the cache of one replica holds.
        self._most_tokens = float("inf") if most is None else float(most)

    @property
    def most_tokens(self) -> float:
        """Tokens that the cache of one replica holds; infinite without a cache of tokens."""
        return self._most_tokens

    def __call__(self, batch: Batch | Iterable[Sequence[int]]) -> Seconds:
        """Seconds from the begin of the step to the begin of the next.

        Parameters
        ----------
        batch
            Rows of (query tokens, tokens in the cache before, count), or a :class:`tspsim.steps.Batch`, in any order.
            Rows of the query length of a decoding sequence (one, and its drafts) and a cached token decode;
            others are chunks of prompts.

        Raises
        ------
        InputError
            A row is no three whole numbers, the batch is empty, or one replica's cache does not hold it.
        """
        work = self.work(batch.rows if isinstance(batch, Batch) else batch)
        answer = Seconds(self._costs.seconds_of(work))
        answer._costs, answer._work, answer._factors = self._costs, work, None
        return answer

    def work(self, rows: Iterable[Sequence[int]]) -> StepWork:
        """The batch as an engine's scheduler gives it."""
        if not isinstance(rows, (tuple, list)):
            rows = tuple(rows)
        own = self.query_len
        # Whole columns: nothing in Python runs once a row.
        try:
            queries, contexts, counts = zip(*rows, strict=True)
            # A sum is a whole number where all of its terms are.
            cached, tokens = sum(contexts), sum(queries)
            whole = type(cached) is type(tokens) is type(sum(counts)) is int
        except (TypeError, ValueError):
            whole = False
        if not whole or counts.count(1) != len(counts):
            queries, contexts = self._each(*((queries, contexts, counts) if whole else _checked(rows)))
            cached, tokens = sum(contexts), sum(queries)
        prompts = len(queries) - queries.count(own)
        first, before, decoding = queries[:prompts], contexts[:prompts], contexts[prompts:]
        ordered = sorted(decoding)
        if (
            own in first  # most engines list prompts first
            or (ordered and ordered[0] <= 0)
            or (prompts and (min(first) <= 0 or min(before) < 0))
        ):
            _checked_columns(queries, contexts)
            reads = [query != own or not context for query, context in zip(queries, contexts, strict=True)]
            first, before = tuple(compress(queries, reads)), tuple(compress(contexts, reads))
            decoding = tuple(compress(contexts, map(not_, reads)))
            ordered = sorted(decoding)
        if cached + tokens > self._most_tokens:
            raise self._too_long(cached + tokens)
        hold = tokens - own * len(ordered), sum(before)
        return StepWork.listed((first, before), hold, decoding, own, cached - hold[1], ordered)

    def _each(
        self, queries: tuple[int, ...], contexts: tuple[int, ...], counts: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Columns with a row for every sequence."""
        if min(counts) <= 0 or min(queries) <= 0 or min(contexts) < 0:
            _checked(tuple(zip(queries, contexts, counts, strict=True)))
        if counts.count(1) == len(counts):
            return queries, contexts
        if sum(counts) > MOST_SEQUENCES:
            raise InputError(f"has {sum(counts):,} sequences; at most {MOST_SEQUENCES:,} are priced", key="batch")

        def repeated(column: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(chain.from_iterable(map(repeat, column, counts)))

        return repeated(queries), repeated(contexts)

    def _too_long(self, tokens: int) -> InputError:
        what = f"needs {tokens:,} tokens in the cache; one replica of plan '{self.plan.name}' holds"
        return InputError(f"{what} {int(self._most_tokens):,}", key="batch")

    def breakdown(self, batch: Batch | Iterable[Sequence[int]]) -> dict[str, float]:
        """Seconds of a step by part: attention, experts, products, collectives, host."""
        return self._costs.breakdown(self.work(batch.rows if isinstance(batch, Batch) else batch))


def _checked_columns(queries: tuple[int, ...], contexts: tuple[int, ...]) -> None:
    """Raises InputError where one of the whole numbers is none of a row."""
    if min(queries) <= 0 or min(contexts) < 0:
        _checked(tuple(zip(queries, contexts, repeat(1))))


def _checked(rows: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Columns of rows that are whole numbers of any class.

    Raises
    ------
    InputError
        There are no rows, or one of them is no three whole numbers, the first and the last above zero.
    """
    if not rows:
        raise InputError("an empty batch takes no step", key="batch")
    read = []
    for row in rows:
        try:
            query, context, count = map(index, row)
        except (TypeError, ValueError):
            query = context = count = 0
        if query <= 0 or context < 0 or count <= 0:
            what = "a row is three whole numbers: query tokens, tokens in the cache before, how many"
            raise InputError(f"{what}; not {describe(row)}", key="batch")
        read.append((query, context, count))
    return tuple(zip(*read, strict=True))


def predict(
    scenario: Scenario | str | Path | Mapping[str, Any], plan: str | None = None, *, drafts: int | None = None
) -> Oracle:
    """A callable from batches to seconds of a step, for other schedulers and simulators.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` returns or takes; it must serve (``pass`` of prefill, decode or mixed, or
        traffic). Its stated batch does not matter.
    plan
        Name of the plan; default: the first.
    drafts
        Tokens that every decoding sequence verifies beside its own; nobody's time to draft them is in a step. None:
        those of the scenario's ``speculation``, with its drafter.

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
    speculation = question.work.load.speculation
    if drafts is not None:
        if not isinstance(drafts, int) or drafts < 0:
            raise InputError(f"is a whole number from 0 on, not {describe(drafts)}", key="drafts")
        speculation = undrafted(Speculation(drafts, 1.0)) if drafts else None
    return Oracle(costs_of(question, chosen, speculation=speculation), chosen)
