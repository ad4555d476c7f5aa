"""Every way to spread replicas of a served model over some GPUs, as the keys of a scenario's plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from ...model import Architecture
from ...parallel import SCHEMES
from ...parallel.dispatch import DISPATCHES
from ...steps import Step


def spreads(model: Architecture, step: Step, gpus: int) -> Iterator[dict[str, Any]]:
    """Keys of plans that take all of ``gpus`` GPUs, simplest first; not all of them legal."""
    divisors = [degree for degree in range(1, gpus + 1) if gpus % degree == 0]
    for scheme in sorted(SCHEMES.values(), key=lambda each: not each.usual):
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
                    yield keys | dict(further)
                    if model.experts is not None:
                        yield from with_experts(keys | dict(further), math.prod(sizes), gpus // replica)


def with_experts(keys: dict[str, Any], ranks: int, replicas: int) -> Iterator[dict[str, Any]]:
    """Experts over the ranks of a replica, and over all replicas with every way to get there."""
    if ranks > 1:
        yield keys | {"ep": ranks}
    if replicas > 1:
        for dispatch in DISPATCHES.values():
            if dispatch.searched and (dispatch.gathers or dispatch.phases is not None):
                yield keys | {"ep": ranks * replicas, "expert_dispatch": dispatch.name}
