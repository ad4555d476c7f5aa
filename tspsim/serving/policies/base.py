"""What a scheduler of an engine is to everybody else."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ...errors import InputError
from ...registry import Registry
from ...scenario.section import Section
from ..lane import Lane, StepPlan
from ..requests import Request
from ..settings import Settings


@dataclass(frozen=True)
class Policy:
    """How an engine schedules.

    Attributes
    ----------
    name
        As scenarios write it.
    options
        Its options by their real names, with their defaults.
    lane
        Makes one attention replica's queues.
    block_option
        Which option says how many tokens a block of the cache has.
    """

    name: str
    options: type[Section]
    lane: type[Lane]
    block_option: str

    def check(self, settings: Settings, request: Request) -> None:
        """Whether a request can ever be served; raises InputError with why not."""
        capacity, block = settings.capacity_blocks, settings.block_tokens
        most = settings.most_tokens(request)
        if capacity is not None and -(-most // block) > capacity:
            lengths = f"a prompt of {request.prompt_tokens} tokens and {request.output_tokens} outputs"
            raise InputError(f"{lengths} take {most} tokens of cache, and there are {capacity * block} (kv_tokens)")

    def deal(self, lanes: SequenceOf[Lane], request: Request) -> int:
        """Which of several attention replicas serves a request: the one with fewest here, the first of equals."""
        return min(range(len(lanes)), key=lambda index: (lanes[index].present, index))

    def schedule(self, lanes: SequenceOf[Lane]) -> list[StepPlan]:
        """What all attention replicas of an engine do in the next step."""
        return [lane.schedule() for lane in lanes]


POLICIES: Registry[Policy] = Registry("scheduler", "tspsim.schedulers")
