"""Sequences of unequal length in one step: the number of ranks for each, and their assignment.

A rank takes up to C tokens at once. A plan with ``sp`` cuts every sequence into as many shards: micro-batches are packs
of up to sp·C tokens, assigned to its replicas. With ``sp: auto`` (dynamic context parallelism: Megatron-Core, and Ge et
al. 2025, ByteScale, arXiv 2502.21231, §4) a sequence of s tokens takes d(s) ranks of ``dp``, the least power of two
with d·C ≥ s, in nested groups of 2, 4, 8, … neighbours. Short sequences take one rank, without exchanges. All ranks
hold the same weights, and sum gradients over all once per step.

Sequences are assigned longest first, each to the group of its size whose ranks have the least load. A rank first runs
what it shares with most others, so that no two wait for each other; it packs its own sequences into micro-batches.
While a rank has none, the longest of the sequences shared by fewest is shared by twice as many (Megatron-Core's
``fill_empty_gpus``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.memo import remembered
from ..base.registry import Registry
from ..model import Architecture


class Pack(NamedTuple):
    """One micro-batch of a rank: padded ``tokens`` of each sequence, over ``ranks``, of which it is number ``position``
    (if not given by its plan's own ``sp``)."""

    tokens: tuple[int, ...]
    ranks: int = 1
    position: int = 0


class Unequal(NamedTuple):
    """The sequences of a step over all replicas: tokens of each, and tokens cut off longer ones."""

    tokens: tuple[int, ...]
    cut: int = 0

    @property
    def total(self) -> int:
        """Tokens of all sequences."""
        return sum(self.tokens)


#: Key of a plan: length from which a sequence's activations are offloaded (``offload_layers``), in tokens.
OFFLOAD_FROM = "offload_from"
#: Keys of plans for unequal sequences alone.
OF_LENGTHS = ("dynamic_sp", "padded", "rank_tokens", "deal", OFFLOAD_FROM)
#: Sequences of equal length.
ALIKE = Unequal(())


@dataclass(frozen=True)
class BatchAssignment:
    """An assignment of sequences: what is balanced."""

    #: Its name in a plan's ``deal``, and a line for the catalogue.
    name: str
    summary: str
    #: (model, tokens of a sequence, causal) → its load, in any unit.
    cost: Callable[[Architecture, int, bool], float]
    #: Whether a rank, or a pipeline, gets unshared sequences of similar length, longest first, up to the mean load;
    #: otherwise each sequence goes to the group with the least load.
    like: bool = False


BATCH_ASSIGNMENTS: Registry[BatchAssignment] = Registry("deal", "tspsim.deals", BatchAssignment)
WORK = BATCH_ASSIGNMENTS.register(
    BatchAssignment(
        "work",
        "FLOPs, which grow with the square of a length",
        lambda model, tokens, causal: tokens * model.forward_flops_per_token(tokens, causal),
    )
)
LIKE = BATCH_ASSIGNMENTS.register(
    BatchAssignment(
        "like",
        "FLOPs, of sequences of like length each: micro-batches of a pipeline take as long as each other",
        WORK.cost,
        like=True,
    )
)
TOKENS = BATCH_ASSIGNMENTS.register(
    BatchAssignment("tokens", "tokens, whatever their attention", lambda model, tokens, causal: float(tokens))
)


@dataclass(frozen=True)
class Groups:
    """Ranks, or replicas of several ranks, that sequences are assigned to."""

    #: Number of groups.
    count: int
    #: Ranks of a group, all of which share its sequences.
    shards: int
    #: Tokens that a rank takes at once; None: the longest sequence over the most ranks.
    room: int | None
    #: Whether longer sequences are shared by 2, 4, 8, … groups.
    grows: bool
    #: Ranks → number that padded tokens of a sequence are a multiple of.
    multiple: Callable[[int], int]
    #: Whether sequences are padded to the longest of the step, as in a batch that is one tensor.
    padded: bool = False


class SequenceAssignment(NamedTuple):
    """The assignment: packs of every group in the order of work, and the groups' loads."""

    packs: tuple[tuple[Pack, ...], ...]
    loads: tuple[float, ...]
    room: int

    @property
    def imbalance(self) -> float:
        """Largest load over the mean."""
        return max(self.loads) * len(self.loads) / sum(self.loads)

    @property
    def ranks_of_sequences(self) -> Mapping[int, int]:
        """Ranks per sequence → number of such sequences."""
        counts: dict[int, int] = {}
        for packs in self.packs:
            for pack in packs:
                if not pack.position:
                    counts[pack.ranks] = counts.get(pack.ranks, 0) + len(pack.tokens)
        return dict(sorted(counts.items()))

    @property
    def padded(self) -> int:
        """Tokens with padding."""
        return sum(sum(pack.tokens) for packs in self.packs for pack in packs if not pack.position)


def group_axis(ranks: int) -> str:
    """The axis along groups of ``ranks`` neighbours on ``dp`` that share a sequence."""
    return f"sp{ranks}"


def sequence_groups(options: Mapping[str, Any], replicas: int) -> dict[str, dict[str, int]]:
    """Group axis → ranks of ``dp`` per group, of a plan with ``sp: auto``."""
    if not options.get("dynamic_sp"):
        return {}
    return {group_axis(2**power): {"dp": 2**power} for power in range(1, replicas.bit_length())}


def assign(
    model: Architecture, lengths: tuple[int, ...], causal: bool, deal: str, groups: Groups
) -> SequenceAssignment:
    """Assign sequences to groups of ranks.

    Raises
    ------
    InputError
        A sequence is longer than its ranks take at once, or groups are left without work; key ``rank_tokens``, ``sp``
        or ``dp``.
    """
    facts = (groups.count, groups.shards, groups.room, groups.grows)
    lengths = (max(lengths),) * len(lengths) if groups.padded else lengths
    sizes = [2**power for power in range(groups.count.bit_length())] if groups.grows else [1]
    return _assign(model, lengths, causal, deal, facts, tuple(groups.multiple(groups.shards * size) for size in sizes))


@remembered(256)
def _assign(
    model: Architecture,
    lengths: tuple[int, ...],
    causal: bool,
    deal: str,
    facts: tuple[int, int, int | None, bool],
    multiples: tuple[int, ...],
) -> SequenceAssignment:
    count, shards, stated, grows = facts
    cost, like = BATCH_ASSIGNMENTS.get(deal).cost, BATCH_ASSIGNMENTS.get(deal).like
    costs = {tokens: cost(model, tokens, causal) for tokens in set(lengths)}
    most = shards * (count if grows else 1)
    room = stated or ceil(max(lengths) / most)
    if max(lengths) > room * most:
        raise InputError(
            f"ranks with {room} tokens each hold {room * most} of a sequence, and the longest has {max(lengths)}; "
            f"take at least {ceil(max(lengths) / most)}",
            key="rank_tokens",
        )
    order = sorted(range(len(lengths)), key=lambda index: (-costs[lengths[index]], index))
    sizes = {index: _ranks_for(lengths[index], room * shards) if grows else 1 for index in order}
    while True:
        loads, taken = _placed(order, sizes, [costs[lengths[index]] for index in range(len(lengths))], count, like)
        if min(loads) > 0.0:
            break
        growing = [index for index in order if grows and sizes[index] < count]
        if not growing:
            idle = sum(not load for load in loads)
            raise InputError(
                f"{len(lengths)} sequences leave {idle} of {count} replicas without work; take fewer replicas, or "
                "sp: auto",
                key="dp",
            )
        narrow = min(sizes[index] for index in growing)
        sizes[next(index for index in growing if sizes[index] == narrow)] *= 2
    packs = tuple(
        tuple(_packs(group, taken[group], lengths, sizes, room * shards, shards, multiples)) for group in range(count)
    )
    return SequenceAssignment(packs, tuple(loads), room)


def assignment_notes(assignment: SequenceAssignment, unequal: Unequal, shards: int) -> Iterator[str]:
    """Notes on the assignment, for readers of an answer."""
    tokens, micro_batches = unequal.tokens, sorted(len(packs) for packs in assignment.packs)
    cut = f", {unequal.cut:,} tokens cut off longer ones" if unequal.cut else ""
    few, most = micro_batches[0], micro_batches[-1]
    visits = f"{most} micro-batch{'es' if most > 1 else ''}" if few == most else f"{few} to {most} micro-batches"
    mean = unequal.total / len(tokens)
    yield (
        f"{len(tokens):,} sequences of {min(tokens):,} to {max(tokens):,} tokens, {mean:,.0f} mean{cut}, in {visits} "
        f"per replica of up to {assignment.room:,} tokens per rank"
    )
    if assignment.padded > unequal.total:
        alike = len({tokens_of for packs in assignment.packs for pack in packs for tokens_of in pack.tokens}) == 1
        why = "padding to the longest takes" if alike else "padding to shards of equal size takes"
        yield f"{why} {unequal.total:,} tokens to {assignment.padded:,}; rates count the former"
    shared = {ranks: count for ranks, count in assignment.ranks_of_sequences.items() if ranks > shards}
    if shared:
        yield "long sequences are shared: " + ", ".join(f"{count} by {ranks} ranks" for ranks, count in shared.items())
    yield f"the replica with most work has {assignment.imbalance:.3f} times the mean; all wait for it"


def _ranks_for(tokens: int, room: int) -> int:
    """The least power of two of ranks that take a sequence.

    >>> [_ranks_for(tokens, 2048) for tokens in (128, 2048, 2049, 8192)]
    [1, 1, 2, 4]
    """
    return 1 << (ceil(tokens / room) - 1).bit_length()


def _placed(
    order: Sequence[int], sizes: Mapping[int, int], costs: Sequence[float], count: int, like: bool
) -> tuple[list[float], list[list[int]]]:
    """Loads and sequences of each group; those shared by most first, then the longest.

    ``like``: unshared sequences fill one group after the other up to the mean load.
    """
    loads, taken = [0.0] * count, [list[int]() for _ in range(count)]
    mean, filling, at = sum(costs) / count, list(range(count)), 0
    for index in sorted(order, key=lambda number: -sizes[number]):
        size = sizes[index]
        first = min(range(0, count, size), key=lambda start: max(loads[start : start + size]))
        if like and size == 1:
            filling = filling if at or not any(loads) else sorted(filling, key=lambda group: -loads[group])
            while at < count - 1 and loads[filling[at]] + costs[index] / 2 > mean:
                at += 1
            first = filling[at]
        for member in range(first, first + size):
            loads[member] += costs[index] / size
            taken[member].append(index)
    return loads, taken


def _packs(
    group: int,
    taken: Sequence[int],
    lengths: Sequence[int],
    sizes: Mapping[int, int],
    room: int,
    shards: int,
    multiples: Sequence[int],
) -> Iterator[Pack]:
    """A group's micro-batches: each shared sequence alone, its own sequences packed first-fit."""
    open_: list[list[int]] = []
    for index in taken:
        size = sizes[index]
        multiple = multiples[size.bit_length() - 1]
        tokens = -(-lengths[index] // multiple) * multiple
        if size > 1:
            yield Pack((tokens,), size * shards, group % size)
            continue
        fitting = next((pack for pack in open_ if sum(pack) + tokens <= room), None)
        if fitting is None:
            open_.append([tokens])
        else:
            fitting.append(tokens)
    for pack in open_:
        yield Pack(tuple(pack), shards)
