"""Megatron-Core's order of a forward and a backward layer (``--overlap-moe-expert-parallel-comm``).

NVIDIA/Megatron-LM, ``megatron/core/models/common/model_chunk_schedule_plan.py``,
``TransformerLayerSchedulePlan.run`` (commit 01cf4fb5). One thread issues, for the i-th layer of a forward and the i-th
last of a backward, one node after the other on a stream for kernels and one for exchanges:

    exchanges   combine B |  dispatch F, dispatch B                    | combine F
    kernels     attention F | experts B, their weights, experts F      | attention B, its weights

A node waits for the one before it of its own task (``stream_acquire_context``, one event a task). Shared experts and
router belong to attention (``submodule_attn_forward``); the sum of a token's experts is behind the combine. The host
reads counts inside the dispatch, behind the launch of the experts' backward. A layer that is recomputed as a whole runs
its forward alone before its backward, "exposed (not overlapped) by design".

``megatron-core`` has weight gradients apart (``delay_wgrad_compute``, as NVIDIA's performance recipes set it beside
the overlap); ``megatron-core-whole`` leaves them in the backward, Megatron-Core's default.
"""

from __future__ import annotations

from ..interleave import INTERLEAVINGS
from .nodes import LayerNode, PairOrder, Turn

TURNS = (
    Turn(LayerNode.AGAIN, backward=True),
    Turn(LayerNode.COMBINE, backward=True),
    Turn(LayerNode.ATTENTION),
    Turn(LayerNode.EXPERTS, backward=True),
    Turn(LayerNode.DISPATCH),
    Turn(LayerNode.EXPERTS_WEIGHTS, backward=True),
    Turn(LayerNode.DISPATCH, backward=True),
    Turn(LayerNode.EXPERTS),
    Turn(LayerNode.COMBINE),
    Turn(LayerNode.ATTENTION, backward=True),
    Turn(LayerNode.ATTENTION_WEIGHTS, backward=True),
    Turn(LayerNode.SUM),
)

DELAYED = PairOrder(TURNS, defers_weights=True, shared_with_attention=True, by_events=True)

INTERLEAVINGS.register(DELAYED.named("megatron-core", "Megatron-Core's nodes with delayed weight gradients"))
INTERLEAVINGS.register(
    DELAYED._replace(defers_weights=False).named(
        "megatron-core-whole", "Megatron-Core's nodes, weight gradients inside each"
    )
)
