"""Take the studio's pictures for the README, docs/studio.md and docs/fleet.md, as a laptop and a phone show it.

    python docs/images/studio.py

Needs Chromium and the extras ``studio`` and ``browser``; CHROMIUM names the program if it is not ``chromium``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tspsim.studio.server import opened

HERE = Path(__file__).parent
FRESH = "() => document.querySelector('#answer')?.className === 'answer' && !document.querySelector('[data-changing]')"
FLEET = "() => document.querySelector('#answer .headline')?.textContent.includes('GPU-hours')"
PATIENCE_MS = 120_000


def asked(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#rate", timeout=PATIENCE_MS)
    page.wait_for_function(FRESH, timeout=PATIENCE_MS)


def changed(page: Any, before: str, after: str) -> None:
    page.fill("#yaml", page.input_value("#yaml").replace(before, after))
    page.wait_for_timeout(500)
    page.wait_for_function(FRESH, timeout=PATIENCE_MS)


def main() -> None:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        studio = opened(Path(folder), port=0)
        thread = threading.Thread(target=studio.run, daemon=True)
        thread.start()
        browser = playwright.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 880}, color_scheme="light")
        asked(page, studio.url)
        page.screenshot(path=HERE / "studio.png")
        link = page.url.partition("#")[2]
        page.click("#what-if summary")
        page.fill("#number", "workload.sequence")
        page.wait_for_selector("#curve-graph .js-line", timeout=PATIENCE_MS)
        page.wait_for_function("() => document.querySelector('#curve-told').textContent === ''", timeout=PATIENCE_MS)
        page.wait_for_timeout(1000)
        page.locator("#what-if").screenshot(path=HERE / "studio-what-if.png")
        page.click("#what-if summary")
        page.click("#pin")
        changed(page, "32Ki", "64Ki")
        page.click("#pin")
        page.wait_for_function("() => document.querySelector('#pinned').textContent.includes('first 2')")
        changed(page, "device: h100", "device: h200")
        page.click("#pin")
        page.wait_for_function("() => document.querySelector('#pinned').textContent.includes('first 3')")
        page.click("#pinned summary >> nth=0")
        page.wait_for_timeout(300)
        page.locator("#pinned").screenshot(path=HERE / "studio-pins.png")
        page.fill("#start", "fleet-neighbours-fat-tree")
        page.wait_for_function(FLEET, timeout=PATIENCE_MS)
        page.wait_for_function(FRESH, timeout=PATIENCE_MS)
        page.evaluate("() => scrollTo(0, 0)")
        page.click("#answer .headline summary")
        page.wait_for_timeout(1500)
        page.screenshot(path=HERE / "studio-fleet.png")
        small = browser.new_context(
            viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True, is_mobile=True
        ).new_page()
        asked(small, f"{studio.url}#{link}")
        small.evaluate("() => document.querySelector('#answer-title').scrollIntoView()")
        small.screenshot(path=HERE / "studio-phone.png")
        browser.close()
        studio.stop()
        thread.join(20.0)


if __name__ == "__main__":
    main()
