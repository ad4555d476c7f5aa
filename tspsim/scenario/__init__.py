"""Scenarios: a cluster, a workload, and the plans to compare.

A scenario is YAML (or a dict of the same shape)::

    name: tsp-vs-tp
    cluster: {device: mi300x, nodes: 128, fabric: rails-400g}      # or a name from the catalog
    workload: {model: tsp-8b, pass: forward, sequence: 128Ki}
    plans:
      - {name: TSP8, tsp: 8}
      - {name: TP8, tp: 8}

:func:`load` reads and checks one. Defaults stand in the fields here; :meth:`Scenario.to_dict` fills them all in, so
that a report can state them.
"""

from __future__ import annotations

from .cluster import MOST_NODES, ClusterInline, Faults
from .loading import load, load_text
from .plan import PlanSpec, RankPlacement
from .question import Offer, Prices, Scenario
from .workload import Workload

__all__ = [
    "MOST_NODES",
    "ClusterInline",
    "Faults",
    "Offer",
    "PlanSpec",
    "Prices",
    "RankPlacement",
    "Scenario",
    "Workload",
    "load",
    "load_text",
]
