"""A step on GPUs that vary: the expected pace of the slowest, or single draws of every rank.

A GPU's kernels take 1 + σ·z times as long in a whole step, with σ² = gpu² + step² and z independent standard normal.
Ranks that wait for each other run at the pace of the slowest; a step that ends with a sum over all n ranks has pace

    μ(n) = 1 + σ·E[max of n normals],    E = ∫ z·n·φ(z)·Φ(z)ⁿ⁻¹ dz   (David and Nagaraja 2003, Order Statistics, §3.1).

A pipeline of p stages with v chunks each runs m micro-batches at the pace of its slowest stage, and fills and drains
through all stages once: (p − 1)/v micro-batches at each stage's own pace. With N GPUs in all and g per stage of a
replica

    pace = (m·μ(N) + b·μ(g)) / (m + b),    b = (p − 1)/v.

Exact for a step without pipeline that hides nothing behind kernels. If every rank is simulated, each has its own
factor in each of :data:`DRAWS` draws.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.memo import remembered
from ..parallel import Job
from ..scenario.variation import Variation

#: Draws of a step if every rank is simulated.
DRAWS = 16
#: Drawn factors lie between this and its inverse.
FASTEST = 0.5


@remembered(4096)
def slowest_of(count: int) -> float:
    """E[max] of ``count`` independent standard normals.

    >>> [round(slowest_of(count), 3) for count in (1, 2, 8, 16384)]
    [0.0, 0.564, 1.424, 3.971]
    """
    if count == 1:
        return 0.0
    z = np.linspace(-9.0, 9.0, 18_001)
    below = np.array([0.5 * math.erfc(-deviation / math.sqrt(2.0)) for deviation in z])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    # In logarithms: powers of what is almost 1, to the count of a cluster's GPUs.
    with np.errstate(divide="ignore"):
        powers = np.exp((count - 1) * np.log(below))
    return float(np.trapezoid(z * count * density * powers, z))


def pace(variation: Variation, job: Job, gpus: int) -> float:
    """Factor on the kernels' time in the expected step, at least 1."""
    sigma, plan = math.hypot(variation.gpu, variation.step), job.plan
    all_of = 1.0 + sigma * slowest_of(gpus)
    if plan.pp == 1:
        return all_of
    stage = 1.0 + sigma * slowest_of(gpus // (plan.pp * plan.dp))
    filling = (plan.pp - 1) / plan.vpp
    return (job.micro_batches * all_of + filling * stage) / (job.micro_batches + filling)


def drawn(variation: Variation, gpus: int, draw: int) -> dict[int, float]:
    """GPU → factor on its kernels' time in one draw."""
    both = np.random.default_rng([variation.seed, draw]).standard_normal((2, gpus))
    factors = 1.0 + variation.gpu * both[0] + variation.step * both[1]
    return dict(enumerate(np.clip(factors, FASTEST, 1.0 / FASTEST).tolist()))
