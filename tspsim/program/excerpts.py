"""Programs derived from programs: with fewer iterations of what repeats, cut in two, with more dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from ..base.quick import replace
from .instructions import Collective, Content, Instruction, Program, Repeat, content, length_of, waits_for_all

Item = Instruction | Repeat


@dataclass(frozen=True)
class RepetitionCut:
    """A repetition that is run in part: ``total`` times the ``items`` items from item ``first`` on.

    ``items`` is 0 where item ``first`` is a :class:`Repeat`.
    """

    first: int
    items: int
    total: int


@dataclass(frozen=True)
class Excerpt:
    """Shortened programs and their cuts.

    Attributes
    ----------
    programs
        The programs after all cuts.
    outer
        Cuts of groups of items (micro-batches), made first.
    inner
        Cuts of the Repeats in what the outer cuts leave.
    between
        The programs after the outer cuts alone.
    """

    programs: tuple[Program, ...]
    outer: tuple[RepetitionCut, ...]
    inner: tuple[RepetitionCut, ...]
    between: tuple[Program, ...]


def excerpt_of(programs: Sequence[Program], refused: Set[RepetitionCut], kept: int) -> Excerpt | None:
    """Shorten programs to ``kept`` iterations of each repetition that is not ``refused``.

    None if the programs differ in shape, or if more than half of the instructions would remain.
    """
    if len({tuple(shape(item) for item in program.items) for program in programs}) != 1:
        return None
    outer = tuple(cut for cut in micro_batches(programs, kept) if cut not in refused)
    between = tuple(programs)
    for cut in outer:
        between = tuple(without_items(program, cut, kept) for program in between)
    inner = tuple(
        cut
        for index, item in enumerate(between[0].items)
        if isinstance(item, Repeat) and item.times > kept
        if (cut := RepetitionCut(index, 0, item.times)) not in refused
    )
    short = between
    for cut in reversed(inner):
        short = tuple(without_iterations(program, cut, kept) for program in short)
    if 2 * sum(map(length_of, short[0].items)) > sum(map(length_of, programs[0].items)):
        return None
    return Excerpt(short, outer, inner, between)


def shape(item: Item) -> int:
    """Times of a Repeat; 0 for a single instruction."""
    return item.times if isinstance(item, Repeat) else 0


def micro_batches(programs: Sequence[Program], kept: int) -> tuple[RepetitionCut, ...]:
    """The longest run of more than ``kept`` equal groups of items, equal in all programs; empty: there is none."""
    numbers: dict[object, int] = {}
    rows = np.array([[numbers.setdefault(key, len(numbers)) for key in keys_of(program)] for program in programs])
    items = rows.shape[1]
    for period in range(1, items // (kept + 1) + 1):
        same = np.concatenate([[False], (rows[:, period:] == rows[:, :-period]).all(axis=0), [False]])
        borders = np.flatnonzero(np.diff(same.astype(np.int8)))
        lengths = borders[1::2] - borders[::2]
        if lengths.size and int(lengths.max()) >= kept * period:
            longest = int(lengths.argmax())
            return (RepetitionCut(int(borders[2 * longest]), period, int(lengths[longest]) // period + 1),)
    return ()


def keys_of(program: Program) -> Iterator[tuple[object, ...]]:
    """A key of every item: what it does, and its dependencies relative to its own position."""
    position = 0
    contents: dict[int, Content] = {}

    def does(instruction: Instruction) -> Content:
        return contents.setdefault(id(instruction), content(instruction))

    for item in program.items:
        if isinstance(item, Repeat):
            body = tuple([(does(instruction), instruction.layer, instruction.after) for instruction in item.body])
            yield (item.times, item.layer_step, item.continues, body)
        else:
            yield (does(item), item.layer, tuple([position - index for index in item.after]))
        position += length_of(item)


def without_items(program: Program, cut: RepetitionCut, kept: int) -> Program:
    """The program with ``kept`` iterations of a run of items."""
    begin = cut.first + (kept - 1) * cut.items
    end = begin + (cut.total - kept) * cut.items
    items = program.items
    before, gone = (sum(map(length_of, part)) for part in (items[:begin], items[begin:end]))
    return Program(program.role, (*items[:begin], *moved(items[end:], before, gone)))


def without_iterations(program: Program, cut: RepetitionCut, kept: int) -> Program:
    """The program with ``kept`` iterations of one Repeat."""
    items = program.items
    repeat = items[cut.first]
    assert isinstance(repeat, Repeat)
    before = sum(map(length_of, items[: cut.first])) + (kept - 1) * len(repeat.body)
    gone = (cut.total - kept) * len(repeat.body)
    shorter = replace(repeat, times=kept)
    return Program(program.role, (*items[: cut.first], shorter, *moved(items[cut.first + 1 :], before, gone)))


def moved(items: Sequence[Item], before: int, gone: int) -> Iterator[Item]:
    """The items, ``gone`` instructions earlier. Dependencies at ``before`` or later move with them."""
    for item in items:
        if isinstance(item, Repeat) or not item.after:
            yield item
        else:
            yield item.at(item.layer, tuple([index if index < before else index - gone for index in item.after]))


def iteration_of(program: Program, cut: RepetitionCut) -> tuple[int, list[str]]:
    """Index of a cut's first instruction in the unrolled program, and the streams of an iteration's instructions."""
    items, place = program.items, cut.first
    first, item = sum(map(length_of, items[:place])), items[place]
    if isinstance(item, Repeat) and not cut.items:
        return first, [instruction.stream for instruction in item.body]
    iteration = Program("", tuple(items[place : place + cut.items]))
    return first, [issued.instruction.stream for issued in iteration.unrolled()]


def split_after_layers(program: Program) -> tuple[Program, Program | None]:
    """Split a program at the first collective after all layers that waits for everything before it.

    The second part is None if there is no such collective. Ranks that are alike up to it may differ in it: in a tree
    of all ranks, which sums the norm of gradients, every rank has its own place.
    """
    issued = list(program.unrolled())
    order = [(instruction.stream, after) for instruction, _, after in issued]
    singles = next((turn for turn, item in enumerate(reversed(program.items)) if isinstance(item, Repeat)), 0)
    for place in range(len(issued) - singles, len(issued)):
        if isinstance(issued[place].instruction, Collective) and waits_for_all(order, place):
            behind = [
                instruction.at(layer, tuple([index - place for index in after if index >= place]))
                for instruction, layer, after in issued[place:]
            ]
            return Program(program.role, program.items[: -len(behind)]), Program(program.role, tuple(behind))
    return program, None


def waiting(program: Program, waits: Callable[[Instruction], bool], first: Callable[[Instruction], bool]) -> Program:
    """Make every instruction that ``waits`` depend on the last instruction before it that is ``first``.

    In a repeated body without an earlier one, it depends on the last one of the previous iteration.
    """
    return Program(program.role, tuple(_waiting(program, waits, first)))


def _waiting(
    program: Program, waits: Callable[[Instruction], bool], first: Callable[[Instruction], bool]
) -> Iterator[Item]:
    position, last = 0, -1
    for item in program.items:
        if isinstance(item, Repeat):
            places = [index for index, instruction in enumerate(item.body) if first(instruction)]
            yield _waiting_turns(item, waits, places) if places else item
            length = len(item.body)
            if places:
                last = position + (item.times - 1) * length + places[-1]
            position += item.times * length
            continue
        yield _with(item, last) if waits(item) and last >= 0 else item
        if first(item):
            last = position
        position += 1


def _waiting_turns(item: Repeat, waits: Callable[[Instruction], bool], places: Sequence[int]) -> Repeat:
    body = []
    for index, instruction in enumerate(item.body):
        earlier = [place for place in places if place < index]
        last = earlier[-1] if earlier else places[-1] - len(item.body)
        body.append(_with(instruction, last) if waits(instruction) else instruction)
    return Repeat(tuple(body), item.times, item.layer_step, item.continues)


def _with(instruction: Instruction, index: int) -> Instruction:
    """The instruction with one more dependency."""
    return instruction.at(instruction.layer, tuple(dict.fromkeys((*instruction.after, index))))
