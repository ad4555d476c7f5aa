"""A published choice of experts, line by line: what tests count over, beside the product's own draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def gate(scores: NDArray[np.float64], groups: int, kept: int, topk: int) -> NDArray[np.int64]:
    """DeepSeek-V3's ``Gate`` (its repository, inference/model.py), with a bias of nothing: shape (tokens, topk)."""
    grouped = scores.reshape(len(scores), groups, -1)
    group_scores = np.sort(grouped, axis=-1)[:, :, -2:].sum(axis=-1)
    indices = np.argsort(-group_scores, axis=-1)[:, :kept]
    mask = np.ones((len(scores), groups), bool)
    np.put_along_axis(mask, indices, False, axis=1)
    left = np.where(mask[:, :, None], -np.inf, grouped).reshape(len(scores), -1)
    chosen: NDArray[np.int64] = np.argsort(-left, axis=-1)[:, :topk]
    return chosen


def experts_drawn(tokens: int, seed: int) -> NDArray[np.int64]:
    """Eight of 256 experts, in four of eight groups, of tokens whose sigmoid scores are drawn."""
    scores = np.random.default_rng(seed).standard_normal((tokens, 256))
    return gate(1.0 / (1.0 + np.exp(-scores)), 8, 4, 8)


def places_of(chosen: NDArray[np.int64], places: int, experts: int = 256) -> float:
    """Places among ``places`` that a token's experts lie in, in the mean, neighbours in each."""
    return float(np.mean([len(set(row)) for row in (chosen * places // experts).tolist()]))
