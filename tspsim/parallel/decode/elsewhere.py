"""Sequences whose caches are not on the device, and their bytes."""

from __future__ import annotations

from math import floor

from ...model.attention import decoded
from ...model.layer import ServingLayer
from ...operators import Rows
from ..plan import Plan


def remote_share(plan: Plan, key: str) -> float:
    """Share of the decoding sequences whose caches are not on the device, which a plan states under ``key``."""
    return float(plan.options.get(key, 0.0))


def parted(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """Rows on the device, and rows on the hosts: whole decoding sequences, of which hosts have ``share``.

    >>> parted(((512, 0, 1), (1, 4096, 10)), 0.25)
    (((512, 0, 1), (1, 4096, 8)), ((1, 4096, 2),))
    """
    if not share:
        return rows, ()
    decodes, here, away = decoded(rows), [], []
    for row in rows:
        queries, context, count = row
        gone = floor(count * share + 1e-9) if row in decodes else 0
        here += [(queries, context, count - gone)] if count > gone else []
        away += [(queries, context, gone)] if gone else []
    return tuple(here), tuple(away)


def cache_bytes(layer: ServingLayer, shards: int, rows: Rows) -> float:
    """Bytes of sequences' caches in one layer, of a rank's heads."""
    use = layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache)
    return sum(count * use.rank_bytes(queries + context, shards) for queries, context, count in rows)
