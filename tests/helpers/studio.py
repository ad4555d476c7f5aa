"""A studio for tests, and tabs of it that keep an account of what they ask for and complain of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What is shown is the answer of what stands in the form.
FRESH = """() => { const answer = document.querySelector('#answer');
    return answer && answer.className === 'answer' && !answer.hasAttribute('data-changing')
        && document.querySelector('#form').getAttribute('aria-busy') !== 'true'; }"""
PATIENCE_MS = 90_000
QUESTION = """\
name: small
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, pass: forward, sequence: 4Ki}
plans: [{name: TP8, tp: 8}]
"""
FLEET = """\
name: several
cluster: {device: h100, nodes: 4, fabric: rails-400g}
jobs:
  - name: train
    nodes: 2
    steps: 1000
    workload: {model: llama-3.1-8b, pass: training, sequence: 4Ki}
    plan: {tp: 8}
  - {name: other, hours: 3 h, nodes: 4}
"""


class Tab:
    """A page of the studio."""

    def __init__(self, page: Any) -> None:
        self.page = page

    @property
    def yaml(self) -> str:
        return str(self.page.input_value("#yaml"))

    @property
    def name(self) -> str:
        """How the server calls this tab."""
        return str(self.page.get_attribute("main", "data-tab"))

    def fresh(self) -> Tab:
        """Wait until the answer is that of the question."""
        self.page.wait_for_function(FRESH, timeout=PATIENCE_MS)
        return self

    def says(self, text: str) -> Tab:
        """Wait until the question says something."""
        told = "text => document.querySelector('#yaml').value.includes(text)"
        self.page.wait_for_function(told, arg=text, timeout=PATIENCE_MS)
        return self

    def shows(self, place: str, text: str) -> Tab:
        """Wait until an element shows a text."""
        told = "([place, text]) => (document.querySelector(place)?.textContent || '').includes(text)"
        self.page.wait_for_function(told, arg=[place, text], timeout=PATIENCE_MS)
        return self

    def drawn(self) -> Tab:
        """Wait until the form is that of the text."""
        told = "() => document.querySelector('#form').getAttribute('aria-busy') === 'false'"
        self.page.wait_for_function(told, timeout=PATIENCE_MS)
        return self

    def type(self, before: str, after: str) -> Tab:
        """Change the question in its text."""
        self.page.fill("#yaml", self.yaml.replace(before, after))
        return self

    def set(self, path: str, value: str) -> Tab:
        """Write a key in its control and wait for the answer."""
        self.page.fill(self.field(path), value)
        return self.says(f"{path.rpartition('/')[2]}: {value}").fresh()

    def pins(self) -> int:
        """How many answers are pinned."""
        return int(self.page.locator("#pinned [id*='\"unpin\"']").count())

    def pinned(self, count: int) -> Tab:
        """Wait until so many answers are pinned."""
        told = "count => document.querySelectorAll('#pinned [id*=\"unpin\"]').length === count"
        self.page.wait_for_function(told, arg=count, timeout=PATIENCE_MS)
        return self

    def field(self, path: str) -> str:
        """The selector of a key's control."""
        return f'[id=\'{{"path":"{path}","type":"field"}}\']'

    def go(self, path: str) -> Tab:
        """Open a section by its button."""
        self.page.click(f'[id=\'{{"path":"{path}","type":"go"}}\']')
        return self


@contextlib.contextmanager
def running(folder: Path, start: str | None = None, port: int = 0) -> Iterator[Any]:
    """A studio of a folder that answers meanwhile."""
    from tspsim.studio.server import opened

    studio = opened(folder, start, port=port)
    thread = threading.Thread(target=studio.run, daemon=True)
    thread.start()
    yield studio
    studio.stop()
    thread.join(20.0)


@contextlib.contextmanager
def tabs(chromium: Any, studio: Any) -> Iterator[Any]:
    """Opens pages; in the end none may have complained, nor asked anybody but the studio for anything."""
    complaints: list[str] = []
    strangers: list[str] = []
    contexts: list[Any] = []

    def open_tab(link: str = "", width: int = 1400, scheme: str = "light", context: Any = None) -> Tab:
        if context is None:
            small = width < 600
            context = chromium.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=small, is_mobile=small
            )
            contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: _strange(request.url, studio.address, strangers))
        page.goto(studio.url + link)
        page.wait_for_selector("#rate", timeout=PATIENCE_MS)
        return Tab(page).fresh()

    yield open_tab
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []


def _strange(url: str, address: str, strangers: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        strangers.append(url)
