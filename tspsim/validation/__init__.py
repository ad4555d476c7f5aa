"""Predictions against measured tables, and devices fitted to them."""

from .run import Outcome, Validation, reference_folder, validate

__all__ = ["Outcome", "Validation", "reference_folder", "validate"]
