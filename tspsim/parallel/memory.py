"""Peak memory of a rank, by part, from what each schedule keeps alive (docs/memory.md derives the terms).

Letters: β bytes of an activation, n local tokens, h hidden, a and c the widths of queries and of keys (= values),
f FFN width, t the ranks that the heads and FFN columns of a rank's own tokens are spread over (T for tensor
parallelism; 1 for TSP, whose ranks compute all heads and columns of their tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .data import Share
from .pipeline import most_in_flight
from .plan import Job


@dataclass(frozen=True)
class Residency:
    """What a scheme keeps, as far as memory cares.

    Attributes
    ----------
    weight_shards
        Ranks one copy of the weights is spread over.
    compute_shards
        t: ranks that heads and FFN columns of a rank's tokens are spread over.
    gathered_context
        (job, layers × micro-batches in flight) → bytes of other ranks' K and V alive at the peak.
    in_flight_weights
        Job → bytes of other ranks' weights (and gradients of them) alive at the peak.
    """

    weight_shards: Callable[[Job], int]
    compute_shards: Callable[[Job], int]
    gathered_context: Callable[[Job, int], float]
    in_flight_weights: Callable[[Job], float]


def peak_memory(job: Job, residency: Residency) -> Mapping[str, float]:
    """Bytes by part of the fullest rank: forward alone, or a training step."""
    stages = [stage_memory(job, residency, stage) for stage in sorted({0, job.plan.pp // 2, job.plan.pp - 1})]
    return max(stages, key=lambda parts: sum(parts.values()))


def stage_memory(job: Job, residency: Residency, stage: int) -> Mapping[str, float]:
    """Bytes by part of a rank of one pipeline stage."""
    plan, optimizer, chunks = job.plan, job.work.optimizer, job.chunks(stage)
    owned = Share(job, residency.weight_shards(job)).owned(chunks)
    divided = [job.copies if plan.zero >= level else 1 for level in (1, 2, 3)]
    in_flight = most_in_flight(job.tasks(stage), chunks) if job.training else 1
    parts: dict[str, float] = {}
    if job.training:
        parts["weights"] = owned * optimizer.weights / divided[2]
        parts["gradients"] = owned * optimizer.gradients / divided[1]
        parts["optimizer_state"] = owned * optimizer.state / divided[0]
        parts["optimizer_temporaries"] = owned * optimizer.temporaries / divided[0]
        parts["kept_activations"] = kept_activations(job, residency.compute_shards(job)) * in_flight
        if plan.zero == 3 and job.copies > 1:
            # The layer at work and the one gathered ahead, and a layer's whole gradient on its way to be scattered.
            layer = Share(job, residency.weight_shards(job)).layer
            parts["gathered_weights"] = layer * (2 * job.weight_bytes + optimizer.gradients)
    else:
        parts["weights"] = owned * job.weight_bytes
    parts["workspace"] = workspace(job, residency.compute_shards(job))
    parts["gathered_context"] = residency.gathered_context(job, in_flight)
    parts["in_flight_weights"] = residency.in_flight_weights(job)
    if any(chunk.has_head for chunk in chunks):
        parts["logits"] = logits(job)
    parts["runtime_reserve"] = job.work.runtime_reserve_bytes
    return {name: size for name, size in parts.items() if size > 0.0}


def residual_tokens(job: Job) -> float:
    """Tokens of the residual stream a rank holds between blocks: n, or n/T with sequence regions."""
    return job.tokens / (job.plan.tp if job.plan.sequence_regions else 1)


def kept_activations(job: Job, compute_shards: int) -> float:
    """What the forward of one layer and micro-batch leaves for the backward.

    ``full`` recomputation keeps a layer's input, β·h a token. Otherwise a layer keeps its input, both norms' outputs
    and the middle of the residual stream (4h), Q, K, V and the attention output (2a + 2c), and the MLP's columns (3f
    gated, 2f not); ``selective`` drops the product of the activation (f), which is cheap to make again. Attention
    keeps no score matrix (FlashAttention).
    """
    model, plan = job.model, job.plan
    residual = residual_tokens(job) * model.hidden
    if plan.recomputation == "full":
        per_layer = residual
    else:
        columns = (3 if model.gated else 2) - (plan.recomputation == "selective")
        split = 2 * model.attention_width + 2 * model.kv_width + columns * model.ffn
        per_layer = 4 * residual + job.tokens * split / compute_shards
    return job.activation_bytes * per_layer


def workspace(job: Job, compute_shards: int) -> float:
    """One layer alive.

    Training: seven residual-sized tensors (input to the middle, both norms' outputs, the block's output, and three
    gradients), Q, K, V, the attention output and their gradients (2·(2a + 2c)), and the MLP's columns with theirs (5f
    gated: gate, up, their product, two gradients; 3f not). Forward alone: the residual, the norm's output and the wider
    of attention's and the MLP's columns.
    """
    model = job.model
    attention = 2 * model.attention_width + 2 * model.kv_width
    residual = residual_tokens(job) * model.hidden
    # With sequence regions the gathered input of a block stands whole beside the shards.
    whole = job.tokens * model.hidden if job.plan.sequence_regions else 0.0
    if job.training:
        split = 2 * attention + (5 if model.gated else 3) * model.ffn
        elements = 7 * residual + 2 * whole + job.tokens * split / compute_shards
    else:
        split = max(attention, (3 if model.gated else 2) * model.ffn)
        elements = 3 * residual + whole + job.tokens * split / compute_shards
    return job.activation_bytes * elements


def logits(job: Job) -> float:
    """A rank's logits in bf16 and, while training, their gradient and fp32 softmax (β + 2 + 4 a logit)."""
    model, plan = job.model, job.plan
    if not model.vocab:
        return 0.0
    columns = -(-model.vocab // (plan.tp * plan.tsp))
    per_logit = job.activation_bytes + (6.0 if job.training else 0.0)
    return job.tokens * columns * per_logit
