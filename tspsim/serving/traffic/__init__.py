"""Traffic on a clock: clients that send a scenario's requests, and a table of the results."""

from __future__ import annotations

from .clients import Clients
from .request_table import RequestTable

__all__ = ["Clients", "RequestTable"]
