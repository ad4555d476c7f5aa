"""What holds for every test, and a headless Chromium without a network, for reports opened from disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; no claim of these tests is about that.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser: CHROMIUM names its program, otherwise ``chromium`` on the path."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra 'browser')"
    )
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: install Debian's package or name the program in CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()
