"""The contract that every registered object keeps, checked against one object: a third party's, or the package's own.

``tspsim check-plugin NAME`` and the package's own tests call the same laws. They hold without trust in the object:
bytes in closed form equal those of its program; ranks receive what they need; all work of the model is done; no lower
bound exceeds the engine's answer; memory names its parts; a folded run equals one of every rank; every request is
answered, and no token comes from nothing.
"""

from __future__ import annotations

from .check import Checked, check
from .findings import Finding
from .kinds import registries

__all__ = ["Checked", "Finding", "check", "registries"]
