"""The studio as a person meets it: in Chromium, from an empty folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import studio as helper
from helpers.keys import walked
from helpers.studio import PATIENCE_MS, Tab

from tspsim.api import schema
from tspsim.cli import main
from tspsim.studio import link, values

pytestmark = pytest.mark.browser
pytest.importorskip("dash", reason="dash is not installed (extra 'studio')")

Open = Callable[..., Tab]
SERVED = """\
name: served
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, stack: vllm}
traffic:
  arrivals: {kind: closed, concurrency: [1, 4, 16]}
  prompt: {kind: fixed, of: 256}
  output: {kind: fixed, of: 32}
  requests: 24
plans: [{name: TP8, tp: 8}]
"""
#: Types into several fields while the page is busy: it hears of all of them in one.
TYPED_AT_ONCE = """fields => {
    for (const [field, text] of Object.entries(fields)) {
        const input = document.querySelector(field);
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, text);
        input.dispatchEvent(new Event('input', {bubbles: true}));
    }
    const began = performance.now();
    while (performance.now() < began + 300); }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def studio(folder: Path) -> Iterator[Any]:
    with helper.running(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def opened(chromium: Any, studio: Any) -> Iterator[Open]:
    with helper.tabs(chromium, studio) as open_tab:
        yield open_tab


@pytest.fixture
def tab(opened: Open) -> Iterator[Tab]:
    """A page of its own, with the first question answered and no pins, for tests that end it or what answers it."""
    own = opened()
    yield own
    own.page.context.close()


@pytest.fixture(scope="module")
def walked_tab(opened: Open) -> tuple[Tab, str]:
    """One page for several tests, and the question it opened on."""
    own = opened()
    return own, own.yaml


@pytest.fixture
def same_tab(walked_tab: tuple[Tab, str]) -> Tab:
    """That page on its first question again: answered, without pins, with all parts closed that open by a click."""
    own, first = walked_tab
    page = own.page
    if own.yaml != first:
        page.evaluate("link => { location.hash = link; }", link.fragment(link.State(first, "first.yaml", "")))
        page.wait_for_function("text => document.querySelector('#yaml').value === text", arg=first, timeout=PATIENCE_MS)
        own.drawn().fresh()
    for left in reversed(range(own.pins())):
        page.click("#pinned [id*='\"unpin\"'] >> nth=0")
        own.pinned(left)
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = false)")
    return own


def serious(page: Any) -> list[tuple[str, str]]:
    """What axe-core finds that keeps somebody out."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="extra 'browser' is not installed")
    found = axe.Axe().run(page).response["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]


def test_from_an_empty_folder_to_a_file_that_the_command_answers_to_the_same_bytes(
    same_tab: Tab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = same_tab
    page = tab.page
    before = page.inner_text("#rate")
    page.fill(tab.field("workload/sequence"), "64Ki")
    tab.says("64Ki").fresh()
    assert page.inner_text("#rate") != before
    page.click('[id*=\'"path":"plans"\'][id*="add"]')
    tab.says("new-4").shows("#level-title", "new-4")
    page.fill(tab.field("plans/3/name"), "SP8")
    page.click("#form details.more summary")
    page.fill(tab.field("plans/3/sp"), "8")
    tab.says("{name: SP8, sp: 8}").shows("#answer table", "SP8").fresh()
    page.click("#keep summary")
    page.click("#save")
    tab.shows("#saved", "saved first.yaml")
    page.click("#save-json")
    tab.shows("#saved", "saved first.json")
    page.click("#save")
    tab.shows("#saved", "Replace it?")
    page.click("#leave")
    tab.shows("#saved", "left as it was")
    monkeypatch.chdir(folder)
    assert main(["run", "first.yaml", "--json", "again.json"]) == 0
    assert Path("again.json").read_bytes() == Path("first.json").read_bytes()
    rates = {plan["name"]: plan["tokens_per_s"] for plan in json.loads(Path("again.json").read_text())["plans"]}
    assert set(rates) == {"TP8", "TP4-SP2", "TSP8", "SP8"}
    command = page.text_content("#command")
    assert command is not None and command.startswith("cat > first.yaml") and "tspsim run first.yaml" in command


def test_form_and_text_follow_each_other_and_what_is_wrong_is_marked(same_tab: Tab) -> None:
    tab = same_tab
    page = tab.page
    tab.type("32Ki", "16Ki").says("16Ki").fresh()
    assert page.input_value(tab.field("workload/sequence")) == "16Ki"
    tab.type("tp: 4", "tp: 5")
    tab.shows("#problem", "line 6: first.yaml: plans.TP4-SP2")
    assert "▶6" in page.inner_text("#lines") and "stale" in page.get_attribute("#answer", "class")
    page.wait_for_selector('.row.wrong[data-path="plans/1"]', timeout=PATIENCE_MS)  # the form hears of it by itself
    page.click("#mend button")  # it stands in another section than the form shows
    tab.shows("#level-title", "TP4-SP2")
    page.click("nav button >> nth=0")
    tab.shows("#level-title", "question")
    tab.type("tp: 5", "tp: 4").fresh()
    assert page.inner_text("#problem") == "" and page.query_selector(".row.wrong") is None
    tab.type("pass: forward", "pass: [")
    tab.shows("#problem", "is not valid YAML")
    tab.type("pass: [", "pass: forward").fresh()
    page.evaluate(TYPED_AT_ONCE, {tab.field("name"): "both", tab.field("workload/sequence"): "24Ki"})
    tab.says("name: both").says("sequence: 24Ki").fresh()
    page.focus(tab.field("cluster/device"))
    page.keyboard.type("mi300x", delay=60)  # the form is drawn anew while somebody types
    tab.says("device: mi300x").fresh()
    assert page.input_value(tab.field("cluster/device")) == "mi300x"


@pytest.mark.slow
def test_back_forward_reload_and_the_link_open_the_same_question(tab: Tab, opened: Open) -> None:
    page = tab.page
    tab.set("workload/sequence", "16Ki").set("workload/sequence", "8Ki")
    rate = page.inner_text("#rate")
    page.go_back()
    tab.says("16Ki").fresh()
    page.go_forward()
    tab.says("sequence: 8Ki").fresh()
    assert page.inner_text("#rate") == rate
    page.click("#pin")
    tab.shows("#pinned", "SP8" if "SP8" in tab.yaml else "first")
    page.reload()
    page.wait_for_selector("#rate", timeout=PATIENCE_MS)
    assert "sequence: 8Ki" in tab.fresh().yaml and page.inner_text("#rate") == rate
    tab.shows("#pinned", "first")
    other = opened("#" + page.url.partition("#")[2])
    assert other.yaml == tab.yaml and other.page.inner_text("#rate") == rate
    other.type("8Ki", "4Ki").says("sequence: 4Ki").fresh()
    assert "sequence: 8Ki" in tab.yaml and page.inner_text("#rate") == rate
    assert other.name != tab.name
    other.page.context.close()


def test_pins_stand_side_by_side_and_a_number_slides(same_tab: Tab) -> None:
    tab = same_tab
    page = tab.page
    before = tab.set("workload/sequence", "8Ki").pins()
    page.click("#pin")
    tab.pinned(before + 1)
    page.click("#what-if summary")
    page.fill("#number", "workload.sequence")
    tab.shows("#slide-name", "workload.sequence: 8Ki")
    page.wait_for_selector("#curve-graph .js-line", timeout=PATIENCE_MS)
    page.focus("#slide [role=slider]")
    page.keyboard.press("ArrowRight")
    tab.says("sequence: 12Ki").shows("#slide-name", "12Ki").fresh()
    page.click("#pin")
    tab.pinned(before + 2)
    text = page.inner_text("#pinned")
    assert "nine times of ten" in text and "×" in text
    page.click("#pinned summary >> nth=-1")
    tab.shows("#pinned pre", "12Ki")
    page.click("#answer details.why summary")
    assert "Nine times of ten" in page.inner_text("#answer details.why[open]")


def test_the_keyboard_alone_asks_and_reads(same_tab: Tab) -> None:
    tab = same_tab
    page = tab.page
    page.reload()
    page.wait_for_selector("#rate", timeout=PATIENCE_MS)
    tab.fresh()

    def reach(told: str, key: str = "Tab") -> None:
        for _ in range(120):
            page.keyboard.press(key)
            if page.evaluate(f"() => (({told})(document.activeElement))"):
                return
        raise AssertionError(f"the keyboard does not reach {told}")

    reach("each => each.id === 'skip'")
    reach("each => each.id.includes('workload/sequence')")
    page.keyboard.press("Control+a")
    page.keyboard.type("20Ki")
    tab.says("sequence: 20Ki").fresh()
    reach("each => each.id.includes('\"plans/0\"') && each.className === 'open'")
    page.keyboard.press("Enter")
    tab.shows("#level-title", "TP8")
    reach("each => each.id === 'yaml'")
    reach("each => each.tagName === 'SUMMARY' && each.textContent === 'why?'")
    page.keyboard.press("Enter")
    assert page.query_selector("#answer details.why[open]") is not None
    before = tab.pins()
    reach("each => each.id === 'pin'", "Shift+Tab")
    page.keyboard.press("Space")
    tab.pinned(before + 1)


def test_nobody_is_kept_out_wide_or_narrow_light_or_dark(same_tab: Tab, opened: Open) -> None:
    page = same_tab.page
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
    assert serious(page) == []
    small = opened("#" + page.url.partition("#")[2], width=390, scheme="dark").page
    assert small.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    ground = small.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, ground[4:-1].split(","))) < 150
    assert serious(small) == []
    small.context.close()


def test_what_takes_long_is_cancelled_and_what_dies_is_told(tab: Tab, studio: Any) -> None:
    page, long = tab.page, SERVED.replace("requests: 24", "requests: 200000")
    before = tab.yaml
    page.fill("#yaml", long)
    page.wait_for_selector("#cancel:not([hidden])", timeout=PATIENCE_MS)
    assert "stale" in page.get_attribute("#answer", "class") and "answering" in page.inner_text("#status")
    page.click("#cancel")
    tab.shows("#status", "cancelled")
    page.click("#again")
    page.wait_for_selector("#cancel:not([hidden])", timeout=PATIENCE_MS)
    os.kill(studio.desks.processes()[tab.name]["front"], 9)
    tab.shows("#problem", "ended from outside (signal 9)")
    page.fill("#yaml", before)
    tab.says(before).fresh()
    name = tab.name
    front = studio.desks.processes()[name]["front"]
    page.goto("about:blank")  # its processes end with it
    for _ in range(1000):
        if name not in studio.desks.processes() and not Path(f"/proc/{front}").exists():
            break
        page.wait_for_timeout(50)
    assert name not in studio.desks.processes() and not Path(f"/proc/{front}").exists()


@pytest.mark.slow
def test_own_files_and_shipped_scenarios_begin_a_question(tab: Tab, folder: Path) -> None:
    page = tab.page
    (folder / "mine.yaml").write_text(SERVED, encoding="utf-8")
    page.reload()
    page.wait_for_selector("#rate", timeout=PATIENCE_MS)
    page.wait_for_selector("#offered-scenarios option[value='mine.yaml']", state="attached", timeout=PATIENCE_MS)
    page.fill("#start", "mine.yaml")
    tab.says("name: served").shows("#load-name", "concurrency 1").fresh()
    page.focus("#load [role=slider]")
    page.keyboard.press("End")
    tab.shows("#load-name", "concurrency 16").shows("#at-load", "first token after")
    page.wait_for_selector("#load-graph .js-line", timeout=PATIENCE_MS)
    page.fill("#start", "tsp-8x-h100")
    tab.says("name: tsp-8x-h100").fresh()
    assert (page.text_content("#command") or "").startswith("tspsim run tsp-8x-h100")


@pytest.mark.slow
def test_a_plan_that_is_found_joins_and_a_purchase_is_a_table(opened: Open) -> None:
    tab = opened()
    page = tab.page
    page.click("#planner summary")
    page.fill("#budget", "3 s")
    page.click("#search")
    page.wait_for_selector(".found li button", timeout=PATIENCE_MS)
    name = page.inner_text(".found li strong >> nth=0")
    page.click(".found li button >> nth=0")
    tab.says(f"name: {name}").fresh()
    assert name in page.inner_text("#answer table")
    offers = (
        "offers:\n  - {name: A, cluster: {device: h100, nodes: 1}}\n  - {name: B, cluster: {device: h200, nodes: 1}}\n"
    )
    page.fill("#yaml", tab.yaml + offers)
    page.wait_for_selector("#purchase:not([hidden])", timeout=PATIENCE_MS)
    tab.fresh()
    page.click("#purchase summary")
    page.click("#compare")
    tab.shows("#offers", "h200")
    for row in ("A", "B"):
        assert page.query_selector(f"#offers tr th:text-is('{row}')") is not None
    page.click("#keep summary")
    page.click("#save-pins")
    tab.shows("#saved", "saved reports/pins.html")
    page.context.close()


@pytest.mark.slow
def test_a_fleet_is_asked_and_changed_and_kept(opened: Open) -> None:
    tab = opened()
    page = tab.page
    page.fill("#start", "fleet-neighbours-fat-tree")
    tab.says("name: fleet-neighbours-fat-tree").shows("#answer .headline", "of all GPU-hours").fresh()
    before = page.inner_text("#answer .headline")
    page.wait_for_selector("#answer .js-line, #answer .js-plotly-plot", timeout=PATIENCE_MS)
    tab.go("jobs").shows("#level-title", "jobs").go("jobs/0")
    tab.set("jobs/0/hours", "6 h")
    assert page.inner_text("#answer .headline") != before
    page.click("#pin")
    tab.pinned(1).shows("#pinned", "all jobs")
    assert "tspsim run fleet-neighbours-fat-tree --set" in (page.text_content("#command") or "")
    assert serious(page) == []
    page.context.close()


@pytest.mark.slow
def test_a_restart_of_the_server_keeps_the_question(chromium: Any, tmp_path: Path) -> None:
    with helper.running(tmp_path) as first:
        port = int(first.address.rstrip("/").rpartition(":")[2])
        context = chromium.new_context()
        tab = Tab(context.new_page())
        tab.page.goto(first.url)
        tab.page.wait_for_selector("#rate", timeout=PATIENCE_MS)
        tab.fresh().type("32Ki", "8Ki").says("8Ki").fresh()
    with helper.running(tmp_path, port=port):
        tab.type("8Ki", "4Ki").says("4Ki").fresh()
        tab.page.reload()
        tab.page.wait_for_selector("#rate", timeout=PATIENCE_MS)
        assert "4Ki" in tab.fresh().yaml
        context.close()


#: What tells a question of a sort from others.
BEGUN: dict[str, dict[str, Any]] = {"scenario": {}, "fleet": {"jobs": []}}


@pytest.mark.slow
@pytest.mark.parametrize("sort", BEGUN)
def test_every_key_of_the_schema_has_its_control_on_the_page(opened: Open, sort: str) -> None:
    """The walk is that of tests/studio, along the schema; every kind of every section is opened in the browser."""
    tab, seen, opened_at = opened(), set(), 0
    for path, name, data in walked(schema(sort)):
        kinds = [each.get("kind") if isinstance(each, dict) else type(each).__name__ for each in along(data, path)]
        if (values.path([*path, name]), str(kinds)) in seen:
            continue
        opened_at += 1
        asked = f"walk {opened_at}."
        told = {**BEGUN[sort], **data, "name": asked}
        state = link.State(values.dumped(told), "walk.yaml", values.path(path))
        tab.page.evaluate("link => { location.hash = link; }", link.fragment(state))
        tab.says(asked).drawn()
        shown = tab.page.eval_on_selector_all("[data-path]", "rows => rows.map(each => each.dataset.path)")
        assert values.path([*path, name]) in shown, (path, name, data)
        seen |= {(each, str(kinds)) for each in shown}
    assert len(seen) > 500
    tab.page.context.close()


def along(data: Any, path: list[str]) -> list[Any]:
    """What stands at every place on the way to a section, itself included."""
    return [values.get(data, path[:depth]) for depth in range(len(path) + 1)]
