"""Steps as other people's profilers would write them: written by hand after the frameworks' own programs, kernel by
kernel, and not from what is simulated. Times are drawn around plain rooflines."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.profiles import DEVICES

import tspsim
from tspsim.step.question import Question, look_up
from tspsim.traces.comparison import Laid

#: A model with latents, shared experts and one dense layer.
SMALL_LATENT = """
name: small-latent
layers: {layers}
hidden: 2048
attention: {{kind: mla, heads: 16, q_rank: 0, kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128}}
mlp: {{kind: moe, experts: 64, topk: 6, width: 1408, shared_width: 2816, dense_width: 10944, first_dense: 1}}
embedding: {{vocab: 102400}}
max_context: 163840
source: made here
"""


def product_us(m: int, n: int, k: int, tflops: float = 600.0, tb_s: float = 3.0) -> float:
    """A product's time, µs."""
    return 2.0 + max(2.0 * m * n * k / (tflops * 1e6), 2.0 * (m * n + m * k + n * k) / (tb_s * 1e6))


def moved_us(megabytes: float, tb_s: float = 2.5) -> float:
    """A memory-bound kernel's time, µs."""
    return 2.5 + megabytes / tb_s


@dataclass
class Recorder:
    """A process that launches kernels from threads onto streams, and what a profiler keeps of it."""

    seed: int = 7
    launch_us: float = 3.0
    events: list[dict[str, Any]] = field(default_factory=list)
    clock: float = 5e12
    number: int = 100
    ends: dict[Any, float] = field(default_factory=dict)
    #: A graph under way: its launch's number and time.
    graph: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def launch(
        self,
        name: str,
        us: float,
        *,
        stream: Any = 7,
        op: str = "",
        dims: Any = None,
        tid: int = 1,
        after: float = 0.0,
        category: str = "kernel",
        **extra: Any,
    ) -> float:
        """Launch a kernel behind ``after``; returns its end."""  # fmt: skip
        length = us * self.draw.lognormvariate(0.0, 0.12)
        self.number += 1
        correlation, launched = self.graph or (self.number, self.clock)
        arguments: dict[str, Any] = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, **extra}
        if self.graph is None:
            arguments["External id"] = 1_000_000 + self.number
            shapes = {"Input Dims": dims} if dims is not None else {}
            at = {"ph": "X", "pid": 77, "tid": tid}
            self.events.append(
                {**at, "cat": "cpu_op", "name": op or "aten::empty", "ts": self.clock, "dur": self.launch_us * 0.9,
                 "args": {"External id": 1_000_000 + self.number, "Ev Idx": self.number, **shapes}}
            )  # fmt: skip
            self.events.append(
                {**at, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": self.clock + 0.4, "dur": 1.0,
                 "args": {"External id": 1_000_000 + self.number, "cbid": 430, "correlation": correlation}}
            )  # fmt: skip
            self.clock += self.launch_us
        else:
            arguments["graph node id"] = self.number
        start = max(self.ends.get(stream, 0.0), after, launched + 4.0) + self.draw.uniform(0.6, 1.4)
        self.ends[stream] = start + length
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length,
             "args": {"grid": [132, 1, 1], "block": [384, 1, 1], **arguments}}
        )  # fmt: skip
        return self.ends[stream]

    @contextmanager
    def note(self, name: str, category: str = "user_annotation", tid: int = 1) -> Iterator[None]:
        """An annotation, operator or Python frame around what is launched within it."""
        begin = self.clock
        self.clock += 0.5
        yield
        self.clock += 0.5
        self.number += 1
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 77, "tid": tid, "ts": begin, "dur": self.clock - begin,
             "args": {"External id": 2_000_000 + self.number}}
        )  # fmt: skip

    @contextmanager
    def replay(self) -> Iterator[None]:
        """A graph's launch: its kernels have no operators of their own."""
        self.number += 1
        self.graph = (self.number, self.clock)
        self.events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 77, "tid": 1, "ts": self.clock,
             "dur": 90.0, "args": {"cbid": 311, "correlation": self.number}}
        )  # fmt: skip
        yield
        self.graph = None
        self.clock += 95.0

    def wait(self) -> None:
        """The host waits for the device."""
        self.clock = max(self.clock, *self.ends.values()) + 5.0

    def kineto(self, device: str = "h100", rank: int = 0, world: int = 1, groups: Sequence[Any] = ()) -> dict[str, Any]:
        """PyTorch's profile, with Python frames between the events."""
        name, memory, units = DEVICES.get(device, (device, 0, 0))
        frames = [
            {"ph": "X", "cat": "python_function", "name": f"torchtitan/train.py({line}): forward_backward_step",
             "pid": 77, "tid": 1, "ts": 5e12 + line, "dur": 1.0, "args": {"Python id": line, "Python parent id": 1}}
            for line in range(40)
        ]  # fmt: skip
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": name, "totalGlobalMem": memory, "numSms": units}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": list(groups)},
            "traceEvents": [*frames, *sorted(self.events, key=lambda event: event["ts"])],
        }

    def nsight(self, path: Path, device: str = "h100") -> Path:
        """Nsight's export: what ran, the calls that launched it, and annotations as NVTX ranges."""
        name, memory, units = DEVICES[device]
        strings: dict[str, int] = {}
        first = min(event["ts"] for event in self.events)
        with sqlite3.connect(path) as base:
            base.execute("create table StringIds (id integer primary key, value text)")
            base.execute("create table TARGET_INFO_GPU (id int, name text, smCount int, totalMemory int)")
            base.execute("insert into TARGET_INFO_GPU values (0, ?, ?, ?)", (name, units, memory))
            base.execute(
                "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, contextId int,"
                " streamId int, correlationId int, globalPid int, demangledName int, shortName int,"
                " gridX int, gridY int, gridZ int,"
                " graphNodeId int)"
            )
            base.execute(
                "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, globalTid int, correlationId int,"
                " nameId int)"
            )
            base.execute(
                "create table NVTX_EVENTS (start int, end int, eventType int, text text, textId int, globalTid int,"
                " domainId int)"
            )
            thread = 0x1000000001000001
            for event in self.events:
                start = int((event["ts"] - first) * 1e3)
                end = start + int(event["dur"] * 1e3)
                own = event.get("args", {})
                word = strings.setdefault(event["name"], len(strings) + 1)
                if event["cat"] == "kernel":
                    base.execute(
                        "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,0,1,?,?,?,?,?,132,1,1,null)",
                        (start, end, own["stream"], own["correlation"], thread >> 24 << 24, word, word),
                    )
                elif event["cat"] == "cuda_runtime":
                    base.execute(
                        "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,?,?,?)",
                        (start, end, thread + event["tid"], own["correlation"], word),
                    )
                elif event["cat"] == "user_annotation":
                    base.execute(
                        "insert into NVTX_EVENTS values (?,?,59,?,null,?,0)",
                        (start, end, event["name"], thread + event["tid"]),
                    )
            base.executemany("insert into StringIds values (?,?)", [(number, word) for word, number in strings.items()])
        base.close()
        return path

    def rocprof(self) -> dict[str, Any]:
        """rocprofv3's JSON: dispatches alone."""
        symbols: dict[str, int] = {}
        records = [
            {"start_timestamp": int(event["ts"] * 1e3), "end_timestamp": int((event["ts"] + event["dur"]) * 1e3),
             "stream_id": {"handle": event["args"]["stream"]}, "dispatch_info": {
                 "agent_id": {"handle": 9}, "kernel_id": symbols.setdefault(event["name"], len(symbols) + 1),
                 "queue_id": {"handle": 1}, "grid_size": {"x": 256, "y": 1, "z": 1}}}
            for event in self.events if event["cat"] == "kernel"
        ]  # fmt: skip
        process = {
            "agents": [{"id": {"handle": 9}, "name": "gfx950", "product_name": "AMD Instinct MI355X", "cu_count": 256,
                        "logical_node_id": 2, "type": 2}],
            "kernel_symbols": [{"kernel_id": number, "formatted_kernel_name": name, "demangled_kernel_name": name}
                               for name, number in symbols.items()],
            "buffer_records": {"kernel_dispatch": records},
        }  # fmt: skip
        return {"rocprofiler-sdk-tool": [process]}


def ring_us(megabytes: float, ranks: int, gb_s: float = 350.0) -> float:
    """A gather's or scatter's time over a ring, µs."""
    return 12.0 + megabytes * 1e3 / gb_s * (ranks - 1) / ranks if not math.isinf(megabytes) else 0.0


def question(workload: dict[str, Any], plan: dict[str, Any], device: str = "h100", nodes: int = 1) -> Question:
    return look_up(
        tspsim.load(
            {"name": "stranger", "cluster": {"device": device, "nodes": nodes}, "workload": workload,
             "plans": [{"name": "P", **plan}]}
        )
    )  # fmt: skip


def shown(laid: Laid) -> str:
    return json.dumps(
        {row.kind: [round(row.measured_s * 1e3, 3), round(row.simulated_s * 1e3, 3)] for row in laid.kinds}
    )
