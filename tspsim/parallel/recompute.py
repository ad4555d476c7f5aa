"""What a backward makes again of what its forward did not keep.

    none        everything is kept
    selective   the attention kernel runs again (Korthikanti et al. 2022, §5)
    cheap       what costs little: norms, the products of activations, and heads from their latents (Megatron-Core's
                modules ``layernorm``, ``moe_act`` and ``mla_up_proj``)
    full        the whole layer, its exchanges included (written by :mod:`tspsim.parallel.step`)
"""

from __future__ import annotations

from ..model.layer import LayerShard
from ..operators import Operator
from .plan import Job


def cheap_again(job: Job, *operators: Operator) -> tuple[Operator, ...]:
    """Kernels that run again before a backward needs their result, under ``cheap``."""
    return operators if job.plan.recomputation == "cheap" else ()


def heads_again(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Queries, keys and values from the latents, which alone were kept."""
    if layer.model.latent is None:
        return ()
    return cheap_again(job, *layer.projections(tokens), layer.rope(tokens))
