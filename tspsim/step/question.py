"""A scenario with every name resolved and every plan checked: the input of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ..base.errors import InputError, UnknownNameError
from ..base.provenance import Provenance
from ..base.strict import as_stated
from ..hardware import Device, load_device, standing_for
from ..model import Architecture, load_model
from ..model.parts import BF16, Formats, WeightClass
from ..network import (
    Cluster,
    build_cluster,
    host_bandwidth,
    host_reads,
    load_cluster,
    with_fabrics,
    with_nodes,
    with_pairs,
    with_topology,
)
from ..operators import weight_bytes
from ..parallel import (
    Job,
    Optimizer,
    Plan,
    Stack,
    StackSpec,
    Work,
    load_stack,
    located,
    scheme_of,
    switches_of,
)
from ..parallel.checks import check
from ..parallel.switches import Switches
from ..parallel.work import StatedWork
from ..scenario import ClusterInline, Faults, PlanSpec, Scenario
from ..scenario.cluster import Island, MeasuredBandwidths
from ..scenario.workload import PrecisionSpec, Workload
from ..steps import STEPS

#: Switches of a plan that are taken as stated.
AS_STATED = tuple(field.name for field in fields(Switches) if field.name != "recomputation")


@dataclass(frozen=True)
class OtherNodes:
    """``gpus`` GPUs from ``first`` on that are another device than the cluster's."""

    first: int
    gpus: int
    device: Device


@dataclass(frozen=True)
class Question:
    """A scenario with every name resolved.

    ``work`` is that of the first plan; with a global ``batch``, other plans have other numbers of sequences.
    ``stack_sources`` is the provenance of the software's numbers, ``others`` are GPUs of another kind than ``device``.
    """

    scenario: Scenario
    cluster: Cluster
    device: Device
    model: Architecture
    work: Work
    plans: tuple[Plan, ...]
    batch: int | None = None
    stack_sources: tuple[Provenance, ...] = ()
    others: tuple[OtherNodes, ...] = ()

    def peak_of(self, dtype: str) -> float:
        """Dense FLOP/s of all GPUs."""
        own = self.device.peak_of(dtype)
        return self.cluster.gpus * own - sum(other.gpus * (own - other.device.peak_of(dtype)) for other in self.others)

    def on(self, plan: Plan) -> Question:
        """The question on a cluster whose switches route as the plan states.

        Raises
        ------
        InputError
            Links between switches are slow or dead, and the plan's routing numbers links differently.
        """
        if plan.routing is None or plan.routing == self.cluster.routing:
            return self
        try:
            return replace(self, cluster=self.cluster.with_routing(plan.routing))
        except InputError as error:
            raise error.at(key=f"plans.{plan.name}.routing") from None

    def job(self, plan: Plan) -> Job:
        if self.work.unequal.tokens:
            return Job(self.model, plan, replace(self.work, replicas=plan.dp))
        if self.batch is None:
            return Job(self.model, plan, self.work)
        return Job(self.model, plan, replace(self.work, sequences=self.batch // plan.dp))


@dataclass(frozen=True)
class Lookups:
    """Functions that resolve names; frequent callers bring caching ones (:mod:`tspsim.studies.worker`)."""

    build_cluster: Callable[..., Cluster] = build_cluster
    load_cluster: Callable[[str], Cluster] = load_cluster
    load_device: Callable[[str], Device] = load_device
    load_model: Callable[[str], Architecture] = load_model
    load_stack: Callable[[str], StackSpec] = load_stack
    #: Replaces the cluster that a scenario names.
    cluster: Cluster | None = None


FRESH = Lookups()


def optimizer_of(workload: Workload, software: Stack) -> Optimizer:
    """Training bytes per parameter: the stated ones, otherwise the software's own."""
    stated = workload.optimizer
    if "optimizer" in workload.model_fields_set or software.optimizer_state is None:
        return stated
    return replace(stated, name=f"{stated.name} of {software.name}", state=software.optimizer_state)


def look_up(scenario: Scenario, lookups: Lookups = FRESH) -> Question:
    """Resolve the cluster, device and model that a scenario names, and check every plan against them.

    Raises
    ------
    InputError
        A name is unknown, a plan does not fit the rest, or a plan has to be searched for first.
    """
    searched = scenario.searched
    if searched is not None:
        problem = "is searched for by `tspsim plan`, `compare` and `run`; state degrees here"
        raise InputError(problem, key=f"plans.{searched.name}")
    cluster = cluster_of(scenario, lookups)
    workload = scenario.workload
    entry = scenario.plans[0]
    replicas = 1 if entry.pools is not None else entry.degrees(cluster.gpus - own_gpus(entry, cluster))["dp"]
    try:
        stack = lookups.load_stack(workload.stack)
    except UnknownNameError as error:
        raise error.at(key="workload.stack") from None
    try:
        model = STEPS.get(workload.pass_).model_of(lookups.load_model(workload.model))
    except InputError as error:
        raise error.at(key="workload.model") from None
    if STEPS.get(workload.pass_).serves and not states_library(scenario):
        cluster = cluster.with_all_reduces(stack.stack().engine.kernels)
    if (library := stack.stack().exchange_library) is not None:
        cluster = cluster.with_exchanges(library)
    device = limited(lookups.load_device(cluster.device_name), scenario).under(stack.stack().base)
    stack.check(device.name, device.vendor, STEPS.get(workload.pass_))
    if STEPS.get(workload.pass_).serves:
        engine = stack.stack().engine
        device = device.with_engine(engine.kernels, engine.libraries)
    else:
        software = stack.stack()
        device = device.with_engine("", dict(software.libraries)).with_clocks(software.clocks)
    precision, formats = types_of(workload, model, device)
    others = other_nodes(scenario, cluster, lookups)
    for other in others:
        stack.check(other.device.name, other.device.vendor, STEPS.get(workload.pass_))
    if others:
        shares = [(other.device, other.gpus / cluster.gpus) for other in others]
        try:
            device = standing_for(device, shares, precision)
        except InputError as error:
            raise error.at(key="cluster.islands") from None
    stated = vars(as_stated(workload, StatedWork))
    work = Work(
        **stated | {"document": None if workload.document == workload.sequence else workload.document},
        pass_=workload.pass_,
        sequence=workload.sequence,
        sequences=1 if workload.lengths else workload.sequences_of(replicas, entry.name),
        precision=precision,
        optimizer=optimizer_of(workload, stack.stack()),
        runtime_reserve_bytes=workload.runtime_reserve,
        stack=stack.stack().on(device.name, model.attention_kind.name),
        load=workload.load(),
        formats=formats,
        unequal=workload.unequal(),
        replicas=replicas,
        host_bytes_per_s=host_bandwidth(cluster.node),
        host_reads_bytes_per_s=host_reads(cluster.node),
    )
    plans = []
    for entry in scenario.plans:
        if entry.pools is not None:
            plans.append(first_of_pools(scenario, entry, cluster, lookups))
            continue
        recomputation, recomputed = entry.recomputes
        gpus = cluster.gpus - own_gpus(entry, cluster)
        plan = Plan(
            entry.name,
            entry.degrees(gpus),
            **{name: getattr(entry, name) for name in AS_STATED},
            vpp=entry.vpp,
            recomputation=recomputation,
            recomputed=recomputed,
            algorithms={str(kind): name for kind, name in entry.algorithms.items()},
            node_axes=entry.placement.node if entry.placement else (),
            rail_axes=entry.placement.rails if entry.placement else (),
            node_order=entry.placement.order if entry.placement else (),
            routing=entry.routing,
            options=entry.options,
        )
        if not workload.lengths:
            workload.sequences_of(plan.dp, plan.name)
        plan = with_choices(plan, entry).owned(model, training=work.step.trains)
        plans.append(located(plan, gpus, cluster.gpus_per_node))
    question = Question(
        scenario, cluster, device, model, work, tuple(plans), workload.global_batch, stack.provenance(), others
    )
    for plan, entry in zip(plans, scenario.plans, strict=True):
        if entry.pools is None and scenario.loop is None:  # a loop checks its own steps, whose size it knows
            check(question.job(plan))
    return question


def own_gpus(entry: PlanSpec, cluster: Cluster) -> int:
    """GPUs of a loop's plan that only generate; raises InputError if none are left to train."""
    nodes = entry.rollout.nodes if entry.rollout is not None else None
    if nodes is not None and nodes >= cluster.nodes:
        problem = f"{nodes} of {cluster.nodes} nodes leave none to train; use fewer, or leave nodes out"
        raise InputError(problem, key=f"plans.{entry.name}.rollout.nodes")
    return (nodes or 0) * cluster.gpus_per_node


def first_of_pools(scenario: Scenario, entry: PlanSpec, cluster: Cluster, lookups: Lookups) -> Plan:
    """The plan that represents a plan with pools among a question's plans: one replica of its decode pool."""
    assert entry.pools is not None
    if scenario.traffic is None:
        raise InputError("pools serve requests, and the scenario has no `traffic`", key=f"plans.{entry.name}.pools")
    entry.pools.placed(cluster.gpus, cluster.gpus_per_node, entry.name)
    pools = {name: look_up_pool(scenario, entry, name, lookups) for name in entry.pools.members()}
    return replace(pools["decode"].plans[0], name=entry.name)


def look_up_pool(scenario: Scenario, entry: PlanSpec, name: str, lookups: Lookups = FRESH) -> Question:
    """One replica of a pool as a question of its own, on as many GPUs of its cluster as it takes.

    Raises
    ------
    InputError
        The replica does not fit its cluster's nodes, its plan is wrong, or the cluster has faults.
    """
    assert entry.pools is not None
    pool, key = entry.pools.members()[name], f"plans.{entry.name}"
    alone = scenario.model_copy(
        update={
            "cluster": pool.cluster if pool.cluster is not None else scenario.cluster,
            "plans": (PlanSpec(name=entry.name, **pool.degree_keys),),
        }
    )
    if alone.faults != Faults():
        raise InputError("pools are not looked at on clusters with faults", key=f"{key}.pools")
    if isinstance(alone.cluster, ClusterInline) and alone.cluster.topology is not None:
        problem = "pools are not looked at on a graph of one's own; leave cluster.topology out"
        raise InputError(problem, key=f"{key}.pools")
    whole = cluster_of(alone, lookups)
    try:
        part = replica_of(whole, pool.ranks)
        return look_up(alone, replace(lookups, build_cluster=lambda *_: part, load_cluster=lambda _: part))
    except InputError as error:
        inside = (error.key or key).removeprefix(key).lstrip(".")
        if error.key is not None and not error.key.startswith(key):
            raise
        raise InputError(error.message, key=".".join(filter(None, (key, "pools", name, inside)))) from None


def limited(device: Device, scenario: Scenario) -> Device:
    """The cluster's device at the scenario's power limit; raises InputError if the device has no such limit."""
    watts = scenario.cluster.power_limit if isinstance(scenario.cluster, ClusterInline) else None
    if watts is None:
        return device
    try:
        return device.power_limited(watts)
    except InputError as error:
        raise error.at(key="cluster.power_limit") from None


def cluster_of(scenario: Scenario, lookups: Lookups = FRESH) -> Cluster:
    """The cluster of a scenario, with its faults."""
    if lookups.cluster is not None:
        return lookups.cluster
    if not isinstance(scenario.cluster, ClusterInline):
        return lookups.load_cluster(scenario.cluster)
    inline = scenario.cluster
    parts = (inline.device, inline.nodes, inline.fabric, inline.node, inline.oversubscription, inline.library)
    try:
        cluster = lookups.build_cluster(*parts, inline.gpus_per_node, inline.transport, inline.nic_bandwidth)
        if inline.islands and inline.nodes > 1:
            cluster = in_islands(cluster, inline.islands)
        if inline.topology is not None:
            cluster = with_topology(cluster, inline.topology)
        if inline.measured is not None:
            cluster = measured_between(cluster, inline.measured)
        if inline.routing is not None:
            cluster = cluster.with_routing(inline.routing)
        return with_faults(cluster, scenario.faults)
    except UnknownNameError as error:  # loading has checked the other names
        raise error.at(key="cluster.library") from None


def other_nodes(scenario: Scenario, cluster: Cluster, lookups: Lookups) -> tuple[OtherNodes, ...]:
    """GPUs of islands whose device differs from the cluster's; raises InputError beside traffic."""
    islands = scenario.cluster.islands if isinstance(scenario.cluster, ClusterInline) else ()
    others, first = [], 0
    for index, island in enumerate(islands):
        gpus = island.nodes * cluster.gpus_per_node
        if island.device is not None and island.device != cluster.device_name:
            if scenario.traffic is not None:
                key = f"cluster.islands.{index}.device"
                raise InputError("other devices in a cluster are of a single step; leave traffic out", key=key)
            others.append(OtherNodes(first, gpus, lookups.load_device(island.device)))
        first += gpus
    return tuple(others)


def in_islands(cluster: Cluster, islands: Sequence[Island]) -> Cluster:
    """The cluster with its islands' own fabrics and nodes."""
    try:
        cluster = with_fabrics(cluster, [(island.nodes, island.fabric) for island in islands])
        return with_nodes(cluster, [(island.nodes, island.device) for island in islands])
    except InputError as error:
        raise error.at(key="cluster.islands") from None


def measured_between(cluster: Cluster, measured: MeasuredBandwidths) -> Cluster:
    """A cluster with measured bandwidths between its nodes."""
    pairs = measured.bytes_per_s
    try:
        return cluster.memo.once(("measured", pairs), lambda: with_pairs(cluster, pairs))
    except InputError as error:
        raise error.at(key="cluster.measured") from None


def replica_of(cluster: Cluster, ranks: int) -> Cluster:
    """The GPUs of one replica as a cluster: a part of a node, or whole nodes; raises InputError otherwise."""

    def part() -> Cluster:
        nodes, more = divmod(ranks, cluster.gpus_per_node)
        if nodes and more:
            raise InputError(f"{ranks} GPUs a replica do not fill nodes of {cluster.gpus_per_node}")
        node = cluster.node if nodes else cluster.node.part(more)
        fabric = cluster.fabric if nodes > 1 else None
        name = cluster.name if ranks == cluster.gpus else f"{ranks} GPUs of {cluster.name}"
        return replace(cluster, name=name, node=node, nodes=max(1, nodes), fabric=fabric)

    return cluster.memo.once(("replica of", ranks), part)


def states_library(scenario: Scenario) -> bool:
    """Whether the scenario states its cluster's collective library."""
    return isinstance(scenario.cluster, ClusterInline) and scenario.cluster.library is not None


def types_of(workload: Workload, model: Architecture, device: Device) -> tuple[str, Formats]:
    """The type of a step's fastest products, and the types of a served model.

    Raises
    ------
    InputError
        The device does not multiply a stated type, or an attention kind of the model has no cache of the stated type.
    """
    stated = workload.precision
    try:
        if not STEPS.get(workload.pass_).serves:
            assert isinstance(stated, str)
            device.peak_of(stated)
            return stated, BF16
        if isinstance(stated, str):
            stated = PrecisionSpec(weights=stated if "precision" in workload.model_fields_set else None)
        kept = kept_types(stated.weights, model)
        multiplied = {}
        for part, dtype in kept.items():
            of_part = stated.activations.get(part) if isinstance(stated.activations, dict) else stated.activations
            if of_part is not None:
                device.peak_of(of_part)
            multiplied[part] = of_part or (dtype if multiplies(device, dtype) else "bf16")
        if model.vocab:
            multiplied[WeightClass.EMBEDDING] = "bf16"
        fastest = max(multiplied.values(), key=device.peak_of)
    except InputError as error:
        raise error.at(key="workload.precision") from None
    cache = stated.kv or model.checkpoint.cache
    try:
        model.cache_uses(cache)
    except InputError as error:
        raise error.at(key="workload.precision.kv") from None
    return fastest, Formats(kept, multiplied, cache, model.checkpoint.state)


def kept_types(stated: str | Mapping[WeightClass, str] | None, model: Architecture) -> dict[WeightClass, str]:
    """The stored type of every class of weights: as stated, otherwise as in the model's checkpoint.

    A single type applies to all classes but the embedding tables; below eight bits, to the routed experts alone if
    there are any, as in published checkpoints.
    """
    kept = {part: model.checkpoint.kept(part) for part in WeightClass}
    if isinstance(stated, Mapping):
        return kept | dict(stated)
    if stated is not None:
        narrow = weight_bytes(stated) < 1.0 and model.experts is not None
        classes = [WeightClass.EXPERTS] if narrow else [part for part in WeightClass if part != WeightClass.EMBEDDING]
        kept |= dict.fromkeys(classes, stated)
    return kept


def multiplies(device: Device, dtype: str) -> bool:
    """Whether the device multiplies two operands of a type; four-bit integers are for weights alone."""
    try:
        device.peak_of(dtype)
    except InputError:
        return False
    return True


def with_choices(plan: Plan, keys: PlanSpec) -> Plan:
    """The plan with the switches that its keys state; the others are ``open`` for :mod:`tspsim.step.tuning`."""
    switches = switches_of(plan)
    stated = {name: value for name in switches if (value := getattr(keys, name, None)) is not None}
    published = scheme_of(plan).published or {}
    settled = bool(published) and all(getattr(keys, name) == value for name, value in published.items())
    still_open = () if settled else tuple(name for name in switches if name not in stated)
    return replace(plan.with_values(stated), open=still_open)


def with_faults(cluster: Cluster, faults: Faults) -> Cluster:
    """The cluster with slow and dead links, in both directions; raises InputError if it lacks a named part."""
    for index, slow in enumerate(faults.slow_gpus):
        try:
            cluster.check_gpu(slow.gpu)
        except InputError as error:
            raise error.at(key=f"cluster.faults.slow_gpus.{index}.gpu") from None
    if not faults.links and not faults.dead:
        return cluster
    key = ("faults", faults.links, faults.dead)
    faulty: Cluster | None = cluster.memo.get(key)
    if faulty is None:
        faulty = cluster
        for index, link in enumerate(faults.links):
            source, target = link.between
            try:
                faulty = faulty.with_links({(source, target): link.factor, (target, source): link.factor})
            except InputError as error:
                raise error.at(key=f"cluster.faults.links.{index}.between") from None
        for index, name in enumerate(faults.dead):
            try:
                faulty = faulty.without(name)
            except InputError as error:
                raise error.at(key=f"cluster.faults.dead.{index}") from None
        cluster.memo[key] = faulty
    return faulty
