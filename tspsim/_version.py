"""The one place of the version: metadata of the package, command line and kept answers read it here."""

from __future__ import annotations

__version__ = "0.1.0"
