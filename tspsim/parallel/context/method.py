"""The contract of a context method, and their registry.

A method is how the ranks of ``sp`` attend each other's K and V. It writes the attention of one layer and its backward,
and states bytes received (closed form), buffers, constraints on plans, and open choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...base.registry import Registry
from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..choice import Choice
from ..job import Job
from ..ledger import Buffer
from ..pipeline import Refusal
from ..plan import Plan, check_own_keys
from ..registries import Option

#: (builder, job, layer shard, position on the axis, index to wait for) → index of the instruction that completes the
#: local result.
Attend = Callable[[ProgramBuilder, Job, LayerShard, int, int], int]


@dataclass(frozen=True)
class ContextMethod:
    """How sequence shards attend the whole context.

    Attributes
    ----------
    name, summary
        Its name in a plan's ``exchange``, and a line for the catalogue.
    forward, backward
        Write the attention of one layer.
    received_bytes
        Job → payload bytes that a rank receives and did not hold, in the forward of the layer with least.
    buffers
        Job → buffers for other shards' K and V.
    head_shards
        Plan → ranks of ``sp`` that divide the heads during attention.
    check
        Job → the key of the plan that does not fit and why; None if all fit.
    choices
        Plan → choices left to the tuner.
    options
        Keys that it adds to a scenario's plans.
    overlaps, can_overlap
        Its transfers run beside compute unless the plan says otherwise; or only if the plan says so.
    documents
        Whether packed documents can be attended.
    over_cache
        Whether it exchanges cached contexts too.
    selects
        Whether it exchanges index keys and the tokens that sparse attention selects from.
    distinct
        Whether every rank receives different bytes; otherwise ranks of a node need the same bytes, which enter once.
    by_position
        Whether programs differ between shards.
    merges
        Plan → whether partial attention is merged by the log-sum-exp that FlashAttention returns.
    floor_like
        Another method with no more kernels, whose lower bound serves both; None: itself.
    word
        Its name in names of plans.
    launched
        Framework → the framework's name for it (:mod:`tspsim.studies.launch`).
    assumption
        A sentence for reports of plans that do not state their method.
    """

    name: str
    summary: str
    forward: Attend
    backward: Attend
    received_bytes: Callable[[Job], float]
    buffers: Callable[[Job], Iterable[Buffer]]
    head_shards: Callable[[Plan], int] = lambda plan: 1
    check: Callable[[Job], Refusal] = lambda job: None
    choices: Callable[[Plan], tuple[Choice, ...]] = lambda plan: ()
    options: tuple[Option, ...] = ()
    overlaps: bool = False
    can_overlap: bool = False
    documents: bool = True
    over_cache: bool = False
    selects: bool = False
    distinct: bool = False
    by_position: bool = False
    merges: Callable[[Plan], bool] = lambda plan: False
    floor_like: str | None = None
    word: str = ""
    launched: Mapping[str, str] = field(default_factory=dict)
    assumption: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an option that every plan has."""
        check_own_keys(f"exchange '{self.name}'", (option.name for option in self.options))


CONTEXT_METHODS: Registry[ContextMethod] = Registry("exchange", "tspsim.context_methods", ContextMethod)


#: Advice for stacks without FlashAttention.
WRITTEN_OUT = (
    "and the stack writes scores out (flash_attention: false): use all_gather by heads, ulysses, or exchange: ring, "
    "context_transport: ring, overlap: false (Ring Self-Attention)"
)


def in_parts_refused(job: Job) -> Refusal:
    """Why a served model's layers cannot be attended part by part; None if all can."""
    kinds = {kind.name: kind for kind in map(job.model.attention_of, job.model.distinct)}
    for name, kind in kinds.items():
        if kind.selects:
            problem = f"a context is attended part by part, and {name} attends the best of the whole"
            return "overlap_by", f"{problem}; use heads"
        if not kind.cache(job.model, job.model.distinct[0], job.work.formats.cache).grows and kind.divides_prompts:
            return "overlap_by", f"a context is attended part by part, and {name} hands a state on; use heads"
    return None


def refused(job: Job, method: ContextMethod) -> Refusal:
    """Why a job cannot use the method; None if it can."""
    if job.work.document is not None and not method.documents:
        others = " or ".join(other.name for other in CONTEXT_METHODS.values() if other.documents)
        return "exchange", f"packed documents need no {method.name}: use {others}"
    if job.token_shards > 1 and not job.work.stack.flash_attention and method.merges(job.plan):
        return "exchange", f"{method.name} merges parts of attention as FlashAttention leaves them, {WRITTEN_OUT}"
    if job.token_shards > 1 and job.step.serves and not method.selects:
        wrong = in_parts_refused(job)
        if wrong:
            others = " or ".join(other.name for other in CONTEXT_METHODS.values() if other.selects)
            return "exchange", f"{method.name}: {wrong[1].partition(';')[0]}: use {others}"
    cached = any(context for batch in job.passes for _, context, _ in batch.rows)
    if job.token_shards > 1 and cached and not method.over_cache:
        others = " or ".join(other.name for other in CONTEXT_METHODS.values() if other.over_cache)
        return "exchange", f"{method.name} brings nothing that is cached, which cached prompts need: {others}"
    return method.check(job)
