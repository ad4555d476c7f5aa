"""Measured calls of one group (family, types, library) on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hardware.families import FAMILIES
from ..hardware.limits import DeviceLimits

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CallRows:
    """Calls of one group with their measured seconds."""

    machine: DeviceLimits
    family: str
    dtype: str
    second_dtype: str
    shape: Mapping[str, Any]
    measured: Any

    @classmethod
    def of(cls, machine: DeviceLimits, family: str, dtype: str, second_dtype: str, group: pd.DataFrame) -> CallRows:
        shape = {name: group[name].to_numpy(float) for name in FAMILIES[family].shape}
        return cls(machine, family, dtype, second_dtype, shape, group["time_us"].to_numpy(float) * 1e-6)

    def __getitem__(self, where: Any) -> CallRows:
        part = {name: column[where] for name, column in self.shape.items()}
        return replace(self, shape=part, measured=self.measured[where])

    def __len__(self) -> int:
        return len(self.measured)

    def seconds(self, switches: Mapping[str, Any], parameters: Mapping[str, float]) -> Any:
        model = FAMILIES[self.family]
        return model.seconds(self.machine, parameters, switches, self.shape, self.dtype, self.second_dtype)

    def residual(self, switches: Mapping[str, Any], parameters: Mapping[str, float]) -> Any:
        """Logarithm of predicted over measured."""
        return np.log(self.seconds(switches, parameters) / self.measured)
