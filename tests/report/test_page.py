"""The HTML report: the answer, escaping, what it weighs, and that it needs nothing but itself."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reports as fixtures
from helpers.processes import said_in_any_process

from tspsim.report import render, write_report
from tspsim.report.gantt import BUDGET_BYTES, MOST_RANKS, choose, pack, shares
from tspsim.report.sections import SECTIONS, batches, breakeven, caches, fabric, iteration, roofline
from tspsim.report.sections.breakdown import parts
from tspsim.report.view import LayerShape, View
from tspsim.step.result import RankClass, Result

SHARED_BUNDLE = "plotly.min.js"


class Page(HTMLParser):
    """What a browser would see: texts of elements, attributes, and scripts by their type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside: str = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> Any:
        return next(json.loads(text) for attrs, text in self.scripts if attrs.get("type") == "application/json")


def page(result: Result) -> Page:
    return Page(render(result, SHARED_BUNDLE))


def test_the_answer_comes_first() -> None:
    text = page(fixtures.result()).text
    headline = text.index("TSP8 is fastest: 8.78 M tokens/s")
    assert headline < text.index("Attention takes 56% of the step's compute.") < text.index("Tokens/s per GPU")
    assert re.search(r"1\.25× TP4-SP2 1\.26× TP2-SP4 1\.35× TP8", text)
    assert "likely 7.55 M to 9.93 M" in text
    assert "SP8 is refused: needs 206.0 GiB of 192.0" in text


def test_plans_stand_fastest_first_with_a_switch_and_a_refused_one_has_its_reason() -> None:
    text = page(fixtures.result()).text
    table = text[text.index("Rates, memory and cost of every plan") :]
    places = [table.index(f" {name} ") for name in ("TSP8", "TP4-SP2", "TP2-SP4", "TP8", "SP8")]
    assert places == sorted(places)
    told = page(fixtures.result())
    rows = [attrs["data-place"] for tag, attrs in told.tags if "data-place" in attrs]
    ranked = ["0", "2", "3", "1", "4"]
    assert rows == [*ranked, *ranked[:4], *ranked[:4], *ranked]  # plans, where the time goes, links, memory
    figures = told.data["figures"]
    for key in ("rates-model", "rates-block", "breakdown", "volume"):
        assert figures[key]["layout"]["yaxis"]["ticktext"] == ["TSP8", "TP4-SP2", "TP2-SP4", "TP8"]
        assert figures[key]["layout"]["meta"]["rows"] == [0, 2, 3, 1]  # where the scenario has them
    assert figures["memory"]["layout"]["meta"]["rows"] == [0, 2, 3, 1, 4]
    assert "refused: needs 206.0 GiB" in table


def test_every_section_is_there_when_the_result_has_everything() -> None:
    others = batches.SECTION, caches.SECTION, iteration.SECTION, roofline.SECTION
    keys = [section.key for section in SECTIONS if section not in others]
    found = [attrs.get("id") for tag, attrs in page(fixtures.result()).tags if tag == "section"]
    assert found == keys


def test_when_no_plan_runs_the_page_says_so_and_shows_memory() -> None:
    refused = page(fixtures.result(plans=(fixtures.plan(4),)))
    assert "No plan fits or can run." in refused.text
    assert "memory" in refused.data["figures"]
    assert "rates-model" not in refused.data["figures"]


def test_one_plan_without_rivals_has_no_ratio() -> None:
    text = page(fixtures.result(plans=(fixtures.plan(0),))).text
    assert "TSP8 runs: 8.78 M tokens/s" in text
    assert "1.00×" not in text


def test_texts_from_yaml_never_become_markup_or_script() -> None:
    text = render(fixtures.hostile_result(), SHARED_BUNDLE)
    assert "<script>alert(1)" not in text
    seen = Page(text)
    assert [tag for tag, _ in seen.tags].count("title") == 1
    scripts = [attrs for attrs, _ in seen.scripts]
    assert len(scripts) == 4  # the data, the bundle's address, the two scripts of the page
    assert fixtures.HOSTILE in seen.text
    assert not any("<" in text for attrs, text in seen.scripts if attrs.get("type") == "application/json")


def test_figures_get_texts_escaped_for_plotlys_own_markup() -> None:
    figures = json.dumps(page(fixtures.hostile_result()).data["figures"], ensure_ascii=False)
    choices = re.sub(r'"label": "(?:[^"\\]|\\.)*"', "", figures)  # options of a select are set as plain text
    assert "<script>" not in choices
    assert "&lt;script&gt;" in choices


def test_the_page_asks_for_nothing_outside_itself() -> None:
    text = render(fixtures.result())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1] or "default-src 'none'" in policy[1]
    seen = Page(text)
    assert not [attrs for _, attrs in seen.tags if attrs.get("src")]
    assert not [attrs for tag, attrs in seen.tags if tag in ("link", "iframe", "img", "base", "object")]
    assert all(str(attrs.get("href")).startswith("#") for tag, attrs in seen.tags if tag == "a")


def test_a_gallery_page_shares_one_bundle() -> None:
    text = render(fixtures.result(), "../plotly.min.js")
    assert '<script src="../plotly.min.js">' in text
    assert len(text) < 2e6


def test_the_same_result_gives_the_same_bytes_in_any_process() -> None:
    code = (
        "import hashlib; from helpers import reports as f; from tspsim.report import render; "
        "print(hashlib.sha256(render(f.result(layers=2), 'p.js').encode()).hexdigest())"
    )
    assert len(said_in_any_process(code).strip()) == 64


def test_a_thousand_ranks_fit_six_megabytes_and_ten_seconds(tmp_path: Path) -> None:
    from plotly.offline import get_plotlyjs

    result = fixtures.result(ranks=list(range(1024)))
    assert sum(len(plan.timeline) for plan in result.plans if plan.timeline is not None) > 5_000_000
    began = time.process_time()  # of this process: what else the machine does is not the page's time
    write_report(result, tmp_path / "report.html")
    assert time.process_time() - began < 10
    beside = (tmp_path / "report.html").stat().st_size - len(get_plotlyjs().encode())
    assert beside < 6e6


def decoded(packed: dict[str, Any]) -> dict[str, Any]:
    """What the page's script makes of a packed timeline."""

    def column(name: str, kind: str) -> Any:
        return np.frombuffer(base64.b64decode(packed[name]), dtype=kind)

    gap, duration = column("gap", "<f4").astype(float), column("duration", "<f4").astype(float)
    start, end = np.zeros(packed["rows"]), np.zeros(packed["rows"])
    for track in packed["tracks"]:
        clock = 0.0
        for row in range(track["first"], track["first"] + track["count"]):
            start[row] = clock + gap[row]
            clock = end[row] = start[row] + duration[row]
    label = column("label", "<u4" if packed["wide"] else "<u2")
    return {"start": start, "end": end, "label": label, "layer": column("layer", "<i2")}


def test_packed_timelines_say_what_the_timeline_says() -> None:
    result = fixtures.result()
    plan = result.plans[0]
    packed = pack(View(result), plan, BUDGET_BYTES)
    frame = result.timeline("TSP8")
    columns = decoded(packed)
    texts, table = packed["labels"]["texts"], packed["labels"]
    at = 0
    for track in packed["tracks"]:
        rank = packed["ranks"][track["rank"]]["rank"]
        rows = frame[(frame["rank"] == rank) & (frame["stream"] == packed["streams"][track["stream"]])]
        part = slice(track["first"], track["first"] + track["count"])
        assert track["first"] == at
        at += track["count"]
        np.testing.assert_allclose(columns["start"][part], rows["start_s"], atol=1e-6 * plan.step_time_s)
        np.testing.assert_allclose(columns["end"][part], rows["end_s"], atol=1e-6 * plan.step_time_s)
        np.testing.assert_array_equal(columns["layer"][part], rows["layer"])
        assert [texts[table["name"][index]] for index in columns["label"][part]] == list(rows["name"])
        assert [texts[table["shape"][index]] for index in columns["label"][part]] == list(rows["shape"])
        np.testing.assert_allclose([table["flops"][index] for index in columns["label"][part]], rows["flops"], 1e-6)
    assert at == packed["rows"] == len(frame)
    assert len(table["name"]) < 100, "labels that differ only by their layer are one"


def test_layers_of_the_first_rank_are_marked_in_order() -> None:
    result = fixtures.result()
    packed = pack(View(result), result.plans[0], BUDGET_BYTES)
    assert [visit[0] for visit in packed["layers"]] == list(range(32))
    assert all(start < end for _, start, end in packed["layers"])


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("budget_bytes", [400_000, 60_000, 20_000])
def test_a_budget_drops_ranks_first_and_then_the_end_and_says_so(budget_bytes: int) -> None:
    result = fixtures.result(ranks=list(range(64)))
    packed = pack(View(result), result.plans[0], budget_bytes)
    assert len(json.dumps(packed)) <= budget_bytes + 100
    assert packed["simulated"] == 64
    assert 1 <= len(packed["ranks"]) <= MOST_RANKS
    assert not packed["cut"] or len(packed["ranks"]) == 1
    assert packed["cut"] == (packed["until"] < 0.99 * float(np.max(result.timeline("TSP8")["end_s"])))


def test_chosen_ranks_are_one_of_every_role_and_then_evenly_apart() -> None:
    two = (RankClass(7, 50, "a"), RankClass(50, 50, "b"))
    assert choose(np.arange(4), two, 16) == [0, 1, 2, 3]
    assert choose(np.arange(100), two, 4) == [0, 7, 50, 51]
    # Every rank simulated: the eight positions of a group come before further replicas.
    alone = [RankClass(rank, 1, f"tsp{rank % 8}") for rank in range(1024)]
    assert choose(np.arange(1024), alone, 16)[:8] == list(range(8))
    assert {rank % 8 for rank in choose(np.arange(1024), alone, 16)[8:]} != {0}
    assert len(choose(np.arange(1024), alone, 4)) == 4


def test_shares_of_a_rank_add_up_to_one_and_overlap_counts_once() -> None:
    result = fixtures.result()
    plan = result.plans[0]
    assert plan.timeline is not None
    ranks, part = shares(plan.timeline, plan.step_time_s)
    assert list(ranks) == list(range(8))
    np.testing.assert_allclose(part["compute"] + part["communication"] + part["idle"], 1.0)
    frame = result.timeline("TSP8")
    computing = frame[(frame["rank"] == 0) & (frame["stream"] == "compute")]
    busy = float((computing["end_s"] - computing["start_s"]).sum())
    assert part["compute"][0] == pytest.approx(busy / plan.step_time_s)
    # In this plan every exchange runs beside computing.
    assert part["communication"][0] == pytest.approx(0.0, abs=1e-9)


def test_breakdown_bars_add_up_to_the_step() -> None:
    for plan in fixtures.result().plans[:4]:
        assert sum(parts(plan).values()) == pytest.approx(plan.step_time_s)


# The break-even map --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [1024, 4096, 12288])
def test_tsp_moves_fewer_bytes_than_tp_exactly_when_bs_exceeds_8h(hidden: int) -> None:
    shape = LayerShape(hidden, hidden, 1.0, 4.0 * hidden, 3)
    limit = breakeven.threshold(shape, 8, 8, 1)
    assert limit == pytest.approx(8 * hidden)
    assert breakeven.volume(shape, 8 * hidden, 8) == pytest.approx(breakeven.rival_volume(shape, 8 * hidden, 8, 1))
    assert breakeven.volume(shape, 8 * hidden + 1, 8) < breakeven.rival_volume(shape, 8 * hidden + 1, 8, 1)
    assert breakeven.volume(shape, 8 * hidden - 1, 8) > breakeven.rival_volume(shape, 8 * hidden - 1, 8, 1)


def test_with_grouped_queries_the_threshold_is_the_published_formula() -> None:
    hidden, group, ratio = 4096.0, 4.0, 3.5
    shape = LayerShape(hidden, hidden, group, ratio * hidden, 3)
    formula = ((2 + 2 / group) + 3 * ratio) * hidden / (4 - 2 / group)
    assert breakeven.threshold(shape, 8, 8, 1) == pytest.approx(formula)
    assert round(formula / hidden, 2) == 3.71
    # Against TP and SP together (Llama-3.1-8B): 41,415 and 186 thousand tokens; without grouping never.
    assert round(breakeven.threshold(shape, 8, 4, 2) or 0) == 41_415
    assert round((breakeven.threshold(shape, 8, 2, 4) or 0) / 1000) == 186
    assert breakeven.threshold(LayerShape(hidden, hidden, 1.0, 4 * hidden, 3), 8, 4, 2) is None


@pytest.mark.parametrize(("tensor", "sequence", "mebibytes"), [(8, 1, 3584), (1, 8, 1792), (2, 4, 1280), (4, 2, 1792)])
def test_closed_volumes_are_those_of_the_published_table(tensor: int, sequence: int, mebibytes: int) -> None:
    shape = LayerShape(4096, 4096, 1.0, 16384, 3)
    assert 2 * breakeven.rival_volume(shape, 131072, tensor, sequence) / 2**20 == pytest.approx(mebibytes)
    assert 2 * breakeven.volume(shape, 131072, 8) / 2**20 == pytest.approx(2240)


def test_the_map_has_the_scenarios_point_and_its_line() -> None:
    figure = page(fixtures.result()).data["figures"]["breakeven"]["choices"][0]
    heat, line, point = figure["data"]
    assert (point["x"], point["y"]) == ([131072], [4096])
    assert all(x == pytest.approx(8 * y) for x, y in zip(line["x"], line["y"], strict=True))
    column = [row[0] for row in heat["z"]]
    assert column == sorted(column), "at a fixed B·S a wider model moves more weights"


def test_without_a_model_or_a_tsp_plan_there_is_no_map() -> None:
    assert breakeven.build(View(fixtures.result(scenario={"name": "x", "workload": {"sequence": 1024}}))) is None
    assert breakeven.build(View(fixtures.result(plans=(fixtures.plan(1),)))) is None


# The fabric ----------------------------------------------------------------------------------------------


def test_gpus_stand_on_a_circle_switches_inside_and_the_fabric_outside() -> None:
    edges = [(str(gpu), "switch0") for gpu in range(8)]
    edges += [(str(gpu), f"nic{gpu}") for gpu in range(8)] + [(f"nic{gpu}", f"leaf{gpu}") for gpu in range(8)]
    place = fabric.positions(edges)
    radius = {name: math.hypot(*point) for name, point in place.items()}
    assert radius["switch0"] < 0.01
    assert all(radius[str(gpu)] == pytest.approx(1.0) for gpu in range(8))
    assert all(1.0 < radius[f"nic{gpu}"] < radius[f"leaf{gpu}"] for gpu in range(8))
    assert len({(round(x, 3), round(y, 3)) for x, y in place.values()}) == len(place), "no two in one place"


def test_spines_that_hang_on_every_leaf_do_not_fall_together() -> None:
    edges = [(str(gpu), f"leaf{gpu % 2}") for gpu in range(2)]
    edges += [(f"leaf{leaf}", f"spine{spine}") for leaf in range(2) for spine in range(4)]
    place = fabric.positions(edges)
    assert len({(round(x, 3), round(y, 3)) for x, y in place.values()}) == len(place)


def test_of_many_nodes_only_the_first_is_drawn_with_what_hangs_on_it() -> None:
    mesh = [(str(a), str(b), 0.1) for a in range(16) for b in range(16) if a != b and a // 8 == b // 8]
    rails = [link for gpu in range(16) for link in ((str(gpu), f"nic{gpu}", 0.0), (f"nic{gpu}", f"leaf{gpu % 8}", 0.0))]
    kept = fabric.first_node(tuple(mesh + rails), 8)
    vertices = {vertex for source, target, _ in kept for vertex in (source, target)}
    expected = {str(gpu) for gpu in range(8)}
    expected |= {f"nic{gpu}" for gpu in range(8)} | {f"leaf{gpu}" for gpu in range(8)}
    assert vertices == expected


def test_every_link_can_be_pointed_at_in_both_directions() -> None:
    result = fixtures.result()
    figure = page(result).data["figures"]["fabric"]["choices"][0]
    texts = [text for trace in figure["data"] for text in trace.get("hovertext", [])]
    assert len([text for text in texts if "→" in text]) == len(result.plans[0].link_shares)
    assert "0 → 1<br>32.3 % of capacity" in texts
