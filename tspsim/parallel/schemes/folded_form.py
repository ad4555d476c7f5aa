"""The contract of a decode form on the folded axis, and their registry."""

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
#: The default form.
USUAL = "tree"


@dataclass(frozen=True)
class DecodeForm:
    """A schedule of decode steps on the folded axis."""

    #: Its name in a plan's ``decode_form``, and a line for the catalogue.
    name: str
    summary: str
    #: Write the parts of a pass.
    embed: Piece
    layer: LayerPiece
    head: Piece
    #: Plan → how ranks share contexts.
    share: Callable[[Plan], ContextShare]
    #: Job → payload bytes that a rank receives in a layer.
    received: Callable[[Job], float]
    #: Job → buffers for other ranks' data.
    buffers: Callable[[Job], Iterator[Buffer]]
    #: Job → the key of the plan that does not fit and why; None if all fit.
    check: Callable[[Job], Refusal] = lambda job: None
    #: Weights move to tokens; otherwise every rank has all tokens.
    travels: bool = False


DECODE_FORMS: Registry[DecodeForm] = Registry("decode form", "tspsim.decode_forms", DecodeForm)


#: Plan → its decode form.
form_of = DECODE_FORMS.named_by("decode_form", USUAL)
