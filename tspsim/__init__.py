"""tspsim: a discrete-event simulator of GPU clusters for large language models.

>>> import tspsim
>>> scenario = tspsim.load("tsp-vs-tpsp-1024-mi300x")
>>> scenario.name
'tsp-vs-tpsp-1024-mi300x'

``simulate(scenario)`` answers it; ``load_cluster`` and :mod:`tspsim.network` hold the fabric, ``load_device`` in
:mod:`tspsim.hardware` the kernels. Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import hardware, network
    from .network import load_cluster
    from .scenario import load
    from .simulation import simulate

__version__ = "0.1.0"
__all__ = ["__version__", "hardware", "load", "load_cluster", "network", "simulate"]

_HOMES = {"load": "scenario", "simulate": "simulation", "load_cluster": "network"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if name in ("hardware", "network"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
