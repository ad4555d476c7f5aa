"""Files of profilers that hold no single kernels, or that their own program must export first: what each is, and the
command that gives a trace."""

from __future__ import annotations

import re
from pathlib import Path

_TABLE = "nsys stats --report cuda_gpu_trace --format csv"
_NSYS = f"nsys export --type sqlite FILE, or {_TABLE} FILE"
_SUMS = "is a summary by kernel and has no order of kernels"
_ALONE = "single kernels alone, under a clock of their own; use nsys"
#: The end of a file's name or the pattern of its beginning, and what to do.
_FORMS: tuple[tuple[str, bytes, str], ...] = (
    ("nsys-rep|qdrep|qdstrm", rb"QDSTRM|\A\x0aSnsys", f"is a report of Nsight Systems; export it: {_NSYS}"),
    ("ncu-rep", rb"\ANVR\x00", f"is a report of Nsight Compute: {_ALONE}"),
    (
        "pftrace|perfetto-trace|proto",
        rb"\A\x0a.{1,3}(\x50|\x18)",
        "is a binary trace of Perfetto; write JSON instead (rocprofv3 --output-format json)",
    ),
    ("xplane\\.pb", rb"/device:(GPU|TPU):", "is XLA's profile in protobuf; its folder has the same as *.trace.json.gz"),
    ("", rb'\A\s*"?Name"?,"?Calls"?,"?TotalDurationNs', f"{_SUMS}; read kernel_trace.csv (rocprofv3 --kernel-trace)"),
    ("", rb'(?m)^\s*"?Time ?\(%\)"?,"?Total Time', f"{_SUMS}; write every kernel: {_TABLE}"),
    ("", rb"Time ?\(%\)\s+Total Time \(ns\)", f"{_SUMS}; write every kernel: {_TABLE}"),
    ("", rb'(?m)^"?ID"?,"?Process ID"?,.*Kernel Name', f"is a table of Nsight Compute: {_ALONE}"),
    ("", rb"Self CPU %\s+Self CPU", "is key_averages, sums by name; export_chrome_trace has every kernel"),
    ("", rb"Job throughput: [\d.]+ TFLOP/s/GPU", "is Megatron's progress.txt, rates; its log has times of steps"),
)  # fmt: skip


def described(path: Path, start: bytes) -> str:
    """What a file is that no reader takes, and how to get a trace; empty where that is not known."""
    for ends, begins, sentence in _FORMS:
        named = ends and re.search(rf"\.({ends})(\.gz)?$", path.name)
        # Binary forms are told by their names too; a text is told by what stands in it.
        if named or ((not ends or b"\x00" in start[:4096]) and re.search(begins, start[:16384])):
            return sentence
    return ""
