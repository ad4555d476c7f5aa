"""Measure this machine's GPU into tables that ``tspsim calibrate`` reads.

    python -m tspsim.hardware.measure --gpu mi300x --out measurements

writes ``kernels/gemm.csv``, ``kernels/attention_prefill.csv`` and ``kernels/memory_bound.csv`` in the layout of
:mod:`tspsim.validation.kernel_tables`. It needs PyTorch built for CUDA or ROCm; no other module of this package does.
Calls are captured into a CUDA graph, so that no launch from Python is timed. Their buffers together exceed the last
cache, so that inputs come from HBM. The graph is replayed for a tenth of a second, and the median is written. Data is
random, because a power-limited device multiplies zeros faster than numbers.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Row = dict[str, object]

GEMM_M = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
GEMM_NK = (
    (4096, 4096), (1024, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (2048, 8192), (8192, 28672),
    (512, 2048), (4096, 1024), (16384, 2048),
)  # fmt: skip
#: batch, query tokens, context tokens, heads, KV heads, head_dim
ATTENTION = (
    (1, 512, 512, 32, 8, 128), (1, 2048, 2048, 32, 8, 128), (1, 4096, 4096, 32, 32, 128),
    (1, 8192, 8192, 32, 8, 128), (1, 16384, 16384, 8, 8, 128), (4, 1024, 1024, 16, 16, 128),
    (8, 2048, 2048, 8, 2, 128), (16, 512, 512, 32, 8, 128), (1, 2048, 8192, 32, 8, 128),
    (1, 4096, 32768, 8, 1, 128), (1, 2048, 2048, 32, 32, 64), (2, 8192, 8192, 16, 4, 64),
)  # fmt: skip
MEMORY_OPS = ("copy", "add", "rmsnorm", "swiglu")
MEMORY_ROWS = (1, 16, 128, 1024, 8192, 65536)
MEMORY_COLUMNS = (2048, 8192, 16384)

#: Rotating buffers together exceed the last cache of every device in the catalog.
COLD_BYTES = 2**30
SECONDS_PER_CASE = 0.1


def seconds_of(torch: Any, calls: list[Callable[[], object]]) -> float:
    """Median seconds of one call, from replays of a graph that makes every call of ``calls`` once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    samples: list[float] = []
    while len(samples) < 3 or (sum(samples) * len(calls) < SECONDS_PER_CASE and len(samples) < 200):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3 / len(calls))
    return statistics.median(samples)


def copies(size_bytes: float) -> int:
    """Sets of buffers that rotate: enough to exceed the caches, few enough to fit in memory."""
    return int(min(64, max(2, -(-COLD_BYTES // max(1, int(size_bytes))))))


def gemm_rows(torch: Any, device: str) -> Iterator[Row]:
    """Rows of products in bf16, and in fp8 if this PyTorch and GPU have a scaled product."""
    for dtype in ("bf16", "fp8"):
        for m in GEMM_M:
            for n, k in GEMM_NK:
                if dtype == "fp8" and m < 16:
                    continue
                sets = copies(2.0 * (m * k + n * k + m * n))
                try:
                    calls = [_gemm_call(torch, device, dtype, m, n, k) for _ in range(sets)]
                    seconds = seconds_of(torch, calls)
                except (RuntimeError, AttributeError, ValueError):  # no such kernel here, or no memory for it
                    continue
                yield {"dtype": dtype, "m": m, "n": n, "k": k, "time_us": seconds * 1e6}


def _gemm_call(torch: Any, device: str, dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    if dtype == "bf16":
        return lambda: torch.nn.functional.linear(a, b)
    kind = torch.float8_e4m3fnuz if "gfx94" in _architecture(torch) else torch.float8_e4m3fn
    one = torch.ones((), device=device)
    a8, b8 = a.to(kind), b.to(kind).t()
    return lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _architecture(torch: Any) -> str:
    return str(getattr(torch.cuda.get_device_properties(0), "gcnArchName", ""))


def attention_rows(torch: Any, device: str) -> Iterator[Row]:
    """Rows of scaled dot product attention: the forward, and the backward as both passes less the forward."""
    function = torch.nn.functional.scaled_dot_product_attention
    for batch, q_len, kv_len, heads, kv_heads, head_dim in ATTENTION:
        causal = q_len == kv_len
        try:
            query, key, value = (
                torch.randn(batch, h, s, head_dim, device=device, dtype=torch.bfloat16, requires_grad=True)
                for h, s in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
            )

            def forward(q: Any = query, k: Any = key, v: Any = value, mask: bool = causal) -> Any:
                return function(q, k, v, is_causal=mask, enable_gqa=True)

            gradient = torch.randn_like(forward())

            def both(f: Any = forward, g: Any = gradient, leaves: Any = (query, key, value)) -> object:
                return torch.autograd.grad(f(), leaves, g)

            one_way = seconds_of(torch, [forward] * 3)
            times = {"fwd": one_way, "bwd": seconds_of(torch, [both] * 3) - one_way}
        except (RuntimeError, TypeError):
            continue
        for direction, seconds in times.items():
            yield {
                "dtype": "bf16", "kv_dtype": "bf16", "direction": direction, "causal": int(causal),
                "batch": batch, "q_len": q_len, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads,
                "head_dim": head_dim, "time_us": seconds * 1e6,
            }  # fmt: skip


def memory_rows(torch: Any, device: str) -> Iterator[Row]:
    """Rows of memory-bound ops, one fused kernel each; ``torch.compile`` fuses ops of several PyTorch kernels."""
    functional = torch.nn.functional
    rmsnorm = torch.compile(lambda x: functional.rms_norm(x, x.shape[-1:]), dynamic=False)
    swiglu = torch.compile(lambda x, y: functional.silu(x) * y, dynamic=False)
    for op in MEMORY_OPS:
        for columns in MEMORY_COLUMNS:
            for rows in MEMORY_ROWS:
                moved = 2 * rows * columns * (3 if op in ("add", "swiglu") else 2)
                try:
                    calls = []
                    for _ in range(copies(moved)):
                        x, y = (torch.randn(rows, columns, device=device, dtype=torch.bfloat16) for _ in range(2))
                        out = torch.empty_like(x)
                        table: Mapping[str, Callable[[], object]] = {
                            "copy": partial(out.copy_, x),
                            "add": partial(torch.add, x, y, out=out),
                            "rmsnorm": partial(rmsnorm, x),
                            "swiglu": partial(swiglu, x, y),
                        }
                        table[op]()
                        calls.append(table[op])
                    seconds = seconds_of(torch, calls)
                except RuntimeError:
                    continue
                yield {"op": op, "rows": rows, "cols": columns, "bytes": moved, "time_us": seconds * 1e6}


def write_table(path: Path, gpu: str, library: str, rows: Iterable[Row]) -> int:
    """Write rows as a CSV table and return their number; without rows no file is written."""
    written = [{"gpu": gpu, **row, "library": library, "source": "own measurement"} for row in rows]
    if written:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(written[0]))
            writer.writeheader()
            writer.writerows(written)
    return len(written)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tspsim.hardware.measure", description="Measure this GPU.")
    parser.add_argument("--gpu", required=True, help="catalog name to file the rows under, such as h200")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        print("measuring needs PyTorch with CUDA or ROCm: https://pytorch.org/get-started", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU; check the driver and that this PyTorch is a CUDA or ROCm build", file=sys.stderr)
        return 2
    library = f"PyTorch {torch.__version__} {torch.cuda.get_device_name(0)}"
    for table, rows in (("gemm", gemm_rows), ("attention_prefill", attention_rows), ("memory_bound", memory_rows)):
        path = options.out / "kernels" / f"{table}.csv"
        print(f"{path}: {write_table(path, options.gpu, library, rows(torch, 'cuda'))} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
