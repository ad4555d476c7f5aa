"""Shared beginnings of prompts, which a prefix cache can serve: the family of prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ...base.registry import Registry
from ..kind import Floats, Ints, Kind
from ..traces import RequestTrace

#: For each request of a conversation: its requests that must end before this one is sent.
Needs = tuple[tuple[int, ...], ...]


class Shared:
    """Blocks that drawn requests share. This base class shares none.

    Attributes
    ----------
    block_tokens
        Tokens of a block with an identity; 0 where no block has one.
    """

    block_tokens = 0

    def blocks(self, number: int) -> tuple[int, ...]:
        """Identities of the blocks of a prompt and its answer, from their beginning, as far as they can occur again."""
        return ()

    def conversation(self, number: int) -> int | None:
        """The conversation of which a request is a turn; None: it stands alone."""
        return None


class Prefixes(Kind):
    """How prompts begin."""

    registry: ClassVar[Registry[Any]] = Registry("kind of prefix", "tspsim.prefixes")

    #: Turns of a conversation; each is sent after the one before has ended.
    turns_each: ClassVar[int] = 1

    def beside(self, folder: Path | None) -> Self:
        """The same prefixes with the data of their files, which may stand in the scenario's folder. Raises InputError
        for a wrong file."""
        return self

    def drawn(self, random: np.random.Generator, count: int) -> Self:
        """The same prefixes with drawn shapes of ``count`` requests' conversations, where shapes are drawn. A larger
        count begins with the same shapes."""
        return self

    def sizes(self, count: int) -> Ints | None:
        """Requests of each conversation that ``count`` requests need. None: ``turns_each``, the last maybe cut."""
        return None

    def follows(self, conversations: int) -> Sequence[Needs] | None:
        """For each conversation, the requests that each of its requests waits for; None: the one before it."""
        return None

    @property
    def shares(self) -> bool:
        """Whether any block of a prompt can occur again."""
        return True

    @property
    def calls_tools(self) -> bool:
        """Whether a tool runs between the turns of a conversation, for the seconds of :meth:`think_s`."""
        return False

    @property
    def tool_workers(self) -> int | None:
        """Tool calls that run at once; None: no limit."""
        return None

    def needs(self, trace: RequestTrace | None) -> str | None:
        """An error about a trace that it needs or cannot use; None where all is right."""
        return None

    def prompts(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Tokens of whole prompts, from the drawn tokens of each turn."""
        return prompt_tokens

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        """Blocks shared among requests with these whole prompts and outputs, arrays (requests,). ``trace`` is the trace
        that arrivals replay; None where arrivals are drawn."""
        raise NotImplementedError

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        """Seconds from the end of a turn to the next, before each of ``count`` requests."""
        return np.zeros(count)


Prefixes.registry.of = type[Prefixes]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """Adds the kind where it is left out: the name that is one of the keys, or nearly one, so that its class can name
    the fault."""
    if not isinstance(value, Mapping) or "kind" in value:
        return None
    for cutoff in (1.0, 0.6):
        named = [kind for key in value for kind in get_close_matches(str(key), Prefixes.registry, n=1, cutoff=cutoff)]
        if named:
            return {"kind": named[0], **value}
    return None
