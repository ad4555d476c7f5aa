"""Measured traces: read them, lay them over the simulated step, learn from them.

``read`` takes the files of a profiler or the logs of a run and gives one table. Readers register under
``tspsim.trace_readers``, rules that turn names of kernels into kinds under ``tspsim.kernel_names``.
"""

from . import chakra, kineto, logs, name_rules, nsight, rocprof
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
    "chakra",
    "kind_of",
    "kineto",
    "logs",
    "name_rules",
    "nsight",
    "read",
    "rocprof",
]
