"""Laws of the objects of a service: schedulers, routers, arrivals, lengths, prefixes, protocols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.catalog import validate
from ...base.errors import InputError, shorten
from ...scenario.traffic import TrafficSpec
from ...serving import POLICIES, AffineCost, Engine
from ...serving.replicas import Members, ReplicaPool
from ...serving.service import Service
from ...serving.tiers import TieredPool, TierSpec
from ...serving.traffic import Clients
from ...serving.waits import Waits
from .findings import Finding, judged

#: Key of ``traffic`` that names an object of each group.
KEYS = {"tspsim.arrivals": "arrivals", "tspsim.lengths": "prompt", "tspsim.prefixes": "prefix"}
KEYS |= {"tspsim.protocols": "protocol"}
USUAL: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate": 20},
    "prompt": 300,
    "output": {"kind": "uniform", "of": 40, "from": 0.1},
    "requests": 30,
    "seed": 3,
}


def hold(group: str, name: str, keys: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about an object of one of the groups of services; ``keys`` stand beside its name."""
    if group in KEYS:
        where = f"{KEYS[group]} {name}"
        try:
            traffic = validate({**USUAL, KEYS[group]: {"kind": name, **keys}}, TrafficSpec)
        except InputError as error:
            yield Finding("it runs", where, "left out", shorten(f"{error}; state keys by --with", 200))
            return
        yield from laws(traffic, where=where)
        return
    shared = {"prefix": {"share": 0.5, "groups": 3}, "prompt": {"kind": "uniform", "of": 900, "from": 0.1}}
    traffic = validate({**USUAL, **shared}, TrafficSpec)
    if group == "tspsim.schedulers":
        for router in ("round_robin", "least_load"):
            yield from laws(traffic, name, router, where=f"behind {router}")
        yield from laws(traffic, name, kv_tokens=3000, where="with short caches")
        return
    for scheduler in ("vllm", "sglang"):
        yield from laws(traffic, scheduler, name, where=f"before {scheduler}")


def served(
    traffic: TrafficSpec,
    scheduler: str = "vllm",
    router: str = "least_load",
    tiers: Sequence[TierSpec] = (),
    *,
    every_step: bool = False,
    kv_tokens: int = 16384,
) -> Any:
    """Requests on three small engines: their table, waits of the counted ones, and the outcome."""
    clients = Clients(traffic.draw(), 0.01)
    members = [Members(Engine(scheduler, kv_tokens=kv_tokens), AffineCost(0.01, 2e-5, 1e-8), 3)]
    pool = TieredPool(members, router, tiers=tiers, layers=8) if tiers else ReplicaPool(members, router)
    outcome = Service(clients, pool, every_step=every_step).run()
    return clients.table, Waits.of(clients.table), outcome


def laws(
    traffic: TrafficSpec,
    scheduler: str = "vllm",
    router: str = "least_load",
    tiers: Sequence[TierSpec] = (),
    kv_tokens: int = 16384,
    where: str = "",
) -> Iterator[Finding]:
    """Findings about the requests of a service."""
    table, waits, outcome = served(traffic, scheduler, router, tiers, kv_tokens=kv_tokens)
    counted, most = table.drawn.counted, table.drawn.most
    open_ = int((~np.isfinite(table.end_s)).sum())
    yield judged("every request is answered", where, open_ == 0, f"{open_} of {len(table)} are not")
    if open_:
        return
    whole = len(waits) == len(range(*counted.indices(len(table))))
    yield judged("those that count are counted", where, whole, "others are")
    in_order = (
        (waits.arrival_s <= waits.first_scheduled_s).all()
        and (waits.first_scheduled_s < waits.first_token_s).all()
        and (waits.first_token_s <= waits.end_s).all()
    )
    yield judged("time runs forward", where, bool(in_order), "a request is answered before it is scheduled or sent")
    alone = waits.output_tokens == 1
    ends = (waits.first_token_s[alone] == waits.end_s[alone]).all()
    yield judged("one output ends with the first", where, bool(ends), "it does not")
    cached = (waits.cached_tokens < waits.prompt_tokens).all()
    yield judged("of every prompt something is computed", where, bool(cached), "a whole prompt comes from a cache")
    if not table.preemptions.any() and not POLICIES.get(scheduler).in_batches:
        computed = sum(int(log.column("chunk_tokens").sum()) for log in outcome.logs)
        needed = int((table.drawn.prompt_tokens - table.cached_tokens).sum())
        why = f"{computed:,} tokens of prompts are computed, {needed:,} are needed"
        yield judged("tokens are computed once", where, computed == needed, why)
    times = np.sort(np.concatenate([table.arrival_s, table.end_s]))
    sent, ended = (np.searchsorted(np.sort(at), times, "right") for at in (table.arrival_s, table.end_s))
    here = sent - ended
    areas = float((here[:-1] * np.diff(times)).sum()), float((table.end_s - table.arrival_s).sum())
    little = abs(areas[0] - areas[1]) <= 1e-6 * max(areas)
    yield judged("Little's law holds", where, little, f"{areas[0]:.6g} request seconds here, {areas[1]:.6g} waited")
    if most is not None and table.drawn.turns == 1:
        at_once = int(here[np.append(np.diff(times) > 1e-9, True)].max())
        yield judged("no more at once than are allowed", where, at_once <= most, f"{at_once} of {most}")
    yield from again(traffic, scheduler, router, tiers, kv_tokens, table, where)


def again(
    traffic: TrafficSpec, scheduler: str, router: str, tiers: Sequence[TierSpec], kv_tokens: int, table: Any, where: str
) -> Iterator[Finding]:
    """The law that single steps, and a second run, give the same answer."""
    for every_step, law in ((True, "single steps are what runs of them are"), (False, "the same has the same answer")):
        other, _, _ = served(traffic, scheduler, router, tiers, every_step=every_step, kv_tokens=kv_tokens)
        differing = [
            name
            for name in ("arrival_s", "first_token_s", "end_s", "preemptions")
            if not np.allclose(getattr(other, name), getattr(table, name), rtol=1e-9 if every_step else 0.0, atol=0.0)
        ]
        yield judged(law, where, not differing, f"{', '.join(differing)} differ")
