"""What a context method is to everybody else: one object that registers itself.

A method is how the ranks of ``sp`` see each other's K and V. It writes the attention of one layer and its backward, and
answers for them: bytes received in closed form, memory, what it asks of a plan, what it leaves to be chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..choice import Choice, Option
from ..job import Job
from ..ledger import Buffer
from ..pipeline import Refusal
from ..plan import Plan
from ..registries import CONTEXT_METHODS
from ..sought import SOUGHT, Sought

#: (builder, job, layer shard, position on the axis, what to wait for) → the instruction whose end means that the local
#: result is complete.
Attend = Callable[[ProgramBuilder, Job, LayerShard, int, int], int]


@dataclass(frozen=True)
class ContextMethod:
    """How sequence shards attend the whole context."""

    #: What a plan's ``exchange`` calls it, and a line for the catalogue.
    name: str
    summary: str
    #: Write the attention of one layer.
    forward: Attend
    backward: Attend
    #: Job → payload a rank receives and did not hold, in a layer's forward: no fewer for the thinnest layer.
    received_bytes: Callable[[Job], float]
    #: Job → what it keeps: other shards' K and V.
    buffers: Callable[[Job], Iterable[Buffer]]
    #: Plan → ranks of ``sp`` that heads are spread over while they are attended.
    head_shards: Callable[[Plan], int] = lambda plan: 1
    #: Job → the key of the plan that does not go with it and why; None where all do.
    check: Callable[[Job], Refusal] = lambda job: None
    #: Plan → what it leaves to be chosen for the machine.
    choices: Callable[[Plan], tuple[Choice, ...]] = lambda plan: ()
    #: Keys of a scenario's plan that come with it.
    options: tuple[Option, ...] = ()
    #: Its transfers run beside compute unless the plan says otherwise; or only where the plan says so.
    overlaps: bool = False
    can_overlap: bool = False
    #: Whether packed documents can be attended.
    documents: bool = True
    #: It brings what shards hold of cached contexts as well.
    over_cache: bool = False
    #: Every rank receives bytes of its own; otherwise ranks of a node need the same, which enter it once.
    distinct: bool = False
    #: Programs of the shards differ.
    by_position: bool = False
    #: Plan → whether parts of attention are merged by the log-sum-exp that FlashAttention leaves.
    merges: Callable[[Plan], bool] = lambda plan: False
    #: A method that has no more kernels than this one, and whose lower bound serves both; None: itself.
    floor_like: str | None = None
    #: What names of plans call it.
    word: str = ""
    #: What frameworks call it that have it (:mod:`tspsim.studies.launch`), by theirs.
    launched: Mapping[str, str] = field(default_factory=dict)
    #: A sentence for reports, of the method that plans have by default.
    assumption: str = ""


#: What goes without FlashAttention.
WRITTEN_OUT = (
    "and the stack writes scores out (flash_attention: false): use all_gather by heads, ulysses, or exchange: ring, "
    "context_transport: ring, overlap: false (Ring Self-Attention)"
)


def refused(job: Job, method: ContextMethod) -> Refusal:
    """Why a job cannot attend its context so; None where it can."""
    if job.work.document is not None and not method.documents:
        others = " or ".join(each.name for each in CONTEXT_METHODS.values() if each.documents)
        return "exchange", f"packed documents need no {method.name}: use {others}"
    if job.token_shards > 1 and not job.work.stack.flash_attention and method.merges(job.plan):
        return "exchange", f"{method.name} merges parts of attention as FlashAttention leaves them, {WRITTEN_OUT}"
    cached = any(context for batch in job.passes for _, context, _ in batch.rows)
    if job.token_shards > 1 and cached and not method.over_cache:
        others = " or ".join(each.name for each in CONTEXT_METHODS.values() if each.over_cache)
        return "exchange", f"{method.name} brings nothing that is cached, which cached prompts need: {others}"
    return method.check(job)


SOUGHT.register(Sought("exchange", of=lambda model, work: work.step.shards_tokens))
