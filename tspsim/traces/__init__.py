"""Measured traces: they are read, compared with the simulated step, and correct it.

``read`` takes the files of a profiler or the logs of a run and returns one table. Readers register under
``tspsim.trace_readers``, rules for the names of kernels under ``tspsim.kernel_names``.
"""

from . import (
    benches,
    chakra,
    dispatch_tables,
    kineto,
    library_names,
    load_tests,
    logs,
    nsight,
    own_trace,
    rocpd,
    rocprof,
    xla_names,
    xla_trace,
)
from .capture import read
from .names import KERNEL_NAMES, KernelNames, kind_of
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Mark, Rows, Trace, TracedDevice, TracedGroup

__all__ = [
    "KERNEL_NAMES",
    "TRACE_READERS",
    "FilePart",
    "KernelNames",
    "Mark",
    "Rows",
    "Trace",
    "TraceReader",
    "TracedDevice",
    "TracedGroup",
    "benches",
    "chakra",
    "dispatch_tables",
    "kind_of",
    "kineto",
    "library_names",
    "load_tests",
    "logs",
    "nsight",
    "own_trace",
    "read",
    "rocpd",
    "rocprof",
    "xla_names",
    "xla_trace",
]
