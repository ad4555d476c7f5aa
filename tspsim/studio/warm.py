"""Imported once by the process that others are made of: they begin with everything imported, and a first question
answered, so that a new one costs milliseconds."""

from __future__ import annotations

import contextlib
import gc

from .. import api
from . import work

with contextlib.suppress(Exception):  # a worker says itself what is wrong
    result = api.simulate(
        {
            "name": "warm",
            "cluster": "hgx-h100-8",
            "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": 4096},
            "plans": [{"name": "TP8", "tp": 8}, {"name": "TSP8", "tsp": 8}, {"name": "SP8", "sp": 8}],
        }
    )
    result.dumps()
    del result

# What is here stays, in every process: the collector need not touch it, and no process has a copy of its own.
gc.collect()
gc.freeze()

__all__ = ["work"]
