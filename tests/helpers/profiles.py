"""Small traces as profilers write them, made here: a model's layers as kernels, in the words of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

#: ``totalGlobalMem`` and ``numSms`` as drivers show them.
DEVICES = {
    "mi300x": ("AMD Instinct MI300X", 206_141_652_992, 304),
    "h100": ("NVIDIA H100 80GB HBM3", 85_899_345_920, 132),
}


class Kernel(NamedTuple):
    """A kernel of a made-up trace; lengths in microseconds, ``gap`` before it."""

    name: str
    length: float
    operator: str = ""
    shapes: Any = None
    stream: int = 7
    gap: float = 1.0
    extra: Mapping[str, Any] = MappingProxyType({})


def kineto(
    steps: Iterable[tuple[str, Sequence[Kernel]]],
    *,
    device: str = "mi300x",
    rank: int | None = 0,
    world_size: int = 1,
    origin_us: float = 1_000_000.0,
    graph: bool = False,
    groups: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A trace: annotated steps of kernels one behind the other on each stream; ``graph``: replayed, no operators."""
    name, memory, units = DEVICES.get(device, (device, 0, 0))
    events: list[dict[str, Any]] = []
    clock = origin_us
    number = 1
    for annotation, kernels in steps:
        begin = clock
        ends: dict[int, float] = {}
        launch = number
        for kernel in kernels:
            number += 1
            correlation = launch if graph else number
            start = max(ends.get(kernel.stream, clock + 10.0), clock + 10.0) + kernel.gap
            ends[kernel.stream] = start + kernel.length
            arguments = {
                "device": 0,
                "stream": kernel.stream,
                "correlation": correlation,
                "grid": [1, 1, 1],
                **kernel.extra,
            }
            if not graph:
                arguments["External id"] = 10_000_000 + number
                dims = {"Input Dims": kernel.shapes} if kernel.shapes is not None else {}
                events.append(
                    {"ph": "X", "cat": "cpu_op", "name": kernel.operator or "aten::op", "pid": 1, "tid": 1,
                     "ts": clock + 2.0 + 0.001 * number, "dur": 0.0005,
                     "args": {"External id": 10_000_000 + number, **dims}}
                )  # fmt: skip
                events.append(
                    {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1,
                     "ts": clock + 2.0 + 0.001 * number, "dur": 0.0002, "args": {"correlation": correlation}}
                )  # fmt: skip
            events.append(
                {"ph": "X", "cat": "kernel", "name": kernel.name, "pid": 0, "tid": kernel.stream, "ts": start,
                 "dur": kernel.length, "args": arguments}
            )  # fmt: skip
        if graph:
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "hipGraphLaunch", "pid": 1, "tid": 1, "ts": clock + 2.0,
                 "dur": 5.0, "args": {"correlation": launch}}
            )  # fmt: skip
        clock = max(ends.values(), default=clock) + 20.0
        if annotation:
            events.append(
                {"ph": "X", "cat": "user_annotation", "name": annotation, "pid": 1, "tid": 1, "ts": begin,
                 "dur": clock - begin - 5.0, "args": {}}
            )  # fmt: skip
    distributed: dict[str, Any] = {"backend": "nccl", "world_size": world_size, "pg_config": list(groups)}
    if rank is not None:
        distributed["rank"] = rank
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": name, "totalGlobalMem": memory, "numSms": units}],
        "distributedInfo": distributed,
        "traceEvents": events,
        "traceName": "made here",
    }


def written(path: Path, document: dict[str, Any]) -> Path:
    """The document as a file, gzip where its name says so."""
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def decode_step(layers: int = 4, rows: int = 32, slower: float = 1.0) -> list[Kernel]:
    """Kernels of one decoding step of a dense model with grouped attention, as SGLang runs them on MI300X."""
    found = [Kernel("void at::native::vectorized_gather_kernel<16, long>(char*)", 6.0)]
    for _ in range(layers):
        found += [
            Kernel("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", 5.0),
            Kernel("Cijk_Alik_Bljk_BBS_BH_MT64x32x256_a", 24.0 * slower),
            Kernel("void rotary_embedding_kernel<c10::BFloat16, true>", 6.0),
            Kernel("void store_kvcache<2048l, 4, false, long>", 5.0),
            Kernel("void paged_attention_ll4mi_QKV_mfma16_kernel<0>", 50.0),
            Kernel("void paged_attention_ll4mi_reduce_kernel<0>", 5.0),
            Kernel("Cijk_Alik_Bljk_BBS_BH_MT16x32x512_b", 17.0 * slower),
            Kernel("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", 5.0),
            Kernel("Cijk_Alik_Bljk_BBS_BH_MT256x32x64_c", 66.0 * slower),
            Kernel("_ZN7sgl_hip10activation18act_and_mul_kernel", 9.0),
            Kernel("Cijk_Alik_Bljk_BBS_BH_MT32x32x256_d", 40.0 * slower),
        ]
    found += [
        Kernel("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", 5.0),
        Kernel("Cijk_Alik_Bljk_BBS_BH_MT256x48x64_head", 390.0 * slower),
        Kernel(
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>", 50.0
        ),
    ]
    return found


#: A kernel's name for each kind, as some library has it.
NAMES = {
    "gemm": "Cijk_Alik_Bljk_MT{}",
    "grouped_gemm": "fused_moe_kernel_{}",
    "attention": "void flash_fwd_kernel_{}",
    "norm": "rms_norm_kernel_{}",
    "activation": "act_and_mul_kernel_{}",
    "rope": "rotary_embedding_kernel_{}",
    "cache": "reshape_and_cache_{}",
    "router": "topk_gating_{}",
    "permute": "moe_permute_{}",
    "quantize": "per_token_cast_{}",
    "elementwise": "elementwise_kernel_{}",
    "embedding": "embedding_kernel_{}",
    "sample": "ArgMaxOps_{}",
    "loss": "cross_entropy_{}",
    "optimizer": "FusedAdam_{}",
    "all_reduce": "ncclDevKernel_AllReduce_{}",
    "all_gather": "ncclDevKernel_AllGather_{}",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_{}",
    "send_recv": "ncclDevKernel_SendRecv_{}",
    "broadcast": "ncclDevKernel_Broadcast_{}",
    "all_to_all": "ncclDevKernel_AllToAll_{}",
    "dispatch": "ep::dispatch_{}",
    "combine": "ep::combine_{}",
}


def of_lane(operations: Sequence[Any], factor: Any = lambda operation: 1.0) -> list[dict[str, Any]]:
    """Events of a device that does what a simulated rank does, each kernel ``factor`` of it as long; streams as
    simulated, one kernel behind the other."""
    shift: dict[str, float] = {}
    events = []
    for place, operation in enumerate(sorted(operations, key=lambda each: each.start_s)):
        length = operation.seconds * factor(operation) * 1e6
        start = max(operation.start_s * 1e6, shift.get(operation.stream, 0.0))
        shift[operation.stream] = start + length
        stream = 20 if operation.is_transfer else 7
        name = NAMES[operation.kind].format(hash_of(operation.name))
        if operation.kind == "attention" and not operation.runs_forward:
            name = name.replace("_fwd_", "_bwd_")
        if operation.merges:
            name = "merge_attn_states_kernel"
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": 1e6 + start, "dur": length,
             "args": {"device": 0, "stream": stream, "correlation": place + 1}}
        )  # fmt: skip
    return events


def hash_of(word: str) -> int:
    """A number for a word, the same in every process."""
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(word)) % 9973
