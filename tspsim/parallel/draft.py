"""Who drafts the tokens that a verify step checks: registered objects that write the passes behind the model's own.

A draft is made token after token: every pass goes through the drafter and the language-model head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model import Architecture, Block
from ..registry import Registry


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
    #: What such a layer is made of: mostly as the model's own modules for further tokens have it.
    block: Callable[[Architecture], Block] = lambda model: model.further_block


DRAFTS: Registry[Draft] = Registry("draft", "tspsim.drafts", Draft)
#: The model's own module for further tokens.
DRAFTS.register(Draft("mtp", 1, lambda model: model.multi_token > 0))
#: A head of one dense layer trained beside the model (Li et al. 2025, EAGLE-3, arXiv:2503.01840), of the model's width.
DRAFTS.register(Draft("eagle", 1, block=dense))
#: Guessed from the prompt (n-grams).
DRAFTS.register(Draft("ngram", 0))
