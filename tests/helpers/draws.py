"""How many of a law's draws from fixed seeds are looked at: few in every run, all with ``-m slow``."""

from __future__ import annotations

import pytest


def draws(few: int, every: int) -> pytest.MarkDecorator:
    """A test's ``count``: the first few draws, and as a slow test all of them."""
    return pytest.mark.parametrize("count", [few, pytest.param(every, marks=pytest.mark.slow)])
