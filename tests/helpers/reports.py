"""Results for the report's tests: the headline question with plausible numbers, made without the engine."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tspsim.engine.timeline import Label, Timeline
from tspsim.step.result import LinkUse, Memory, PlanResult, Range, RankClass, Result

GIB = 2.0**30
LAYERS = 32
PEAK_FLOPS_PER_S = 1307.4e12

#: name, degrees, ms a layer in (gemm, attention, memory bound), exposed ms by kind, memory parts in GiB
PLANS: tuple[tuple[str, dict[str, int], tuple[float, float, float], dict[str, float], dict[str, float]], ...] = (
    (
        "TSP8",
        {"tsp": 8},
        (23.0, 31.5, 2.1),
        {"broadcast": 0.4, "all_gather": 1.9, "send_recv": 0.2},
        {"weights": 1.9, "activations": 1.2, "workspace": 3.0, "in-flight shards": 0.6, "reserve": 2.0},
    ),
    (
        "TP8",
        {"tp": 8},
        (24.5, 31.5, 9.0),
        {"all_reduce": 14.8},
        {"weights": 1.9, "activations": 9.2, "workspace": 7.0, "reserve": 2.0},
    ),
    (
        "TP4-SP2",
        {"tp": 4, "sp": 2},
        (24.1, 31.5, 5.0),
        {"all_reduce": 11.1, "all_gather": 2.3},
        {"weights": 3.9, "activations": 4.2, "workspace": 5.0, "reserve": 2.0},
    ),
    (
        "TP2-SP4",
        {"tp": 2, "sp": 4},
        (23.6, 31.5, 3.3),
        {"all_reduce": 12.9, "all_gather": 3.1},
        {"weights": 7.9, "activations": 3.2, "workspace": 4.0, "reserve": 2.0},
    ),
    (
        "SP8",
        {"sp": 8},
        (0, 0, 0),
        {},
        {"weights, gradients, optimizer": 192.0, "activations": 12.0, "reserve": 2.0},
    ),
)


#: 128Ki tokens, h 4096, as the closed forms have them
VOLUMES_BYTES = {
    "TSP8": {"attention": 2016 * 2**20, "mlp": 224 * 2**20, "total": 2240 * 2**20},
    "TP8": {"attention": 1792 * 2**20, "mlp": 1792 * 2**20, "total": 3584 * 2**20},
    "TP4-SP2": {"attention": 1024 * 2**20, "mlp": 768 * 2**20, "total": 1792 * 2**20},
    "TP2-SP4": {"attention": 1024 * 2**20, "mlp": 256 * 2**20, "total": 1280 * 2**20},
}


def layer_rows(plan: str, rank: int) -> list[tuple[Label, float, float]]:
    """One layer of a rank: label (layer 0), start and end in seconds from the layer's begin."""
    rows: list[tuple[Label, float, float]] = []
    degrees, compute, exposed = next((d, c, e) for n, d, c, e, _ in PLANS if n == plan)
    clock = 0.0

    def work(name: str, kind: str, part: str, ms: float, flops: float, shape: str) -> None:
        nonlocal clock
        end = clock + ms * 1e-3
        label = Label("compute", name, kind, part, 0, 3e8, flops, shape, ms * 1e-3, is_compute=True)
        rows.append((label, clock, end))
        clock = end

    def move(stream: str, name: str, kind: str, part: str, ms: float, size: float) -> None:
        shape = f"{size / 1e6:.1f} MB over 8 ranks, direct"
        rows.append((Label(stream, name, kind, part, 0, size, 0.0, shape, ms * 1e-3), clock, clock + ms * 1e-3))

    gemm, attention, memory = compute
    for turn in range(8):
        if "tsp" in degrees:
            move("weights", f"broadcast of shard {(turn + rank) % 8}", "broadcast", "attention", 0.11, 16.8e6)
        work(
            "query, key, value",
            "gemm",
            "attention",
            gemm / 40,
            2 * 16384 * 1536 * 4096,
            "[16384×4096]·[4096×1536] bf16",
        )
        if "tsp" in degrees:
            move("tokens", "gather of keys and values", "all_gather", "attention", 2.3, 235e6)
        work(
            "attention",
            "attention",
            "attention",
            attention / 8,
            4 * 16384 * 65536 * 512,
            "8192×8192 + 8192×131072 causal, 4/4 heads of 128 bf16",
        )
        work("output", "gemm", "attention", gemm / 80, 2 * 16384 * 512 * 4096, "[16384×512]·[512×4096] bf16")
    for kind, ms in exposed.items():
        if "tsp" not in degrees:
            move("communication", words(kind), kind, "attention", ms, 940e6)
            clock += ms * 1e-3
    work("norm", "memory_bound", "mlp", memory, 0.0, "add_rmsnorm, 402.7 MB")
    for turn in range(8):
        if "tsp" in degrees and turn < 7:
            move("weights", "ring hop", "send_recv", "mlp", 0.9, 50e6)
        work(
            "gate, up, down",
            "gemm",
            "mlp",
            gemm * 0.7 / 8,
            2 * 16384 * 2048 * 4096 * 3,
            "[16384×4096]·[4096×6144] bf16",
        )
    return rows


def words(kind: str) -> str:
    return kind.replace("_", " ")


def timeline(plan: str, ranks: list[int], layers: int = LAYERS) -> Timeline:
    """Every layer of every rank, vectorised so that a thousand ranks take a moment."""
    answer = Timeline()
    columns: dict[str, list[Any]] = {"rank": [], "label": [], "start": [], "end": []}
    for rank in ranks:
        rows = layer_rows(plan, rank % 8)
        length = max(end for _, _, end in rows) * 1.01
        first = len(answer.labels)
        if rank < 8:
            for layer in range(layers):
                answer.labels.extend(entry.at_layer(layer) for entry, _, _ in rows)
        else:
            first = (rank % 8) * layers * len(rows)
        begin = np.arange(layers)[:, None] * length + rank * 1e-6
        columns["rank"].append(np.full(layers * len(rows), rank, dtype=np.int32))
        columns["label"].append(np.arange(first, first + layers * len(rows), dtype=np.int32))
        columns["start"].append((begin + np.array([start for _, start, _ in rows])).ravel())
        columns["end"].append((begin + np.array([end for _, _, end in rows])).ravel())
    answer.rank = array("i", np.concatenate(columns["rank"]).tobytes())
    answer.label = array("i", np.concatenate(columns["label"]).tobytes())
    answer.start_s = array("d", np.concatenate(columns["start"]).tobytes())
    answer.end_s = array("d", np.concatenate(columns["end"]).tobytes())
    return answer


def link_shares(busy: float) -> tuple[tuple[str, str, float], ...]:
    """A mesh of eight GPUs, a NIC each, and the leaf switch of every rail."""
    mesh = [(str(a), str(b), busy * (1.0 - 0.05 * abs(a - b))) for a in range(8) for b in range(8) if a != b]
    rails = [pair for g in range(8) for pair in ((str(g), f"nic{g}", 0.0), (f"nic{g}", f"leaf{g}", busy / 20))]
    return tuple(mesh + rails)


def plan(index: int, ranks: list[int] | None = None, layers: int = LAYERS) -> PlanResult:
    """The ``index``-th plan of :data:`PLANS`; the last one is refused."""
    name, degrees, compute, exposed, parts = PLANS[index]
    memory = Memory({key: value * GIB for key, value in parts.items()}, 191.98 * GIB)
    settings = {
        "partition": "zigzag",
        "exchange": "all_gather",
        "overlap": "tsp" in degrees,
        "recomputation": "none",
    }
    if not memory.fits:
        over = (memory.peak_bytes - memory.capacity_bytes) / GIB
        error = f"needs {memory.peak_bytes / GIB:.1f} GiB of 192.0, {over:.1f} too many: weights are largest"
        return PlanResult(name, degrees, memory, settings, error=error)
    total_compute = sum(compute) * layers * 1e-3
    total_exposed = {kind: ms * layers * 1e-3 for kind, ms in exposed.items()}
    step = (total_compute + sum(total_exposed.values())) * 1.01
    tokens = 128 * 131072
    rate = tokens / step
    shown = list(range(8)) if ranks is None else ranks
    return PlanResult(
        name,
        degrees,
        memory,
        settings,
        step_time_s=step,
        tokens_per_step=tokens,
        gpus=1024,
        block_forward_tokens_per_s=rate * layers * 1.02,
        mfu=51.5e9 * rate / (1024 * PEAK_FLOPS_PER_S),
        breakdown_s={
            "compute": total_compute,
            "exposed_communication": total_exposed,
            "bubble": 0.0,
            "idle": step - total_compute - sum(total_exposed.values()),
        },
        compute_by_kind_s=dict(
            zip(("gemm", "attention", "memory_bound"), (ms * layers * 1e-3 for ms in compute), strict=True)
        ),
        communication_bytes_per_layer=VOLUMES_BYTES[name],
        links=(
            LinkUse("xgmi", 56, 64e9, 8.1e12, 0.21 + 0.05 * index, 0.34 + 0.05 * index),
            LinkUse("nic", 16, 50e9, 0.0, 0.0, 0.0),
        ),
        link_shares=link_shares(0.34 + 0.1 * index),
        classes=tuple(RankClass(rank, 128, f"position {rank}") for rank in range(8)),
        cost={"usd_per_million_tokens": 0.0231 + 0.004 * index, "usd_per_hour": 1146.9},
        range=Range(
            rate * 0.86,
            rate * 1.13,
            "errors of GEMM, attention and mesh collectives, each common to a family",
        ),
        bottleneck=f"Attention takes {compute[1] / sum(compute):.0%} of the step's compute.",
        notes=("K and V are gathered a bucket of heads at a time.",),
        timeline=timeline(name, shown, layers),
    )


def result(ranks: list[int] | None = None, layers: int = LAYERS, **changes: Any) -> Result:
    """Five plans, the last refused.

    Parameters
    ----------
    ranks
        Ranks of the timelines (default: eight representatives).
    changes
        Fields of :class:`Result` that replace the usual ones.
    """
    fields: dict[str, Any] = {
        "scenario": scenario(),
        "cluster": {
            "name": "mi300x-1024",
            "device": {
                "name": "mi300x",
                "peak_flops_per_s": {"bf16": PEAK_FLOPS_PER_S, "fp8": 2614.9e12},
                "hbm_bytes_per_s": 5.3e12,
                "memory_bytes": 192e9,
                "visible_memory_bytes": 191.98 * GIB,
            },
            "nodes": 128,
            "gpus_per_node": 8,
            "gpus": 1024,
            "fabric": "rails-400g",
        },
        "plans": tuple(plan(index, ranks, layers) for index in range(len(PLANS))),
        "provenance": (
            {
                "what": "MI300X bf16 peak",
                "value": "1307.4 TFLOP/s",
                "source": "AMD Instinct MI300X data sheet",
                "basis": "vendor sheet, dense",
            },
            {
                "what": "xGMI link",
                "value": "64 GB/s a direction",
                "source": "AMD CDNA 3 white paper",
                "basis": "vendor sheet; 48 GB/s reached in all-reduce",
            },
        ),
        "defaults": (
            "Tokens are dealt in zigzag order, so every rank has the same causal work.",
            "TP's all-reduces are exposed; TSP's exchanges run beside compute.",
        ),
        "unexplained": (
            "173 M tokens/s for the whole model would need 8.7 PFLOP/s a GPU; the peak is 1.307.",
            "Volumes and links alone give 1.05 to 1.24 of the published 2.0 to 2.6.",
        ),
    }
    return Result(**(fields | changes))


def scenario(**changes: Any) -> Mapping[str, Any]:
    """The scenario's dict as the loader leaves it, with the model's architecture inside."""
    return {
        "name": "tsp-vs-tpsp-1024-mi300x",
        "description": "TSP against tensor and sequence parallelism on 1,024 MI300X, one forward pass.",
        "source": "the published TSP measurements",
        "workload": {
            "model": "tsp-8b",
            "pass": "forward",
            "sequence": 131072,
            "sequences_per_replica": 1,
            "precision": "bf16",
            "causal": True,
        },
        "model": {
            "name": "tsp-8b",
            "layers": 32,
            "hidden": 4096,
            "heads": 32,
            "kv_heads": 32,
            "head_dim": 128,
            "ffn": 16384,
            "gated": True,
        },
    } | changes


#: A text that would run if a page did not take it as text.
HOSTILE = "<script>alert(1)</script>\"'&</title>{{ 7*7 }}%{x}$x$"


def hostile_result() -> Result:
    """Every text of a result is an attack."""
    shown = timeline("TSP8", [0], layers=2)
    shown.labels[:] = [
        label._replace(name=HOSTILE, shape=HOSTILE, part=HOSTILE, kind=HOSTILE) for label in shown.labels
    ]
    ran = plan(0)
    attacked = replace(
        ran,
        name=HOSTILE,
        settings={HOSTILE: HOSTILE},
        bottleneck=HOSTILE,
        notes=(HOSTILE,),
        timeline=shown,
        memory=replace(ran.memory, parts={HOSTILE: 1e9}),
        link_shares=((HOSTILE, "0", 0.5), ("0", HOSTILE, 0.25)),
        range=replace(ran.range, basis=HOSTILE) if ran.range else None,
        breakdown_s=dict(ran.breakdown_s) | {"exposed_communication": {HOSTILE: 0.1}},
    )
    refused = replace(plan(4), name=HOSTILE + "2", error=HOSTILE)
    asked = scenario(name=HOSTILE, description=HOSTILE)
    rows = ({"what": HOSTILE, "value": HOSTILE, "source": HOSTILE, "basis": HOSTILE},)
    return result(
        scenario=asked, plans=(attacked, refused), provenance=rows, defaults=(HOSTILE,), unexplained=(HOSTILE,)
    )
