"""A time that a plan's step cannot undercut in the simulator, from one layer's program and closed forms.

A step is a graph of tasks: what a stage does for one micro-batch follows what it did before and what the neighbouring
stage sends. The bound is the longest path through it, where the time of a task is that of its rank alone
(:mod:`tspsim.step.paths.walk`): kernels at the device's fitted cost, transfers that nothing can hide at the cost
they have on free links. With equal stages it is the closed form of the schedule, (m + p − 1)·(F + B) for m
micro-batches on p stages of 1F1B and (m + (p − 1)/v)·(F + B) with v chunks a stage (Narayanan et al. 2021, §2.2), and
what follows the last task: gradients that no backward hides, their norm, the optimizer.

The bounds of this file are those of families (:mod:`tspsim.step.paths.families`), of the stages of one plan
(:mod:`tspsim.step.paths.stages`) and of sequences of unequal length (:mod:`tspsim.step.paths.unequal`), whichever a job
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.quick import replace
from ...network import Cluster
from ...operators import Operator
from ...parallel import Job
from ...program.instructions import Mesh
from .effort import ASK_S, BEGIN_S, IN_TURN, INSTRUCTION_S, UNLIKE, Effort
from .families import FamilyBounds, Shape
from .kernels import KernelTimes
from .parts import TaskParts
from .replicas import Division
from .stages import Outline, StageBounds, hides
from .unequal import UnequalBounds

#: Sums of many floats in another order than the engine's may differ in the last digits.
ROUNDING = 1.0 - 1e-9


class LowerBound:
    """Bounds of plans of one model on one cluster; what plans have in common is computed once.

    Parameters
    ----------
    cluster
        Where the plans run.
    cost
        Seconds of an operator.
    peak_flops_per_s
        No kernel is faster.
    slowdown
        Factor on a kernel's time while its device moves data, at least 1.
    effort
        Is told what is done to find them.
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
        self._kernels = KernelTimes(cluster, cost, peak_flops_per_s, effort=self.effort)
        parts = TaskParts(cluster, self._kernels)
        self._families = FamilyBounds(self._kernels)
        self._stages = StageBounds(self._kernels, parts, slowdown)
        self._unequal = UnequalBounds(self._kernels, parts)

    def first_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """:meth:`floor_s` or less, alike for all ways to experts that a family may have."""
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.first_s(family, pipelines) * ROUNDING

    def floor_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step alone where nothing is made again, attention as fast as it is on any shape.

        Parameters
        ----------
        pipelines
            Those that the family may have, of which the one with the least bubble counts; none: not asked.
        """
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.floor_s(family, pipelines) * ROUNDING

    def compute_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """The kernels of a step alone, spread evenly over the stages, of the schedule that has the least; needs no
        mesh."""
        self.effort.add(ASK_S)
        if family.unequal:
            return self.dealt_s(family)
        return self._families.compute_s(family, pipelines) * ROUNDING

    def schedule_s(self, job: Job, pipelines: Sequence[Shape] = ()) -> float:
        """The same of one schedule, where that is quickly told."""
        return 0.0 if job.unequal else self._families.schedule_s(job, pipelines) * ROUNDING

    def partly_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """One plan of which some layers are made again, as :meth:`even_s` but for what kernels wait for."""
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.partly_s(job, mesh, divisions) * ROUNDING

    def flops_s(self, family: Job) -> float:
        """The model's FLOPs at the device's peak on all GPUs: of unequal sequences, however they are dealt."""
        return self._unequal.flops_s(family) * ROUNDING

    def dealt_s(self, family: Job) -> float:
        """Of sequences of unequal length the replica that takes longest, as they are dealt."""
        return self._unequal.dealt_s(family) * ROUNDING

    def even_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """Layers with what their kernels surely wait for and lose, spread evenly over the stages, without a bubble.

        Parameters
        ----------
        divisions
            Ways to divide state over replicas, of which that which says least counts; none: what replicas say to each
            other is left out.
        """
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.even_s(job, mesh, divisions) * ROUNDING

    def rough_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """:meth:`even_s` with the bubble of the pipeline."""
        if job.unequal:
            return self.dealt_s(job)
        return self._stages.rough_s(job, mesh, divisions) * ROUNDING

    def outline(self, job: Job, mesh: Mesh) -> Outline:
        """The longest path of a step without what replicas say to each other: alike for all ways to divide."""
        if job.unequal:
            alone = replace(job, plan=replace(job.plan, zero=0))
            return Outline(self._unequal.step_s(alone, mesh))
        return self._stages.outline(job, mesh)

    def outline_s(
        self, job: Job, mesh: Mesh, divisions: Sequence[Division] = (), outline: Outline | None = None
    ) -> float:
        """The step of a layout's :meth:`outline`, with ``divisions`` as in :meth:`even_s`."""
        return self._stages.outline_s(outline or self.outline(job, mesh), job, divisions) * ROUNDING

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds that the simulated step takes at least."""
        least_s = self._unequal.step_s(job, mesh) if job.unequal else self._stages.step_s(job, mesh)
        return least_s * ROUNDING

    def layer_s(self, job: Job, mesh: Mesh) -> float:
        """One layer between two others, forward and back, with what its kernels lose to what moves beside them."""
        return self._stages.layer_s(job, mesh)

    def instructions(self, job: Job, mesh: Mesh) -> int:
        """About how many a simulation of it runs."""
        return self._stages.instructions(job, mesh)

    def simulation_s(self, job: Job, mesh: Mesh) -> float:
        """The effort of a simulation of it, about."""
        instructions = self.instructions(job, mesh)
        unlike = (IN_TURN if hides(job) else 1.0) * (UNLIKE if job.plan.copies else 1.0)
        return BEGIN_S + unlike * instructions * INSTRUCTION_S
