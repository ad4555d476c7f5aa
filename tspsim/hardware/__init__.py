"""Devices: their facts, and the time of an operator on them (pure functions of shape; no clock)."""

from ..base.provenance import Provenance
from . import prices
from .device import Device, load_device
from .limits import Estimate
from .mixed import standing_for
from .pricers import pricer
from .prices import Costs

__all__ = ["Costs", "Device", "Estimate", "Provenance", "load_device", "pricer", "prices", "standing_for"]
