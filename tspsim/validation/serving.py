"""Served configurations: prediction comes with the request-level simulation."""

from __future__ import annotations

from .answers import unpredicted

#: Every row of published/inference.csv and published/serving_silicon.csv.
predict = unpredicted("serving not simulated yet")
