"""Blocks of a KV cache: how many are held, and what free blocks still contain."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from .requests import Request


class BlockPool:
    """Blocks of ``block_tokens`` tokens each, without reuse of contents. A ``capacity`` of inf is unlimited."""

    def __init__(self, capacity: float = inf, block_tokens: int = 1) -> None:
        self.capacity, self.block_tokens = capacity, block_tokens
        #: Blocks held by sequences.
        self.used = 0

    @property
    def free(self) -> float:
        """Blocks that no sequence holds."""
        return self.capacity - self.used

    def take(self, blocks: int) -> None:
        """Hold further blocks; they must be free."""
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        """Free held blocks."""
        self.used -= blocks


@dataclass(frozen=True)
class States:
    """Where an engine stores states of linear attention, in blocks of its cache.

    A prefix can be reused up to a position with a stored state, not block by block.

    Attributes
    ----------
    live
        Blocks of a running sequence's states.
    snapshot
        Blocks of a stored state; no sequence holds them, and they are evicted in turn. 0: states
        have a pool of their own.
    at
        Stored states of a prompt. ``pieces``: at ends of its chunks, at a multiple of ``grid`` blocks; in
        a chunk where another prompt diverged, at the divergence instead. ``last``: after its last block
        before its last token, and where another prompt diverged; chunks end at both. ``every``:
        after every ``every`` blocks, where its chunks end.
    grid, every
        These numbers of blocks.
    decoding
        During decoding a state is stored at multiples of this number of blocks; 0: none.
    inside
        Whether kernels write the state after a prompt's last block from inside a chunk, which need not end there.
    most
        States that the own pool stores beside those of running sequences; None: no limit.
    running
        Sequences whose states fit the own pool; None: no limit.
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
        """Numbers of blocks after which states are stored when blocks after ``first`` up to ``last`` of a prompt have
        been computed. ``end``: its last block before its last token; ``parted``: the block after which another prompt
        diverged."""
        if self.at == "every":
            places = list(range((first // self.every + 1) * self.every, last + 1, self.every)) if self.every else []
        elif self.at == "last":
            places = [place for place in (end, parted) if place == last or (self.inside and place == end)]
        else:
            parted -= parted % self.grid
            places = [parted if first < parted <= last else last - last % self.grid]
        return sorted({place for place in places if first < place <= last})

    def places_of_answers(self, first: int, last: int) -> list[int]:
        """The same for answers: the last position counts."""
        place = last - last % self.decoding if self.decoding else 0
        return [place] if place > first else []


class Node:
    """``blocks`` consecutive blocks of known content, after those of its parent. ``key``: their content, given all
    content before."""

    __slots__ = ("blocks", "cached", "children", "holders", "kept", "key", "parent")

    def __init__(self, parent: Node | None, key: Hashable, blocks: int) -> None:
        self.parent, self.key, self.blocks = parent, key, blocks
        #: Blocks from the first on that still hold the content; number of sequences that hold them.
        self.cached = self.holders = 0
        self.children: dict[Hashable, Node] = {}
        #: Numbers of its blocks after which a state is stored, ascending.
        self.kept: list[int] = []


class Snapshot(NamedTuple):
    """A state stored after ``behind`` blocks of a node."""

    node: Node
    behind: int


class Own:
    """The key of a run that only one sequence will look for."""


class Trail:
    """Contents of a sequence's blocks, first to last: runs of blocks by key, and the shared ones.

    A run of a request's ``blocks`` ends at the last whole block of the cache inside it.

    Attributes
    ----------
    keys, ends
        Key of every run, and the block after it.
    nodes
        Nodes of the first runs, which it holds.
    shared
        Number of its first blocks that belong to the nodes.
    end
        Its prompt's last block before its last token.
    junction, looked_at
        Blocks that others have computed too, though without a stored state after them; blocks after which a
        stored state has been considered.
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
        # Identities shorter than a block are joined, so that every run has a block.
        together = -(-block_tokens // request.block_tokens)
        for first in range(0, len(request.blocks) - together + 1, together):
            self.keys.append(request.blocks[first] if together == 1 else request.blocks[first : first + together])
            self.ends.append((first + together) * request.block_tokens // block_tokens)

    def go_on(self, blocks: int) -> None:
        """Extends the known contents up to ``blocks`` blocks; new ones belong to this sequence only."""
        if blocks > (self.ends[-1] if self.ends else 0):
            self.keys.append(Own())
            self.ends.append(blocks)


class Match(NamedTuple):
    """Cached blocks of a sequence: nodes, number of blocks, blocks that no sequence holds yet, and whether the state
    after them belongs to the step being planned."""

    nodes: tuple[Node, ...] = ()
    blocks: int = 0
    idle: int = 0
    fresh: bool = False


NO_MATCH = Match()


class PrefixPool(BlockPool):
    """Blocks that keep their contents until they are evicted: the least recently used first, and
    within a chain the last first.

    A sequence that has computed the same content as another meanwhile frees its own copy.

    Parameters
    ----------
    in_turn
        Whether free blocks are reused in the order of release, whatever they contain (vLLM);
        otherwise blocks without content go first.
    states
        Where states are stored; None: the model has none.
    """

    def __init__(self, capacity: float, block_tokens: int, *, in_turn: bool, states: States | None = None) -> None:
        super().__init__(capacity, block_tokens)
        self._states = states
        #: States in a pool of their own, least recently used first.
        self._kept: OrderedDict[Snapshot, None] = OrderedDict()
        #: States at the last blocks of prompts, stored since :meth:`new_step`.
        self._fresh: set[Snapshot] = set()
        self._in_turn = in_turn and capacity != inf
        self._root = Node(None, None, 0)
        #: Free blocks, oldest release first: of a node, of a state, or without known content.
        self._idle: OrderedDict[object, int] = OrderedDict()
        self._idle_blocks = 0
        #: Blocks saved by sharing: the blocks of all sequences are ``used`` plus this.
        self.saved = 0
        #: Called on eviction from a complete node, with its key and its tokens.
        self.on_forget: Callable[[Hashable, int], None] | None = None

    @property
    def remembered(self) -> int:
        """Free blocks with known content."""
        return sum([blocks for freed, blocks in self._idle.items() if isinstance(freed, Node)])

    def take(self, blocks: int) -> None:
        self.used += blocks
        missing = self.used + self._idle_blocks - self.capacity
        if missing > 0:
            self._forget(int(missing))

    def _forget(self, blocks: int) -> None:
        """Evict free blocks, and everything that is useless without them."""
        while blocks > 0:
            freed, count = next(iter(self._idle.items()))
            taken = gone = min(count, blocks)
            if isinstance(freed, Node):
                complete = freed.cached == freed.blocks and not isinstance(freed.key, Own)
                if self.on_forget is not None and complete:
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
        """Evict blocks from a node's end with the states after them; returns freed blocks of states."""
        node.cached -= blocks
        freed = 0
        while node.kept and node.kept[-1] > node.cached:
            gone = Snapshot(node, node.kept.pop())
            self._kept.pop(gone, None)
            freed += self._idle.pop(gone, 0)
        return freed

    def give_back(self, blocks: int) -> None:
        self.used -= blocks
        # Blocks without content go before all cached content.
        if self._in_turn and blocks and self._idle:
            last = next(reversed(self._idle), None)
            if type(last) is object:  # consecutive releases without content form one entry
                self._idle[last] += blocks
            else:
                self._idle[object()] = blocks
            self._idle_blocks += blocks

    # --- cached content --------------------------------------------------------------------------------------

    def find(self, trail: Trail, most: int) -> Match:
        """The longest cached chain from a sequence's beginning, of at most ``most`` blocks."""
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
        """The cached blocks up to the last stored state."""
        trail.junction = blocks
        for index in reversed(range(len(nodes))):
            start, node = (trail.ends[index - 1] if index else 0), nodes[index]
            behind = next((place for place in reversed(node.kept) if start + place <= blocks), None)
            if behind is not None:
                chain = nodes[: index + 1]
                state = Snapshot(node, behind)
                for order in (self._kept, self._idle):
                    if state in order:
                        order.move_to_end(state)
                idle = sum(chained.cached for chained in chain if not chained.holders)
                return Match(tuple(chain), start + behind, idle, state in self._fresh)
        return NO_MATCH

    def new_step(self) -> None:
        """A step is planned: states stored before are available."""
        self._fresh.clear()

    def keep_states(self, trail: Trail, blocks: int, *, answers: bool = False) -> None:
        """A sequence has computed its first ``blocks`` blocks: states after them are stored where the engine stores
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
        """Store the state after a sequence's first ``place`` blocks, if it holds them and there is room."""
        states = self._states
        index = next((position for position, end in enumerate(trail.ends) if place <= end), len(trail.nodes))
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
        """A sequence holds the matched blocks."""
        for node in match.nodes:
            self._hold(trail, node)
        self.saved += match.blocks - trail.shared
        trail.shared = match.blocks

    def remember(self, trail: Trail, blocks: int, *, part: bool = False) -> None:
        """A sequence has computed its first ``blocks`` blocks: whole runs of them become cached; with ``part`` also its
        part of the next run."""
        index = len(trail.nodes)
        if index and trail.shared < trail.ends[index - 1]:
            index -= 1
        while index < len(trail.ends):
            start, end = (trail.ends[index - 1] if index else 0), trail.ends[index]
            filled = min(end, blocks)
            if filled <= max(start, trail.shared) or (filled < end and not part):
                break
            self._know(trail, index, start, filled)
            index += 1

    def _know(self, trail: Trail, index: int, start: int, filled: int) -> None:
        if index == len(trail.nodes):
            parent = trail.nodes[-1] if trail.nodes else self._root
            node = parent.children.get(trail.keys[index])
            if node is None:
                node = parent.children[trail.keys[index]] = Node(parent, trail.keys[index], trail.ends[index] - start)
            self._hold(trail, node)
        node = trail.nodes[index]
        twice = min(start + node.cached, filled) - max(start, trail.shared)
        more = max(0, filled - start - node.cached)
        node.cached += more
        self.saved += filled - trail.shared - more
        trail.shared = filled
        self.give_back(max(0, twice))

    def release(self, trail: Trail) -> None:
        """A sequence releases its nodes; they stay cached until their blocks are evicted."""
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
