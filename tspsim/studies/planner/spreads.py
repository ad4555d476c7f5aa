"""Every spread of a served model's replicas over some GPUs, as keys of a scenario's plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...model import Architecture
from ...parallel import SCHEMES, Plan, Scheme
from ...parallel.decode import index_exchange
from ...parallel.dispatch import DISPATCHES
from ...steps import Step
from .space import divisors_of


def spreads(model: Architecture, step: Step, gpus: int) -> Iterator[dict[str, Any]]:
    """Keys of plans that use all ``gpus`` GPUs, simplest first; not all of them are legal."""
    divisors = divisors_of(gpus)
    for scheme in sorted(SCHEMES.values(), key=lambda candidate: not candidate.usual):
        for sizes in itertools.product(divisors, repeat=len(scheme.axes)):
            spread = {axis: size for axis, size in zip(scheme.axes, sizes, strict=True) if size > 1}
            if not (spread or scheme.usual):
                continue
            for pp in divisors:
                replica = math.prod(sizes) * pp
                if gpus % replica or pp > model.layers:
                    continue
                keys = spread | ({"pp": pp} if pp > 1 else {})
                for further in scheme.serving_variants(step, keys):
                    shares = partial(_shares, scheme, step, keys, further)
                    for choice in index_exchange.variants(model, further, shares):
                        spread_keys = keys | dict(further) | dict(choice)
                        yield spread_keys
                        if model.experts is not None:
                            yield from with_experts(spread_keys, math.prod(sizes), gpus // replica)


def _shares(scheme: Scheme, step: Step, keys: Mapping[str, int], further: Mapping[str, Any]) -> bool:
    """Whether ranks of the plan share contexts in a step."""
    own = {name: value for name, value in further.items() if name not in Plan.__dataclass_fields__}
    return not step.shards_tokens and scheme.context(Plan("tried", dict(keys), options=own)).ranks > 1


def with_experts(keys: dict[str, Any], ranks: int, replicas: int) -> Iterator[dict[str, Any]]:
    """Experts over the ranks of a replica, and over all replicas with every dispatch."""
    if ranks > 1:
        yield keys | {"ep": ranks}
    if replicas > 1:
        for dispatch in DISPATCHES.values():
            if dispatch.searched and (dispatch.gathers or dispatch.phases is not None):
                yield keys | {"ep": ranks * replicas, "expert_dispatch": dispatch.name}
