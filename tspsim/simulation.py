"""From a scenario to its result: the one call that joins the rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import metrics
from .engine.assignment import Assignment
from .engine.core import Engine, Interference, Submission
from .errors import InputError
from .hardware import Device, load_device
from .model import Architecture, load_model
from .network import Cluster, build_cluster, load_cluster
from .operators import Operator
from .parallel import Job, Mesh, Optimizer, Plan, Work, build_mesh, peak_memory, scheme_of, write_program
from .result import LinkUse, Memory, PlanResult, Range, RankClass, Result
from .scenario import ClusterInline, Faults, Scenario, load
from .statements import bottleneck, defaults_in_words, notes_of, unexplained

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Question:
    """A scenario with everything it names looked up."""

    scenario: Scenario
    cluster: Cluster
    device: Device
    model: Architecture
    work: Work
    plans: tuple[Plan, ...]

    def job(self, plan: Plan) -> Job:
        return Job(self.model, plan, self.work)


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    every_rank: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Answer a scenario: every plan in its order.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` returns, or what it takes.
    every_rank
        Run every rank instead of one a class of equal ranks; same answer, more timeline.
    progress
        Called with a plan's name and the share of plans done before it.

    Raises
    ------
    InputError
        The scenario is wrong: a degree that divides nothing, an unknown name, ….
    """
    question = look_up(scenario if isinstance(scenario, Scenario) else load(scenario))
    results = []
    for index, plan in enumerate(question.plans):
        if progress is not None:
            progress(plan.name, index / len(question.plans))
        results.append(run_plan(question, plan, every_rank=every_rank))
    return Result(
        scenario=question.scenario.to_dict() | {"model": describe_model(question.model)},
        cluster=describe_cluster(question.cluster, question.device),
        plans=tuple(results),
        provenance=tuple(provenance(question)),
        defaults=(*question.scenario.faults.in_words(), *defaults_in_words(question.work, question.plans)),
        unexplained=unexplained(question.work, question.plans),
    )


@dataclass(frozen=True)
class Lookups:
    """How names become things; who asks often brings ones that remember (:mod:`tspsim.search.worker`)."""

    build_cluster: Callable[..., Cluster] = build_cluster
    load_cluster: Callable[[str], Cluster] = load_cluster
    load_device: Callable[[str], Device] = load_device
    load_model: Callable[[str], Architecture] = load_model


FRESH = Lookups()


def look_up(scenario: Scenario, lookups: Lookups = FRESH) -> Question:
    """Find the cluster, device and model a scenario names, and check every plan against them."""
    if isinstance(scenario.cluster, ClusterInline):
        inline = scenario.cluster
        parts = (inline.device, inline.nodes, inline.fabric, inline.node, inline.oversubscription)
        cluster = with_faults(lookups.build_cluster(*parts), scenario.faults)
    else:
        cluster = lookups.load_cluster(scenario.cluster)
    workload = scenario.workload
    work = Work(
        workload.pass_,
        workload.sequence,
        workload.sequences_per_replica,
        workload.precision,
        Optimizer(**workload.optimizer.model_dump()),
        workload.runtime_reserve,
        workload.causal,
    )
    model = lookups.load_model(workload.model)
    device = lookups.load_device(cluster.device_name)
    if work.precision not in device.peak_flops_per_s:
        known = ", ".join(device.peak_flops_per_s)
        raise InputError(f"{device.name} has no {work.precision}; it has {known}", key="workload.precision")
    plans = []
    for entry in scenario.plans:
        plan = Plan(
            name=entry.name,
            degrees=entry.degrees(cluster.gpus),
            partition=entry.partition,
            exchange=entry.exchange,
            sequence_regions=entry.sequence_regions,
            overlap=entry.overlap,
            overlap_chunks=entry.overlap_chunks,
            recomputation=entry.recomputation or "none",
            micro_batch=entry.micro_batch,
            vpp=entry.vpp,
            schedule=entry.schedule,
            stage_layers=entry.stage_layers,
            zero=entry.zero,
            algorithms={str(kind): name for kind, name in entry.algorithms.items()},
            node_axes=entry.placement.node if entry.placement else (),
            rail_axes=entry.placement.rails if entry.placement else (),
        )
        Job(model, plan, work).check()
        plans.append(plan)
    return Question(scenario, cluster, device, model, work, tuple(plans))


def with_faults(cluster: Cluster, faults: Faults) -> Cluster:
    """The cluster with slow links, in both directions; raises InputError where it lacks such a link or GPU."""
    for index, slow in enumerate(faults.slow_gpus):
        try:
            cluster.check_gpu(slow.gpu)
        except InputError as error:
            raise error.at(key=f"cluster.faults.slow_gpus.{index}.gpu") from None
    if not faults.links:
        return cluster
    known: Cluster | None = cluster.memo.get(faults.links)
    if known is None:
        known = cluster
        for index, link in enumerate(faults.links):
            source, target = link.between
            try:
                known = known.with_links({(source, target): link.factor, (target, source): link.factor})
            except InputError as error:
                raise error.at(key=f"cluster.faults.links.{index}.between") from None
        cluster.memo[faults.links] = known
    return known


def run_plan(question: Question, plan: Plan, *, every_rank: bool = False, costs: Costs | None = None) -> PlanResult:
    """One plan: refused with its memory where it does not fit, else simulated at ``costs`` (the device's own)."""
    job, cluster, device = question.job(plan), question.cluster, question.device
    scheme = scheme_of(plan)
    memory = Memory(peak_memory(job, scheme.residency), device.visible_memory_bytes)
    degrees = {axis: plan.degree(axis) for axis in ("tsp", "tp", "sp", "pp", "ep", "dp")}
    settings = settings_of(plan)
    if not memory.fits:
        return PlanResult(plan.name, degrees, memory, settings, error=too_large(memory), notes=notes_of(job))
    mesh = build_mesh(plan, cluster.gpus, cluster.gpus_per_node)
    costs = costs or Costs(device)
    submission = run(question, mesh, job, costs, every_rank=every_rank)
    makespan_s = submission.makespan_s
    parts = metrics.breakdown(submission)
    tokens = question.work.tokens_per_replica * plan.dp
    passes = 3 if question.work.pass_ == "training" else 1
    model_flops = (
        passes * tokens * question.model.forward_flops_per_token(question.work.sequence, causal=question.work.causal)
    )
    peak = device.peak_flops_per_s[question.work.precision]
    block = submission if steady_blocks(job) else run_block(question, job)
    block_tokens = job.group_tokens * plan.dp * plan.pp
    links, link_shares = link_use(cluster, submission, makespan_s)
    return PlanResult(
        name=plan.name,
        degrees=degrees,
        memory=memory,
        settings=settings,
        step_time_s=makespan_s,
        tokens_per_step=tokens,
        gpus=cluster.gpus,
        block_forward_tokens_per_s=block_tokens / metrics.layer_period_s(block),
        mfu=model_flops / (makespan_s * cluster.gpus * peak),
        breakdown_s={
            "compute": parts.total_compute_s,
            "exposed_communication": dict(sorted(parts.exposed_s.items())),
            "bubble": parts.idle_s if plan.pp > 1 else 0.0,
            "idle": 0.0 if plan.pp > 1 else parts.idle_s,
        },
        compute_by_kind_s=dict(sorted(parts.compute_s.items())),
        communication_bytes_per_layer=metrics.received_bytes_per_layer(submission, question.model.layers),
        links=links,
        link_shares=link_shares,
        classes=tuple(RankClass(s.rank.number, s.size, s.role.program.role) for s in submission.ranks),
        cost=cost_of(question, makespan_s, tokens),
        range=costs.range_of(tokens, makespan_s, parts),
        bottleneck=bottleneck(parts, makespan_s),
        notes=notes_of(job),
        timeline=submission.timeline,
    )


class Costs:
    """The device's estimates as plain seconds for the engine, remembering how uncertain each family was.

    ``scales`` multiply the time of a kernel family (by :attr:`Operator.kind`), to ask what an error of it would do.
    """

    def __init__(self, device: Device, scales: Mapping[str, float] | None = None) -> None:
        self.device = device
        self.scales = scales or {}
        self._spread: dict[str, list[float]] = {}

    def __call__(self, operator: Operator) -> float:
        estimate = self.device.time(operator)
        spread = self._spread.setdefault(operator.kind, [0.0, 0.0, 0.0])
        for index, value in enumerate((estimate.low, estimate.seconds, estimate.high)):
            spread[index] += value
        return float(estimate.seconds) * self.scales.get(operator.kind, 1.0)

    def errors(self) -> dict[str, tuple[float, float]]:
        """Low and high factor of every family asked so far, nine times of ten."""
        return {family: (low / middle, high / middle) for family, (low, middle, high) in self._spread.items()}

    #: Relative error of a transfer's time, nine times of ten: the anchors of docs/network.md are met within it.
    TRANSFER_ERROR = 0.15

    def range_of(self, tokens: int, makespan_s: float, parts: metrics.Breakdown) -> Range:
        """One common factor a kernel family and one for transfers, independent of each other, to first order."""
        faster, slower, errors = 0.0, 0.0, self.errors()
        for family, seconds in parts.compute_s.items():
            low, high = errors[family]
            faster += (seconds * (1.0 - low)) ** 2
            slower += (seconds * (high - 1.0)) ** 2
        exposed = sum(parts.exposed_s.values()) * self.TRANSFER_ERROR
        low_s = makespan_s - (faster + exposed**2) ** 0.5
        high_s = makespan_s + (slower + exposed**2) ** 0.5
        basis = "90 %: one factor a kernel family (its residuals) and one for exposed transfers (±15 %), independent"
        return Range(tokens / high_s, tokens / low_s, basis)


def run(question: Question, mesh: Mesh, job: Job, costs: Costs, *, every_rank: bool) -> Submission:
    """Write the plan's programs, place them, and let the engine run them."""
    plan = job.plan
    scheme = scheme_of(plan)
    slots = plan.token_shards
    programs = tuple(
        write_program(scheme, job, position, stage) for stage in range(plan.pp) for position in range(slots)
    )
    role_of = mesh.positions["pp"] * slots + mesh.positions[plan.token_axis]
    device = question.device
    engine = Engine(
        question.cluster,
        costs,
        interference=Interference(device.compute_slowdown, device.communication_slowdown),
        every_rank=every_rank,
    )
    slowness = {slow.gpu: slow.factor for slow in question.scenario.faults.slow_gpus}
    submission = engine.submit(Assignment(mesh, programs, role_of, slowness))
    engine.run()
    return submission


def steady_blocks(job: Job) -> bool:
    """Whether the pass itself is one forward through all layers, so that its own layers show the steady block."""
    return not job.training and job.micro_batches == 1 and job.plan.pp == 1


def run_block(question: Question, job: Job) -> Submission:
    """The forward of a few layers and one micro-batch, with a pipeline's stages as replicas beside each other."""
    plan = job.plan
    degrees = {**plan.degrees, "pp": 1, "dp": plan.dp * plan.pp}
    alone = replace(plan, degrees=degrees, vpp=1, schedule="1f1b", stage_layers=(), zero=0)
    job = Job(
        replace(job.model, layers=BLOCKS, vocab=0),
        alone,
        replace(job.work, pass_="forward", sequences=job.sequences),
    )
    mesh = build_mesh(alone, question.cluster.gpus, question.cluster.gpus_per_node)
    return run(question, mesh, job, Costs(question.device), every_rank=False)


#: Layers that show a steady block: the first fills the pipeline of exchanges, the others repeat.
BLOCKS = 4


def too_large(memory: Memory) -> str:
    """Which part is too large, and by how much."""
    over = memory.peak_bytes - memory.capacity_bytes
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    gib = 2**30
    return (
        f"needs {memory.peak_bytes / gib:.1f} GiB a GPU, {over / gib:.1f} GiB more than its "
        f"{memory.capacity_bytes / gib:.1f}; largest part: "
        f"{largest.replace('_', ' ')}, {memory.parts[largest] / gib:.1f} GiB"
    )


def link_use(
    cluster: Cluster, submission: Submission, makespan_s: float
) -> tuple[tuple[LinkUse, ...], tuple[tuple[str, str, float], ...]]:
    """Use of the fabric by kind of link, and of every link of the first node and its way to the leaf switches."""
    kinds, bandwidth = cluster.links.kind, cluster.links.bandwidth_bytes_per_s
    carried: dict[str, float] = {}
    peak: dict[str, float] = {}
    shares: dict[int, float] = {}
    for link, size_bytes, copies in submission.system.link_loads():
        kind = kinds[link]
        shares[link] = size_bytes / (float(bandwidth[link]) * makespan_s)
        carried[kind] = carried.get(kind, 0.0) + size_bytes * copies
        peak[kind] = max(peak.get(kind, 0.0), shares[link])
    counts: dict[str, int] = {}
    capacity: dict[str, float] = {}
    for kind, count, rate, _ in cluster.blocks():
        counts[kind] = counts.get(kind, 0) + count
        capacity[kind] = capacity.get(kind, 0.0) + count * rate
    uses = tuple(
        LinkUse(
            kind,
            counts[kind],
            capacity[kind] / counts[kind],
            carried.get(kind, 0.0),
            carried.get(kind, 0.0) / (capacity[kind] * makespan_s),
            peak.get(kind, 0.0),
        )
        for kind in counts
        if counts[kind]
    )
    layout, links = cluster.layout, cluster.links
    shown = [*range(layout.node_links)]
    if cluster.fabric is not None:
        shown += range(layout.host_start, layout.host_start + 2 * layout.gpus)
        shown += range(layout.nic_start, layout.nic_start + 2 * layout.nics)
    return uses, tuple((str(links.source[link]), str(links.target[link]), shares.get(link, 0.0)) for link in shown)


def cost_of(question: Question, makespan_s: float, tokens: int) -> dict[str, Any]:
    """Money and energy a million tokens, at the scenario's price or the device's three."""
    device, prices = question.device, question.scenario.prices
    per_hour = {"stated": prices.gpu_hour} if prices.gpu_hour is not None else dict(device.prices_usd_per_hour)
    gpu_hours = question.cluster.gpus * makespan_s / 3600.0
    millions = tokens / 1e6
    cost: dict[str, Any] = {
        "usd_per_gpu_hour": per_hour,
        "usd_per_million_tokens": {basis: price * gpu_hours / millions for basis, price in per_hour.items()},
    }
    if device.all_in_watts is not None:
        kwh = gpu_hours * device.all_in_watts / 1000.0
        cost["kwh_per_million_tokens"] = kwh / millions
        if prices.electricity is not None:
            cost["electricity_usd_per_million_tokens"] = kwh / millions * prices.electricity
    return cost


def settings_of(plan: Plan) -> dict[str, Any]:
    """The switches of a plan, defaults filled in."""
    overlap = plan.overlap
    if overlap is None:
        overlap = plan.tsp > 1 or (plan.sp > 1 and plan.exchange == "ring")
    return {
        "partition": plan.partition,
        "exchange": plan.exchange,
        "sequence_regions": plan.sequence_regions,
        "overlap": overlap,
        "overlap_chunks": plan.overlap_chunks,
        "recomputation": plan.recomputation,
        "micro_batch": plan.micro_batch,
        "vpp": plan.vpp,
        "schedule": "interleaved" if plan.vpp > 1 else plan.schedule,
        "zero": plan.zero,
        "algorithms": dict(plan.algorithms),
        "placement": {"node": list(plan.node_axes), "rails": list(plan.rail_axes)},
    }


def describe_model(model: Architecture) -> dict[str, Any]:
    fields = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "source")
    return {name: getattr(model, name) for name in fields} | {"parameters": model.parameters}


def describe_cluster(cluster: Cluster, device: Device) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "device": {
            "name": device.name,
            "vendor": device.vendor,
            "peak_flops_per_s": dict(device.peak_flops_per_s),
            "hbm_bytes_per_s": device.hbm_bytes_per_s,
            "memory_bytes": device.memory_bytes,
            "visible_memory_bytes": device.visible_memory_bytes,
        },
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "gpus": cluster.gpus,
        "fabric": cluster.fabric.name if cluster.fabric is not None else None,
        "oversubscription": cluster.oversubscription,
    }


def provenance(question: Question) -> Sequence[dict[str, str]]:
    """Every number the answer rests on, with its source."""
    rows = [
        {"what": what, "value": str(value), "source": source, "basis": basis}
        for what, value, source, basis in [*question.device.provenance(), *question.cluster.provenance()]
    ]
    rows.append(
        {
            "what": f"model {question.model.name}",
            "value": "shape",
            "source": question.model.source,
            "basis": "stated",
        }
    )
    return rows
