"""Predictions against measured tables, and devices fitted to them."""

from .run import TableOutcome, Validation, reference_folder, validate

__all__ = ["TableOutcome", "Validation", "reference_folder", "validate"]
