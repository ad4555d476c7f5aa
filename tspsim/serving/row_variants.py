"""Steps that differ in the rows of their attention alone, whose program is written once.

A pass of a step that serves depends on its batch in the tokens that pass, those that are sampled and those that experts
get in the mean, in how much of it a graph holds, and in rows: how many sequences have how many new tokens behind how
many cached ones. Rows are read by the methods of a kind of attention
(:class:`~tspsim.model.attention.base.AttentionKind`) and by nobody else, where the pieces of a step say so
(:attr:`~tspsim.parallel.scheme.WholeTokens.attends_alone`). A further step with the same numbers is the program of the
first, with operators that these methods make of its own rows. Steps of other plans are written one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..base.memo import BoundedCache, Itself
from ..operators import Operator, Rows
from ..parallel import Job, axes_of, scheme_of
from ..parallel.experts.expert_serving import mean_tokens
from ..parallel.feature import pieces_of
from ..parallel.job import MadeOfRows
from ..parallel.step import passes_of
from ..program.layout import InstructionLayout, StageCall

#: Programs of a plan that are kept.
MOST_WRITTEN = 4096
#: By position of a call the number of its operator.
Places = dict[int, int]
#: Part of a program.
Part = TypeVar("Part", bound=Hashable)
#: Seconds of each of some calls; None where only the engine can price some of them.
Times = list[float] | None


class LaidOut(NamedTuple):
    """The different calls in a program, and where they stand."""

    calls: list[StageCall]
    layout: InstructionLayout


class RowMaker(NamedTuple):
    """What makes an operator of rows: the number of their pass, and which of several operators it is."""

    number: int
    maker: MadeOfRows
    place: int

    def of(self, rows: Rows) -> Operator:
        """The operator of other rows, which may have fewer kernels: as manieth of its class."""
        own, *_ = operators = self.maker.operators[self.place :: -1]
        before = sum([type(operator) is type(own) for operator in operators]) - 1
        return [one for one in self.maker.make(self.maker.layer, rows) if type(one) is type(own)][before]


class KernelsOfRows(NamedTuple):
    """Kernels of a step that one maker makes of the rows of its pass.

    Attributes
    ----------
    maker
        What makes them.
    classes
        Those of all operators that it makes of such rows.
    places
        The number of each kernel among those asked for, and which of these operators it is.
    """

    maker: MadeOfRows
    classes: list[type[Operator]]
    places: list[tuple[int, int]]


class WrittenStep:
    """A program that was written, and where in it operators of rows stand: (call, operator) numbers."""

    def __init__(self, first: LaidOut, places: Sequence[tuple[int, int]]) -> None:
        self.first, self.places = first, places
        self._priced = False
        self._taken_s: Times = None

    def of(self, operators: Sequence[Operator]) -> LaidOut:
        """The program with operators of other rows."""
        calls = list(self.first.calls)
        for index, number in self.places:
            calls[index] = StageCall(operators[number], calls[index].stage)
        return LaidOut(calls, self.first.layout)

    def taken_s(self, calls: Sequence[StageCall], price: Callable[[Sequence[StageCall]], Times]) -> Times:
        """Seconds of each of such a program's calls; of those that no row changes, as the first time."""
        if not self._priced:
            self._priced, self._taken_s = True, price(self.first.calls)
        if self._taken_s is None:
            return None
        taken_s = list(self._taken_s)
        own_s = price([calls[index] for index, _ in self.places])
        for (index, _), seconds in zip(self.places, own_s or (), strict=True):
            taken_s[index] = seconds
        return taken_s


class RowVariants:
    """Programs of one plan's steps.

    Parameters
    ----------
    write
        Write the program of a job: what is in it, and the jobs of its passes.
    """

    def __init__(self, write: Callable[[Job], tuple[LaidOut, Sequence[Job]]]) -> None:
        self._write = write
        self._alone: dict[Hashable, bool] = {}
        #: Of steps with the same passes: the number of a pass, and what makes operators of its rows, in order.
        self._makers: dict[Hashable, list[tuple[int, MadeOfRows]]] = {}
        #: The same of such steps with one layout, and operators of some classes.
        self._places: dict[Hashable, Places] = {}
        self._written = BoundedCache(MOST_WRITTEN)
        #: Kinds of these, and the numbers that their programs depend on beside rows.
        self._numbers: set[tuple[Hashable, Hashable]] = set()

    def alone(self, job: Job) -> bool:
        """Whether only attention reads the rows of passes of such jobs, in a program that all ranks have."""
        return job.plan.pp == 1 and self._attends_alone(job)

    def _attends_alone(self, job: Job) -> bool:
        """The same, or in programs that all ranks of a pipeline's stage have."""
        plan = Itself(job.plan), job.step.name
        if plan not in self._alone:
            self._alone[plan] = attends_alone(job)
        return self._alone[plan]

    def of_rows(self, job: Job, layout: InstructionLayout, positions: Sequence[int]) -> list[StageCall] | None:
        """Calls at some positions of a step's program, which has this layout, without the program: operators of rows
        alone. None where there are others, or no such step was written."""
        if not positions:
            return []
        passes = passes_of(job)
        kind = self._kind(job, passes)
        if kind not in self._makers:
            return None
        operators = self._operators(kind, passes)
        places = self._places_of(kind, layout, map(type, operators))
        if not places.keys() >= set(positions):
            return None
        return [StageCall(operators[places[position]], layout.where[position][1]) for position in positions]

    def makers_of(self, job: Job, layout: InstructionLayout) -> dict[int, RowMaker]:
        """What makes the operators of rows in a step's program, which has this layout, by their positions."""
        kind = self._kind(job, passes_of(job))
        makers = [
            RowMaker(number, maker, place)
            for number, maker in self._makers.get(kind, ())
            for place in range(len(maker.operators))
        ]
        classes = [type(operator) for _, maker in self._makers.get(kind, ()) for operator in maker.operators]
        places = self._places_of(kind, layout, classes)
        return {place: makers[number] for place, number in places.items()}

    def _places_of(self, kind: Hashable, layout: InstructionLayout, classes: Iterable[type[Operator]]) -> Places:
        """Where operators of these classes stand; empty where no such step was written."""
        return self._places.get((kind, Itself(layout), *classes), {})

    def makers_at(
        self, job: Job, layout: InstructionLayout, positions: Mapping[Part, Sequence[int]]
    ) -> dict[Part, list[KernelsOfRows]]:
        """What makes calls at some positions of a step's program, which has this layout, of the rows of its own pass:
        of all parts of it that are made so."""
        passes = passes_of(job)
        kind = self._kind(job, passes)
        every: list[type[Operator]] = []
        sources: list[tuple[MadeOfRows, list[type[Operator]]] | None] = []
        #: Of each operator in order: the number of its maker, and which of its operators it is.
        of_number: list[tuple[int, int]] = []
        for number, maker in self._makers.get(kind, ()):
            own = [type(operator) for operator in maker.make(maker.layer, passes[number].rows)]
            of_number += [(len(sources), place) for place in range(len(own))]
            sources.append(None if number else (maker, own))
            every += own
        places = self._places_of(kind, layout, every)
        kernels: dict[Part, list[KernelsOfRows]] = {}
        for part, some in positions.items():
            if not some or not places.keys() >= set(some):
                continue
            of_maker: dict[int, list[tuple[int, int]]] = {}
            for i, position in enumerate(some):
                which, place = of_number[places[position]]
                of_maker.setdefault(which, []).append((i, place))
            makers = [(sources[which], where) for which, where in of_maker.items()]
            if all(maker is not None for maker, _ in makers):
                kernels[part] = [KernelsOfRows(*maker, where) for maker, where in makers if maker is not None]
        return kernels

    def _kind(self, job: Job, passes: Sequence[Job]) -> Hashable:
        """Equal for steps with the same passes."""
        return Itself(job.plan), job.step.name, *[part.tokens > 0 for part in passes]

    def _operators(self, kind: Hashable, passes: Sequence[Job]) -> list[Operator]:
        """What passes have of their rows, in order."""
        return [op for number, how in self._makers[kind] for op in how.make(how.layer, passes[number].rows)]

    def laid_out(self, job: Job) -> tuple[LaidOut, WrittenStep | None]:
        """The different calls in a step's program, and the written one that they are of; None: of their own."""
        if job.micro_batches > 1 or not self._attends_alone(job):
            return self._write(job)[0], None
        passes = passes_of(job)
        kind = self._kind(job, passes)
        numbers = tuple([(part.tokens, part.head_tokens, mean_tokens(part), part.capture) for part in passes])
        if (kind, numbers) in self._numbers:
            operators = self._operators(kind, passes)
            written: WrittenStep | None = self._written.get(key_of(kind, numbers, operators))
            if written is not None:
                return written.of(operators), written
        return self._first(job, kind, numbers, passes)

    def _first(
        self, job: Job, kind: Hashable, numbers: Hashable, own: Sequence[Job]
    ) -> tuple[LaidOut, WrittenStep | None]:
        """A program that is written, and kept where operators of rows stand in it as they were made: a stack may run
        other kernels in their place. A pipeline's stages all have the job's own passes."""
        first, passes = self._write(job)
        stages = job.plan.pp > 1
        makers = [
            (number % len(own) if stages else number, how)
            for number, part in enumerate(passes)
            for how in part.attention_operators.values()
        ]
        operators = [operator for _, how in makers for operator in how.operators]
        numbered = {id(operator): number for number, operator in enumerate(operators)}
        places = [(i, numbered[id(what)]) for i, (what, _) in enumerate(first.calls) if id(what) in numbered]
        alike = same_makers(self._makers.setdefault(kind, makers), makers)
        complete = alike and {number for _, number in places} == set(numbered.values())
        if complete or (alike and stages):
            self._places.setdefault((kind, Itself(first.layout), *map(type, operators)), dict(places))
        if not complete:
            return first, None
        self._numbers.add((kind, numbers))
        written = self._written[key_of(kind, numbers, operators)] = WrittenStep(first, places)
        return first, written


def key_of(kind: Hashable, numbers: Hashable, operators: Sequence[Operator]) -> Hashable:
    """Equal for steps whose programs differ in rows alone."""
    return kind, numbers, tuple([type(operator) for operator in operators])


def same_makers(ones: Sequence[tuple[int, MadeOfRows]], others: Sequence[tuple[int, MadeOfRows]]) -> bool:
    """Whether operators of rows are made the same way."""
    return [(number, how.make, how.layer) for number, how in ones] == [
        (number, how.make, how.layer) for number, how in others
    ]


def attends_alone(job: Job) -> bool:
    """Whether only attention reads the rows of a job's passes, in a program that all ranks have."""
    whole = scheme_of(job.plan).whole
    if whole is None or job.token_shards > 1 or set(axes_of(job)) != {"pp"}:
        return False
    return pieces_of(job, whole) is whole and whole.attends_alone(job)
