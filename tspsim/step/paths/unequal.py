"""Lower bounds for sequences of unequal length, from the rates of one long sequence and the assignment of sequences.

A micro-batch of sequences with s tokens each, over r ranks, takes each rank at least

    c = Σ (s·l + a(s)·q) / r,

with l the seconds per token of all kernels but attention, through the whole model, forward and backward, with products
as long as they ever are; a(s) the FLOPs of a sequence's attention, and 1/q its best rate. With p stages, a replica
takes

    step ≥ Σ c / p + (p − 1)/p · min c     since stages wait for the first micro-batch and at the end for the last, and
    step ≥ max c                           since the longest passes through all stages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from ...base.quick import replace
from ...model import Architecture
from ...operators import Operator, Role
from ...parallel import Job, Unequal, scheme_of
from ...parallel.lengths import Pack
from ...parallel.step import write_program
from ...program.instructions import Mesh
from .effort import SUM_S
from .groups import RankGroups
from .kernels import KernelTimes, filling
from .parts import TaskParts

#: Tokens of the sequence that rates are taken from, and by how much a token may be faster than on it.
PROBED, FASTER = 32_768, 1.02


@dataclass(frozen=True)
class TokenRates:
    """Rates of one rank through a whole model: seconds per token, and per FLOP of attention."""

    token_s: float
    attention_s: float

    def pack_s(self, job: Job, pack: Pack) -> float:
        """c of a micro-batch, in seconds."""
        work = sum(tokens * self.token_s + self.attention_of(job, tokens) for tokens in pack.tokens)
        return work / pack.ranks

    def attention_of(self, job: Job, tokens: int) -> float:
        return self.attention_s * attention_flops(job.model, tokens, job.work.causal) if self.attention_s else 0.0


def attention_flops(model: Architecture, tokens: int, causal: bool) -> float:
    """a(s), FLOPs of a forward."""
    return tokens * (model.forward_flops_per_token(tokens, causal) - model.forward_flops_per_token(0, causal))


def probe(job: Job) -> Job:
    """The job of one long sequence, on the ranks that divide a sequence's heads and columns alone."""
    plan = job.plan
    alone = dict.fromkeys((plan.token_axis, "pp", "dp"), 1)
    options = {name: value for name, value in plan.options.items() if name not in ("dynamic_sp", "rank_tokens", "deal")}
    one = replace(plan, degrees={**plan.degrees, **alone}, vpp=1, zero=0, options=options, together={})
    one = replace(one, schedule="1f1b", stage_layers=(), accumulation=1)
    one = replace(one, shard_group=None, secondary_shard=None, weight_wire=None, gradient_wire=None)
    work = replace(job.work, sequence=PROBED, unequal=Unequal((PROBED,)), replicas=1)
    return Job(job.model, one, work)


def rates_of(job: Job, summed: Callable[[Job, Callable[[Operator], float]], float], least: Callable[[Operator], float],
             cost: Callable[[Operator], float]) -> TokenRates:  # fmt: skip
    """Rates of a job's ranks; ``summed`` adds up a micro-batch's kernels, priced by ``least`` and ``cost``."""
    one = probe(job)
    others = summed(one, lambda operator: 0.0 if operator.role is Role.ATTENTION else cost(operator))
    flops = attention_flops(job.model, PROBED, job.work.causal)

    def attended(operator: Operator) -> float:
        return least(operator) if operator.role is Role.ATTENTION and operator.peak_calls else 0.0

    attention_s = summed(one, attended) / flops if flops else 0.0
    return TokenRates(others / PROBED / FASTER, attention_s)


def replicas_s(job: Job, rates: TokenRates) -> list[float]:
    """Lower bound of each replica's seconds with its assigned sequences."""
    stages, replicas = job.plan.pp, []
    for packs in job.assignment.packs:
        packs_s = [rates.pack_s(job, pack) for pack in packs]
        replicas.append(max(sum(packs_s) / stages + (stages - 1) / stages * min(packs_s), max(packs_s)))
    return replicas


# --- bounds ----------------------------------------------------------------------------------------------------


class UnequalBounds:
    """Bounds of plans with sequences of unequal length."""

    def __init__(self, kernels: KernelTimes, parts: TaskParts) -> None:
        self.cluster, self.kernels, self.parts = kernels.cluster, kernels, parts
        self._of_lengths: dict[Hashable, TokenRates] = {}

    def flops_s(self, family: Job) -> float:
        """Seconds of the model's FLOPs at the device's peak on all GPUs, however sequences are assigned."""
        work, gpus = family.work, self.cluster.gpus
        return work.tokens_of(family.plan.dp) * work.flops_per_token(family.model) / (gpus * self.kernels.peak)

    def dealt_s(self, family: Job) -> float:
        """Seconds of the slowest replica with its assigned sequences."""
        self.kernels.effort.add(SUM_S)
        return max(self.flops_s(family), max(replicas_s(family, self._rates_of(family))))

    def _rates_of(self, family: Job) -> TokenRates:
        """Seconds per token and per FLOP of attention on a rank of a family."""
        plan, kernels = family.plan, self.kernels
        key = (plan.scheme, plan.tp, plan.recomputation, plan.activation_store, plan.sequence_regions)
        if key not in self._of_lengths:

            def summed(job: Job, seconds: Callable[[Operator], float]) -> float:
                every = kernels.least_of_schedules(job, partial(kernels.summed, seconds=seconds))
                return float(every[0] + every[1])

            job = family.with_least_recomputation
            self._of_lengths[key] = rates_of(job, summed, kernels.least_operator_s, kernels.operator_s)
        return self._of_lengths[key]

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds of the slowest rank's path through its own program, whose micro-batches all differ.

        Kernels alone count with a pipeline, if weights are gathered every micro-batch, and if groups lie differently
        on nodes or links differ.
        """
        seconds, scheme = replicas_s(job, self._rates_of(job)), scheme_of(job.plan)
        longest = max(range(len(seconds)), key=seconds.__getitem__)
        program = self.kernels.counted(write_program(scheme, job, {"dp": longest}))
        computes = [(kernel, times) for step, times in program.counted() for kernel in filling([step])]
        path_s = sum(times * self.kernels.kernel_s(kernel) for kernel, times in computes)
        near = self.cluster.gpus_per_node
        if not (near & (near - 1) or self.cluster.factors or job.plan.pp > 1 or job.plan.zero > 1):
            path_s = max(path_s, self.parts.compile(program, RankGroups(mesh, 0, self.cluster)).first.last_s)
        return max(self.dealt_s(job), path_s)
