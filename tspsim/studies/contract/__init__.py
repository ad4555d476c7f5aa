"""The contract that everything registered keeps, held against one object: somebody's, or the package's own.

``tspsim check-plugin NAME`` and the package's own tests call the same laws. What can be known without trusting the
object is: its bytes in closed form are those of the program it writes; ranks receive what they cannot do without; all
work of the model is done; no lower bound lies above the engine's answer; memory names what it keeps; a folded run and
one of every rank are the same; requests are all answered, and no token is computed out of nothing.
"""

from __future__ import annotations

from .check import Checked, check
from .findings import Finding
from .kinds import registries

__all__ = ["Checked", "Finding", "check", "registries"]
