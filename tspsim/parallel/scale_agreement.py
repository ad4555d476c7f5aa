"""Ranks agree on the scales of their tensors, in stacks whose kind of scales asks for it (:mod:`.tensor_scales`).

NVIDIA/TransformerEngine@0004dbd, pytorch/fp8.py: ``fp8_autocast_exit`` and the hook at a backward's end concatenate the
largest numbers of all modules of a rank, reduce them with ``async_op=False`` in ``fp8_group``, and update histories and
scales in one kernel. NVIDIA/Megatron-LM: one such region is a chunk (core/transformer/transformer_block.py), and its
group ``tp``, ``dp`` and ``cp`` (core/parallel_state.py, ``get_amax_reduction_group``) unless ``tp_only_amax_red``.
"""

from __future__ import annotations

from ..operators import DTYPES, MemoryBound, Role
from .builder import ProgramBuilder
from .job import Job
from .rank_groups import ranks_along, replica_axis

#: Tensors of a layer's four linear modules whose largest numbers are kept: inputs, weights and outputs, in a backward
#: gradients of outputs and inputs.
TENSORS = 20
#: Steps of a history (``fp8_amax_history_len`` of NeMo's recipes), and bytes of a number in it.
HISTORY, NUMBER_BYTES = 1024, 4.0


def agree(builder: ProgramBuilder, job: Job, ready: list[int]) -> list[int]:
    """Behind a chunk in training: what makes its ranks agree on scales, which all that follows waits for."""
    if not (job.tensor_scales.agreed and DTYPES.get(job.work.precision).one_scale):
        return ready
    axis = "+".join((*(("tp",) if job.plan.tp > 1 else ()), replica_axis(job)))
    if ranks_along(job, axis) == 1:
        return ready
    builder.part = "scales"
    numbers = NUMBER_BYTES * TENSORS * max(job.chunk_sizes) * job.plan.vpp
    gathered = builder.compute("largest numbers", _kernel("join", numbers), after=ready)
    agreed = builder.collective("all_reduce", axis, numbers, "agree on scales", after=[gathered])
    return [builder.compute("scales", _kernel("update scales", 2.0 * HISTORY * numbers), after=[agreed])]


def _kernel(name: str, size_bytes: float) -> MemoryBound:
    return MemoryBound("copy", size_bytes, name=name, role=Role.SCALE)
