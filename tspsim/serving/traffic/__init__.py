"""Traffic on a clock: clients that send a scenario's requests, and a table of the results."""

from __future__ import annotations

from .book import Book
from .clients import Clients

__all__ = ["Book", "Clients"]
