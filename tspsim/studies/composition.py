"""Many models on one machine: how many fit its GPUs' memory, and how long a request waits for one that does not.

A router picks one of N models of W bytes for every request. A model that is not resident is copied from a capacity tier
before the prompt is read; it replaces the least recently used one (composition of experts: Prabhakar et
al. 2024, SN40L, arXiv 2405.07518). With G GPUs, M bytes of each for weights and B bytes/s from the tier to each,

    resident = min(N, ⌊G·M/W⌋),      switch = W/(G·B),      mean wait = miss share · switch.

Popularity falls as 1/rank^α (Zipf). The miss share is simulated, for requests that do not depend on each other; no
replacement has less than 1 − Σ of the most popular models that fit (Aho, Denning and Ullman 1971, §3).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ..base.errors import InputError
from ..hardware import load_device
from ..network import host_bandwidth, load_cluster

#: Warm-up requests per model, which do not count: after them the resident models no longer depend on the first ones.
WARM = 20


@dataclass(frozen=True)
class Composition:
    """Models on one machine, and their waits."""

    models: int
    #: Models that stay in memory at once.
    resident: int
    #: GPU memory that is left beside resident models and what is set aside.
    left_bytes: float
    #: Share of requests whose model is not resident, with least recently used replacement; and with the most popular
    #: models resident for good, which is the least possible.
    miss_share: float
    least_miss_share: float
    #: Seconds of one switch, and its mean over all requests.
    switch_s: float
    mean_switch_s: float


def composition(
    cluster: str,
    models: int,
    weight_bytes: float,
    *,
    skew: float = 1.0,
    set_aside_bytes: float = 0.0,
    tier_bytes_per_s: float | None = None,
    requests: int = 20_000,
    seed: int = 0,
) -> Composition:
    """Models that are spread over all GPUs of a cluster; requests pick them by a Zipf law of exponent ``skew``.

    Parameters
    ----------
    cluster
        A name of the catalog.
    weight_bytes
        Weights of one model, over all GPUs.
    set_aside_bytes
        Memory for caches and activations, of all GPUs together.
    tier_bytes_per_s
        Rate from the capacity tier to one GPU; default: the rate of copies over the node's link to its host.

    Raises
    ------
    InputError
        A number is not positive, or not one model fits.

    Examples
    --------
    150 models of 7B in bf16 are 2.1 TB:

    >>> for name in ("mi355x-8", "hgx-b200-8", "mi300x-8"):
    ...     placed = composition(name, 150, 14e9)
    ...     print(name, placed.resident, f"{1e3 * placed.switch_s:.0f} ms, mean {1e3 * placed.mean_switch_s:.1f} ms")
    mi355x-8 150 33 ms, mean 0.0 ms
    hgx-b200-8 109 33 ms, mean 2.7 ms
    mi300x-8 117 33 ms, mean 2.1 ms
    """
    for name, value in (("models", models), ("weight_bytes", weight_bytes), ("requests", requests)):
        if value <= 0:
            raise InputError(f"{value:g} is not allowed; more than 0 is needed", key=name)
    if skew < 0 or seed < 0 or set_aside_bytes < 0:
        raise InputError("skew, seed and set_aside_bytes are 0 or more", key="skew")
    machine = load_cluster(cluster)
    memory = machine.gpus * load_device(machine.device_name).visible_memory_bytes - set_aside_bytes
    resident = min(models, int(memory // weight_bytes))
    if resident < 1:
        raise InputError(
            f"one model of {weight_bytes / 1e9:g} GB does not fit {memory / 1e9:.4g} GB of {machine.name}",
            key="weight_bytes",
        )
    per_gpu = tier_bytes_per_s if tier_bytes_per_s is not None else host_bandwidth(machine.node)
    switch_s = weight_bytes / (machine.gpus * per_gpu)
    shares = popularity(models, skew)
    missed = miss_share(shares, resident, requests, seed)
    least = float(shares[resident:].sum())
    left = memory - resident * weight_bytes
    return Composition(models, resident, left, missed, least, switch_s, missed * switch_s)


def popularity(models: int, skew: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Shares of the requests by rank.

    >>> popularity(4, 1.0).round(2).tolist()
    [0.48, 0.24, 0.16, 0.12]
    """
    weights = np.arange(1, models + 1, dtype=np.float64) ** -skew
    shares: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return shares


def miss_share(
    shares: np.ndarray[tuple[int], np.dtype[np.float64]], resident: int, requests: int, seed: int = 0
) -> float:
    """Share of requests whose model is not resident, with least recently used replacement."""
    models = len(shares)
    if resident >= models:
        return 0.0
    before = WARM * models
    requested = np.random.default_rng(seed).choice(models, size=before + requests, p=shares).tolist()
    here = OrderedDict.fromkeys(range(resident))
    missed = 0
    for number, model in enumerate(requested):
        if model in here:
            here.move_to_end(model)
            continue
        here.popitem(last=False)
        here[model] = None
        missed += number >= before
    return missed / requests
