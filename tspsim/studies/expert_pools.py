"""Decode steps with attention on some GPUs and experts on others: the time of a layer, in closed form.

Attention replicas (one GPU each, with its requests' caches) send every token of a layer to the nodes of the expert
pool, whose ranks choose experts, multiply, and send sums back (Janus, arXiv 2512.13525; second-hand notes of its text).
Experts are read once for the tokens of *all* attention replicas, which is the use of pools: with a_max distinct experts
on the fullest rank their time is β·a_max + c, and a_max grows ever slower with tokens.

    layer = T_a + T_e + 2·T_c                                        one micro-batch
    layer = max(m·T_a, m·T_e, T_a + T_e + 2·T_c)                     m micro-batches in turn (MegaScale-Infer, §4.1)

T_a: norm, attention, output projection and shared experts of an attention GPU's tokens; T_e: router and routed experts
of all tokens, with the balance policy's loads; T_c: messages from every attention GPU to one GPU of every expert node
over the NICs, and their gather inside the node; back, sums inside the node and messages of each node's sums. Kernel
times are from :mod:`tspsim.hardware`, message times from :class:`tspsim.network.wires.Wires`. The engine runs no
program for it, so that contention of the pools is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import simpy

from ..base.errors import InputError
from ..hardware import Costs
from ..model.layer import ServingLayer
from ..model.parts import WeightClass
from ..network import Cluster, collective
from ..network.wires import GpuPlace, Message, Wires
from ..operators import Operator
from ..parallel import Job
from ..parallel.builder import lowering_of
from ..parallel.expert_rows import load_of, routed_shard, touched_experts
from ..parallel.state import served
from ..scenario import load
from ..step.question import Question, look_up


@dataclass(frozen=True)
class ExpertPoolPair:
    """One decode step on two pools; rates count the GPUs of both."""

    gpus: int
    batch: int
    micro_batches: int
    #: Seconds of one micro-batch in one layer with experts: T_a, T_e, T_c there and back.
    attention_s: float
    experts_s: float
    there_s: float
    back_s: float
    #: Seconds of all micro-batches; the step adds dense layers, embedding and head on the attention GPUs.
    layer_s: float
    step_s: float
    #: a_max: distinct experts on the fullest rank.
    touched: float
    #: Bytes of a GPU in each pool: weights, and on attention GPUs the caches of its requests.
    attention_bytes: float
    expert_bytes: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus


def expert_pools(
    cluster: Mapping[str, Any],
    workload: Mapping[str, Any],
    *,
    expert_gpus: int,
    batch: int,
    micro_batches: int = 1,
    balance: Mapping[str, Any] | str = "busiest",
) -> ExpertPoolPair:
    """A decode step with the last ``expert_gpus`` of a cluster as experts, the others as attention replicas.

    Parameters
    ----------
    cluster
        The cluster as a scenario states it.
    workload
        The workload of a scenario that decodes: ``model``, ``context``, and keys of precision and routing.
    batch
        Sequences of the step, on all attention GPUs together.
    micro_batches
        Number of micro-batches that take turns between the pools.
    balance
        A policy of experts, as a plan's ``expert_balance``.

    Raises
    ------
    InputError
        There are no experts, GPUs do not divide the batch or the experts, or something does not fit.
    """
    whole = _question(cluster, workload, 1)
    gpus, experts = whole.cluster.gpus, whole.model.experts
    attention_gpus = gpus - expert_gpus
    if experts is None:
        raise InputError(f"{whole.model.name} has no experts to stand apart", key="workload.model")
    if not 0 < expert_gpus < gpus:
        raise InputError(f"{expert_gpus} of {gpus} GPUs leave none for one of the pools", key="expert_gpus")
    if micro_batches < 1 or batch % (attention_gpus * micro_batches):
        problem = f"{micro_batches} micro-batches on {attention_gpus} GPUs do not divide {batch} sequences"
        raise InputError(problem, key="batch")
    if experts.count % expert_gpus:
        raise InputError(f"{experts.count} experts do not divide over {expert_gpus} GPUs", key="expert_gpus")
    tokens = batch // micro_batches
    attending = _job(_question(cluster, workload, tokens // attention_gpus))
    nodes, more = divmod(expert_gpus, whole.cluster.gpus_per_node)
    pool = {**cluster, "nodes": max(1, nodes), "gpus_per_node": whole.cluster.gpus_per_node if nodes else more}
    plan = {"dp": expert_gpus, "ep": expert_gpus, "expert_balance": balance}
    if nodes and more:
        raise InputError(f"{expert_gpus} GPUs do not fill nodes of {whole.cluster.gpus_per_node}", key="expert_gpus")
    # A rank's share of the tokens may be a fraction; experts get rows of all tokens.
    multiplying = _job(_question(pool, workload, -(-tokens // expert_gpus), plan))
    seconds = _Seconds(whole, attending)
    attention_s, dense_s, table_s = seconds.layer(routed=True), seconds.layer(routed=False), seconds.tables()
    touched = touched_experts(multiplying, tokens, None)
    experts_s = _Seconds(whole, multiplying).experts(tokens, touched)
    there_s, back_s = exchange_s(whole.cluster, expert_gpus, tokens * whole.model.hidden * attending.activation_bytes)
    chain = attention_s + experts_s + there_s + back_s
    m = micro_batches
    layer_s = chain if m == 1 else max(m * attention_s, m * experts_s, chain)
    kinds = Counter(bool(block.experts) for block in whole.model.blocks)
    step_s = kinds[True] * layer_s + m * (kinds[False] * dense_s + table_s) + whole.work.stack.step_s
    attention_bytes, expert_bytes = _kept(attending, multiplying, batch // attention_gpus)
    for name, kept in (("attention", attention_bytes), ("experts", expert_bytes)):
        room = whole.device.visible_memory_bytes
        if kept > room:
            raise InputError(f"{name} take {kept / 1e9:.4g} GB of a GPU's {room / 1e9:.4g}", key="expert_gpus")
    return ExpertPoolPair(
        gpus, batch, m, attention_s, experts_s, there_s, back_s, layer_s, step_s, touched, attention_bytes, expert_bytes
    )


def exchange_s(cluster: Cluster, expert_gpus: int, size_bytes: float) -> tuple[float, float]:
    """Seconds of one micro-batch's rows to the expert pool, and of their sums back.

    Every attention GPU sends its rows to each expert node once, to its GPUs in turn; the node gathers them. Back, a
    node's GPUs sum their parts of all rows and send each attention GPU its rows.
    """
    attention = cluster.gpus - expert_gpus
    nodes: dict[int, list[int]] = {}
    for gpu in range(attention, cluster.gpus):
        nodes.setdefault(gpu // cluster.gpus_per_node, []).append(gpu)
    wires = Wires(simpy.Environment(), [cluster])
    messages, sums = [], []
    for members in nodes.values():
        for source in range(attention):
            relay = members[source % len(members)]
            messages.append(Message(GpuPlace(0, source), GpuPlace(0, relay), size_bytes / attention))
            part = size_bytes / attention / len(members)
            sums += [Message(GpuPlace(0, member), GpuPlace(0, source), part) for member in members]
    inside = []
    for kind in ("all_gather", "reduce_scatter"):
        moved = [collective(cluster, members, kind, size_bytes) for members in nodes.values() if len(members) > 1]
        inside.append(max((traffic.latency_s + traffic.fluid_s for traffic in moved), default=0.0))
    return wires.bundle(messages).alone_s + inside[0], inside[1] + wires.bundle(sums).alone_s


class _Seconds:
    """Seconds of a job's kernels, one after the other."""

    def __init__(self, question: Question, job: Job) -> None:
        self.job = job
        self._lower = lowering_of(job)
        self._cost = job.work.stack.cost(Costs(question.device), question.device, job.capture)

    def of(self, operators: Iterable[Operator]) -> float:
        return sum(self._cost(operator) for operator in self._lower(tuple(operators)))

    def layer(self, *, routed: bool) -> float:
        """A layer with routed experts without them, or a layer without any; the mean over its kinds."""
        job = self.job
        blocks = Counter(block for block in job.model.blocks if bool(block.experts) == routed)
        return sum(count * self._layer(job.layer(1, block)) for block, count in blocks.items()) / max(1, blocks.total())

    def _layer(self, layer: Any) -> float:
        assert isinstance(layer, ServingLayer)
        kind, rows, tokens = layer.attention_kind, self.job.rows, self.job.tokens
        entering = (layer.norm(tokens), *kind.enter(layer, rows), *kind.project(layer, rows))
        attended = (*kind.attend(layer, rows), *kind.leave(layer, rows))
        mlp: tuple[Operator, ...] = (layer.norm(tokens),)
        if layer.ffn:
            mlp = (*mlp, layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
        if layer.composition.experts:
            mlp = (*mlp, layer.add(tokens))  # adds the pool's output
        return self.of((*entering, *attended, *mlp))

    def experts(self, tokens: int, touched: float) -> float:
        """Router and routed experts of a rank, for ``tokens`` of all attention GPUs."""
        job = self.job
        assert job.model.experts is not None
        routed = routed_shard(job, tokens)
        pairs = tokens * job.model.experts.topk / job.plan.ep * load_of(job, None)
        return self.of((routed.router(tokens), routed.choose(tokens), routed.fused(tokens, pairs, touched)))

    def tables(self) -> float:
        """Embedding and head."""
        job = self.job
        if not job.model.vocab:
            return 0.0
        layer = job.layer(1)
        return self.of((layer.embedding(job.tokens), layer.norm(job.tokens), layer.head(job.tokens)))


def _question(
    cluster: Mapping[str, Any], workload: Mapping[str, Any], batch: int, plan: Mapping[str, Any] | None = None
) -> Question:
    """A decode step of ``batch`` sequences per replica, by default on replicas of one GPU."""
    work = {**workload, "pass": "decode", "batch": batch}
    plans = [{"name": "pools", **(plan or {})}]
    return look_up(load({"name": "pools", "cluster": dict(cluster), "workload": work, "plans": plans}))


def _job(question: Question) -> Job:
    return question.job(question.plans[0])


def _kept(attending: Job, multiplying: Job, sequences: int) -> tuple[float, float]:
    """Bytes of a GPU in each pool: weights, and in the first pool caches of all its sequences."""
    model, chunks = multiplying.model, attending.chunks(0)
    assert model.experts is not None
    layers = sum(bool(block.experts) for block in model.blocks)
    expert_bytes = layers * model.expert_parameters * multiplying.work.formats.weight_bytes(WeightClass.EXPERTS)
    own = model.experts.count / multiplying.plan.ep + multiplying.expert_loads.further_experts
    whole = served.weight_bytes(attending, 1, chunks) - expert_bytes * model.experts.count
    cached = replace(attending.work.load, batch=sequences)
    cache = served.cache_bytes(replace(attending, work=replace(attending.work, load=cached)), chunks)
    return whole + cache, expert_bytes * own
