"""DeepSeek's order of a forward and a backward layer in DualPipe.

DeepSeek-V3 (arXiv:2412.19437), §3.2.1 and figure 4, and the profile of deepseek-ai/profile-data (``train.json``, four
pairs of layers). ``B`` is the backward for inputs, ``W`` for weights:

    kernels     MLP (B)      MLP (W), MLP (F)    ATTN (B)        ATTN (W), ATTN (F)
    exchanges   DISPATCH (F) DISPATCH (B)        COMBINE (F)     COMBINE (B) of the next layer

Shared experts are part of the MLP: before the routed ones forward, behind them backward. An exchange waits for what it
moves and for no whole module. Orders of other frameworks that publish none are taken as this one.
"""

from __future__ import annotations

from ..interleave import INTERLEAVINGS
from .nodes import LayerNode, PairOrder, Turn

TURNS = (
    Turn(LayerNode.AGAIN, backward=True),
    Turn(LayerNode.COMBINE, backward=True),
    Turn(LayerNode.ATTENTION),
    Turn(LayerNode.DISPATCH),
    Turn(LayerNode.EXPERTS, backward=True),
    Turn(LayerNode.DISPATCH, backward=True),
    Turn(LayerNode.EXPERTS_WEIGHTS, backward=True),
    Turn(LayerNode.EXPERTS),
    Turn(LayerNode.COMBINE),
    Turn(LayerNode.ATTENTION, backward=True),
    Turn(LayerNode.ATTENTION_WEIGHTS, backward=True),
    Turn(LayerNode.SUM),
)

DUALPIPE_ORDER = INTERLEAVINGS.register(
    PairOrder(TURNS, defers_weights=True, shared_with_attention=False, by_events=False).named(
        "dualpipe", "DeepSeek's order in DualPipe"
    )
)
