"""The replica with the most cached prefix, as long as loads are about even."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ..requests import Request
from .ranking import Ranking
from .router import ROUTERS, Backend, Route


@dataclass(frozen=True)
class PrefixAware:
    """SGLang's cache-aware routing policy.

    It tracks the blocks of the prompts sent to each replica, not the contents of the replica's cache. Where loads
    are uneven, the replica with the fewest requests is chosen; otherwise the one that was sent most of the prompt's
    first blocks, if these are enough of it; otherwise the one that was sent the fewest blocks.

    Notes
    -----
    Defaults are those of sglang-router's ``RouterArgs`` (``cache_threshold``, ``balance_abs_threshold``,
    ``balance_rel_threshold``).
    """

    #: Share of the prompt above which a match decides.
    enough: float = 0.3
    #: Loads are uneven if the largest exceeds the smallest by more than ``uneven_by`` requests *and* by more than this
    #: factor.
    uneven_by: int = 64
    uneven_times: float = 1.5
    #: Most blocks tracked per replica; the least recently used is dropped.
    most_blocks: int = 1 << 20
    name: str = "prefix_aware"
    summary: str = "the replica that was sent most of the prompt before, unless loads are uneven"

    def open(self, replicas: Sequence[Backend]) -> Route:
        sent = Sent(len(replicas), self.most_blocks)
        ranking = Ranking(replicas, sent.count)
        by_load: list[Ranking] = []

        def least_load() -> int:
            if not by_load:
                by_load.append(Ranking(replicas))
            return by_load[0].least()

        def choose(request: Request) -> int:
            most, fewest = ranking.most, ranking.fewest
            if most - fewest > self.uneven_by and most > fewest * self.uneven_times:
                return least_load()
            best, matched = sent.longest(request.blocks_of(request.prompt_tokens))
            if matched * request.block_tokens > self.enough * request.prompt_tokens:
                return best
            return ranking.least()

        def route(request: Request) -> int:
            number = choose(request)
            sent.add(number, request.blocks_of(request.prompt_tokens))
            ranking.changed(number)
            return number

        return route


class Sent:
    """Blocks of prompts sent to replicas, and for each block the replicas.

    Parameters
    ----------
    replicas
        Number of replicas.
    most
        Most blocks tracked per replica; the least recently used is dropped.
    """

    def __init__(self, replicas: int, most: int) -> None:
        self._of: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        #: Block → numbers of the replicas that were sent it, and the least of them.
        self._whose: dict[int, tuple[int, set[int]]] = {}
        self._most = most

    def count(self, number: int) -> int:
        """Blocks tracked for a replica."""
        return len(self._of[number])

    def add(self, number: int, blocks: Sequence[int]) -> None:
        """A replica is sent a prompt."""
        own, whose = self._of[number], self._whose
        for block in blocks:
            if block not in own:
                least, numbers = whose.get(block) or (number, set())
                numbers.add(number)
                whose[block] = min(least, number), numbers
            own[block] = None
            own.move_to_end(block)
        while len(own) > self._most:
            block, _ = own.popitem(last=False)
            _, numbers = whose.pop(block)
            numbers.discard(number)
            if numbers:
                whose[block] = min(numbers), numbers

    def longest(self, blocks: Sequence[int]) -> tuple[int, int]:
        """The replica that was sent most of a prompt's first blocks, the first of equals, and their number."""
        depth = 0
        while depth < len(blocks) and blocks[depth] in self._whose:
            depth += 1
        for deepest in range(depth, 0, -1):
            least, numbers = self._whose[blocks[deepest - 1]]
            # A replica that was sent a block was mostly sent those before it.
            if self._knows(least, blocks, deepest):
                return least, deepest
            holder = next((number for number in sorted(numbers) if self._knows(number, blocks, deepest)), None)
            if holder is not None:
                return holder, deepest
        return 0, 0

    def _knows(self, number: int, blocks: Sequence[int], count: int) -> bool:
        own = self._of[number]
        return all(block in own for block in islice(blocks, count))


PREFIX_AWARE = ROUTERS.register(PrefixAware())
