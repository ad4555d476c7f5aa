"""Parts of an answer beside its times: use of links, cost, likely range, settings of a plan, provenance of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..base.units import GIB, gib
from ..engine.core import Submission
from ..hardware import Costs, Device
from ..model import Architecture
from ..network import Cluster
from ..parallel import SWITCHES, Plan, Stack, choices_of, scheme_of
from .metrics import Breakdown
from .question import Question
from .result import LinkUse, Memory, Range


def too_large(memory: Memory) -> str:
    """A sentence on how much memory is lacking, and the largest part."""
    over = memory.peak_bytes - memory.capacity_bytes
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    return (
        f"needs {gib(memory.peak_bytes)} per GPU, {gib(over)} more than its {memory.capacity_bytes / GIB:.1f}; "
        f"largest part: {largest.replace('_', ' ')}, {gib(memory.parts[largest])}"
    )


def link_use(
    cluster: Cluster, submission: Submission, makespan_s: float
) -> tuple[tuple[LinkUse, ...], tuple[tuple[str, str, float], ...]]:
    """Use by kind of link, and of every link of the first node and from it to the leaf switches."""
    kinds, bandwidth = cluster.links.kind, cluster.links.bandwidth_bytes_per_s
    carried: dict[str, float] = {}
    peak: dict[str, float] = {}
    used, size_bytes, copies = submission.system.link_loads()
    share = size_bytes / (bandwidth[used] * makespan_s)
    shares = dict(zip(used.tolist(), share.tolist(), strict=True))
    for link, every_bytes, most in zip(shares, (size_bytes * copies).tolist(), shares.values(), strict=True):
        kind = kinds[link]
        carried[kind] = carried.get(kind, 0.0) + every_bytes
        peak[kind] = max(peak.get(kind, 0.0), most)
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
        shown += range(layout.nic_start, layout.nic_start + 2 * layout.nics * layout.nic_lanes)
    return uses, tuple((str(links.source[link]), str(links.target[link]), shares.get(link, 0.0)) for link in shown)


def dead_links(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """Source and target of every dead link."""
    links = cluster.links
    return tuple((str(links.source[link]), str(links.target[link])) for link in cluster.layout.dead)


def cost_of(question: Question, makespan_s: float, tokens: float) -> dict[str, Any]:
    """Money and energy per million tokens, at the scenario's price or at each of the device's."""
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


#: Key of the factor of all exposed transfers, beside those of kernel families.
TRANSFERS = "transfers"


def range_of(costs: Costs, tokens: float, makespan_s: float, parts: Breakdown, stack: Stack) -> Range:
    """The likely rate of a step: one independent factor per kernel family, one for transfers, one for software.

    To first order. On devices whose whole runs gave the stack's spread, that spread alone, since it includes the other
    errors.
    """
    errors = costs.errors()
    factors = {family: errors[family] for family in parts.compute_s} | {TRANSFERS: costs.transfers}
    if costs.device.name in stack.spread_on:
        low_s, high_s = (makespan_s * factor for factor in stack.spread)
        basis = f"90 %: whole runs under the stack {stack.name} on such devices (residuals)"
        return Range(tokens / high_s, tokens / low_s, basis, factors=factors)
    faster, slower = ((makespan_s * (1.0 - factor)) ** 2 for factor in stack.spread)
    for family, seconds in parts.compute_s.items():
        low, high = errors[family]
        faster += (seconds * (1.0 - low)) ** 2
        slower += (seconds * (high - 1.0)) ** 2
    exposed, (low, high) = sum(parts.exposed_s.values()), costs.transfers
    low_s = makespan_s - (faster + (exposed * (1.0 - low)) ** 2) ** 0.5
    high_s = makespan_s + (slower + (exposed * (high - 1.0)) ** 2) ** 0.5
    software = f", one for the stack {stack.name}" if stack.spread != (1.0, 1.0) else ""
    basis = f"90 %: one factor a kernel family{software} and one for exposed transfers (residuals), independent"
    return Range(tokens / high_s, tokens / low_s, basis, factors=factors)


def settings_of(plan: Plan) -> dict[str, Any]:
    """The switches of a plan, with defaults and with what was chosen for the machine."""
    stated: dict[str, Any] = {name: getattr(plan, name) for name in SWITCHES}
    stated |= {
        "overlap": scheme_of(plan).overlaps(plan) if plan.overlap is None else plan.overlap,
        "schedule": plan.order.name,
    }
    stated["recomputation"] = plan.recomputation_keys
    for name in ("activation_store", "offload_layers", "offload_weights"):
        stated |= {name: getattr(plan, name)} if getattr(plan, name) else {}
    for choice in choices_of(plan):
        stated |= choice.settings_of(plan)
    return stated | {
        **plan.options,
        "chosen": list(plan.chosen),
        "algorithms": dict(plan.algorithms),
        "placement": {
            "node": list(plan.node_axes),
            "rails": list(plan.rail_axes),
            **({"order": list(plan.node_order)} if plan.node_order else {}),
        },
    }


def describe_model(model: Architecture) -> dict[str, Any]:
    fields = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "source")
    facts = {name: getattr(model, name) for name in fields} | {"parameters": model.parameters}
    for name in ("experts", "latent", "indexing", "linear", "compressed"):
        part = getattr(model, name)
        facts |= {name: asdict(part)} if part is not None else {}
    return facts | ({"active_parameters": model.active_parameters} if model.experts else {})


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
    """Every number that the answer depends on, with its source."""
    stated = [*question.device.provenance(), *question.cluster.provenance(), *question.stack_sources]
    rows = [
        {"what": what, "value": str(value), "source": source, "basis": basis} for what, value, source, basis in stated
    ]
    rows.append(
        {"what": f"model {question.model.name}", "value": "shape", "source": question.model.source, "basis": "stated"}
    )
    return rows
