"""Traffic on a clock: clients who send what a scenario asks, and remember what came of it."""

from __future__ import annotations

from .book import Book
from .clients import Clients

__all__ = ["Book", "Clients"]
