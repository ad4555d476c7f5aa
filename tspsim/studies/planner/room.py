"""Memory of a plan, and lower bounds on the memory of many."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.quick import replace
from ...parallel import Job, peak_bytes, peak_memory, scheme_of
from ...parallel.feature import features_of
from ...parallel.state import data
from ...parallel.state.memory import stage_memory
from ...parallel.state.owned import OwnedParameters
from ...step.paths import Division
from .candidate import Candidate


def without_gathered(job: Job) -> Job:
    """The job with all state divided that replicas can divide."""
    return replace(job, plan=replace(job.plan, zero=3 if job.training else 0))


def total(parts: Mapping[str, float]) -> float:
    """Bytes of memory without gathered weights."""
    return sum(parts.values()) - parts.get("gathered_weights", 0.0)


def layout_bytes(layout: Candidate) -> float:
    """A lower bound on a layout's plans, for any division: everything divided, nothing gathered."""
    return total(peak_memory(without_gathered(layout.job), scheme_of(layout.plan).residency))


def memory_bytes(job: Job) -> float:
    """Bytes of a plan's fullest rank."""
    return peak_bytes(job)


def first_stage_bytes(job: Job) -> float:
    """A lower bound on the first stage of plans with any division of a job's state, without buffers of exchanges, which
    depend on the schedule."""
    job, residency = without_gathered(job), scheme_of(job.plan).residency
    exchanged = {buffer.part for buffer in residency.buffers(job)}
    of_scheme = (feature for feature in features_of(job) if feature.scheme)
    exchanged.update(buffer.part for feature in of_scheme for buffer in feature.buffers(job, job.chunks(0)))
    parts = stage_memory(job, residency, 0)
    return total({name: size for name, size in parts.items() if name not in exchanged})


def state_bytes(job: Job, division: Division) -> float:
    """Weights, gradients and the optimizer's state on a rank of the first stage, under a division."""
    divided = replace(job, plan=replace(job.plan, zero=division.zero, shard_group=division.shard_group))
    share = OwnedParameters(divided, scheme_of(job.plan).residency.weight_shards(divided))
    return sum(part.size_bytes for part in data.state(divided, share, divided.chunks(0)))
