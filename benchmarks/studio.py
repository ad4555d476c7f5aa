"""From a change in the studio's page to the new figure, in Chromium; and what fifty changes leave in memory.

    python benchmarks/studio.py [--changes 20] [--json FILE]

Needs Chromium and the extras ``studio`` and ``browser``. A change is a key stroke in the text of the question; the
clock is the page's own and runs until the headline shows another rate. Beside it stand the seconds of processors that
server and workers took. On a machine that does other things too, ``chrt -r 1 python benchmarks/studio.py`` gives what
idle cores give: the others wait.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tspsim.studio.server import opened

NODE = """\
name: node
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, pass: forward, sequence: 8192}
plans: [{name: TP8, tp: 8}, {name: TP4-SP2, tp: 4, sp: 2}, {name: TSP8, tsp: 8}]
"""
THOUSAND = """\
name: thousand
cluster: {device: mi300x, nodes: 128, fabric: rails-400g}
workload: {model: tsp-8b, pass: forward, sequence: 8192}
plans: [{name: TSP8, tsp: 8}, {name: TP8, tp: 8}, {name: TP4-SP2, tp: 4, sp: 2}, {name: TP2-SP4, tp: 2, sp: 4}]
"""
SERVED = """\
name: served
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, stack: vllm}
traffic:
  arrivals: {kind: closed, concurrency: 64}
  prompt: {kind: fixed, of: 8192}
  output: {kind: fixed, of: 128}
  requests: 2000
plans: [{name: TP8, tp: 8}]
"""
QUESTIONS = {"one node, three plans": NODE, "1,024 GPUs, four plans": THOUSAND, "2,000 requests served": SERVED}
#: Fills the text as a person does, and waits for another rate; returns milliseconds.
CHANGE = """([text]) => new Promise((done, failed) => {
    const rate = () => document.querySelector('#rate')?.textContent, before = rate();
    const area = document.querySelector('#yaml'), began = performance.now();
    const watch = new MutationObserver(() => {
        if (rate() !== before) { watch.disconnect(); done(performance.now() - began); } });
    watch.observe(document.querySelector('#answer'), {childList: true, subtree: true, characterData: true});
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value').set.call(area, text);
    area.dispatchEvent(new Event('input', {bubbles: true}));
    setTimeout(() => failed(new Error('no new figure')), 120000); })"""
FRESH = "() => document.querySelector('#answer').className === 'answer'"
#: Milliseconds that a page rests before it is changed again: what it draws behind an answer is no part of the next one.
REST_MS = 400


def processes(studio: Any) -> list[int]:
    """This process, and those of all tabs."""
    lanes = [lane for desk in studio.desks.processes().values() for lane in desk.values()]
    return [os.getpid(), *(pid for pid in lanes if pid)]


def resident_bytes(studio: Any) -> int:
    """Memory of server and workers, shared pages once a process."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes(studio))
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_s(studio: Any) -> tuple[float, float]:
    """Seconds of processors of the server, and of its workers."""
    spent = []
    for pid in processes(studio):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return spent[0], sum(spent[1:])


def measure(page: Any, studio: Any, text: str, changes: int) -> dict[str, float]:
    """Times of a number of changes of the length, after two that warm everything up."""
    times, server_s, workers_s = [], 0.0, 0.0
    for number in range(changes + 2):
        changed = text.replace("8192", str(8192 + 256 * (number + 1)))
        before = processor_s(studio)
        took = page.evaluate(CHANGE, [changed])
        page.wait_for_function(FRESH, timeout=120_000)
        page.wait_for_timeout(REST_MS)
        if number >= 2:
            times.append(took / 1e3)
            server_s, workers_s = (
                spent + now - then
                for spent, now, then in zip((server_s, workers_s), processor_s(studio), before, strict=True)
            )
    times.sort()
    at_95 = times[min(len(times) - 1, round(0.95 * (len(times) - 1)))]
    return {
        "median_s": statistics.median(times),
        "p95_s": at_95,
        "server_processor_s": server_s / changes,
        "workers_processor_s": workers_s / changes,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--changes", type=int, default=20)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        studio = opened(Path(folder), port=0)
        thread = threading.Thread(target=studio.run, daemon=True)
        thread.start()
        browser = playwright.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(studio.url)
        page.wait_for_selector("#rate", timeout=120_000)
        for name, text in QUESTIONS.items():
            told[name] = measure(page, studio, text, given.changes)
            shown = ", ".join(f"{key} {value:.3f}" for key, value in told[name].items())
            print(f"{name}: {shown}", flush=True)
        measure(page, studio, NODE, 3)
        before = resident_bytes(studio)
        measure(page, studio, NODE, 48)
        after = resident_bytes(studio)
        told["memory"] = {"before_bytes": before, "after_bytes": after, "ratio": after / before}
        print(
            f"memory: {before / 2**20:.0f} MiB before 50 changes, {after / 2**20:.0f} after, {after / before:.3f} times"
        )
        browser.close()
        studio.stop()
        thread.join(20.0)
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
