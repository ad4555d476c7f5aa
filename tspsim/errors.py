"""The exceptions that calls of this package raise: ``from tspsim.errors import InputError``."""

from .base.errors import (
    InfeasibleError,
    InputError,
    Interrupted,
    TspsimError,
    UnitError,
    UnknownNameError,
    UnreachableError,
)

__all__ = [
    "InfeasibleError",
    "InputError",
    "Interrupted",
    "TspsimError",
    "UnitError",
    "UnknownNameError",
    "UnreachableError",
]
