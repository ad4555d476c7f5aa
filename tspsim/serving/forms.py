"""Programs of steps that have the same instructions: written for some of them, put together for the others.

Kernels of attention list the rows of their pass (:mod:`.carriers`). Which sizes any other kernel or a transfer has
hangs on one or two numbers of its step: tokens that pass, those that are sampled, those that decode kernels take, of
the pass itself or of a drafter's behind it. Which it is is found out, not known: an instruction hangs on nothing that
was seen to differ while it stayed the same. One whose numbers were all met before is what it was then; where others
are, the program is written, and must be what was foreseen. What stayed the same from one value of a number to another
is taken to do so between them, as sizes never fall when tokens are more, and not beyond: a step outside all that was
seen is written too.

A window hides what lies before it, and an indexer chooses from a length on. Rows are looked at as they are and cut to
each such length, so that what has seen long contexts alone, or short ones, says nothing about the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import le

from ..model.attention.base import Rows, decoded, prefilled, tokens_of
from ..parallel import Job
from ..parallel.drafting import drafting, unlike_passes
from ..parallel.experts.expert_serving import mean_tokens
from ..parallel.step import axes_of
from ..program.layout import InstructionLayout, Thing
from .carriers import COUNTED, LISTED, RowConsumer, lists_rows, unpacked

#: The different things in a program, and where they stand.
LaidOut = tuple[list[Thing], InstructionLayout]
#: Programs that a form keeps, those from which it learns, and fewer than which say nothing about others.
MOST_WRITTEN, LEARNT_FROM, LEAST = 512, 64, 3
#: No number of tokens.
NONE = -1
#: Of a step: so many counts of each pass, the last of which are tokens that keys and values of prompts are made of;
#: then the rows of all, and the same cut to each length from which on a layer reads less, or chooses.
Numbers = tuple[Hashable, ...]
COUNTS = 7
#: Of some rows, which of those lengths any of them passes.
Reach = tuple[bool, ...]


class Passes:
    """A step's pass through the model, and those of its drafter behind it: the first, and any other."""

    def __init__(self, job: Job, bends: Sequence[int]) -> None:
        jobs = [job, *(drafting(job, number) for number in range(unlike_passes(job)))]
        #: Of each.
        self.rows: list[Rows] = [part.rows for part in jobs]
        #: For each length where a layer bends, those rows again; without a context where it passes that.
        self.within = [[tuple([(q, c if q + c <= bend else NONE, n) for q, c, n in rows]) for rows in self.rows]
                       for bend in bends]  # fmt: skip
        cut = [tuple([tuple([(q, min(c, bend), n) for q, c, n in rows]) for rows in self.rows]) for bend in bends]
        counts: list[int] = []
        kinds: list[Hashable] = [job.step.name, job.plan.expert_overlap]
        for part, rows in zip(jobs, self.rows, strict=True):
            decodes, prompts = decoded(rows), prefilled(rows)
            read, decoding = tokens_of(decodes), sum([count for *_, count in decodes])
            experts = mean_tokens(part)
            counts += [part.tokens, part.head_tokens, read, tokens_of(prompts), decoding, experts, *unpacked(rows)]
            behind = any(context for _, context, _ in prompts)
            kinds += [part.capture, len({q for q, _, _ in decodes}), bool(prompts), behind, part.head_tokens > 0]
        #: Those of them that have an order.
        self.counts = tuple(counts)
        #: What instructions may hang on.
        self.numbers: Numbers = (*counts, tuple(self.rows), *cut)
        #: Equal for steps that may have the same instructions: what is captured, and which kernels there are.
        self.kind: Hashable = tuple(kinds)


class Carried:
    """An instruction that may carry the rows of pass ``number``: how often it did, and where it did not, by the lengths
    that its rows pass."""

    def __init__(self, number: int, carrier: RowConsumer) -> None:
        self.number, self.carrier = number, carrier
        self._held: Counter[Reach] = Counter()
        self._refuted: set[Reach] = set()

    def _reach(self, passes: Passes) -> Reach:
        if not passes.within:
            return ()
        of, number = self.carrier.field.of, self.number
        rows = of(passes.rows[number])
        return tuple([of(within[number]) != rows for within in passes.within])

    def in_(self, passes: Passes) -> Thing:
        """It over a step's rows."""
        return self.carrier.with_rows(self.carrier.field.of(passes.rows[self.number]))

    def surely(self, passes: Passes) -> bool:
        """Whether it carries such rows as a step's, as far as was seen: it did twice, and always."""
        reach = self._reach(passes)
        return self._held[reach] > 1 and reach not in self._refuted

    @property
    def always(self) -> bool:
        """Whether it did wherever it was looked at."""
        return not self._refuted

    def look(self, passes: Passes, thing: Thing) -> None:
        """At what stands there in a program that was written."""
        if self.in_(passes).does == thing.does:
            self._held[self._reach(passes)] += 1
        else:
            self._refuted.add(self._reach(passes))


class ProgramTemplate:
    """Steps whose programs have the same instructions: ``things`` are those of the first, whose passes are given."""

    def __init__(self, things: list[Thing], layout: InstructionLayout, passes: Passes) -> None:
        self._first, self.layout = things, layout
        #: Of every thing the numbers that it may hang on, and what of a pass it may carry.
        self._hangs_on = [set(range(len(passes.numbers))) for _ in things]
        self._least = self._most = passes.counts
        self._carried = [
            [
                Carried(number, RowConsumer(thing, field))
                for number, rows in enumerate(passes.rows)
                for field in (LISTED if lists_rows(thing.what) else (COUNTED,))
                if field.are_of(thing.what, rows)
            ]
            for thing in things
        ]
        self._forget()

    def _forget(self) -> None:
        self._written: list[tuple[Numbers, list[Thing]]] = []
        #: Of every thing: what it has been, and the numbers of the first step where it was.
        self._met: list[dict[Hashable, Numbers]] = [{} for _ in self._first]
        self._arrange()

    def _arrange(self) -> bool:
        """Tables of what hangs on the same numbers; False where two programs contradict each other."""
        groups: dict[tuple[int, ...], list[int]] = {}
        self._bound: list[int] = []
        for index, (thing, hangs_on) in enumerate(zip(self._first, self._hangs_on, strict=True)):
            counted = [COUNTS * carrier.number + COUNTS - 1 for carrier in self._carried[index] if carrier.always]
            if lists_rows(thing.what) or not hangs_on.isdisjoint(counted):
                self._bound.append(index)
            else:
                groups.setdefault(tuple(sorted(hangs_on)), []).append(index)
        self._tables = [(positions, where, dict[Numbers, list[Thing]]()) for positions, where in groups.items()]
        return all(self._enter(numbers, things) for numbers, things in self._written)

    def _enter(self, numbers: Numbers, things: list[Thing]) -> bool:
        for positions, where, table in self._tables:
            first_things = table.setdefault(tuple([numbers[position] for position in positions]), things)
            if first_things is not things and any(first_things[index].does != things[index].does for index in where):
                return False
        return True

    def put_together(self, passes: Passes) -> list[Thing] | None:
        """What takes time in a step's program; None where something of it was not met yet."""
        if len(self._written) < LEAST or not self._between(passes.counts):
            return None
        things, numbers = list(self._first), passes.numbers
        for positions, where, table in self._tables:
            first_things = table.get(tuple([numbers[position] for position in positions]))
            if first_things is None:
                return None
            for index in where:
                things[index] = first_things[index]
        for index in self._bound:
            carried = next((carrier for carrier in self._carried[index] if carrier.surely(passes)), None)
            if carried is None:
                return None
            things[index] = carried.in_(passes)
        return things

    def _between(self, counts: tuple[int, ...]) -> bool:
        """Whether a step's counts are within those seen."""
        return all(map(le, self._least, counts)) and all(map(le, counts, self._most))

    def learn(self, passes: Passes, things: list[Thing], layout: InstructionLayout) -> bool:
        """From a program that was written; False where it is of another form."""
        if layout is not self.layout:
            return False
        if len(self._written) == MOST_WRITTEN:
            self._forget()
        numbers, changed = passes.numbers, False
        self._least = tuple(map(min, self._least, passes.counts))
        self._most = tuple(map(max, self._most, passes.counts))
        learns = len(self._written) < LEARNT_FROM
        differing: dict[int, set[int]] = {}
        for thing, met, hangs_on in zip(things, self._met, self._hangs_on, strict=True) if learns else ():
            before = met.setdefault(thing.does, numbers)
            differ = differing.get(id(before))
            if differ is None:
                differ = differing[id(before)] = {
                    position for position, number in enumerate(numbers) if before[position] != number
                }
            if not hangs_on.isdisjoint(differ):
                hangs_on -= differ
                changed = True
        for index in self._bound:
            for carried in self._carried[index]:
                carried.look(passes, things[index])
        self._written.append((numbers, things))
        return self._arrange() if changed else self._enter(numbers, things)


class ProgramTemplates:
    """Forms of one plan's steps.

    Parameters
    ----------
    write
        Write the program of a job of one stage: the different things in it, and where they stand.
    bends
        Tokens of a context from which on a layer reads less of what is added, or chooses.
    """

    def __init__(self, write: Callable[[Job], LaidOut], bends: Sequence[int]) -> None:
        self._write, self._bends = write, bends
        self._forms: dict[Hashable, ProgramTemplate | None] = {}

    def laid_out(self, job: Job) -> LaidOut:
        """The different things in a step's program, and where they stand."""
        if job.plan.pp > 1 or job.micro_batches > 1 or set(axes_of(job)) != {"pp"}:
            return self._write(job)
        passes = Passes(job, self._bends)
        form, seen = self._forms.get(passes.kind), passes.kind in self._forms
        things = form.put_together(passes) if form is not None else None
        if form is not None and things is not None:
            return things, form.layout
        things, layout = self._write(job)
        if not seen:
            form = ProgramTemplate(things, layout, passes)
        if form is not None and not form.learn(passes, things, layout):
            form = None
        self._forms[passes.kind] = form
        return things, layout
