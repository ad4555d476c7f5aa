"""The end of a serving step's pass: logits of the positions that put out a token, and its choice."""

from __future__ import annotations

from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..job import Job

#: Of a logit as ranks exchange it.
LOGIT_BYTES = 2.0


def sampled_head(builder: ProgramBuilder, job: Job, layer: LayerShard, axis: str) -> None:
    """Every rank of an axis multiplies its part of the vocabulary; the logits are gathered and a token is chosen.

    Where that axis divides the tokens, the last ones of the prompts come from their ranks first.
    """
    tokens, ranks = job.head_tokens, job.plan.degree(axis)
    normed = job.tokens if job.work.stack.engine.norms_all else tokens
    builder.compute("final norm", layer.norm(normed))
    ready: list[int] = []
    if job.token_shards > 1 and axis == job.plan.token_axis:
        size = tokens * job.model.hidden * job.activation_bytes
        ready = [builder.collective("broadcast", axis, size, "last tokens")]
    logits = builder.compute("language-model head", layer.head(tokens), after=ready)
    if ranks > 1:
        whole = tokens * layer.vocab * ranks * LOGIT_BYTES
        logits = builder.collective("all_gather", axis, whole, "gather logits", after=[logits])
    builder.compute("sample", layer.sample(tokens), after=[logits])
