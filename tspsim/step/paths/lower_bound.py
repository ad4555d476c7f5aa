"""Lower bounds of a plan's simulated step, from one layer's program and closed forms.

A step is a graph of tasks: a stage's task for a micro-batch follows its task before and what the neighbouring stage
sends. The bound is the longest path through the graph, with a task's time that of its rank alone
(:mod:`tspsim.step.paths.walk`): kernels at the device's fitted cost, transfers that nothing can hide at their cost on
idle links. With equal stages this is the closed form of the schedule, (m + p − 1)·(F + B) for m micro-batches on p
stages of 1F1B and (m + (p − 1)/v)·(F + B) with v chunks per stage (Narayanan et al. 2021, §2.2), plus what follows the
last task: gradient sums that no backward hides, their norm, the optimizer.

This module chooses the bound that a job needs: of a family (:mod:`tspsim.step.paths.families`), of the stages of one
plan (:mod:`tspsim.step.paths.stages`), of sequences of unequal length (:mod:`tspsim.step.paths.unequal`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.quick import replace
from ...network import Cluster
from ...operators import Operator
from ...parallel import Job
from ...program.instructions import Mesh
from .effort import ASK_S, BEGIN_S, GPU_S, IN_TURN, INSTRUCTION_S, UNLIKE, Effort
from .families import FamilyBounds, Shape
from .kernels import KernelTimes
from .parts import TaskParts
from .replicas import Division
from .stages import Outline, StageBounds, hides
from .unequal import UnequalBounds

#: Sums in another order than the engine's may differ in the last digits.
ROUNDING = 1.0 - 1e-9


class LowerBound:
    """Bounds of plans of one model on one cluster; what plans share is computed once.

    Parameters
    ----------
    cluster
        Where plans run.
    cost
        Seconds of an operator.
    peak_flops_per_s
        Upper bound of any kernel's rate.
    slowdown
        Factor on a kernel's time while its device moves data, at least 1.
    effort
        Counts the work done.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: Callable[[Operator], float],
        peak_flops_per_s: float,
        slowdown: float,
        *,
        effort: Effort | None = None,
    ) -> None:
        self.effort = effort or Effort()
        self._gpus = cluster.gpus
        self._kernels = KernelTimes(cluster, cost, peak_flops_per_s, effort=self.effort)
        parts = TaskParts(cluster, self._kernels)
        self._families = FamilyBounds(self._kernels)
        self._stages = StageBounds(self._kernels, parts, slowdown)
        self._unequal = UnequalBounds(self._kernels, parts)

    def first_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """A bound below :meth:`floor_s`, equal for all ways to dispatch tokens to experts."""
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.first_s(family, pipelines) * ROUNDING

    def floor_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step without recomputation, attention at the best rate of any shape.

        Parameters
        ----------
        pipelines
            The pipelines that the family may have, of which the smallest bubble counts; none: no bubble counts.
        """
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.floor_s(family, pipelines) * ROUNDING

    def compute_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step spread evenly over the stages, of the schedule that has least; needs no mesh."""
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.compute_s(family, pipelines) * ROUNDING

    def schedule_s(self, job: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step under one schedule; 0 if that is expensive to compute."""
        return 0.0 if job.unequal else self._families.schedule_s(job, pipelines) * ROUNDING

    def partly_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """:meth:`even_s` without the kernels' waits, for a plan that recomputes some layers."""
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.partly_s(job, mesh, divisions) * ROUNDING

    def flops_s(self, family: Job) -> float:
        """The model's FLOPs at the device's peak on all GPUs; for unequal sequences, however they are assigned."""
        return self._unequal.flops_s(family) * ROUNDING

    def dealt_s(self, family: Job) -> float:
        """The slowest replica with its assigned sequences of unequal length."""
        return self._unequal.dealt_s(family) * ROUNDING

    def even_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """Layers with unavoidable waits and losses of their kernels, spread evenly over the stages, without a bubble.

        Parameters
        ----------
        divisions
            Possible ways to shard state over replicas, of which the one with the least exchange counts; none:
            exchanges between replicas do not count.
        """
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.even_s(job, mesh, divisions) * ROUNDING

    def rough_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """:meth:`even_s` with the pipeline's bubble."""
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.rough_s(job, mesh, divisions) * ROUNDING

    def outline(self, job: Job, mesh: Mesh) -> Outline:
        """The longest path of a step without exchanges between replicas: equal for all ways to shard state."""
        if job.unequal:
            alone = replace(job, plan=replace(job.plan, zero=0))
            return Outline(self._unequal.step_s(alone, mesh))
        return self._stages.outline(job, mesh)

    def outline_s(
        self, job: Job, mesh: Mesh, divisions: Sequence[Division] = (), outline: Outline | None = None
    ) -> float:
        """The step of an :meth:`outline`, with ``divisions`` as in :meth:`even_s`."""
        return self._stages.outline_s(outline or self.outline(job, mesh), job, divisions) * ROUNDING

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """Lower bound of the simulated step's seconds."""
        least_s = self._unequal.step_s(job, mesh) if job.unequal else self._stages.step_s(job, mesh)
        return least_s * ROUNDING

    def layer_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds of one layer between two others, forward and backward, with its kernels' losses to transfers."""
        return self._stages.layer_s(job, mesh)

    def instructions(self, job: Job, mesh: Mesh) -> int:
        """Approximate number of instructions in a simulation of the job."""
        return self._stages.instructions(job, mesh)

    def simulation_s(self, job: Job, mesh: Mesh) -> float:
        """Approximate effort of a simulation of the job."""
        instructions = self.instructions(job, mesh)
        unlike = (IN_TURN if hides(job) else 1.0) * (UNLIKE if job.plan.copies else 1.0)
        return BEGIN_S + GPU_S * self._gpus + unlike * instructions * INSTRUCTION_S
