"""The rows of schemes-worth.md: one module a subject, in the order in which they stand there."""

from __future__ import annotations

from . import above, attention, experts, fabrics, lengths, sums, tiers

ENTRIES = (
    *attention.ENTRIES, *sums.ENTRIES, *experts.ENTRIES, *fabrics.ENTRIES, *lengths.ENTRIES, *tiers.ENTRIES,
    *above.ENTRIES,
)  # fmt: skip
