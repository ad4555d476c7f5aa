"""DeepSeek's order of a forward and a backward layer in DualPipe.

DeepSeek-V3 (arXiv:2412.19437), §3.2.1 and figure 4, and the profile of deepseek-ai/profile-data (``train.json``, four
pairs of layers). ``B`` is the backward for inputs, ``W`` for weights:

    kernels     MLP (B)      MLP (W), MLP (F)    ATTN (B)        ATTN (W), ATTN (F)
    exchanges   DISPATCH (F) DISPATCH (B)        COMBINE (F)     COMBINE (B) of the next layer

Shared experts are part of the MLP: before the routed ones forward, behind them backward. An exchange waits for what it
moves and for no whole module. Orders of other frameworks that publish none are taken as this one.
"""

from __future__ import annotations

from ..interleave import INTERLEAVINGS, Interleaving
from .nodes import Node, PairOrder, Turn

TURNS = (
    Turn(Node.AGAIN, backward=True),
    Turn(Node.COMBINE, backward=True),
    Turn(Node.ATTENTION),
    Turn(Node.DISPATCH),
    Turn(Node.EXPERTS, backward=True),
    Turn(Node.DISPATCH, backward=True),
    Turn(Node.EXPERTS_WEIGHTS, backward=True),
    Turn(Node.EXPERTS),
    Turn(Node.COMBINE),
    Turn(Node.ATTENTION, backward=True),
    Turn(Node.ATTENTION_WEIGHTS, backward=True),
    Turn(Node.SUM),
)

DUALPIPE_ORDER = INTERLEAVINGS.register(
    Interleaving(
        "dualpipe",
        "DeepSeek's order in DualPipe",
        PairOrder(TURNS, defers_weights=True, shared_with_attention=False, by_events=False).merge,
        defers_weights=True,
    )
)
