"""What a schedule of decoding on the folded axis is to everybody else: one object that registers itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...base.registry import Registry
from ..job import Job
from ..ledger import Buffer
from ..pipeline import Refusal
from ..plan import Plan
from ..registries import ContextShare
from ..scheme import LayerPiece, Piece

AXIS = "tsp"
#: The form of plans that name none.
USUAL = "tree"


@dataclass(frozen=True)
class DecodeForm:
    """A schedule of steps that decode on the folded axis."""

    #: What a plan's ``decode_form`` calls it, and a line for the catalogue.
    name: str
    summary: str
    #: Write a pass.
    embed: Piece
    layer: LayerPiece
    head: Piece
    #: Plan → how ranks share contexts.
    share: Callable[[Plan], ContextShare]
    #: Job → payload that a rank receives in a layer.
    received: Callable[[Job], float]
    #: Job → what it keeps of other ranks' meanwhile.
    buffers: Callable[[Job], Iterator[Buffer]]
    #: Job → the key of the plan that does not go with it and why; None where all do.
    check: Callable[[Job], Refusal] = lambda job: None
    #: Weights come to tokens; otherwise every rank has all tokens.
    travels: bool = False


DECODE_FORMS: Registry[DecodeForm] = Registry("decode form", "tspsim.decode_forms", DecodeForm)


#: The one of a plan.
form_of = DECODE_FORMS.named_by("decode_form", USUAL)
