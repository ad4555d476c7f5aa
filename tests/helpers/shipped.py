"""Shipped scenarios by what they ask."""

from __future__ import annotations

from tspsim.base import catalog
from tspsim.fleet import is_fleet

#: Of many jobs on one cluster.
FLEETS = [name for name in catalog.names("scenarios") if is_fleet(name)]
#: Of one job: a step, a service, a loop.
SCENARIOS = [name for name in catalog.names("scenarios") if name not in FLEETS]
