"""The smallest questions that exercise an object of each kind: a plan with it, in forward, training and decode steps.
Kinds that no plan names (attention of a model, a topology, a launcher) need a scenario of their author's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

#: A dense model, one with experts, one with sparse attention: small, and divisible by all degrees of the probes.
DENSE = """
name: probe
layers: 4
hidden: 1024
attention: {heads: 16, kv_heads: 16, head_dim: 64}
mlp: {width: 4096, gated: true}
embedding: {vocab: 32000, tied: false}
source: made up to hold plug-ins against their contract
"""
EXPERTS = """
name: probe-experts
layers: 4
hidden: 1024
attention: {heads: 16, kv_heads: 8, head_dim: 64}
mlp: {kind: moe, experts: 16, topk: 4, width: 512}
embedding: {vocab: 32000, tied: false}
source: made up to hold plug-ins against their contract
"""
SPARSE = """
name: probe-sparse
layers: 4
hidden: 1024
attention:
  {kind: dsa, heads: 16, q_rank: 192, kv_rank: 128, nope_dim: 32, rope_dim: 16, value_dim: 64, index_heads: 4,
   index_dim: 32, index_topk: 64}
mlp: {width: 4096, gated: true}
embedding: {vocab: 32000, tied: false}
source: made up to hold plug-ins against their contract
"""

#: A question, and its name in findings.
Probe = tuple[dict[str, Any], str]
Keys = Mapping[str, Any]


class Models:
    """The files of the models, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.dense, self.experts = str(folder / "probe.yaml"), str(folder / "probe-experts.yaml")
        Path(self.dense).write_text(DENSE, encoding="utf-8")
        Path(self.experts).write_text(EXPERTS, encoding="utf-8")
        self.sparse = str(folder / "probe-sparse.yaml")
        Path(self.sparse).write_text(SPARSE, encoding="utf-8")


def question(work: Keys, plan: Keys, cluster: Any = "mi300x-8") -> dict[str, Any]:
    """A question with one plan."""
    return {"name": "contract", "cluster": cluster, "workload": dict(work), "plans": [{"name": "P", **plan}]}


def _said(plan: Keys, work: Keys) -> str:
    return f"{work['pass']}, {', '.join(f'{key} {value}' for key, value in plan.items())}"


def _both(model: str, plan: Keys, **more: Any) -> Iterator[Probe]:
    """Forward and training of a plan."""
    for pass_ in ("forward", "training"):
        work = {"model": model, "pass": pass_, "sequence": "8Ki", **more}
        yield question(work, plan), _said(plan, work)


def _decodes(model: str, plan: Keys) -> Iterator[Probe]:
    work = {"model": model, "pass": "decode", "batch": 8, "context": "4Ki"}
    yield question(work, plan), _said(plan, work)


def _trains(model: str, plan: Keys, **more: Any) -> Iterator[Probe]:
    work = {"model": model, "pass": "training", "sequence": "1Ki", "global_batch": 16, **more}
    yield question(work, plan), _said(plan, work)


def _schemes(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    for axis in thing.axes:
        yield from _both(models.dense, {axis: 4, **keys})
        yield from _decodes(models.dense, {axis: 4, **keys})


def _context_methods(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    for plan in ({"sp": 4}, {"tp": 2, "sp": 4}):
        yield from _both(models.dense, {**plan, "exchange": thing.name, **keys})


def _transports(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    yield from _both(models.dense, {"tsp": 4, "weight_transport": thing.name, **keys})


def _dispatches(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    plan = {"ep": 8, "expert_dispatch": thing.name, **keys}
    yield from _both(models.experts, plan)
    yield from _decodes(models.experts, {"dp": 8, **plan})


def _balances(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    policy = {"policy": thing.name, **keys} if keys else thing.name
    yield from _both(models.experts, {"ep": 8, "expert_balance": policy}, routing={"load": "zipf", "skew": 0.8})


def _overlaps(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    yield from _both(models.experts, {"ep": 8, "expert_overlap": thing.name, **keys})


def _orders(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    for plan in ({"pp": 4}, {"pp": 2, "vpp": 2}):
        yield from _trains(models.dense, {**plan, "schedule": thing.name, **keys})


def _recomputations(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    what = {"what": "full", "method": thing.name, "layers": 2}
    yield from _trains(models.dense, {"tp": 8, "recomputation": what, **keys})


def _of_training(key: str) -> Callable[[Models, Any, Keys], Iterator[Probe]]:
    """Probes of kinds that a key of a training plan names, under tensor parallelism."""
    return lambda models, thing, keys: _trains(models.dense, {"tp": 8, key: thing.name, **keys})


def _residuals(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    yield from _both(models.dense, {"tp": 8, "residual": thing.name, **keys})


def _deals(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    lengths = {"kind": "uniform", "of": "4Ki", "from": 0.2}
    yield from _trains(models.dense, {"tp": 2, "deal": thing.name, **keys}, sequence="4Ki", lengths=lengths)


def _of_decoding(key: str) -> Callable[[Models, Any, Keys], Iterator[Probe]]:
    return lambda models, thing, keys: _decodes(models.dense, {"tsp": 8, key: thing.name, **keys})


def _index_exchanges(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    yield from _decodes(models.sparse, {"tp": 8, "dcp": 8, "index_exchange": thing.name, **keys})


def _drafts(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    drafts = {"draft": thing.name, "tokens": 2, **keys}
    work = {"model": models.dense, "pass": "verify", "batch": 8, "context": "4Ki", "speculation": drafts}
    yield question(work, {"tp": 8}), f"verify, draft {thing.name}"


def _routings(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    cluster = {"device": "h100", "nodes": 2, "fabric": "fat-tree-400g"}
    work = {"model": models.dense, "pass": "training", "sequence": "1Ki", "global_batch": 16}
    yield question(work, {"dp": 16, "routing": thing.name, **keys}, cluster), f"training, routing {thing.name}"


def _steps(models: Models, thing: Any, keys: Keys) -> Iterator[Probe]:
    usual = {"sequence": "4Ki", "batch": 8, "context": "4Ki", "speculation": {"draft": "ngram", "tokens": 2}}
    work = {"model": models.dense, "pass": thing.name, **{key: usual[key] for key in thing.needs if key in usual}}
    yield question({**work, **keys}, {"tp": 8}), f"pass {thing.name}, tp 8"


#: Group of entry points → its probes.
OF_STEPS: dict[str, Callable[[Models, Any, Keys], Iterator[Probe]]] = {
    "tspsim.schemes": _schemes,
    "tspsim.context_methods": _context_methods,
    "tspsim.weight_transports": _transports,
    "tspsim.decode_forms": _of_decoding("decode_form"),
    "tspsim.decode_exchanges": _of_decoding("decode_exchange"),
    "tspsim.index_exchanges": _index_exchanges,
    "tspsim.expert_dispatch": _dispatches,
    "tspsim.expert_balance": _balances,
    "tspsim.expert_overlap": _overlaps,
    "tspsim.pipeline_orders": _orders,
    "tspsim.recompute_methods": _recomputations,
    "tspsim.activation_stores": _of_training("activation_store"),
    "tspsim.checkpoints": _of_training("checkpoint"),
    "tspsim.residuals": _residuals,
    "tspsim.deals": _deals,
    "tspsim.drafts": _drafts,
    "tspsim.routing_policies": _routings,
    "tspsim.steps": _steps,
}
