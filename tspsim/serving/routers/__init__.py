"""Routers: which replica a request goes to, one file each; a third party's registers as ``tspsim.routers``."""

from __future__ import annotations

from .least_load import LEAST_LOAD
from .prefix_aware import PREFIX_AWARE
from .round_robin import ROUND_ROBIN
from .router import ROUTERS, Backend, Route, Router

__all__ = ["LEAST_LOAD", "PREFIX_AWARE", "ROUND_ROBIN", "ROUTERS", "Backend", "Route", "Router"]
