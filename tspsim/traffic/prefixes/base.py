"""What prompts have in common, so that a cache can serve it: the family of prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ...base.registry import Registry
from ..kind import Floats, Ints, Kind
from ..traces import RequestTrace

#: Of each request of a conversation, those of it that have to end before it is sent.
Needs = tuple[tuple[int, ...], ...]


class Shared:
    """What is shared among drawn requests; this one: nothing.

    Attributes
    ----------
    block_tokens
        Tokens of a block that has an identity; 0 where none has.
    """

    block_tokens = 0

    def blocks(self, number: int) -> tuple[int, ...]:
        """Identities of the blocks of a prompt and its answer from their beginning, as far as any may be met again."""
        return ()

    def conversation(self, number: int) -> int | None:
        """Which a request is a turn of; None: it stands alone."""
        return None


class Prefixes(Kind):
    """What prompts begin with."""

    registry: ClassVar[Registry[Any]] = Registry("kind of prefix", "tspsim.prefixes")

    #: Turns of a conversation: requests of which each is sent after the one before has ended.
    turns_each: ClassVar[int] = 1

    def beside(self, folder: Path | None) -> Self:
        """With what its files say, which may stand beside the scenario's; raises InputError for what is wrong there."""
        return self

    def drawn(self, random: np.random.Generator, count: int) -> Self:
        """With the shapes of conversations of so many requests, where they are drawn; more requests begin alike."""
        return self

    def sizes(self, count: int) -> Ints | None:
        """Requests of each conversation that so many requests need; None: ``turns_each``, the last maybe in part."""
        return None

    def follows(self, conversations: int) -> Sequence[Needs] | None:
        """Of each conversation what its requests wait for; None: the one before it."""
        return None

    @property
    def shares(self) -> bool:
        """Whether a cache could meet anything again."""
        return True

    @property
    def calls_tools(self) -> bool:
        """Whether a tool runs between the turns of a conversation, for as long as :meth:`think_s` says."""
        return False

    @property
    def tool_workers(self) -> int | None:
        """Calls of tools that run at once; None: no limit."""
        return None

    def needs(self, trace: RequestTrace | None) -> str | None:
        """What is wrong with it beside a trace, or without one; None where nothing is."""
        return None

    def prompts(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Whole prompts, of tokens that were drawn for each."""
        return prompt_tokens

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        """What is shared among requests of these whole prompts and outputs, arrays (requests,); ``trace`` is what
        arrivals replay, None where they make requests up."""
        raise NotImplementedError

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        """Seconds from the end of a turn to the next, before each of ``count`` requests."""
        return np.zeros(count)


Prefixes.registry.of = type[Prefixes]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """The kind may be left out: it is the key of its name, or of the nearest, whose class tells what is wrong."""
    if not isinstance(value, Mapping) or "kind" in value:
        return None
    for cutoff in (1.0, 0.6):
        named = [kind for key in value for kind in get_close_matches(str(key), Prefixes.registry, n=1, cutoff=cutoff)]
        if named:
            return {"kind": named[0], **value}
    return None
