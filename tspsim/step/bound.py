"""Physical ceilings on tokens/s: no schedule, kernel or library exceeds them on this hardware.

A step lasts at least as long as each of three resources alone; the longest bounds its rate:

- *compute*: the model's FLOPs at the dense peak of every GPU (causal attention halved, tokens dropped by experts not
  counted; training three times the forward: Narayanan et al. 2021, Megatron-LM, §3.1 without recomputation);
- *HBM*: bytes that a rank cannot avoid: every weight that it multiplies read once, every block's input read and output
  written once (training: at least twice, forward and backward);
- *links*: bytes that a rank must receive because it does not hold them, over all links into it; bytes that must enter
  a node, over the node's NICs; weights in host memory, over the link to the host.

No simulation and no measured efficiency enters; every simulated rate must lie below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.display import Pictured, html_table
from ..base.errors import InputError
from ..base.units import compact, flops, millions, percent
from ..network import host_link_bytes_per_s
from ..parallel import Job, axes_of, build_mesh, peak_memory, scheme_of, write_program
from ..parallel.decode import host_caches
from ..parallel.state import weight_peers
from ..parallel.state.memory import arriving_bytes, residual_tokens
from ..program import Compute
from ..scenario import Scenario
from .metrics import one_forward
from .result import SCHEMA_VERSION, Memory
from .simulation import Question, look_up, scheduled

if TYPE_CHECKING:
    import pandas

#: Highest share of the dense peak that a bf16 GEMM reaches on any measured GPU (H100: 794.5 of 989.5 TFLOP/s,
#: stas00/ml-engineering, maximum achievable matmul FLOPS). A claim above it is possible but not plausible.
BEST_MEASURED_SHARE = 0.8


@dataclass(frozen=True)
class Floor:
    """Lower bounds on the seconds of a step (or of one block's forward), one per resource."""

    compute_s: float
    hbm_s: float
    links_s: float

    @property
    def longest_s(self) -> float:
        return max(self.compute_s, self.hbm_s, self.links_s)

    @property
    def limit(self) -> str:
        """The resource with the longest bound: ``compute``, ``hbm`` or ``links``."""
        named = {"compute": self.compute_s, "hbm": self.hbm_s, "links": self.links_s}
        return max(named, key=lambda name: named[name])

    def to_json(self, tokens: float) -> dict[str, Any]:
        """Ceilings in tokens/s; ``links`` is None if nothing has to move."""
        return {
            "ceiling_tokens_per_s": tokens / self.longest_s,
            "limited_by": self.limit,
            "compute_tokens_per_s": tokens / self.compute_s,
            "hbm_tokens_per_s": tokens / self.hbm_s,
            "links_tokens_per_s": tokens / self.links_s if self.links_s else None,
        }


@dataclass(frozen=True)
class PlanBound:
    """Ceilings of one plan: for the whole model's pass, and for one block's forward repeated without end."""

    name: str
    memory: Memory
    tokens_per_step: float
    model: Floor
    block: Floor
    #: Tokens through a block, if they differ from ``tokens_per_step``.
    block_tokens: int | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.model.longest_s

    @property
    def through_block(self) -> float:
        return self.tokens_per_step if self.block_tokens is None else self.block_tokens

    @property
    def block_tokens_per_s(self) -> float:
        return self.through_block / self.block.longest_s

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "memory": self.memory.to_json(),
            "model": self.model.to_json(self.tokens_per_step),
            "block": self.block.to_json(self.through_block),
        }


@dataclass(frozen=True)
class CeilingVerdict:
    """A claimed rate compared with one ceiling."""

    #: The claim does not exceed the ceiling.
    possible: bool
    #: The claim is possible, and needs no higher share of the dense peak than the best measured kernel reaches.
    plausible: bool
    #: Claim over ceiling.
    share: float
    ceiling_tokens_per_s: float
    #: FLOP/s of each GPU that the claim needs.
    flops_per_s_per_gpu: float
    #: The comparison, as a sentence.
    reason: str

    @property
    def word(self) -> str:
        if not self.possible:
            return "impossible"
        return "possible, and plausible" if self.plausible else "possible, but not plausible"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": "possible" if self.possible else "impossible", **vars(self)}


@dataclass(frozen=True, repr=False)
class Bounds(Pictured):
    """The ceilings of a scenario."""

    scenario: str
    workload: str
    device: str
    precision: str
    gpus: int
    #: FLOPs of a token through the whole model, and through one block's forward.
    flops_per_token: float
    block_flops_per_token: float
    #: Of one GPU, dense, in the workload's precision.
    peak_flops_per_s: float
    hbm_bytes_per_s: float
    plans: tuple[PlanBound, ...]

    def __repr__(self) -> str:
        lines = [f"<Bounds {self.scenario}: {self.gpus:,} × {self.device}"]
        for plan in self.plans:
            limit = f"{compact(plan.tokens_per_s, 'tokens/s')} at most, limited by {plan.model.limit}"
            lines.append(f"  {plan.name}  {limit}{'' if plan.memory.fits else '; does not fit'}")
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        rows = [
            [plan.name, compact(plan.tokens_per_s), plan.model.limit, "yes" if plan.memory.fits else "no"]
            for plan in self.plans
        ]
        return html_table(f"{self.scenario}: ceilings", ("plan", "tokens/s at most", "limited by", "fits"), rows)

    def to_frame(self) -> pandas.DataFrame:
        """One row per plan: ceilings in tokens/s for the whole model and for one block's forward, and memory."""
        import pandas

        rows = [
            {
                "ceiling_tokens_per_s": plan.tokens_per_s,
                "block_ceiling_tokens_per_s": plan.block_tokens_per_s,
                "limited_by": plan.model.limit,
                "memory_peak_bytes": plan.memory.peak_bytes,
                "memory_fits": plan.memory.fits,
            }
            for plan in self.plans
        ]
        return pandas.DataFrame(rows, index=pandas.Index([plan.name for plan in self.plans], name="plan"))

    @property
    def fitting(self) -> tuple[PlanBound, ...]:
        """Plans whose memory fits."""
        return tuple(plan for plan in self.plans if plan.memory.fits)

    @property
    def best(self) -> PlanBound:
        """The plan with the highest ceiling for the whole model, among those that fit if any does."""
        return max(self.fitting or self.plans, key=lambda plan: plan.tokens_per_s)

    @property
    def best_block(self) -> PlanBound:
        """The plan with the highest ceiling for one block, among those that fit if any does."""
        return max(self.fitting or self.plans, key=lambda plan: plan.block_tokens_per_s)

    def judge(self, claim_tokens_per_s: float) -> tuple[CeilingVerdict, CeilingVerdict]:
        """Compare a claimed rate with the ceilings for the whole model and for one block's forward."""
        best, block = self.best, self.best_block
        whole = (self.flops_per_token, best.tokens_per_s, best.model.limit)
        alone = (self.block_flops_per_token, block.block_tokens_per_s, block.block.limit)
        return self._verdict(claim_tokens_per_s, *whole), self._verdict(claim_tokens_per_s, *alone)

    def _verdict(self, claim: float, flops_per_token: float, ceiling: float, limit: str) -> CeilingVerdict:
        needed = claim * flops_per_token / self.gpus
        of_peak = needed / self.peak_flops_per_s
        share = claim / ceiling
        # A ceiling that is quoted back has been rounded in a division: it does not exceed itself.
        possible = share <= 1.0 + 1e-9
        reason = (
            f"needs {flops(needed)} per GPU ({flops(flops_per_token).removesuffix('/s')} a token), "
            f"{percent(of_peak, decimals=0)} of its dense {self.precision} peak of {flops(self.peak_flops_per_s)}; "
        )
        if possible:
            reason += f"it is {percent(share, decimals=0)} of the ceiling, {millions(ceiling)} tokens/s"
        else:
            reason += f"the ceiling is {millions(ceiling)} tokens/s, by {LIMITS[limit]}"
        return CeilingVerdict(possible, possible and of_peak <= BEST_MEASURED_SHARE, share, ceiling, needed, reason)

    def to_json(self, claim_tokens_per_s: float | None = None) -> dict[str, Any]:
        """Plain data; with a claim, its comparison too."""
        entry = {**vars(self), "plans": [plan.to_json() for plan in self.plans]}
        if claim_tokens_per_s is not None:
            model, block = self.judge(claim_tokens_per_s)
            claim = {"tokens_per_s": claim_tokens_per_s, "model": model.to_json(), "block": block.to_json()}
            entry["claim"] = claim
        return {
            "schema": SCHEMA_VERSION,
            "ceiling_tokens_per_s": self.best.tokens_per_s,
            "block_ceiling_tokens_per_s": self.best_block.block_tokens_per_s,
            **entry,
        }


LIMITS = {"compute": "FLOPs at peak", "hbm": "what must cross HBM", "links": "what must cross the links"}


def bounds(question: Question | Scenario) -> Bounds:
    """Ceilings of every plan of a scenario.

    Raises
    ------
    InputError
        The scenario is wrong, such as a degree that divides nothing or an unknown name.
    """
    question = question if isinstance(question, Question) else look_up(question)
    if question.scenario.traffic is not None:
        problem = "ceilings are of one step; state `workload.pass` and how much it is, and leave traffic out"
        raise InputError(problem, key="traffic")
    if question.scenario.loop is not None:
        raise InputError("ceilings are of one step; leave loop out and state how much it is", key="loop")
    work, model, device = question.work, question.model, question.device
    return Bounds(
        scenario=question.scenario.name,
        workload=f"{work.pass_} of {model.name}, {batch_in_words(question)}",
        device=device.name,
        precision=work.precision,
        gpus=question.cluster.gpus,
        flops_per_token=work.flops_per_token(model),
        block_flops_per_token=work.block_flops_per_token(model),
        peak_flops_per_s=device.peak_of(work.precision),
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        plans=tuple(plan_bound(question, scheduled(question, plan)) for plan in question.plans),
    )


def batch_in_words(question: Question) -> str:
    """The size of a step, in words."""
    batch, work = question.scenario.workload.global_batch, question.work
    if work.step.serves:
        return f"{work.load.in_words} a replica"
    if work.unequal.tokens:
        return f"{len(work.unequal.tokens):,} sequences of up to {max(work.unequal.tokens):,} tokens in all"
    if batch is not None:
        return f"{batch:,} × {work.sequence:,} tokens in all"
    return f"{work.sequences} × {work.sequence:,} tokens a replica"


def plan_bound(question: Question, job: Job) -> PlanBound:
    """Ceilings of one plan."""
    work, model, device = job.work, question.model, question.device
    if work.step.serves:
        return served_bound(question, job)
    times_over = work.step.bytes_over_forward
    # The cluster's FLOP/s serve dp replicas at once: a replica has the share of its own GPUs.
    replica_flops_per_s = device.peak_of(work.precision) * question.cluster.gpus / job.plan.dp
    tokens = work.tokens_per_replica
    block_flops = tokens * work.block_flops_per_token(model)
    # Stages of a pipeline work at the same time, each on its own layers.
    stages = job.plan.degree("pp")
    block_hbm_s, head_hbm_s, block_links_s = (
        max(seconds) for seconds in zip(*(replica_floors(question, packs) for packs in of_replicas(job)), strict=True)
    )
    block_hbm_s, block_links_s = block_hbm_s / stages, block_links_s / stages
    block = Floor(block_flops / replica_flops_per_s, block_hbm_s, block_links_s)
    whole = Floor(
        tokens * work.flops_per_token(model) / replica_flops_per_s,
        times_over * (model.layers * block_hbm_s + head_hbm_s),
        times_over * max(model.layers * block_links_s, job.micro_batches * arriving_s(question, job)),
    )
    memory = Memory(peak_memory(job, scheme_of(job.plan).residency), device.visible_memory_bytes)
    return PlanBound(job.plan.name, memory, work.tokens_of(job.plan.dp), whole, block)


def of_replicas(job: Job) -> Sequence[Sequence[tuple[Job, int]]]:
    """For every replica, the jobs of its micro-batches and how many are equal; equal replicas appear once."""
    if not job.unequal:
        return (((job, job.micro_batches),),)
    return tuple([(job.taking(pack), 1) for pack in packs] for packs in job.assignment.packs)


def replica_floors(question: Question, micro_batches: Sequence[tuple[Job, int]]) -> tuple[float, float, float]:
    """Seconds of a block's HBM traffic, of the head's, and of a block's links, over a replica's micro-batches."""
    device, seconds = question.device, [0.0, 0.0, 0.0]
    for part, times in micro_batches:
        seconds[0] += times * block_hbm_bytes(part) / device.hbm_bytes_per_s
        seconds[1] += times * head_hbm_bytes(part) / device.hbm_bytes_per_s
        seconds[2] += times * block_links_time_s(question, part)
    return seconds[0], seconds[1], seconds[2]


def served_bound(question: Question, job: Job) -> PlanBound:
    """Ceilings of a plan in a serving step: FLOPs of its rows, weights and caches read, and bytes that must move."""
    work, device, plan = job.work, question.device, job.plan
    flops_per_s = device.peak_of(work.precision) * question.cluster.gpus / plan.dp
    links_s = block_links_time_s(question, job)
    passes = len(job.passes) / plan.pp
    whole = Floor(
        work.tokens_per_replica * work.flops_per_token(job.model) / flops_per_s,
        cold_bytes(job) / device.hbm_bytes_per_s,
        max(passes * job.model.layers * links_s, len(job.passes) * arriving_s(question, job), caches_s(question, job)),
    )
    one = one_forward(job)
    block = Floor(
        one.group_tokens * work.block_flops_per_token(job.model) / flops_per_s,
        cold_bytes(one) / one.model.layers / plan.pp / device.hbm_bytes_per_s,
        block_links_time_s(question, one) / plan.pp,
    )
    memory = Memory(peak_memory(job, scheme_of(plan).residency), device.visible_memory_bytes)
    return PlanBound(plan.name, memory, work.counted_tokens * plan.dp, whole, block, one.group_tokens * plan.dp)


def arriving_s(question: Question, job: Job) -> float:
    """Least seconds of one forward's weights on the links from the host's memory, or from neighbours."""
    node = question.cluster.node
    if not job.plan.offload_weights:
        return 0.0
    if weight_peers.peers(job.plan):
        links = node.link.bandwidth.value * node.link.per_gpu + host_link_bytes_per_s(node)
        return arriving_bytes(job) * (1.0 - weight_peers.kept(job.plan)) / links
    return arriving_bytes(job) / host_link_bytes_per_s(node)


def caches_s(question: Question, job: Job) -> float:
    """Least seconds of a serving step's caches on the link from the host's memory."""
    return host_caches.arriving_bytes(job) / host_link_bytes_per_s(question.cluster.node)


def cold_bytes(job: Job) -> float:
    """Bytes of weights and caches that the passes of a step must read, of each stage's rank that reads least.

    A pass goes through the stages in order, and a stage runs its passes in order.
    """
    positions: dict[int, list[float]] = {}
    axes = axes_of(job)
    for place in np.ndindex(*(job.plan.degree(axis) for axis in axes)):
        coordinates = dict(zip(axes, place, strict=True))
        program = write_program(scheme_of(job.plan), job, coordinates)
        computes = [(step, times) for step, times in program.counted() if isinstance(step, Compute)]
        read = sum(times * operator.cold_bytes for compute, times in computes for operator in compute.operators)
        positions.setdefault(coordinates.get("pp", 0), []).append(read)
    stages = [min(sizes) for sizes in positions.values()]
    return max(max(stages), sum(stages) / len(job.passes))


def block_hbm_bytes(job: Job) -> float:
    """Bytes of one block's forward that must cross a rank's HBM: its matrices, its input and its output.

    Of experts only the shared ones count; if blocks differ, the smallest counts for all.
    """
    model = job.model
    matrices = min(model.common_matrix_parameters(block) for block in set(model.blocks))
    weights = matrices * job.weight_bytes / scheme_of(job.plan).residency.compute_shards(job)
    return weights + 2.0 * residual_tokens(job) * model.hidden * job.activation_bytes


def head_hbm_bytes(job: Job) -> float:
    """Bytes of the LM head, which every rank reads for its tokens."""
    shards = scheme_of(job.plan).residency.compute_shards(job)
    return job.model.hidden * job.model.vocab * job.weight_bytes / shards


def block_links_time_s(question: Question, job: Job) -> float:
    """Least seconds of one block's transfers: into the GPU, and into its node.

    If q of a group's n ranks share a node, (n−q)/(n−1) of what a rank receives comes from other nodes; all q ranks
    need the same bytes unless they are distinct.
    """
    cluster = question.cluster
    node = cluster.node
    inside = node.link.bandwidth.value * node.link.per_gpu
    nic = cluster.fabric.nic.bandwidth.value * node.nics / node.gpus if cluster.fabric is not None else 0.0
    mesh = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node)
    received = entering = 0.0
    accumulates_gradients = node.collectives.in_switch_latency is not None or node.memory_pool is not None
    for exchange in scheme_of(job.plan).received(job, accumulates_gradients):
        groups = mesh.groups(exchange.axis)
        ranks = groups.shape[1]
        together = most_ranks_of_a_node(groups // cluster.gpus_per_node)
        away = exchange.bytes * (ranks - together) / (ranks - 1)
        received += exchange.bytes
        entering += away if exchange.distinct else away / together
    if not entering:
        return received / inside
    return max(received / (inside + nic), entering / nic)


def most_ranks_of_a_node(nodes: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Most ranks of a group that share a node; ``nodes`` has one row per group."""
    ordered = np.sort(nodes, axis=1)
    for size in range(ordered.shape[1], 1, -1):
        if (ordered[:, size - 1 :] == ordered[:, : ordered.shape[1] - size + 1]).any():
            return size
    return 1
