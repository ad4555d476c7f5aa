"""A plan with pools as a deployment: two engines, the ranks of their replicas, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..base.errors import InputError
from ..base.memo import once
from ..network import Cluster
from ..network.load import load_fabric
from ..network.wires import Wires
from ..scenario import PlanSpec as PlanKeys
from ..scenario import Scenario
from ..scenario.pools import Pools
from ..step.question import FRESH, Lookups, cluster_of, look_up_pool
from ..step.result import Memory
from .cache_paths import KVLayout, kv_layout_of
from .costs import ProgramCosts
from .deployment import ROUTER, Deployment
from .disaggregation import Disaggregated, Handover
from .metrics import Bill, Cache
from .service import Dispatcher


@dataclass(frozen=True, kw_only=True)
class PooledDeployment(Deployment):
    """Prefill and decode on different GPUs. Inherited fields describe one decode replica."""

    #: One replica of each pool, by name.
    parts: Mapping[str, Deployment]
    #: The pools as the scenario states them.
    pools: Pools
    #: Ranks of each pool on its cluster.
    placed: Mapping[str, range]
    #: The scenario's cluster, and a pool's own.
    clusters: tuple[Cluster, ...]

    def count(self, name: str) -> int:
        """Replicas of a pool."""
        return len(self.placed[name]) // self.pools.members()[name].ranks

    def engines(self) -> list[tuple[str, Deployment, int, bool]]:
        pushes = self.pools.transfer == "push"
        return [(name, part, self.count(name) * part.replicas, pushes) for name, part in self.parts.items()]

    @property
    def every_cost(self) -> tuple[ProgramCosts, ...]:
        return tuple(part.costs for part in self.parts.values())

    @property
    def gpus(self) -> int:
        return sum(len(ranks) for ranks in self.placed.values())

    @property
    def bill(self) -> Bill:
        """Means over all GPUs; prices only for bases that all devices have."""
        bills = [(len(self.placed[name]) / self.gpus, part.bill) for name, part in self.parts.items()]
        bases = [basis for basis in bills[0][1].usd_per_gpu_hour if all(basis in b.usd_per_gpu_hour for _, b in bills)]
        prices = {basis: sum(share * bill.usd_per_gpu_hour[basis] for share, bill in bills) for basis in bases}
        watts = [share * bill.watts_per_gpu for share, bill in bills if bill.watts_per_gpu is not None]
        return Bill(prices, sum(watts) if len(watts) == len(bills) else None)

    def cost(self, wall_s: float, tokens: float) -> dict[str, Any]:
        """Cost of both pools together; prices only for bases that all devices have."""
        every = []
        for name, part in self.parts.items():
            replicas = len(self.placed[name]) / part.gpus
            every.append(part.cost(wall_s, tokens / replicas))
        cost: dict[str, Any] = {"usd_per_gpu_hour": dict(self.bill.usd_per_gpu_hour)}
        prices = [one["usd_per_million_tokens"] for one in every]
        cost["usd_per_million_tokens"] = {
            basis: sum(one[basis] for one in prices) for basis in cost["usd_per_gpu_hour"]
        }
        for key in ("kwh_per_million_tokens", "electricity_usd_per_million_tokens"):
            if all(key in one for one in every):
                cost[key] = sum(one[key] for one in every)
        return cost

    def cache(self, length: int) -> Cache:
        """The cache of the decode replicas."""
        one, count = self.parts["decode"].cache(length), self.count("decode")
        if one.capacity_tokens is None or one.sessions is None:
            return one
        return Cache(one.capacity_tokens * count, one.sessions * count, count * self.parts["decode"].replicas)

    @once
    def memory(self) -> Memory:
        """Memory of a prefill GPU if prompts do not fit there; else of a decode GPU."""
        reader, writer = (part.memory for part in self.parts.values())
        return writer if reader.fits else reader

    @property
    def settings(self) -> dict[str, Any]:
        by_pool: dict[str, Any] = {
            name: {"degrees": part.degrees, "pool_replicas": self.count(name), **part.settings}
            for name, part in self.parts.items()
        }
        how = {name: getattr(self.pools, name) for name in ("transfer", "handshake", "first_token", "fabric")}
        return self.parts["decode"].settings | {"pools": by_pool | how}

    def advice(self, longest: int) -> str:
        """Empty: the refusal names the pool already."""
        return ""

    def refusal(self, longest: int) -> str | None:
        """Prompts must fit in one pool, and whole requests in the other."""
        refused = {name: part.refusal(longest) for name, part in self.parts.items()}
        return next((f"{name}: {words}" for name, words in refused.items() if words is not None), None)

    def dispatcher(self, factor: float = 1.0) -> Dispatcher:
        pools = {name: part.pool(self.count(name) * part.replicas, factor, name) for name, part in self.parts.items()}
        handover = Handover(
            self.pools.transfer == "push",
            self.pools.handshake if self.pools.transfer == "pull" else 0.0,
            self.pools.first_token == "prefill",
        )
        kv_layouts = self.kv_layouts("prefill"), self.kv_layouts("decode")
        return Disaggregated(
            pools["prefill"], pools["decode"], kv_layouts, lambda env: Wires(env, self.clusters), handover
        )

    def kv_layouts(self, name: str) -> Sequence[Sequence[KVLayout]]:
        """KV layouts of every replica of a pool, one per attention replica."""
        part, pool = self.parts[name], self.pools.members()[name]
        job, cluster = part.costs.programs.decoding((1,)), part.question.cluster
        where = 0 if pool.cluster is None else len(self.clusters) - 1
        return [
            [
                kv_layout_of(job, cluster.gpus, cluster.gpus_per_node, where, first, engine * part.dp_size + dp_rank)
                for dp_rank in range(part.dp_size)
            ]
            for first in self.placed[name][:: pool.ranks]
            for engine in range(part.replicas)
        ]


def pooled_deployment(scenario: Scenario, entry: PlanKeys, lookups: Lookups = FRESH) -> PooledDeployment:
    """A resolved plan with pools.

    Raises
    ------
    InputError
        Pools do not fit their clusters, or these are not connected.
    """
    pools = entry.pools
    assert pools is not None
    whole = cluster_of(scenario, lookups)
    own = next((pool for pool in pools.members().values() if pool.cluster is not None), None)
    clusters = [whole]
    if own is not None:
        clusters.append(cluster_of(scenario.model_copy(update={"cluster": own.cluster}), lookups))
    parts = {}
    for name, pool in pools.members().items():
        question = look_up_pool(scenario, entry, name, lookups)
        options = {**scenario.workload.engine, **pool.engine}
        key = f"plans.{entry.name}.pools.{name}.engine"
        place = {
            option: f"{key}.{option}" if option in pool.engine else f"workload.engine.{option}" for option in options
        }
        place[ROUTER] = f"plans.{entry.name}.pools.{name}.router"
        speculation = (entry.speculation or scenario.workload.speculation) if name == "decode" else None
        stated = question, question.plans[0], options, place, speculation, pool.router, pool.tiers
        parts[name] = Deployment(*stated, reads_only=name == "prefill")
    decode = parts["decode"]
    return PooledDeployment(
        **{name: getattr(decode, name) for name in ("question", "plan", "options", "place", "speculation", "router")},
        parts=parts,
        pools=pools,
        placed=pools.placed(whole.gpus, whole.gpus_per_node, entry.name),
        clusters=tuple(joined(clusters, pools.fabric, f"plans.{entry.name}.pools.fabric")),
    )


def joined(clusters: Sequence[Cluster], fabric: str | None, key: str) -> Sequence[Cluster]:
    """Clusters with a fabric between them. Raises InputError where they have none."""
    if fabric is not None:
        spec = load_fabric(fabric)
        return [replace(cluster, fabric=spec) for cluster in clusters]
    lacking = next((cluster for cluster in clusters if cluster.fabric is None), None)
    if len(clusters) > 1 and lacking is not None:
        raise InputError(f"{lacking.name} has no fabric to reach the other pool by; name one", key=key)
    return clusters
