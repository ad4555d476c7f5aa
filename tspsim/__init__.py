"""tspsim: a discrete-event simulator of GPU clusters for large language models.

>>> import tspsim
>>> scenario = tspsim.load("tsp-vs-tpsp-1024-mi300x")
>>> scenario.name
'tsp-vs-tpsp-1024-mi300x'

``simulate(scenario)`` answers it; ``plan``, ``compare``, ``sweep``, ``bounds``, ``size`` and ``validate`` do what the
commands of these names do, and ``catalog()`` lists what can be named. Answers show themselves in a notebook, and all
have ``to_frame()``, ``to_html(path)`` and ``plot()``; ``simulate(plan(…).best)`` is the best plan with its timeline.
``load_cluster`` and :mod:`tspsim.network` hold the fabric, ``load_device`` in :mod:`tspsim.hardware` the kernels,
:mod:`tspsim.serving` requests over steps, :mod:`tspsim.errors` what calls raise.
Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import errors, hardware, network, serving
    from .answer.kinds import simulate
    from .api import bounds, compare, plan, sweep, validate
    from .base import catalog
    from .network import load_cluster
    from .scenario import load
    from .serving.oracle import predict
    from .studies.sizing import size

__all__ = [
    "__version__",
    "bounds",
    "catalog",
    "compare",
    "errors",
    "hardware",
    "load",
    "load_cluster",
    "network",
    "plan",
    "predict",
    "serving",
    "simulate",
    "size",
    "sweep",
    "validate",
]

_HOMES = {
    "bounds": "api",
    "compare": "api",
    "load": "scenario",
    "load_cluster": "network",
    "plan": "api",
    "predict": "serving.oracle",
    "simulate": "answer.kinds",
    "size": "studies.sizing",
    "sweep": "api",
    "validate": "api",
}

_ROOMS = {
    "catalog": "base.catalog",
    "errors": "errors",
    "hardware": "hardware",
    "network": "network",
    "serving": "serving",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if name in _ROOMS:
        return importlib.import_module(f".{_ROOMS[name]}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
