"""What a step with prompts is made of, told from a few compositions of it that differ in one thing each."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..parallel.serving_engine import Captured
from .work import Chunk, Work

#: Tokens before the first piece of a prompt, and of the second piece; sequences that decode, their contexts.
BEHIND, SECOND, BATCH, CONTEXT = 64, 160, 40, 4096


class Part(Enum):
    """What an instruction's time depends on."""

    NOTHING = "nothing"
    TOKENS = "tokens that pass"
    EXPERTS = "tokens that pass, of all replicas that share experts"
    OUTPUTS = "tokens that are sampled"
    DECODING = "sequences that decode"
    READ = "tokens of prompts that pass"
    CACHED = "tokens of prompts that were there before"
    LENGTHS = "tokens that prompts have, together"
    PROMPTS = "prompts"
    CARRIED = "rows that it carries itself"


class Change(Enum):
    """In what a composition differs from the first."""

    PROMPT_CONTEXT = "further tokens before a piece of a prompt"
    DECODE_CONTEXT = "further tokens in the caches of those that decode"
    FEWER = "fewer sequences decode"
    SAME_TOKENS = "the same of one, and its tokens are a prompt's"
    MORE_TOKENS = "further tokens of a prompt"
    SAME_LENGTH = "the same, and as many less before them"
    SPLIT = "the same of one prompt, and as many less of another"
    MORE_OUTPUTS = "a prompt ends"


#: A part's instructions change where all of the first do, and nowhere but in those and the second.
PARTS: dict[Part, tuple[set[Change], set[Change]]] = {
    Part.NOTHING: (set(), set()),
    Part.TOKENS: ({Change.MORE_TOKENS, Change.SAME_LENGTH}, {Change.FEWER}),
    Part.OUTPUTS: ({Change.MORE_OUTPUTS}, {Change.FEWER, Change.SAME_TOKENS}),
    Part.DECODING: ({Change.FEWER, Change.SAME_TOKENS}, {Change.DECODE_CONTEXT}),
    Part.READ: ({Change.MORE_TOKENS, Change.SAME_TOKENS, Change.SAME_LENGTH}, set()),
    Part.CACHED: ({Change.PROMPT_CONTEXT, Change.SAME_LENGTH}, set()),
    Part.LENGTHS: ({Change.PROMPT_CONTEXT, Change.MORE_TOKENS}, {Change.SAME_TOKENS}),
    Part.PROMPTS: ({Change.MORE_TOKENS, Change.SPLIT}, {Change.PROMPT_CONTEXT, Change.SAME_TOKENS, Change.SAME_LENGTH}),
}


def part_by(changed: set[Change], looked_at: set[Change]) -> Part | None:
    """The part whose instructions change so, of what was looked at; None where there is none. Where two do, the first:
    they depend on the same then."""
    for part, (surely, perhaps) in PARTS.items():
        if surely & looked_at <= changed <= surely | perhaps and (changed or part is Part.NOTHING):
            return part
    return None


class Kind(NamedTuple):
    """Steps whose programs have the same instructions."""

    decodes: bool
    outputs: bool
    cached: bool
    captured: Captured


def compositions(kind: Kind, queries: int, more: int, tokens: int) -> dict[Change | None, Work]:
    """The first, of ``tokens`` tokens, and those that differ from it in one thing, by ``more`` tokens of prompts where
    it is that."""

    def work(
        *, add: int = 0, before: int = 0, less: int = 0, fewer: int = 0, context: int = CONTEXT, end: int = 0
    ) -> Work:
        batch = BATCH - fewer if kind.decodes else 0
        first = tokens - SECOND - (BATCH * queries if kind.decodes else 0) + add
        # Without any that decodes one piece ends at least.
        ends = 0 if not kind.outputs else end + (not kind.decodes)
        behind = BEHIND + before if kind.cached else 0
        pieces = [Chunk(first, behind, ends > 0), Chunk(SECOND - less, 0, ends > 1)]
        return Work(pieces, (context,) * batch, queries)

    found: dict[Change | None, Work] = {
        None: work(),
        Change.MORE_TOKENS: work(add=more),
        Change.SPLIT: work(add=more, less=more),
    }
    if kind.cached:
        found[Change.PROMPT_CONTEXT] = work(before=more)
        found[Change.SAME_LENGTH] = work(add=more, before=-more)
    if kind.outputs:
        found[Change.MORE_OUTPUTS] = work(end=1)
    if kind.decodes:
        found[Change.DECODE_CONTEXT] = work(context=2 * CONTEXT)
        found[Change.SAME_TOKENS] = work(add=queries, fewer=1)
        found[Change.FEWER] = work(fewer=-(-more // queries))
    return found
