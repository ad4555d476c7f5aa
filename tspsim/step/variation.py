"""What a step takes where GPUs are not alike: the expected pace of the slowest, or single draws of every rank.

A GPU's kernels take 1 + σ·z times as long all step, σ² = gpu² + step², z normal and independent. Who waits for each
other goes at the pace of the slowest: in a step that ends with a sum over all, however often ranks meet before. Of n
that is

    μ(n) = 1 + σ·E[max of n normals],    E = ∫ z·n·φ(z)·Φ(z)ⁿ⁻¹ dz   (David and Nagaraja 2003, Order Statistics, §3.1).

A pipeline of p stages, v chunks each, works m micro-batches at the pace of its slowest stage and fills and drains
through all of them once, (p − 1)/v micro-batches that go at each stage's own: with N GPUs in all and g a stage of a
replica

    pace = (m·μ(N) + b·μ(g)) / (m + b),    b = (p − 1)/v.

Exact where a step has no pipeline and hides nothing behind kernels. With every rank run, each has a factor of its own
in each of :data:`DRAWS` draws.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.memo import remembered
from ..parallel import Job
from ..scenario.variation import Variation

#: Steps that are drawn where every rank is run.
DRAWS = 16
#: No GPU is drawn faster than this, nor slower than its inverse.
FASTEST = 0.5


@remembered(4096)
def slowest_of(count: int) -> float:
    """E[max] of so many standard normals.

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
    """Factor on kernels' time in the expected step, at least 1."""
    sigma, plan = math.hypot(variation.gpu, variation.step), job.plan
    all_of = 1.0 + sigma * slowest_of(gpus)
    if plan.pp == 1:
        return all_of
    stage = 1.0 + sigma * slowest_of(gpus // (plan.pp * plan.dp))
    filling = (plan.pp - 1) / plan.vpp
    return (job.micro_batches * all_of + filling * stage) / (job.micro_batches + filling)


def drawn(variation: Variation, gpus: int, draw: int) -> dict[int, float]:
    """Factor on every GPU's kernels in one draw."""
    both = np.random.default_rng([variation.seed, draw]).standard_normal((2, gpus))
    factors = 1.0 + variation.gpu * both[0] + variation.step * both[1]
    return dict(enumerate(np.clip(factors, FASTEST, 1.0 / FASTEST).tolist()))
