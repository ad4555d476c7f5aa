"""Take the README's picture: the top of the headline report, as a laptop shows it.

    python docs/images/screenshot.py

Needs Chromium and playwright (extra ``browser``); CHROMIUM names the program if it is not ``chromium``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import tspsim
from tspsim.report import write_report

TARGET = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1600, 1020


def main() -> None:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        write_report(tspsim.simulate("tsp-vs-tpsp-1024-mi300x"), page_file)
        browser = playwright.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector(".plot .trace", state="attached")
        page.screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    main()
