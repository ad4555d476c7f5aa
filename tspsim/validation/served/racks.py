"""Workers of DeepSeek-R1 under SGLang 0.5.8 on GB200 and GB300 racks, which rows name by the GPUs of a decode worker.

Read at NVIDIA/srt-slurm, ``recipes/gb200-fp4`` and ``gb200-fp8`` (96f34420, 07fbab13, eb889c08, b26af4b6, 975f228f,
7c50317d), and InferenceX, ``.github/configs/nvidia-master.yaml`` (OCWC22's copy, 63d01df0: the keys
``dsr1-*-gb300-dynamo-sglang``); GB300's recipes have the same workers but of 8 Ki prompts in fp8 (keys of
``dsr1-fp8-gb300-dynamo-sglang`` in the same file, cc40942d). Versions before 0.5.8 named their workers in scripts that
no repository keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .run import Options

#: Physical experts: DeepSeek's 256 and ``ep-num-redundant-experts: 32``.
SLOTS = 288
#: ``SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN``: attention's products of a checkpoint in four bits run in fp8.
FP8_ATTENTION: Options = (
    ("attention", "fp8_block"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4"),
)  # fmt: skip
#: GPUs of a worker from which on experts get as many tokens each. The skew of smaller groups, 0.7, was fitted where it
#: decides how many experts a step reads; over 24 to 48 ranks it would leave the busiest with 2.5 to 3.8 times the mean.
#: On the fitted third of these rows (7 runs of up to 2,048 clients) skews of 0, 0.4 and 0.7 give 1.00, 1.05 and 1.16 of
#: the measured times per token.
EVEN_FROM = 24
#: Versions whose workers are known.
VERSIONS = ("0.5.8",)


@dataclass(frozen=True)
class RackWorkers:
    """Workers of a kind: how many, the GPUs of each and how it divides the model over them."""

    number: int
    gpus: int
    #: Every GPU has the attention of its own requests, and experts are spread over all of them.
    replicates: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    #: How tokens reach experts of replicas: ``gather`` without DeepEP.
    dispatch: str = "gather"
    #: Physical experts in all; 0: no copies.
    slots: int = 0
    weights: Options = ()


@dataclass(frozen=True)
class RackRecipe:
    """Prefill and decode workers of a recipe."""

    prefill: RackWorkers
    decode: RackWorkers


_COMMON = {"disable_radix_cache": True}
_POLLED = _COMMON | {"scheduler_recv_interval": 10}


def _narrow(chunk: int, memory: float, readers: int, writers: int) -> RackRecipe:
    """Workers of four GPUs each, for few clients."""
    reading = _POLLED | {"chunked_prefill_size": chunk, "max_prefill_tokens": max(chunk, 16384)}
    read = RackWorkers(readers, 4, options=reading | {"max_running_requests": 512, "mem_fraction_static": 0.95})
    return RackRecipe(read, RackWorkers(writers, 4, options=_POLLED | {"mem_fraction_static": memory}))


def _wide(read: RackWorkers, gpus: int, running: int, memory: float, weights: Options = ()) -> RackRecipe:
    """One decode worker of many GPUs with DeepEP's small messages."""
    options = _COMMON | {"max_running_requests": running, "mem_fraction_static": memory}
    return RackRecipe(read, RackWorkers(1, gpus, True, options, "low_latency", SLOTS, weights))


def _reading(chunk: int, most: int, memory: float) -> dict[str, Any]:
    options = {"chunked_prefill_size": chunk, "max_prefill_tokens": most, "max_running_requests": 30000}
    return _COMMON | options | {"mem_fraction_static": memory}


_FOUR_BITS = RackWorkers(4, 4, True, _reading(65536, 32768, 0.84), weights=FP8_ATTENTION)
_FOUR_BITS_LONG = RackWorkers(6, 4, False, _reading(131072, 524288, 0.95), weights=FP8_ATTENTION)
_EIGHT_BITS = RackWorkers(2, 8, True, _reading(131072, 131072, 0.75), "ranks_fp8", SLOTS)
_EIGHT_BITS_LONG = replace(_EIGHT_BITS, number=5, options=_reading(131072, 131072, 0.8))
#: (four-bit weights, prompt, GPUs of a decode worker) → workers.
RACKS: dict[tuple[bool, int, int], RackRecipe] = {
    (True, 1024, 4): _narrow(8192, 0.88, 1, 2),
    (True, 1024, 32): _wide(_FOUR_BITS, 32, 67584, 0.83, FP8_ATTENTION),
    (True, 1024, 48): _wide(_FOUR_BITS, 48, 67584, 0.83, FP8_ATTENTION),
    (True, 8192, 4): _narrow(24576, 0.95, 1, 4),
    (True, 8192, 48): _wide(_FOUR_BITS_LONG, 48, 16384, 0.83, FP8_ATTENTION),
    (True, 8192, 32): _wide(replace(_FOUR_BITS_LONG, number=10), 32, 16384, 0.83, FP8_ATTENTION),
    (False, 1024, 4): _narrow(8192, 0.95, 1, 1),
    (False, 1024, 48): _wide(replace(_EIGHT_BITS, number=3), 48, 45000, 0.82),
    (False, 1024, 32): _wide(_EIGHT_BITS, 32, 45000, 0.82),
    (False, 8192, 32): _wide(_EIGHT_BITS_LONG, 32, 8192, 0.82),
    (False, 8192, 24): _wide(replace(_EIGHT_BITS_LONG, number=6), 24, 8192, 0.82),
}
#: The same on one kind of rack alone.
RACKS_OF: dict[tuple[str, bool, int, int], RackRecipe] = {("gb300", False, 8192, 4): _narrow(24576, 0.95, 1, 1)}


def rack_of(device: str, version: str, narrow: bool, prompt: int, gpus: int) -> RackRecipe | None:
    """The workers of a row; None where no recipe is known.

    >>> rack = rack_of("gb200", "0.5.8", True, 1024, 48)
    >>> rack.prefill.number, rack.prefill.gpus, rack.decode.number
    (4, 4, 1)
    >>> rack_of("gb200", "0.5.5.post2", True, 1024, 48)
    """
    if device not in ("gb200", "gb300") or not version.startswith(VERSIONS):
        return None
    return RACKS_OF.get((device, narrow, prompt, gpus)) or RACKS.get((narrow, prompt, gpus))
