"""Tables of expert-parallel exchanges: dispatch and combine of DeepEP on NVIDIA and of mori on AMD."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tspsim.base.errors import InputError
from tspsim.network import MULTIPROCESSORS, Cluster, ExpertExchange, Traffic, exchange_experts

from .answers import RowAnswers, each_row
from .cells import Row
from .collectives import RACKS, cluster_of, tell
from .devices import device_name

#: Modes of DeepEP as the table writes them.
MODES = {"normal": "normal", "ll": "low_latency"}
#: Kernels of mori: mode, and whether they cross nodes.
KERNELS = {
    "IntraNode": "normal",
    "IntraNodeLL": "low_latency",
    "InterNodeV1": "normal",
    "InterNodeV1LL": "low_latency",
    "AsyncLL": "asynchronous",
}
#: GPUs without a catalog entry whose links equal those of an entry.
SAME_LINKS = {"mi308x": "mi300x"}
#: Experts per token and experts of the layer in mori's tuning runs; their table does not state them.
MORI_TOPK, MORI_EXPERTS = 8, 256
#: Bytes per value by the names of types in the tables. Two fp4 values count as one of the column hidden_dim.
VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 1.0}
#: DeepEP dispatches in fp8 with a 4-byte scale for each 128 values, and combines in bf16.
DEEPEP_BYTES = {"dispatch": 1.0 + 4.0 / 128.0, "combine": 2.0}


@dataclass(frozen=True)
class MeasuredPhase:
    """One phase of an exchange among the first ``ranks`` of a cluster."""

    cluster: Cluster
    ranks: int
    phase: str
    mode: str
    exchange: ExpertExchange

    def traffic(self) -> Traffic:
        return exchange_experts(self.cluster, range(self.ranks), self.phase, self.exchange, mode=self.mode)


@each_row
def predict_deepep(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict dispatch as the main column, and combine beside it. The normal mode is the sum of notify and transmit."""
    for phase in deepep(row):
        traffic = phase.traffic()
        tell(answers, position, traffic, None if phase.phase == "dispatch" else "combine_avg_t_us")
        if phase.mode == "normal":
            tell(answers, position, traffic, f"{phase.phase}_transmit_us")


@each_row
def predict_mori(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict one phase of one kernel, with eight of 256 experts as in mori's tuning runs."""
    phase = mori(row)
    gpu = phase.cluster.device_name
    if gpu != str(row["gpu"]).strip().lower():
        answers.note(f"{row['gpu']} is taken for the {gpu.upper()}, which has its links", 1)
    tell(answers, position, phase.traffic())


def deepep(row: Row) -> list[MeasuredPhase]:
    """Dispatch and combine of a row. Raises InputError for an unknown mode or size."""
    mode = MODES.get(str(row["mode"]))
    if mode is None:
        raise InputError(f"no mode '{row['mode']}' of DeepEP")
    nodes, per_node = int(row["node_num"]), machine(str(row["system"]))
    cluster = _cluster(str(row["system"]), nodes, nodes * per_node)
    return [
        MeasuredPhase(cluster, nodes * per_node, phase, mode, ExpertExchange(
            tokens=float(row["num_token"]),
            token_bytes=float(row["hidden_size"]) * value_bytes,
            experts=int(row["num_experts"]),
            topk=min(int(row["num_topk"]), int(row["num_experts"])),
            multiprocessors=_given(row.get(f"{phase}_sms"), MULTIPROCESSORS),
        ))
        for phase, value_bytes in DEEPEP_BYTES.items()
    ]  # fmt: skip


def mori(row: Row) -> MeasuredPhase:
    """The phase of a row. Raises InputError for an unknown kernel or type."""
    mode = KERNELS.get(str(row["kernel"]))
    if mode is None:
        raise InputError(f"no kernel '{row['kernel']}' of mori")
    written, ranks = str(row["gpu"]).strip().lower(), int(row["ep"])
    cluster = _cluster(SAME_LINKS.get(written, written), -(-ranks // 8), ranks)
    exchange = ExpertExchange(
        tokens=float(row["num_tokens"]), token_bytes=mori_bytes(row), experts=MORI_EXPERTS, topk=MORI_TOPK
    )
    return MeasuredPhase(cluster, ranks, str(row["phase"]), mode, exchange)


def machine(system: str) -> int:
    """GPUs of one machine."""
    return 4 if system.strip().lower() in RACKS else 8


def mori_bytes(row: Row) -> float:
    """Bytes of a token: its values, halved where a combine casts them to fp8 on the way (which needs a copy).

    >>> mori_bytes({"hidden_dim": 7168.0, "dtype": "bf16", "quant": "fp8_direct_cast", "zero_copy": "False"})
    7168.0
    """
    kind = str(row["dtype"])[:4].removesuffix("_")
    value_bytes = next((size for name, size in VALUE_BYTES.items() if kind.startswith(name)), None)
    if value_bytes is None:
        raise InputError(f"no type '{row['dtype']}'")
    if str(row.get("quant", "")) == "fp8_direct_cast" and str(row.get("zero_copy", "")) == "False":
        value_bytes = 1.0
    return float(row["hidden_dim"]) * value_bytes


def _cluster(system: str, nodes: int, ranks: int) -> Cluster:
    name = device_name(system) or system
    return cluster_of(system if system.strip().lower() in RACKS else name, nodes, ranks)


def _given(cell: object, default: int) -> int:
    try:
        value = float(str(cell))
    except ValueError:
        return default
    return int(value) if math.isfinite(value) and value >= 1.0 else default
