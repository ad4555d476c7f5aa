"""Sums over tensor-parallel ranks, and stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from .entry import KI, Entry, Keys

TP8: Mapping[str, Keys] = {
    "TP8": {"tp": 8},
    "TP8 in chunks": {"tp": 8, "overlap": True},
    "TP8 with regions": {"tp": 8, "sequence_regions": True},
    "TP8 with regions, in chunks": {"tp": 8, "sequence_regions": True, "overlap": True},
    "SP8": {"sp": 8, "exchange": "ring", "context_transport": "multi_ring"},
    "TSP8": {"tsp": 8},
}
TENSOR = {"model": "llama-3.1-70b", "pass": "forward", "sequence": 4 * KI}

ENTRIES = (
    Entry(
        "Ladder residual", "Llama-3.1-70B, TP8, 4Ki", {"tp": 8, "residual": "ladder"}, TP8, TENSOR,
        "1.29× (70B, TP8, 8 × H100, batch 1, with decoding)",
        "one sum beside the next block: max(A, r) + max(M, r)", "**another model**",
    ),
    Entry(
        "Parallel attention and MLP", "the same", {"tp": 8, "residual": "parallel"}, TP8, TENSOR,
        "1.22× (the same)", "one sum instead of two", "**another model**",
    ),
    Entry(
        "No communication", "the same", {"tp": 8, "residual": "desync"}, TP8, TENSOR,
        "the upper end of its plots", "no sums at all: what any overlap of them can reach", "**another model**",
    ),
    Entry(
        "Fused sums (Flux)", "the same", {"tp": 8, "overlap": "fused"}, TP8, TENSOR,
        "1.66× prefill over unfused (L20 and A100 over PCIe)",
        "max(C, W) and a slice; most of the published ratio is a faster transport than NCCL's there",
        "kernels that write to other GPUs",
    ),
    Entry(
        "Fused sums by copy engines", "Llama-3.1-70B, TP8, 4Ki",
        {"tp": 8, "overlap": "fused", "fused_transport": "copy"},
        {"fused by kernels": {"tp": 8, "overlap": "fused"}, **TP8}, TENSOR,
        "2.9× over NCCL after the product (8 × L20 over PCIe)",
        "no compute units taken; a transport that is faster than NCCL's there ([table](schedules.md#tp))",
        "a measured copy engine", devices=("mi355x",),
    ),
    Entry(
        "Hand-over without waiting (EnergonAI)", "Llama-3.1-70B forward, 8 GPUs, PP8, 32 × 2Ki",
        {"pp": 8, "micro_batch": 1}, {"blocking": {"pp": 8, "micro_batch": 1, "schedule": "blocking"},
                                      "TP2-PP4": {"tp": 2, "pp": 4, "micro_batch": 1}, "TP8": {"tp": 8}},
        {"model": "llama-3.1-70b", "pass": "forward", "sequence": 2 * KI, "sequences_per_replica": 32},
        "+10 % scaling of a pipeline", "max(f, x) a micro-batch instead of f + 2x; every framework has it today",
        "messages that take long beside a stage",
    ),
)  # fmt: skip
