"""What sequences of unequal length take at least: as they are dealt, and along the program of the busiest rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from ...operators import Operator
from ...parallel import Job, scheme_of
from ...parallel.step import write_program
from ...program import Compute
from ...program.mesh import Mesh
from .effort import SUM_S
from .groups import RankGroups
from .kernels import KernelTimes
from .packs import TokenRates, rates_of, replicas_s
from .parts import TaskParts


class UnequalBounds:
    """Bounds of plans whose sequences are of unequal length."""

    def __init__(self, kernels: KernelTimes, parts: TaskParts) -> None:
        self.cluster, self.kernels, self.parts = kernels.cluster, kernels, parts
        self._of_lengths: dict[Hashable, TokenRates] = {}

    def flops_s(self, family: Job) -> float:
        """The model's FLOPs at the device's peak on all GPUs: however sequences are dealt."""
        work, gpus = family.work, self.cluster.gpus
        return work.tokens_of(family.plan.dp) * work.flops_per_token(family.model) / (gpus * self.kernels.peak)

    def dealt_s(self, family: Job) -> float:
        """The replica that takes longest, as they are dealt."""
        self.kernels.effort.add(SUM_S)
        return max(self.flops_s(family), max(replicas_s(family, self._rates_of(family))))

    def _rates_of(self, family: Job) -> TokenRates:
        """Seconds of a token and of attention's FLOPs on a rank of a family."""
        plan, kernels = family.plan, self.kernels
        key = (plan.scheme, plan.tp, plan.recomputation, plan.activation_store, plan.sequence_regions)
        if key not in self._of_lengths:

            def summed(job: Job, seconds: Callable[[Operator], float]) -> float:
                every = kernels.least_of_schedules(job, partial(kernels.summed, seconds=seconds))
                return float(every[0] + every[1])

            job = family.least_again
            self._of_lengths[key] = rates_of(job, summed, kernels.least_operator_s, kernels.operator_s)
        return self._of_lengths[key]

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """The path of the rank that takes longest through its own program, whose micro-batches all differ. Its kernels
        alone where there are stages, where weights travel every micro-batch, and where nodes divide groups unlike each
        other or links differ."""
        seconds, scheme = replicas_s(job, self._rates_of(job)), scheme_of(job.plan)
        longest = max(range(len(seconds)), key=seconds.__getitem__)
        program = self.kernels.counted(write_program(scheme, job, {"dp": longest}))
        computes = [(step, times) for step, times in program.counted() if isinstance(step, Compute)]
        path_s = sum(times * self.kernels.kernel_s(kernel) for kernel, times in computes)
        near = self.cluster.gpus_per_node
        if not (near & (near - 1) or self.cluster.factors or job.plan.pp > 1 or job.plan.zero > 1):
            path_s = max(path_s, self.parts.compile(program, RankGroups(mesh, 0, self.cluster)).first.last_s)
        return max(self.dealt_s(job), path_s)
