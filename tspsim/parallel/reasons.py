"""Reasons shared by several keys that a search over plans does not vary."""

from __future__ import annotations

ANOTHER_QUESTION = "another question"
ANOTHER_MODEL = "another model"
CHANGES_NUMBERS = "changes what is computed"
OF_THE_MACHINE = "a property of the machine"
OWN_KERNELS = "needs kernels that software seldom has"
AS_STATED = "searches of serving steps keep it as stated"
