"""Drafters of speculative decoding: registered objects that define the passes after a verify step's own.

Drafts are made token by token: every pass goes through the drafter and the LM head. In a tree, a pass takes all drafts
of one depth (Miao et al. 2024, SpecInfer, arXiv:2305.09781; Li et al. 2024, EAGLE-2, arXiv:2406.16858). A drafter that
fills a block of masked tokens needs one pass for all (``at_once``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base.registry import Registry
from ..model import Architecture, Block


def dense(model: Architecture) -> Block:
    """The layer of the model's MTP modules, with a dense MLP if the model states the width of one."""
    return model.further_block._replace(experts=model.experts is not None and not model.ffn)


@dataclass(frozen=True)
class Draft:
    """A drafter."""

    name: str
    #: Layers that a drafted token goes through, after a projection of the residual stream and the last token's
    #: embedding (DeepSeek-V3, §2.2); 0: tokens are guessed from the text (n-grams) at no cost.
    layers: int
    #: Whether a model has it.
    available: Callable[[Architecture], bool] = lambda model: True
    #: Whether one pass makes all drafts of a step; its queries are the last token and one masked token per draft.
    at_once: bool = False
    #: Whether it is a separate model (`speculation.model`) with its own tables, head and caches.
    whole: bool = False
    #: Kind of its layers; usually that of the model's MTP modules.
    block: Callable[[Architecture], Block] = lambda model: model.further_block


DRAFTS: Registry[Draft] = Registry("draft", "tspsim.drafts", Draft)
#: The model's own MTP module.
DRAFTS.register(Draft("mtp", 1, lambda model: model.multi_token > 0))
#: A head of one dense layer, trained beside the model at its width (Li et al. 2025, EAGLE-3, arXiv:2503.01840).
DRAFTS.register(Draft("eagle", 1, block=dense))
#: A block in one pass through five bidirectional dense layers over hidden states of the model (DFlash: block_size 16,
#: five layers of z-lab/dflash). Projecting those states into its caches costs what the other drafters' projection does.
DRAFTS.register(Draft("dflash", 5, block=dense, at_once=True))
#: A smaller model on the same GPUs, spread like the model (Leviathan et al. 2023, arXiv:2211.17192).
DRAFTS.register(Draft("model", 0, whole=True))
#: Guesses from the prompt (n-grams).
DRAFTS.register(Draft("ngram", 0))
