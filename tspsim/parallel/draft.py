"""Who drafts the tokens that a verify step checks: registered objects that write the passes behind the model's own.

A draft is made token after token: every pass goes through the drafter and the language-model head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model import Architecture
from ..registry import Registry


@dataclass(frozen=True)
class Draft:
    """A drafter.

    Attributes
    ----------
    layers
        Layers of the model's last kind that one drafted token goes through, behind a projection of the residual stream
        and the last token's embedding (DeepSeek-V3, §2.2); 0: tokens are guessed from the text (n-grams), for nothing.
    available
        Whether a model has it.
    """

    name: str
    layers: int
    available: Callable[[Architecture], bool] = lambda model: True


DRAFTS: Registry[Draft] = Registry("draft", "tspsim.drafts")
#: The model's own module for further tokens.
DRAFTS.register(Draft("mtp", 1, lambda model: model.multi_token > 0))
#: A head of one layer trained beside the model (Li et al. 2025, EAGLE-3, arXiv:2503.01840), of the model's width.
DRAFTS.register(Draft("eagle", 1))
#: Guessed from the prompt (n-grams).
DRAFTS.register(Draft("ngram", 0))
