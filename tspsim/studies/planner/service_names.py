"""Names of plans that serve requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...scenario import PlanSpec
from .serving import name_of

#: The router of a plan that states none.
PLAIN_ROUTER = "round_robin"


def plain(keys: Mapping[str, Any]) -> str:
    """A plan without its name, as canonical text: equal for equal plans, however they are stated.

    >>> plain({"tp": 1, "router": "round_robin"}) == plain({"name": "one"})
    True
    """
    said = {key: value for key, value in keys.items() if key not in ("name", "recomputation")}
    try:
        plan = PlanSpec.model_validate({**said, "name": "same"})
    except ValueError:
        return repr(sorted((key, repr(value)) for key, value in said.items()))
    data = plan.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({key: value for key, value in data.items() if key not in ("name", "pools")} | _pools(plan))


def _pools(plan: PlanSpec) -> dict[str, Any]:
    return {"pools": plan.pools.model_dump(mode="json", exclude_defaults=True)} if plan.pools is not None else {}


def name_of_service(keys: Mapping[str, Any], gpus: int) -> str:
    """A name with the searched keys.

    >>> name_of_service({"pools": {"prefill": {"replicas": 2, "tp": 2}, "decode": {"replicas": 1, "tp": 4}}}, 8)
    '2P1D TP2→TP4'
    """
    if "pools" in keys:
        pools = keys["pools"]
        counts, ways = "", []
        for name, letter in (("prefill", "P"), ("decode", "D")):
            pool = pools[name]
            counts += f"{pool.get('replicas') or '?'}{letter}"
            spread = [f"{axis.upper()}{pool[axis]}" for axis in ("tp", "dp", "ep") if int(pool.get(axis, 1)) > 1]
            ways.append(" ".join(filter(None, ("-".join(spread) or "TP1", pool.get("expert_dispatch")))))
        head = f"{counts} {'→'.join(ways)}" + (" pushed" if pools.get("transfer") == "push" else "")
    else:
        others = ("engine", "speculation", "recomputation", "name", "router")
        head = name_of({key: value for key, value in keys.items() if key not in others}, gpus)
    drafts = keys.get("speculation")
    tail = ""
    if drafts is not None:
        tail = f" {drafts.get('draft', 'mtp')}{drafts['tokens']}" if drafts["tokens"] else " no drafts"
    tail += "".join(f" {key}={value}" for key, value in keys.get("engine", {}).items())
    router = str(keys.get("router", PLAIN_ROUTER))
    tail += f" {router}" if router != PLAIN_ROUTER else ""
    return (head + tail)[:60]
