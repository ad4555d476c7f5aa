"""What a step with prompts is made of, told from a few compositions of it that differ in one thing each."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..parallel.serving_engine import Captured
from .work import PromptChunk, StepWork

#: Tokens before the first piece of a prompt, and of the second piece; sequences that decode, their contexts.
BEHIND, SECOND, BATCH, CONTEXT = 64, 160, 40, 4096


class InstructionPart(Enum):
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


class CompositionChange(Enum):
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
PARTS: dict[InstructionPart, tuple[set[CompositionChange], set[CompositionChange]]] = {
    InstructionPart.NOTHING: (set(), set()),
    InstructionPart.TOKENS: ({CompositionChange.MORE_TOKENS, CompositionChange.SAME_LENGTH}, {CompositionChange.FEWER}),
    InstructionPart.OUTPUTS: (
        {CompositionChange.MORE_OUTPUTS},
        {CompositionChange.FEWER, CompositionChange.SAME_TOKENS},
    ),
    InstructionPart.DECODING: (
        {CompositionChange.FEWER, CompositionChange.SAME_TOKENS},
        {CompositionChange.DECODE_CONTEXT},
    ),
    InstructionPart.READ: (
        {CompositionChange.MORE_TOKENS, CompositionChange.SAME_TOKENS, CompositionChange.SAME_LENGTH},
        set(),
    ),
    InstructionPart.CACHED: ({CompositionChange.PROMPT_CONTEXT, CompositionChange.SAME_LENGTH}, set()),
    InstructionPart.LENGTHS: (
        {CompositionChange.PROMPT_CONTEXT, CompositionChange.MORE_TOKENS},
        {CompositionChange.SAME_TOKENS},
    ),
    InstructionPart.PROMPTS: (
        {CompositionChange.MORE_TOKENS, CompositionChange.SPLIT},
        {CompositionChange.PROMPT_CONTEXT, CompositionChange.SAME_TOKENS, CompositionChange.SAME_LENGTH},
    ),
}


def part_by(changed: set[CompositionChange], looked_at: set[CompositionChange]) -> InstructionPart | None:
    """The part whose instructions change so, of what was looked at; None where there is none. Where two do, the first:
    they depend on the same then."""
    for part, (surely, perhaps) in PARTS.items():
        if surely & looked_at <= changed <= surely | perhaps and (changed or part is InstructionPart.NOTHING):
            return part
    return None


class StepComposition(NamedTuple):
    """Steps whose programs have the same instructions."""

    decodes: bool
    outputs: bool
    cached: bool
    captured: Captured


def compositions(
    kind: StepComposition, queries: int, more: int, tokens: int
) -> dict[CompositionChange | None, StepWork]:
    """The first, of ``tokens`` tokens, and those that differ from it in one thing, by ``more`` tokens of prompts where
    it is that."""

    def work(
        *, add: int = 0, before: int = 0, less: int = 0, fewer: int = 0, context: int = CONTEXT, end: int = 0
    ) -> StepWork:
        batch = BATCH - fewer if kind.decodes else 0
        first = tokens - SECOND - (BATCH * queries if kind.decodes else 0) + add
        # Without any that decodes one piece ends at least.
        ends = 0 if not kind.outputs else end + (not kind.decodes)
        behind = BEHIND + before if kind.cached else 0
        pieces = [PromptChunk(first, behind, ends > 0), PromptChunk(SECOND - less, 0, ends > 1)]
        return StepWork(pieces, (context,) * batch, queries)

    works: dict[CompositionChange | None, StepWork] = {
        None: work(),
        CompositionChange.MORE_TOKENS: work(add=more),
        CompositionChange.SPLIT: work(add=more, less=more),
    }
    if kind.cached:
        works[CompositionChange.PROMPT_CONTEXT] = work(before=more)
        works[CompositionChange.SAME_LENGTH] = work(add=more, before=-more)
    if kind.outputs:
        works[CompositionChange.MORE_OUTPUTS] = work(end=1)
    if kind.decodes:
        works[CompositionChange.DECODE_CONTEXT] = work(context=2 * CONTEXT)
        works[CompositionChange.SAME_TOKENS] = work(add=queries, fewer=1)
        works[CompositionChange.FEWER] = work(fewer=-(-more // queries))
    return works
