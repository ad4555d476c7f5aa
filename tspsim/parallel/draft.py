"""Who drafts the tokens that a verify step checks: registered objects that write the passes behind the model's own.

A draft is made token after token: every pass goes through the drafter and the language-model head. In a tree a pass
takes all drafts of one depth (Miao et al. 2024, SpecInfer, arXiv:2305.09781; Li et al. 2024, EAGLE-2,
arXiv:2406.16858). A drafter that fills in a block of masked tokens needs one pass for all (``at_once``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base.registry import Registry
from ..model import Architecture, Block


def dense(model: Architecture) -> Block:
    """A layer as the model's own modules have it, with a dense MLP where the model says how wide one is."""
    return model.further_block._replace(experts=model.experts is not None and not model.ffn)


@dataclass(frozen=True)
class Draft:
    """A drafter."""

    name: str
    #: Layers that one drafted token goes through, behind a projection of the residual stream and the last token's
    #: embedding (DeepSeek-V3, §2.2); 0: tokens are guessed from the text (n-grams), for nothing.
    layers: int
    #: Whether a model has it.
    available: Callable[[Architecture], bool] = lambda model: True
    #: One pass makes all drafts of a step, its queries the last token and as many masked ones as there are drafts.
    at_once: bool = False
    #: A whole model of its own, which `speculation.model` names, with its own tables, head and caches.
    whole: bool = False
    #: What such a layer is made of: mostly as the model's own modules for further tokens have it.
    block: Callable[[Architecture], Block] = lambda model: model.further_block


DRAFTS: Registry[Draft] = Registry("draft", "tspsim.drafts", Draft)
#: The model's own module for further tokens.
DRAFTS.register(Draft("mtp", 1, lambda model: model.multi_token > 0))
#: A head of one dense layer trained beside the model (Li et al. 2025, EAGLE-3, arXiv:2503.01840), of the model's width.
DRAFTS.register(Draft("eagle", 1, block=dense))
#: A block in one pass through five dense layers that attend in both directions, on hidden states of the model (DFlash:
#: block_size 16, five layers of z-lab/dflash). Projecting those into its caches counts as the join of other drafters.
DRAFTS.register(Draft("dflash", 5, block=dense, at_once=True))
#: A smaller model on the same GPUs, spread over them as the model is (Leviathan et al. 2023, arXiv:2211.17192).
DRAFTS.register(Draft("model", 0, whole=True))
#: Guessed from the prompt (n-grams).
DRAFTS.register(Draft("ngram", 0))
