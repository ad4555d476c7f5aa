"""A draft model on GPUs of its own: some replicas verify for all, the others draft for all.

Of G replicas the last n (``draft_replicas``) hold the draft model alone; the first m = G − n hold the model, and each
verifies G/m replicas' sequences. A message sends accepted tokens to the drafting replica, another returns k drafts per
sequence; both have a few bytes per token. With V and D the passes of the two models and x a message

    draft_turns: 1    step = V + x + D + x
    draft_turns: 2    step = max(V₁, D₂) + max(V₂, D₁), plus messages

for all sequences at once, or for two halves in turn, one verified while the other is drafted. Both models read prompts:
prompt tokens travel with accepted ones, and the drafter's first pass reads them. Asynchronous drafting on other GPUs
(McDanel 2024, AMUSD, arXiv:2410.17375; Liu et al. 2024, PEARL, arXiv:2408.11850) continues a sequence while it is
verified, and may draft in vain; here a sequence waits for its verification, so that acceptance is as stated.

Sequences are assigned round-robin; replicas are as busy as the one with most. Under traffic the replicas of one drafter
step together (:mod:`tspsim.serving.pooled_drafts`). Memory is that of the fuller kind of GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ...base.memo import knowing
from ...base.units import PositiveCount
from ...steps.load import round_robin
from ..builder import ProgramBuilder
from ..draft import DRAFTS
from ..drafting import drafter_of
from ..feature import FEATURES, Feature
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..placement import Chunk
from ..plan import DRAFT_REPLICAS, Plan
from ..registries import ContextShare, Option
from ..scheme import scheme_of
from ..search_rule import SearchRule
from ..state import served

TURNS = "draft_turns"
SEARCH = SearchRule(
    why_not="GPUs for the drafter alone are a machine of their own",
    of=lambda model, work: work.load.speculation is not None and work.load.speculation.model is not None,
)
OPTIONS = (
    Option(
        DRAFT_REPLICAS,
        PositiveCount,
        None,
        "verify: number of replicas, the last ones, that hold the draft model alone; the others verify for all",
        SEARCH,
    ),
    Option(
        TURNS,
        Literal[1, 2],
        None,
        "parts of the sequences; with 2, one is verified while the other is drafted",
        SEARCH,
    ),
)
#: Bytes of an accepted token, and of a draft with its probability.
TOKEN_BYTES, DRAFT_BYTES = 4, 8
#: Streams of messages; nothing else is issued on them.
ACCEPTED, DRAFTED = "accepted tokens", "drafts"


def size(plan: Plan) -> int:
    """Replicas that draft; 0: verifying replicas draft too."""
    return int(plan.options.get(DRAFT_REPLICAS, 0))


def verifying(plan: Plan) -> int:
    """Replicas that verify."""
    return plan.dp - size(plan)


def group(plan: Plan) -> tuple[int, int]:
    """Replicas that verify one replica's drafts, and replicas of such a group; (1, 1) without drafting replicas."""
    return (verifying(plan) // size(plan), plan.dp // size(plan)) if size(plan) else (1, 1)


def turns(plan: Plan) -> int:
    """Parts of the sequences that alternate between drafting and verification."""
    return int(plan.options.get(TURNS, 1))


def turns_of(job: Job) -> int:
    """:func:`turns`, fewer if the step has fewer sequences."""
    return min(turns(job.plan), sum(count for _, _, count in round_robin(every_row(job), verifying(job.plan))))


def every_row(job: Job) -> list[tuple[int, int, int]]:
    """Rows of all replicas."""
    return [(queries, context, count * job.plan.dp) for queries, context, count in job.rows]


def drafts_here(builder: ProgramBuilder, job: Job) -> bool:
    """Whether the program being written is that of a drafting replica."""
    return builder.coordinates.get("dp", 0) >= verifying(job.plan)


def part_of(job: Job, turn: int, turns: int, *, drafts: bool = False) -> Job:
    """The job of a verifying replica, or of one that ``drafts`` for several, in one of ``turns``."""
    often = group(job.plan)[0] if drafts else 1
    every = every_row(job)
    mine = round_robin(round_robin(every, verifying(job.plan)), turns, turn)
    rows = tuple((queries, context, often * count) for queries, context, count in mine)
    share = sum(count for _, _, count in rows) / max(1, sum(count for _, _, count in every))
    drafting = job.of_rows(rows)
    return knowing(drafting, batch=replace(drafting.batch, outputs=round(job.batch.head_tokens * job.plan.dp * share)))


def partners(builder: ProgramBuilder, job: Job) -> list[int]:
    """Replicas that this one exchanges tokens with, as offsets from it."""
    own, first, count = builder.coordinates.get("dp", 0), verifying(job.plan), size(job.plan)
    if own < first:
        return [first + own % count - own]
    return [index - own for index in range(first) if first + index % count == own]


def message_bytes(tokens: int, sequences: int, drafts: int, stream: str) -> float:
    """Bytes of a message of a verifying replica with these tokens and sequences."""
    return tokens * TOKEN_BYTES if stream == ACCEPTED else sequences * drafts * DRAFT_BYTES


def bytes_of(job: Job, turn: int, stream: str) -> float:
    """:func:`message_bytes` of a turn."""
    assert job.drafts is not None
    part = part_of(job, turn, turns_of(job))
    sequences = sum(count for _, _, count in part.rows)
    return message_bytes(part.batch.tokens, sequences, job.drafts.tokens, stream)


def send(builder: ProgramBuilder, job: Job, turn: int, stream: str) -> None:
    """Send the tokens of a turn after all that the rank has computed so far."""
    bytes_ = bytes_of(job, turn, stream)
    done = builder.length - 1
    for offset in partners(builder, job):
        builder.send("dp", offset, bytes_, f"{stream} {turn}", after=[done], wrap=False, way=offset)


def await_tokens(builder: ProgramBuilder, job: Job, turn: int, stream: str) -> None:
    """Make the rank's further compute wait for the tokens of a turn."""
    bytes_ = bytes_of(job, turn, stream)
    came = [
        builder.receive("dp", -offset, bytes_, f"{stream} {turn}", wrap=False, way=offset)
        for offset in partners(builder, job)
    ]
    builder.compute(f"{stream} here", after=came)


def further_memory(job: Job, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Memory by which a drafting replica exceeds a verifying one."""
    drafter, here, shards = drafter_of(job), job.chunks(0), scheme_of(job.plan).residency.weight_shards(job)
    if not size(job.plan) or drafter is None:
        return
    kept = served.weight_bytes(job, shards, here) + served.cache_bytes(job, here)
    whole, more = served.whole_model(drafter), verifying(job.plan) / size(job.plan)
    drafted = served.weight_bytes(drafter, shards, whole) + more * served.cache_bytes(drafter, whole)
    yield Buffer("draft_pool", max(0.0, drafted - kept), Lifetime.STEP)


def context(plan: Plan, share: ContextShare) -> ContextShare:
    """Verifying replicas hold the caches of all replicas."""
    return replace(share, copies=plan.dp / max(1, verifying(plan))) if size(plan) else share


def check(job: Job) -> Refusal:
    """Why the plan does not fit."""
    plan, count = job.plan, size(job.plan)
    if not count:
        return (TURNS, f"needs {DRAFT_REPLICAS}: replicas that draft") if TURNS in plan.options else None
    if drafter_of(job) is None:
        if job.drafts is not None and DRAFTS.get(job.drafts.draft).whole:  # the draft model's own passes
            return None
        return DRAFT_REPLICAS, "is of sequences that verify what a draft model of its own makes (`draft: model`)"
    beside = next((axis for axis in ("sp", "pp", "ep") if plan.degree(axis) > 1), None)
    if beside is not None:
        return beside, f"{plan.degree(beside)} beside {DRAFT_REPLICAS} is not built: use tp and dp"
    for key in ("host_attention", "host_caches", "dcp", "kvp", "weight_peers"):
        if plan.options.get(key):
            return key, f"beside {DRAFT_REPLICAS} is not built; leave one out"
    if plan.offload_weights:
        return "offload_weights", f"beside {DRAFT_REPLICAS} is not built; leave one out"
    first = verifying(plan)
    if first < 1 or first % count:
        return DRAFT_REPLICAS, f"{count} of {plan.dp} replicas cannot draft for the others evenly: {first} are left"
    return None


def notes(job: Job) -> Iterator[str]:
    """Which replicas draft."""
    drafter = drafter_of(job) if size(job.plan) else None
    if drafter is not None:
        first, last = verifying(job.plan), job.plan.dp - 1
        who = f"replica {first} drafts" if first == last else f"replicas {first} to {last} draft"
        problem = f"{who} with {drafter.model.name} for the others (`{DRAFT_REPLICAS}`)"
        yield problem + (", one half of the sequences while the other is verified" if turns(job.plan) > 1 else "")


FEATURES.register(
    Feature(
        DRAFT_REPLICAS,
        "a draft model on GPUs of its own",
        options=OPTIONS,
        scheme="tensor",
        serves=True,
        check=check,
        notes=notes,
        buffers=further_memory,
        axes=lambda job: ("dp",) if size(job.plan) else (),
        context=context,
    )
)
