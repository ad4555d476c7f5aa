"""Choice of the schedule that a plan leaves open, for its machine: like the tuner of a collective library.

Options (:mod:`tspsim.parallel.choices`) are sorted by the lower bound of a layer. A few steady layers are simulated:
first the best option for every cut of attention (the switch that matters most), then all options of the cuts that are
near the fastest, then all cuts with the best of the other switches, until the choice is stable; options whose bound
already exceeds the fastest are skipped. A few layers are not a step: transfers fall behind slowly, every visit of a
micro-batch to a stage fills its exchanges anew, gradient sums hide behind the backward. So the best few and the
published schedule are then simulated as whole steps, unless those are long. The choice is a function of the question
alone, without clock or randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..base.errors import UnreachableError
from ..base.quick import no_collection
from ..engine.core import Interference
from ..engine.instances import Assignment
from ..engine.steady import execute
from ..hardware import Device
from ..network import Cluster
from ..operators import Operator
from ..parallel import (
    Job,
    Plan,
    axes_of,
    build_mesh,
    choices_of,
    located,
    options_of,
    peak_bytes,
    scheme_of,
    write_program,
)
from ..parallel.checks import check
from ..parallel.choices import candidates_of, legal
from ..program import Compute, Program
from .metrics import steady_layer_s
from .paths import LowerBound

#: Layers simulated: the first fills the pipeline of exchanges, the others show the steady state.
LAYERS = 4
#: An option is skipped if its bound exceeds the fastest by this factor. The bound of one rank is exact to 2 %, since
#: neighbouring layers overlap.
SURE = 1.02
#: A cut of attention is dropped if its best option is slower than the fastest by this factor.
NEAR = 1.06
#: Options whose visit to a stage is at most CLOSE times the fastest are simulated as whole steps, FINALISTS at most.
CLOSE, FINALISTS = 1.03, 3
#: Whole steps within this factor are equal; the choice of steady layers stands unless the published schedule is faster.
ALIKE = 1.001
#: Largest step that is simulated whole: exchanges between two shards (visits of micro-batches to layers × pairs of
#: shards), and GPUs. In longer steps steady layers dominate, and larger ones take seconds to simulate.
WHOLE, WHOLE_GPUS = 10_000, 2_048


def tuned(job: Job, cluster: Cluster, device: Device) -> Plan:
    """The job's plan with its open switches chosen: the fastest option that fits the device's memory, or the smallest
    if none fits.

    Raises
    ------
    InputError
        No option is legal; the message is that of the published schedule.
    """
    if not job.plan.open:
        return job.plan
    if job.unequal:  # no two layers are equal: switches keep their published values
        return replace(job.plan, open=())
    key = ("tuned", _key(job), device.parts)
    choice: _Choice | None = cluster.memo.get(key)
    if choice is None:
        times: dict[Operator, float] = {}
        choice = cluster.memo[key] = _Choice(_fastest(job, cluster, device, times), device, tuple(times))
    elif choice.device is not device:
        for operator in choice.operators:  # so that the device states their sources
            device.time(operator)
    return replace(choice.plan, name=job.plan.name)


class _Choice(NamedTuple):
    """A chosen plan, the device, and the operators whose times decided. The device is kept so that its parts' ids are
    not reused."""

    plan: Plan
    device: Device
    operators: tuple[Operator, ...]


def _key(job: Job) -> tuple[Any, ...]:
    plan = replace(job.plan, name="")
    facts = (getattr(plan, name) for name in Plan.__dataclass_fields__)
    return job.model, job.work, tuple(tuple(sorted(fact.items())) if isinstance(fact, dict) else fact for fact in facts)


def _fastest(job: Job, cluster: Cluster, device: Device, times: dict[Operator, float]) -> Plan:
    """The fastest option; ``times`` receives the seconds of every operator in the options."""
    options = options_of(job, cluster.layout.mesh)
    if not options:
        for plan in candidates_of(job, cluster.layout.mesh):
            check(replace(job, plan=plan))
        return replace(job.plan, open=())
    if len(options) == 1:
        return replace(options[0], chosen=())
    needed = [peak_bytes(replace(job, plan=plan)) for plan in options]
    fitting = [plan for plan, size in zip(options, needed, strict=True) if size <= device.visible_memory_bytes]
    if len(fitting) <= 1:
        return fitting[0] if fitting else options[needed.index(min(needed))]

    def best(operator: Operator) -> float:
        taken_s = times[operator] = float(device.time(operator).seconds)
        return taken_s

    priced = job.work.stack.cost(best, device, job.capture)
    seconds: dict[Operator, float] = {}

    def cost(operator: Operator) -> float:
        if operator not in seconds:
            seconds[operator] = priced(operator)
        return seconds[operator]

    samples = [sample(replace(job, plan=plan), cluster) for plan in fitting]
    try:
        least_s, sampled = _by_simulation(samples, fitting, device, cost)
        if not short(job, cluster.gpus):
            return fitting[min(sampled, key=lambda index: (*sampled[index], index))]
        return _by_whole_steps(job, cluster, device, cost, fitting, sampled, least_s)
    except UnreachableError:  # the run itself reports ranks cut off by dead links
        return fitting[0]


def short(job: Job, gpus: int) -> bool:
    """Whether a whole step is short enough to simulate for its schedule; an engine's steps are too many."""
    exchanges = job.micro_batches * job.model.layers * job.plan.token_shards**2
    return not job.step.serves and exchanges <= WHOLE and gpus <= WHOLE_GPUS


def _by_whole_steps(
    job: Job,
    cluster: Cluster,
    device: Device,
    cost: Callable[[Operator], float],
    plans: list[Plan],
    samples: dict[int, Sampled],
    least_s: list[float],
) -> Plan:
    """The option whose whole step is fastest, among the closest by a visit to a stage and the published schedule; the
    choice of steady layers if that is equal.

    ``least_s``: lower bound of a layer of each option. The published schedule is skipped if the bounds of a stage's
    layers exceed the others' whole steps.
    """
    steady = min(samples, key=lambda index: (*samples[index], index))
    layers = job.model.layers / (job.plan.pp * job.plan.vpp)
    visit_s = {index: layer.fill_s + layers * layer.layer_s for index, layer in samples.items()}
    order = sorted(samples, key=lambda index: (visit_s[index], index))
    close = [index for index in order if visit_s[index] <= CLOSE * visit_s[order[0]]][:FINALISTS]
    published = _switched(replace(job.plan, open=()))
    as_published = [index for index, plan in enumerate(plans) if _switched(plan) == published]
    whole_s: dict[int, float] = {}
    passes = job.micro_batches * job.model.layers / job.plan.pp
    for index in dict.fromkeys((steady, *close, *as_published)):
        if index not in samples and passes * least_s[index] > SURE * min(whole_s.values()):
            continue
        whole_s[index] = whole_step_s(replace(job, plan=plans[index]), cluster, device, cost)
    fastest = min(whole_s, key=lambda index: whole_s[index])
    slower = any(whole_s[steady] > whole_s[index] for index in as_published if index in whole_s)
    return plans[fastest if slower or whole_s[steady] > ALIKE * whole_s[fastest] else steady]


def _by_simulation(
    samples: list[tuple[Job, Cluster]], plans: list[Plan], device: Device, cost: Callable[[Operator], float]
) -> tuple[list[float], dict[int, Sampled]]:
    """The lower bound of a layer of every option; and index → steady layers of the simulated options, among them the
    fastest."""
    cluster = samples[0][1]
    bound = LowerBound(cluster, cost, max(device.peak_flops_per_s.values()), samples[0][0].work.stack.slowdown(device))
    meshes = [build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node) for job, _ in samples]
    least = [bound.layer_s(job, mesh) for (job, _), mesh in zip(samples, meshes, strict=True)]
    order = sorted(range(len(plans)), key=lambda index: (least[index], index))
    layers: dict[int, Sampled] = {}

    def look_at(indices: Sequence[int]) -> None:
        for index in indices:
            fastest_s = min((layer.layer_s for layer in layers.values()), default=math.inf)
            if index not in layers and least[index] < SURE * fastest_s:
                job = samples[index][0]
                layers[index] = simulated(job, cluster, device, cost).at_least(least[index], job)

    def fastest() -> int:
        return min(layers, key=lambda index: (*layers[index], index))

    cuts: dict[Hashable, list[int]] = {}
    for index in order:
        cuts.setdefault(_cut(plans[index]), []).append(index)
    look_at([indices[0] for indices in cuts.values()])
    near_s = NEAR * min(layer.layer_s for layer in layers.values())
    for indices in cuts.values():
        if indices[0] in layers and layers[indices[0]].layer_s <= near_s:
            look_at(indices)
    # Bounds do not tell which of the other switches are best. If that is not what was simulated first, a cut that
    # seemed slow may be the fastest with it. If attention hides the rest, the other switches are equal in that cut.
    best = fastest()
    while True:
        alike_s = ALIKE * layers[best].layer_s
        rests = {_rest(plans[index]) for index, layer in layers.items() if layer.layer_s <= alike_s}
        look_at([index for indices in cuts.values() for index in indices if _rest(plans[index]) in rests])
        if fastest() == best:
            return least, layers
        best = fastest()
        look_at(cuts[_cut(plans[best])])
        best = fastest()


def _switched(plan: Plan) -> dict[str, Any]:
    """The values of all switches of a plan."""
    return {name: value for choice in choices_of(plan) for name, value in choice.settings_of(plan).items()}


def _cut(plan: Plan) -> Hashable:
    """The values of the switches that matter most (how attention is cut)."""
    return tuple(plan.value(name) for choice in choices_of(plan) for name in choice.first)


def _rest(plan: Plan) -> Hashable:
    """The values of a plan's other switches."""
    open_ = ((choice, name) for choice in choices_of(plan) for name in choice.switches)
    return tuple(plan.value(name) for choice, name in open_ if name not in choice.first)


def sample(job: Job, cluster: Cluster) -> tuple[Job, Cluster]:
    """A few layers of one micro-batch, on the fewest whole nodes that hold a group of its token axis and its experts.

    With ZeRO 3 on twice as many, since replicas gather weights in every layer. A cluster with unequal links is kept
    whole.
    """
    plan = job.plan
    work = replace(job.work, sequences=job.sequences)
    model = job.model.repeating_layers(LAYERS)
    here = max(1, plan.node_ranks(plan.token_axis))
    nodes = min(cluster.nodes, plan.token_shards // here) if cluster.divisible else cluster.nodes
    if job.training and plan.zero == 3 and cluster.nodes % (2 * nodes) == 0:
        nodes *= 2  # gathers between replicas run beside every layer, over the links between nodes
    while True:
        small = part_of(cluster, nodes)
        inside = math.prod(plan.degree(axis) for axis in scheme_of(plan).axes)
        if small.gpus % inside == 0 and small.gpus >= inside:
            order = plan.node_order if small is cluster else ()
            alone = replace(plan.in_one_stage(small.gpus // inside), shard_group=None, node_order=order)
            try:
                alone = located(alone, small.gpus, small.gpus_per_node)
            except ValueError:
                alone = replace(alone, together=plan.together)
            few = Job(model, alone, work)
            if legal(few) or nodes == cluster.nodes:
                return few, small
        elif nodes == cluster.nodes:
            return job, cluster
        nodes = next(count for count in range(nodes + 1, cluster.nodes + 1) if cluster.nodes % count == 0)


def part_of(cluster: Cluster, nodes: int) -> Cluster:
    """``nodes`` equal nodes of a cluster; one object per count, since it remembers its collectives."""
    if nodes == cluster.nodes:
        return cluster
    return cluster.memo.once(("part", nodes), lambda: replace(cluster, nodes=nodes))


class Sampled(NamedTuple):
    """Seconds of a steady layer, forward plus backward, and of the rest of a visit to a stage."""

    layer_s: float
    fill_s: float

    def at_least(self, least_s: float, job: Job) -> Sampled:
        """The sample with its layer raised to a lower bound: transfers fall behind after a sample's few layers, whose
        kernels run on data that arrived before."""
        layer_s = max(self.layer_s, least_s)
        return Sampled(layer_s, self.fill_s - (layer_s - self.layer_s) * job.model.layers)


def simulated(job: Job, cluster: Cluster, device: Device, cost: Callable[[Operator], float]) -> Sampled:
    """Simulate a sample."""
    plan, scheme = job.plan, scheme_of(job.plan)
    mesh = build_mesh(plan, cluster.gpus, cluster.gpus_per_node)
    with no_collection():
        # All ranks wait for the shard with the longest kernels: one program for all ranks folds to few.
        ends = sorted({0, plan.token_shards - 1})
        programs = [write_program(scheme, job, {plan.token_axis: position}) for position in ends]
        slowest = max(programs, key=lambda program: kernels_s(program, cost))
        submission = execute(
            cluster, cost, Assignment.uniform(mesh, slowest), interference=Interference.of(job, device)
        )
    layer_s = steady_layer_s(submission)
    return Sampled(layer_s, submission.makespan_s - layer_s * job.model.layers)


def whole_step_s(job: Job, cluster: Cluster, device: Device, cost: Callable[[Operator], float]) -> float:
    """Seconds of a step with equal GPUs."""
    mesh, scheme = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node), scheme_of(job.plan)
    roles, role_of = mesh.coordinates(axes_of(job))
    with no_collection():
        programs = tuple([write_program(scheme, job, role) for role in roles])
        assignment = Assignment(mesh, programs, role_of)
        return execute(cluster, cost, assignment, interference=Interference.of(job, device)).makespan_s


def kernels_s(program: Program, cost: Callable[[Operator], float]) -> float:
    """Seconds of a program's kernels, one after the other."""
    return sum(
        times * sum(cost(operator) for operator in instruction.operators)
        for instruction, times in program.counted()
        if isinstance(instruction, Compute)
    )
