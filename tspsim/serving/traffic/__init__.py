"""Traffic on a clock: clients that send a scenario's requests, and a table of the results."""

from __future__ import annotations

from .clients import Clients
from .request_table import RequestTable
from .server_process import NO_PROCESS, ProcessTimes

__all__ = ["NO_PROCESS", "Clients", "ProcessTimes", "RequestTable"]
