"""Devices: their facts, and what one operator costs on them (pure functions of shape; no clock)."""

from .device import Device, Estimate, Provenance, load_device

__all__ = ["Device", "Estimate", "Provenance", "load_device"]
