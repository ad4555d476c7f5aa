"""To the replica that has most of the prompt in its cache, as long as the loads are about even."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ..requests import Request
from .least_load import load
from .router import ROUTERS, Backend, Route


@dataclass(frozen=True)
class PrefixAware:
    """Follows the cache-aware policy of SGLang's router.

    It remembers the blocks of the prompts that each replica was sent, not what the replica's cache holds. Where loads
    are uneven, the replica with the fewest requests is chosen; otherwise the one that was sent most of the prompt's
    first blocks, if those are enough of it; otherwise the one that was sent the fewest blocks.

    Attributes
    ----------
    enough
        Share of the prompt above which a match decides.
    uneven_by, uneven_times
        Loads are uneven if the largest is above the smallest by more than so many requests *and* by more than this
        factor.
    most_blocks
        Blocks that are remembered of a replica; the one not seen for longest is forgotten.

    Notes
    -----
    Defaults are those of sglang-router's ``RouterArgs`` (``cache_threshold``, ``balance_abs_threshold``,
    ``balance_rel_threshold``).
    """

    enough: float = 0.3
    uneven_by: int = 64
    uneven_times: float = 1.5
    most_blocks: int = 1 << 20
    name: str = "prefix_aware"
    summary: str = "the replica that was sent most of the prompt before, unless loads are uneven"

    def open(self, replicas: Sequence[Backend]) -> Route:
        numbers = range(len(replicas))
        sent: list[OrderedDict[int, None]] = [OrderedDict() for _ in numbers]

        def choose(request: Request) -> int:
            requests = [load(replica)[0] for replica in replicas]
            most, fewest = max(requests), min(requests)
            if most - fewest > self.uneven_by and most > fewest * self.uneven_times:
                return min(numbers, key=lambda number: load(replicas[number]))
            matched = [matching(request.blocks, blocks) for blocks in sent]
            best = max(numbers, key=lambda number: matched[number])
            if matched[best] * request.block_tokens > self.enough * request.prompt_tokens:
                return best
            return min(numbers, key=lambda number: (len(sent[number]), load(replicas[number])))

        def route(request: Request) -> int:
            number = choose(request)
            blocks = sent[number]
            for block in request.blocks:
                blocks[block] = None
                blocks.move_to_end(block)
            while len(blocks) > self.most_blocks:
                blocks.popitem(last=False)
            return number

        return route


def matching(blocks: Sequence[int], known: OrderedDict[int, None]) -> int:
    """First blocks of a prompt, in a row, that are known."""
    count = 0
    for block in blocks:
        if block not in known:
            break
        count += 1
    return count


PREFIX_AWARE = ROUTERS.register(PrefixAware())
