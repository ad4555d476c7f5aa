"""Blocks of a cache of keys and values: how many are held, and what those that nobody holds still remember."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from .requests import Request


class BlockPool:
    """Blocks of ``block_tokens`` tokens each, which forget when they are freed; a ``capacity`` of inf: as many as are
    asked for."""

    def __init__(self, capacity: float = inf, block_tokens: int = 1) -> None:
        self.capacity, self.block_tokens = capacity, block_tokens
        #: Blocks that sequences hold.
        self.used = 0

    @property
    def free(self) -> float:
        """Blocks that nobody holds."""
        return self.capacity - self.used

    def take(self, blocks: int) -> None:
        """Hold so many more; there must be as many free."""
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        """Hold so many less."""
        self.used -= blocks


@dataclass(frozen=True)
class States:
    """How an engine keeps the states of layers of linear attention, in blocks of its cache.

    A beginning is found up to where the state behind it was kept, not block by block.

    Attributes
    ----------
    live
        Blocks that a sequence takes for its states while it runs.
    snapshot
        And those that a kept state takes, which nobody holds: they are taken for something else in their turn; 0: it
        has a pool of its own.
    at
        Which states of a prompt are kept: ``pieces``: where pieces of it end, at a multiple of ``grid`` blocks, and of
        a piece with a place where another prompt parted from it the one there instead; ``last``: behind its last block
        in front of its last token, and where another one parted from it, at both of which its pieces end; ``every``:
        behind every so many blocks, where its pieces end.
    grid, every
        Those blocks.
    decoding
        While answers are put out a state is kept at a multiple of so many blocks; 0: none.
    inside
        Kernels write the state behind a prompt's last block from inside a piece, which needs no end there.
    most
        States of that pool that can be kept beside those of the sequences that run; None: no limit.
    running
        Sequences whose states that pool has room for; None: no limit.
    """

    live: int = 0
    snapshot: int = 0
    at: Literal["pieces", "last", "every"] = "pieces"
    grid: int = 1
    every: int = 0
    decoding: int = 1
    inside: bool = False
    most: int | None = None
    running: int | None = None

    def places(self, first: int, last: int, end: int, parted: int) -> list[int]:
        """Behind which blocks states are kept when those after ``first`` up to ``last`` of a prompt have been computed,
        whose last block in front of its last token is ``end``, and from which another one parted behind ``parted``."""
        if self.at == "every":
            found = list(range((first // self.every + 1) * self.every, last + 1, self.every)) if self.every else []
        elif self.at == "last":
            found = [place for place in (end, parted) if place == last or (self.inside and place == end)]
        else:
            parted -= parted % self.grid
            found = [parted if first < parted <= last else last - last % self.grid]
        return sorted({place for place in found if first < place <= last})

    def places_of_answers(self, first: int, last: int) -> list[int]:
        """The same of answers: the last one counts."""
        place = last - last % self.decoding if self.decoding else 0
        return [place] if place > first else []


class Node:
    """``blocks`` blocks in a row whose content is known, behind those of its parent; ``key``: what they hold, given
    what all before them hold."""

    __slots__ = ("blocks", "cached", "children", "holders", "kept", "key", "parent")

    def __init__(self, parent: Node | None, key: Hashable, blocks: int) -> None:
        self.parent, self.key, self.blocks = parent, key, blocks
        #: Of the blocks, from the first on, those that still hold it; and sequences that hold them.
        self.cached = self.holders = 0
        self.children: dict[Hashable, Node] = {}
        #: Behind which of its blocks a state is kept, ascending.
        self.kept: list[int] = []


class Snapshot(NamedTuple):
    """A state that is kept, behind so many blocks of a node."""

    node: Node
    behind: int


class Own:
    """The key of a run that one sequence alone will look for."""


class Trail:
    """What a sequence's blocks hold, first to last: runs of blocks by key, and what it shares of them.

    A run of a request's ``blocks`` ends at the last whole block of the cache inside it.

    Attributes
    ----------
    keys, ends
        Of every run, and the block behind it.
    nodes
        Of the first runs: nodes that it holds.
    shared
        Its first blocks, which are those of the nodes.
    end
        Its prompt's last block in front of its last token.
    junction, looked_at
        Blocks that others have computed too, though no state behind them was kept; and those behind which it has been
        looked at whether a state is kept.
    """

    __slots__ = ("end", "ends", "junction", "keys", "looked_at", "nodes", "shared")

    def __init__(self, request: Request, block_tokens: int) -> None:
        self.keys: list[Hashable] = []
        self.ends: list[int] = []
        self.nodes: list[Node] = []
        self.shared = self.junction = self.looked_at = 0
        self.end = (request.prompt_tokens - 1) // block_tokens
        if not request.blocks:
            return
        # Identities of less than a block go together, so that every run has a block.
        together = -(-block_tokens // request.block_tokens)
        for first in range(0, len(request.blocks) - together + 1, together):
            self.keys.append(request.blocks[first] if together == 1 else request.blocks[first : first + together])
            self.ends.append((first + together) * request.block_tokens // block_tokens)

    def go_on(self, blocks: int) -> None:
        """Up to so many blocks it is known what they hold: what is new is the sequence's own."""
        if blocks > (self.ends[-1] if self.ends else 0):
            self.keys.append(Own())
            self.ends.append(blocks)


class Match(NamedTuple):
    """Of a sequence's blocks those that are remembered: nodes, how many blocks, blocks that nobody holds so far, and
    whether the state behind them is of the step that is planned."""

    nodes: tuple[Node, ...] = ()
    blocks: int = 0
    idle: int = 0
    fresh: bool = False


NO_MATCH = Match()


class PrefixPool(BlockPool):
    """Blocks that remember what they hold until they are taken for something else: the least recently used first, and
    of a chain the last first.

    A sequence that has computed what another one has computed meanwhile frees its own copy.

    Parameters
    ----------
    in_turn
        Freed blocks are taken in the order in which they were freed, whether they remember anything or not (vLLM);
        otherwise those that do not come first.
    states
        How states are kept of a model that has some; None: it has none.
    """

    def __init__(self, capacity: float, block_tokens: int, *, in_turn: bool, states: States | None = None) -> None:
        super().__init__(capacity, block_tokens)
        self._states = states
        #: States of a pool of their own, those used longest ago first.
        self._kept: OrderedDict[Snapshot, None] = OrderedDict()
        #: States at the last blocks of prompts that were kept since :meth:`new_step`.
        self._fresh: set[Snapshot] = set()
        self._in_turn = in_turn and capacity != inf
        self._root = Node(None, None, 0)
        #: Freed blocks, those of longest ago first: of a node, of a state, or some that hold nothing known.
        self._idle: OrderedDict[object, int] = OrderedDict()
        self._idle_blocks = 0
        #: Blocks that sequences share over those that are there of them: what they hold is ``used`` and this.
        self.saved = 0
        #: Told of what is forgotten of a node whose blocks were all there: its key, and its tokens.
        self.on_forget: Callable[[Hashable, int], None] | None = None

    @property
    def remembered(self) -> int:
        """Blocks that nobody holds and whose content is known."""
        return sum([blocks for freed, blocks in self._idle.items() if isinstance(freed, Node)])

    def take(self, blocks: int) -> None:
        self.used += blocks
        missing = self.used + self._idle_blocks - self.capacity
        if missing > 0:
            self._forget(int(missing))

    def _forget(self, blocks: int) -> None:
        """Take so many freed blocks, and what is of no use without them."""
        while blocks > 0:
            freed, count = next(iter(self._idle.items()))
            taken = gone = min(count, blocks)
            if isinstance(freed, Node):
                known = freed.cached == freed.blocks and not isinstance(freed.key, Own)
                if self.on_forget is not None and known:
                    self.on_forget(freed.key, freed.blocks * self.block_tokens)
                gone += self._shorten(freed, taken)
                if freed.cached == 0 and freed.parent is not None:
                    del freed.parent.children[freed.key]
            elif isinstance(freed, Snapshot):
                freed.node.kept.remove(freed.behind)
                taken = gone = count
            if taken < count:
                self._idle[freed] = count - taken
            else:
                del self._idle[freed]
            self._idle_blocks -= gone
            blocks -= gone

    def _shorten(self, node: Node, blocks: int) -> int:
        """Take so many blocks of a node from its end, and the states behind them: freed blocks of these."""
        node.cached -= blocks
        freed = 0
        while node.kept and node.kept[-1] > node.cached:
            gone = Snapshot(node, node.kept.pop())
            self._kept.pop(gone, None)
            freed += self._idle.pop(gone, 0)
        return freed

    def give_back(self, blocks: int) -> None:
        self.used -= blocks
        # In front of all that is remembered they are taken like those that never held anything.
        if self._in_turn and blocks and self._idle:
            last = next(reversed(self._idle), None)
            if type(last) is object:  # what holds nothing known, freed one after the other, goes so
                self._idle[last] += blocks
            else:
                self._idle[object()] = blocks
            self._idle_blocks += blocks

    # --- what is known --------------------------------------------------------------------------------------

    def find(self, trail: Trail, most: int) -> Match:
        """The longest chain from a sequence's beginning that is remembered, of at most ``most`` blocks."""
        node, nodes, blocks, idle, start = self._root, [], 0, 0, 0
        trail.junction = 0
        for key, end in zip(trail.keys, trail.ends, strict=True):
            child = node.children.get(key)
            if child is None or start >= most:
                break
            nodes.append(child)
            blocks = min(start + child.cached, most)
            if not child.holders:
                idle += child.cached
            if child.cached < end - start:
                break
            node, start = child, end
        if self._states is not None and nodes:
            return self._up_to_a_state(trail, nodes, blocks)
        return Match(tuple(nodes), blocks, idle) if nodes else NO_MATCH

    def _up_to_a_state(self, trail: Trail, nodes: list[Node], blocks: int) -> Match:
        """Of blocks that are remembered those in front of the last state that is."""
        trail.junction = blocks
        for index in reversed(range(len(nodes))):
            start, node = (trail.ends[index - 1] if index else 0), nodes[index]
            behind = next((place for place in reversed(node.kept) if start + place <= blocks), None)
            if behind is not None:
                found = nodes[: index + 1]
                state = Snapshot(node, behind)
                for order in (self._kept, self._idle):
                    if state in order:
                        order.move_to_end(state)
                idle = sum(each.cached for each in found if not each.holders)
                return Match(tuple(found), start + behind, idle, state in self._fresh)
        return NO_MATCH

    def new_step(self) -> None:
        """A step is planned: states that were kept before are there."""
        self._fresh.clear()

    def keep_states(self, trail: Trail, blocks: int, *, answers: bool = False) -> None:
        """A sequence has computed its first ``blocks`` blocks: states behind them are kept where the engine keeps
        some."""
        states, first = self._states, trail.looked_at
        if states is None or blocks <= first:
            return
        trail.looked_at = blocks
        if answers:
            places = states.places_of_answers(first, blocks)
        else:
            places = states.places(first, blocks, trail.end, trail.junction)
        for place in places:
            self._keep(trail, place)

    def _keep(self, trail: Trail, place: int) -> None:
        """The state behind a sequence's first ``place`` blocks is kept, if it holds them and there is room."""
        states = self._states
        index = next((each for each, end in enumerate(trail.ends) if place <= end), len(trail.nodes))
        if states is None or index >= len(trail.nodes):
            return
        node, behind = trail.nodes[index], place - (trail.ends[index - 1] if index else 0)
        if behind > node.cached or behind in node.kept or states.snapshot > self.free:
            return
        insort(node.kept, behind)
        state = Snapshot(node, behind)
        if states.at == "last":
            self._fresh.add(state)
        if states.snapshot:
            self._idle[state] = states.snapshot
            self._idle_blocks += states.snapshot
            self.take(0)
        else:
            self._kept[state] = None
            while states.most is not None and len(self._kept) > states.most:
                oldest, _ = self._kept.popitem(last=False)
                oldest.node.kept.remove(oldest.behind)

    def share(self, trail: Trail, match: Match) -> None:
        """A sequence holds what was found."""
        for node in match.nodes:
            self._hold(trail, node)
        self.saved += match.blocks - trail.shared
        trail.shared = match.blocks

    def remember(self, trail: Trail, blocks: int, *, part: bool = False) -> None:
        """A sequence has computed its first ``blocks`` blocks: whole runs of them are known from now on; with ``part``
        what it has of the next run too."""
        index = len(trail.nodes)
        if index and trail.shared < trail.ends[index - 1]:
            index -= 1
        while index < len(trail.ends):
            start, end = (trail.ends[index - 1] if index else 0), trail.ends[index]
            known = min(end, blocks)
            if known <= max(start, trail.shared) or (known < end and not part):
                break
            self._know(trail, index, start, known)
            index += 1

    def _know(self, trail: Trail, index: int, start: int, known: int) -> None:
        if index == len(trail.nodes):
            parent = trail.nodes[-1] if trail.nodes else self._root
            node = parent.children.get(trail.keys[index])
            if node is None:
                node = parent.children[trail.keys[index]] = Node(parent, trail.keys[index], trail.ends[index] - start)
            self._hold(trail, node)
        node = trail.nodes[index]
        twice = min(start + node.cached, known) - max(start, trail.shared)
        more = max(0, known - start - node.cached)
        node.cached += more
        self.saved += known - trail.shared - more
        trail.shared = known
        self.give_back(max(0, twice))

    def release(self, trail: Trail) -> None:
        """A sequence holds its nodes no more; they can be found until their blocks are taken."""
        for node in reversed(trail.nodes):
            node.holders -= 1
            if node.holders == 0:
                self.used -= node.cached
                self.saved += node.cached
                self._idle[node] = node.cached
                self._idle_blocks += node.cached
        trail.nodes.clear()
        self.saved -= trail.shared
        trail.shared = 0

    def _hold(self, trail: Trail, node: Node) -> None:
        if node.holders == 0 and node.cached:
            del self._idle[node]
            self._idle_blocks -= node.cached
            self.used += node.cached
            self.saved -= node.cached
        node.holders += 1
        trail.nodes.append(node)
