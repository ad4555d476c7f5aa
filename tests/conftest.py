"""What holds for every test, and a headless Chromium without a network, for reports opened from disk."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; no claim of these tests is about that. Examples are
# drawn anew in every run, so that few a run are many over the runs, and fewer where a run is on several processors.
EXAMPLES = 20 if os.environ.get("PYTEST_XDIST_TESTRUNUID") else 30
settings.register_profile(
    "any machine", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


class WithoutStudio:
    """The studio's modules hold no doctests that could be read without its extra; every other module has to import."""

    @staticmethod
    def pytest_ignore_collect(collection_path: Path) -> bool | None:
        return True if collection_path.parts[-2:] == ("tspsim", "studio") else None


def pytest_configure(config: pytest.Config) -> None:
    """A plugin of its own: what stands in this file is asked of tests alone, not of the package."""
    if importlib.util.find_spec("dash") is None:
        config.pluginmanager.register(WithoutStudio())


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker imports its share of the test modules first: what one has compiled, the next only reads.

    All of them collect in the same order, so that in a new checkout every one would compile every module.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    asked = [Path(name.split("::")[0]).resolve() for name in session.config.args]
    modules = [path for path in sorted(Path(__file__).parent.glob("*/test_*.py")) if {path, *path.parents} & {*asked}]
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # told when it is collected
            if str(path.parent) not in sys.path:
                sys.path.insert(0, str(path.parent))  # as pytest will
            importlib.import_module(path.stem)


#: While modules are imported and tests collected everything stays: the garbage collector would look for nothing.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before slow tests are deselected."""
    from helpers.draws import mark_left_out

    mark_left_out(items)


#: Objects kept before the collector looks for cycles: some gigabytes. Walking through what caches keep took a tenth of
#: the suite's processor time, and freed less than a gigabyte of a worker's.
COLLECT_AFTER = 50_000_000


def pytest_collection_finish() -> None:
    """What all modules hold stays until the end: the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    gc.enable()
    atexit.register(gc.freeze)  # all memory is freed then


@pytest.fixture
def apart() -> Iterator[None]:
    """For tests that change the package: clusters know nothing of what others asked, nor others what is asked here."""
    from helpers.engine import make_anew

    make_anew()
    yield
    make_anew()


#: Parts of Chromium that pages have no use for: what pops up below its address bar are two more pages for each of ours.
WITHOUT = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # What playwright leaves out too: a list that is stated replaces its own.
    "AimEnabled",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
)
#: A page lives for seconds here: what V8 would compile for speed is not worth its compilation.
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    f"--disable-features={','.join(WITHOUT)}",
    "--js-flags=--no-opt",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser: CHROMIUM names its program, otherwise ``chromium`` on the path."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'browser')")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: install Debian's package or name the program in CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; when the test ends, the pages must have complained of nothing and asked for nothing outside."""
    with visits(chromium) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def visit_once(chromium: Any) -> Iterator[Callable[..., Any]]:
    """The same for a page that several tests share, which leave it as they need it not."""
    with visits(chromium) as open_page:
        yield open_page


@contextlib.contextmanager
def visits(chromium: Any) -> Iterator[Callable[..., Any]]:
    complaints: list[str] = []
    requests: list[str] = []
    contexts: list[Any] = []

    def open_page(path: Path, width: int = 1600, scheme: str = "light", drawn: bool = True) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            has_touch=width < 600,
            is_mobile=width < 600,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        if drawn:
            page.wait_for_selector("html[data-drawn]", timeout=20_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
