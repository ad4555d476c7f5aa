"""The number of ranks or nodes of an expert-parallel group that a token reaches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...base.memo import remembered
from ...program import ExpertExchange

#: Tokens drawn for choices among groups; the expectation is exact to about 1 in 1,000.
DRAWN = 4096


def reached(exchange: ExpertExchange, places: int) -> float:
    """Expected number of ``places`` (ranks or nodes, with consecutive experts) that a token's experts lie on."""
    return places_reached(places, exchange.topk, exchange.groups, exchange.kept_groups, exchange.experts)


def places_reached(places: int, topk: int, groups: int = 1, kept_groups: int = 1, experts: int = 256) -> float:
    """Expected number of ``places`` (ranks or nodes, with consecutive experts) that a token's ``topk`` experts lie on.

    All ``experts`` are equally likely. They are in ``groups`` groups of consecutive ones; a token's experts are all in
    ``kept_groups`` groups, which are selected by their best experts. So nearly every kept group has experts of the
    token (3.96 of 4, where 8 experts drawn at random from the kept groups lie in 3.60).

    >>> places_reached(8, 1), round(places_reached(8, 8), 2), round(places_reached(8, 8, 8, 4), 2)
    (1.0, 5.25, 3.96)
    """
    if groups == 1:
        return float(places * (1.0 - (1.0 - 1.0 / places) ** topk))
    return _reached_of_groups(places, topk, groups, kept_groups, experts)


@remembered(1024)
def _reached_of_groups(places: int, topk: int, groups: int, kept_groups: int, experts: int) -> float:
    held = np.sort(chosen_of_groups(topk, groups, kept_groups, experts) * places // experts, axis=1)
    return float(1.0 + (np.diff(held, axis=1) > 0).sum(axis=1).mean())


@remembered(32)
def chosen_of_groups(topk: int, groups: int, kept_groups: int, experts: int) -> NDArray[np.int64]:
    """Experts of tokens with uniformly drawn scores: shape (tokens, topk).

    Groups are ranked by the sum of their best ``topk / kept_groups`` scores (DeepSeek-V3, arXiv:2412.19437, §2.1.2; its
    ``inference/model.py``, ``Gate``). A token's experts are the best of the kept groups.
    """
    scores = np.random.Generator(np.random.PCG64(0)).random((DRAWN, groups, experts // groups))
    best = max(1, min(topk // kept_groups, experts // groups))
    worth = np.partition(scores, -best, axis=2)[:, :, -best:].sum(axis=2)
    dropped = np.argpartition(worth, groups - kept_groups, axis=1)[:, : groups - kept_groups]
    np.put_along_axis(scores, dropped[:, :, None], -1.0, axis=1)
    flat = scores.reshape(DRAWN, -1)
    return np.argpartition(flat, flat.shape[1] - topk, axis=1)[:, -topk:].astype(np.int64)
