"""Logs of nccl-tests as they are printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tspsim.network import build_cluster, collective


def nccl_log(
    file: Path, kind: str, *, device: str = "h100", prefix: str = "", ranks: bool = True, old: bool = False
) -> None:
    """What nccl-tests (or rccl-tests, or an old one) prints of eight GPUs that take 1.3 times as long as the catalog
    says; in place twice that."""
    cluster, random = build_cluster(device), np.random.default_rng(1)
    lines = ["# nThread 1 nGpus 8 minBytes 0 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20", "#"]
    listed = range(8 if ranks else 0)
    lines += [f"#  Rank {rank:2} Group  0 Pid 37300 on   node-a device {rank:2} [0000:05:00] GPU" for rank in listed]
    what = "" if old else "   redop    root"
    error = "error" if old else "#wrong"
    columns = f"    time   algbw   busbw {error}"
    lines += ["#", f"#       size         count      type{what} {columns} {columns}", "#        (B)    (elements)"]
    cells = "" if old else "     sum      -1"
    lines += [f"           0             0     float{cells}{'     0.20    0.00    0.00      0' * 2}"]
    for power in range(9, 33):
        time_us = collective(cluster, range(8), kind, 2**power).alone_s * 1.3e6 * random.uniform(0.97, 1.03)
        both = f" {time_us:8.2f}   12.34   12.34      0 {2 * time_us:8.2f}   12.34   12.34    N/A"
        lines += [f"{2**power:12} {2**power // 4:13}     float{cells}{both}"]
        lines += ["node-a:24:118 [1] NCCL INFO comm 0x5596166a63d0 rank 9"]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 2.38156"]
    file.write_text("\n".join(prefix + line for line in lines) + "\n", encoding="utf-8")
