"""The page of a serving run: figures say what the requests and logs say, whatever the size of the run."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers import serving_runs as made
from hypothesis import given
from hypothesis import strategies as st

from tspsim.report.serving import compare_page, curves, engines, life, plans, shares, waits, ways, words
from tspsim.report.serving.page import page
from tspsim.report.serving.thinning import columns, edges, largest
from tspsim.report.serving.view import (
    DECODE,
    KINDS,
    MIXED,
    PREFILL,
    EngineView,
    LoadRun,
    Published,
    Requests,
    ServedView,
    ServingView,
    StepRuns,
    Transfers,
)  # fmt: skip

#: What a page may weigh beside the plotly bundle.
BESIDE_BYTES = 2_000_000


@pytest.fixture(scope="module")
def view() -> ServingView:
    return made.view(limit=(0.5, 0.015))


@pytest.fixture(scope="module")
def alone() -> ServingView:
    """One request, under one load."""
    return ServingView((ServedView(made.plan("TP8"), (made.run(1, count=1),), made.shares()),))


def rendered(view: ServingView) -> str:
    return page(view, made.result(view), "8 × MI355X", "plotly.min.js")


def choices(values: dict[str, Any] | None, figure: str) -> list[dict[str, Any]]:
    assert values is not None
    entry = values["figures"][figure]
    return list(entry["choices"]) if "choices" in entry else [entry]


# --- logs as columns of time --------------------------------------------------------------------------------


def log(gaps_s: list[float], lengths_s: list[float], kinds: list[int]) -> StepRuns:
    gaps, lengths = np.array(gaps_s), np.array(lengths_s)
    end = np.cumsum(gaps + lengths)
    count = np.arange(len(end))
    return StepRuns(end - lengths, end, np.ones_like(count), np.array(kinds), count + 1, count, count, 10.0 * count)


runs = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.floats(1e-3, 3.0), st.sampled_from(KINDS)),
    min_size=1, max_size=40,
)  # fmt: skip


def unpacked(value: dict[str, str]) -> np.ndarray:
    """What ``packed`` packed."""
    return np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]).newbyteorder("<"))


@given(runs, st.integers(1, 30))
def test_columns_keep_the_seconds_of_every_kind_and_the_queue_s_integral(
    drawn: list[tuple[float, float, int]], count: int
) -> None:
    steps = log(*(list(each) for each in zip(*drawn, strict=True)))
    at = np.linspace(0.0, float(steps.end_s[-1]), count + 1)
    cut, width = columns(steps, at), np.diff(at)
    length = steps.end_s - steps.start_s
    for kind, share in cut.share.items():
        assert (share * width).sum() == pytest.approx(length[steps.kind == kind].sum(), abs=1e-9)
    assert (cut.waiting * width).sum() == pytest.approx((steps.waiting * length).sum(), abs=1e-9)
    assert cut.most_waiting.max() == steps.waiting.max()
    assert (cut.waiting <= cut.most_waiting + 1e-9).all()


@given(runs, st.integers(1, 30))
def test_the_longest_queue_of_a_column_is_that_of_the_runs_in_it(
    drawn: list[tuple[float, float, int]], count: int
) -> None:
    steps = log(*(list(each) for each in zip(*drawn, strict=True)))
    at = np.linspace(0.0, float(steps.end_s[-1]), count + 1)
    found = largest(steps, steps.waiting.astype(float), at)
    for begin, end, height in zip(at[:-1], at[1:], found, strict=True):
        inside = (steps.start_s < end - 1e-9) & (steps.end_s > begin + 1e-9)
        assert height >= steps.waiting[inside].max(initial=0)


def test_few_runs_are_drawn_to_the_moment_and_many_in_even_columns() -> None:
    steps = log([0.5, 0.0, 1.0], [1.0, 1.0, 0.5], [PREFILL, MIXED, DECODE])
    assert edges([steps], 0.0, 4.0, 100).tolist() == [0.0, 0.5, 1.5, 2.5, 3.5, 4.0]
    assert len(edges([steps], 0.0, 4.0, 4)) == 5
    empty = steps.within(9.0, 10.0)
    assert not len(empty) and columns(empty, np.array([0.0, 1.0])).waiting.tolist() == [0.0]


# --- figures ------------------------------------------------------------------------------------------------


def test_the_engines_figure_adds_up_to_the_log(view: ServingView) -> None:
    run = view.served[0].runs[-1]
    steps = run.engines[0].steps
    drawn = engines.drawn(run, engines.Window("all", 0.0, run.end_s), 640)
    share = {t["name"]: unpacked(t["y"])[:-1] for t in drawn["data"] if t.get("stackgroup")}
    assert {"prefill alone", "prefill beside decode", "decode alone"} == set(share)
    for kind, words_ in engines.WORDS.items():
        mean = float(share[words_].mean()) / 100.0
        assert mean == pytest.approx(engines.busy(steps, kind) / run.end_s, abs=0.02)
    queue = next(t for t in drawn["data"] if t["name"] == "waiting")
    assert unpacked(queue["y"]).max() == pytest.approx(steps.waiting.max(), rel=0.05)


def test_windows_show_the_opening_and_the_longest_wait() -> None:
    served = made.served("A", (4,))
    run = served.runs[0]
    assert [each.words for each in engines.windows(run)][:1] == ["the whole run"]
    sparse = made.batched([0.0, 0.0, 0.0, 0.0, *np.linspace(30.0, 60.0, 20)])
    spaced = replace(run, requests=sparse[0], engines=(EngineView("TP8", sparse[1]),))
    found = engines.windows(spaced)
    assert [each.words for each in found] == ["the whole run", "its opening"]
    assert 0 < found[1].to_s < 0.1 * found[0].to_s


def test_many_engines_are_thinned_and_said_to_be() -> None:
    run = made.run(4)
    many = replace(run, engines=tuple(replace(run.engines[0], name=f"r{n}") for n in range(20)))
    drawn = engines.drawn(many, engines.Window("all", 0.0, run.end_s), 200)
    assert "8 of 20 engines" in drawn["layout"]["annotations"][0]["text"]
    rows = [key for key in drawn["layout"] if key.startswith("yaxis")]
    assert len(rows) == 8 + 2
    tops = [drawn["layout"][row]["domain"] for row in rows]
    assert all(upper[0] > lower[1] for upper, lower in pairwise(tops)), "rows do not overlap"


def test_transfers_have_a_row_of_their_own() -> None:
    run = made.run(4)
    start = np.array([1.0, 1.5])
    sent = replace(run, transfers=Transfers(np.array([0, 1]), start, start + 1.0))
    flying = engines.in_flight(sent, np.array([0.0, 1.0, 1.5, 2.0, 3.0]))
    assert flying == pytest.approx([0.0, 1.0, 2.0, 0.5])
    names = {t["name"] for t in engines.drawn(sent, engines.Window("all", 0.0, run.end_s), 300)["data"]}
    assert "caches on their way" in names


def test_caches_on_their_way_have_a_row_for_every_way() -> None:
    run = made.run(4)
    start, way = np.array([1.0, 1.5, 2.0]), np.array([0, 1, 0])
    sent = Transfers(
        np.array([0, 1, 2]), start, start + 0.5, (("prefill 0", "decode 0"), ("host", "decode 0")), way,
        np.array([1e9, 2e9, 3e9]), np.array([0.5, 0.0, 0.1]),
    )  # fmt: skip
    view = ServingView((ServedView(made.plan("1P1D"), (replace(run, transfers=sent),)),))
    values = ways.build(view)
    assert values is not None and [cells[:3] for _, cells in values["rows"]] == [
        ["prefill 0", "decode 0", "2"], ["host", "decode 0", "1"]
    ]  # fmt: skip
    (line,) = values["figures"]["serving-ways"]["data"]
    assert line["x"] == [0.0, 100.0, 500.0] and line["y"][-1] == 100.0  # ms, per cent
    assert "Cache transfers" in rendered(view)
    assert ways.build(ServingView((ServedView(made.plan("TP8"), (run,)),))) is None


def test_waits_go_from_nobody_to_everybody(view: ServingView) -> None:
    values = waits.build(view)
    for figure in ("ttft", "tpot"):
        assert [each["label"] for each in choices(values, figure)] == ["32 at once", "8 at once", "1 at once"]
        for trace in choices(values, figure)[0]["data"]:
            y = unpacked(trace["y"])
            assert y[0] == 0.0 and y[-1] == pytest.approx(100.0) and (np.diff(y) >= 0).all()
    run = view.served[0].at(32.0)
    assert run is not None and run.requests is not None
    first = next(t for t in choices(values, "ttft")[0]["data"] if t["name"] == "A")
    half = np.interp(50.0, unpacked(first["y"]), unpacked(first["x"]))
    assert half == pytest.approx(run.mean("ttft_s", "p50"), rel=0.05)


def test_the_front_joins_what_nothing_beats_and_curves_have_ranges_and_measured_points(view: ServingView) -> None:
    point = Published("A", 8.0, 70.0, 60.0, 0.9, 0.014, "a table")
    told = replace(view, published=(point,))
    values = curves.build(told)
    (front,) = choices(values, "serving-front")
    line = next(t for t in front["data"] if t["name"] == "no plan is faster and cheaper")
    pairs = list(zip(line["x"], line["y"], strict=True))
    every = [(x, y) for t in front["data"] if t["name"] in "AB" for x, y in zip(t["x"], t["y"], strict=True)]
    assert set(pairs) <= set(every)
    assert not any(x > a and y > b for a, b in pairs for x, y in every)
    assert any(t["name"] == "measured: A" for t in front["data"])
    titles = [each["label"] for each in choices(values, "serving-curves")]
    assert "time to the first token, mean (s)" in titles and "requests/s within the limits" in titles
    tpot = next(c for c in choices(values, "serving-curves") if c["label"] == "time an output token, mean (s)")
    assert tpot["layout"]["shapes"][0]["y0"] == 0.015
    assert sum(t.get("fill") == "toself" for t in tpot["data"]) == 2
    assert values is not None and values["sources"] == "a table" and len(values["rows"]) == 6


def test_a_life_is_told_from_sending_to_the_last_token(view: ServingView) -> None:
    run = view.served[0].runs[-1]
    assert run.requests is not None
    for place in life.lives(run.requests).values():
        parts = list(life.parts(run, place))
        assert [what for what, *_ in parts] == ["waits in the queue", "prompt is read", "tokens come"]
        fronted = list(life.parts(replace(run, front_end_s=1e-4), place))
        assert fronted[0][0] == "front end" and fronted[0][2] == fronted[1][1] <= parts[0][2]
        assert parts[0][1] == run.requests.arrival_s[place] and parts[-1][2] == run.requests.end_s[place]
        assert all(a[2] == b[1] for a, b in pairwise(parts))
        when, count, _ = life.tokens(run, place, run.engine_of(place))
        assert (np.diff(when) >= -1e-12).all() and (np.diff(count) >= 0).all()
        assert count[-1] == run.requests.output_tokens[place]
        assert len(when) > 10, "tokens are drawn step by step"


def test_a_request_that_was_put_back_puts_out_nothing_meanwhile() -> None:
    run = made.run(8)
    assert run.requests is not None
    place = 5
    requests, back = made.put_back(run.requests, run.engines[0].steps, place)
    away = (float(back.start_s[0]), float(back.end_s[0]))
    steps = run.engines[0].steps
    moments = life.emitted(steps, float(requests.first_token_s[place]), float(requests.end_s[place]), [away])
    assert len(moments) and not ((moments > away[0] + 1e-9) & (moments <= away[1])).any()
    shown = replace(run, requests=requests, preempted=back)
    assert "preempted, waits again" in {what for what, *_ in life.parts(shown, place)}
    assert list(life.lives(requests))[-1] == "most preemptions"
    assert "preempted 1 time." in life.sentence(shown, place)


def test_bars_of_steps_are_as_long_as_the_steps(view: ServingView) -> None:
    for figure in choices(shares.build(view), "step-shares"):
        bars = [t for t in figure["data"] if t["type"] == "bar"]
        assert sum(t["x"][0] for t in bars) == pytest.approx(5.7)


# --- words --------------------------------------------------------------------------------------------------


def test_the_answer_says_who_by_how_much_what_users_see_what_it_costs_and_what_limits(view: ServingView) -> None:
    best = view.ranked[0]
    head = words.headline(view)
    assert head.startswith(f"{best.name} serves most: ") and "requests/s within the limits" in head
    said = " ".join(words.sentences(view))
    for part in (
        "The first token comes after ", "99 of 100 within", "then one every ", " tokens/s per user.",
        "per million output tokens", "of the wait for a first token is in the queue",
        "Weights are read for every token.",
    ):  # fmt: skip
        assert part in said, part
    (ratio,) = words.ratios(view)
    mine, other = words.comparable(best.best, view.ranked[1].best)
    assert ratio["times"] == f"{mine / other:.2f}×"


def test_without_limits_the_rate_ranks_and_the_leader_changes_with_the_load() -> None:
    view = made.view()
    assert "within the limits" not in words.headline(view) and " per GPU), 32 at once" in words.headline(view)
    assert "Most of outputs, by requests at once: A from 1 to 8, B at 32." in list(words.sentences(view))
    assert any(text.startswith("With 1 at once A is quickest: a token every ") for text in words.sentences(view))


def test_full_caches_and_idle_engines_are_said(view: ServingView) -> None:
    run = view.served[0].runs[0]
    kv = {"peak_share": 0.995, "sessions": 3}
    assert "Caches were full" in " ".join(words.full(replace(run, metrics={**run.metrics, "kv": kv})))
    put_back = {**run.metrics, "preemptions": 7}
    assert "7 preemptions of 4 requests" in " ".join(words.full(replace(run, metrics=put_back)))
    requests, steps = made.batched([0.0, 30.0, 60.0])
    slow = replace(run, requests=requests, engines=(EngineView("TP8", steps),))
    assert "were idle for 9" in " ".join(words.engaged(slow))


# --- pages --------------------------------------------------------------------------------------------------


def test_a_page_has_all_parts_and_tables_beside_figures(view: ServingView) -> None:
    text = rendered(view)
    for heading in (
        "Plans", "Users against GPUs, over the load", "Waits of users", "Engines over time",
        "One request&#39;s life",
        "Time of a step by part", "Memory", "Assumptions and sources", "What the model does not explain",
    ):  # fmt: skip
        assert f">{heading}</h2>" in text, heading
    assert text.count("The same as a table") == 4
    assert "TP1 is refused: needs 402.1 GiB" in text


def test_one_request_has_a_page_without_empty_figures(alone: ServingView) -> None:
    text = rendered(alone)
    assert "Users against GPUs" not in text and 'id="figure-ttft"' not in text and 'id="figure-lives"' in text
    data = json.loads(text.split('id="report-data">')[1].split("</script>")[0])
    for name, figure in data["figures"].items():
        for choice in figure.get("choices", [figure]):
            assert choice["data"], name
    assert "The only request:" in text


def test_one_output_token_has_no_time_between_two() -> None:
    run = made.run(1, count=3, output=1)
    assert run.metrics["tpot_s"] is None
    view = ServingView((ServedView(made.plan("TP8"), (run,)),))
    assert "then one every" not in " ".join(words.sentences(view))
    text = rendered(view)
    assert 'id="figure-tpot"' not in text and 'id="figure-ttft"' in text and not re.search(r"\bnan\b", text)


def test_a_page_where_nothing_ran_says_why() -> None:
    view = ServingView((), (made.plan("TP1", error="needs 402.1 GiB of 192.0 GiB"),))
    text = rendered(view)
    assert "No plan fits or can run." in text and "TP1 is refused: needs 402.1 GiB of 192.0 GiB." in text


def test_names_from_outside_run_nothing() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    served = replace(made.served(evil, (1, 4)), plan=made.plan(evil))
    text = rendered(ServingView((served, made.served("B", (1, 4)))))
    assert evil not in text


def long_run(engines_count: int, count: int) -> LoadRun:
    """``count`` steps an engine, in kinds that change at every step."""
    kinds = np.arange(count) % 3
    end = np.arange(1, count + 1) * 0.01
    number = np.arange(count)
    used = number % 4096 * 1.0
    steps = StepRuns(end - 0.009, end, np.ones_like(number), kinds, number % 97, number % 1024, number % 61, used)
    people = 1_000_000
    arrival = np.linspace(0.0, end[-1] * 0.9, people)
    lengths = np.full(people, 100)
    none = np.zeros(people, dtype=np.int64)
    requests = Requests(arrival, arrival + 0.1, arrival + 0.3, arrival + 2.0, lengths, lengths, none, none)
    found = made.metrics(requests)
    return LoadRun(
        64.0, found, {}, requests, tuple(EngineView(f"replica {n}", steps, 4096.0) for n in range(engines_count))
    )


@pytest.mark.slow
def test_a_run_of_any_length_stays_within_two_megabytes() -> None:
    run = long_run(8, 200_000)
    plans_ = tuple(ServedView(made.plan(f"P{n}"), (replace(run, load=1.0), run), made.shares()) for n in range(6))
    text = rendered(ServingView(plans_))
    assert len(text.encode()) <= BESIDE_BYTES
    data = json.loads(text.split('id="report-data">')[1].split("</script>")[0])
    assert len(data["figures"]["engines"]["choices"]) >= 12


def test_tables_have_columns_that_somebody_has_a_value_for(view: ServingView) -> None:
    assert "Within the limits, requests/s" in plans.build(view)["columns"]
    built = plans.build(made.view())
    assert "Within the limits, requests/s" not in built["columns"] and "Preemptions" not in built["columns"]
    assert [row["name"] for row in built["rows"]] == ["B", "A"]


# --- offers side by side ------------------------------------------------------------------------------------


def offers() -> list[tuple[str, ServingView]]:
    """Of a dear machine that is quick and a cheap one that is slow."""

    def at(price: float, view: ServingView) -> ServingView:
        served = []
        for each in view.served:
            runs = []
            for run in each.runs:
                usd = {"rental": price / run.rate("output_tokens_per_s")}
                runs.append(replace(run, metrics={**run.metrics, "usd_per_million_output_tokens": usd}))
            served.append(replace(each, runs=tuple(runs)))
        return replace(view, served=tuple(served))

    quick = ServingView((made.served("TP8", (1, 8, 32), token_s=5e-3),))
    slow = ServingView((made.served("TP8", (1, 8, 32), token_s=9e-3),))
    return [("Dear", at(3000.0, quick)), ("Cheap", at(900.0, slow))]


def test_offers_are_compared_by_price_rate_and_speed() -> None:
    text = compare_page.page(offers(), [("terms", "Terms", "<p>{{ what }}</p>", {"what": "x"})], {}, title="both")
    assert "Cheap is cheapest: $" in text and "per million output tokens with TP8, 32 at once" in text
    view = compare_page.joined(offers())
    said = " ".join(compare_page.sentences(view, view.served[0].best))
    assert "Cheapest at equal load, by requests at once: Cheap from 1 to 32." in said
    assert "Quickest with 1 at once: TP8 on Dear, a token every " in said
    assert "Most per GPU: TP8 on Dear" in said
    (ratio,) = compare_page.answer(view, "", "", "")["ratios"]
    assert ratio["name"] == "Dear (TP8)" and float(ratio["times"].removesuffix("×")) > 1.0


def test_offers_without_prices_are_compared_by_rate() -> None:
    def free(view: ServingView) -> ServingView:
        unpriced = {"usd_per_million_output_tokens": {}}
        runs = tuple(replace(run, metrics={**run.metrics, **unpriced}) for run in view.served[0].runs)
        return replace(view, served=(replace(view.served[0], runs=runs),))

    view = compare_page.joined([(name, free(each)) for name, each in offers()])
    assert compare_page.answer(view, "", "", "")["headline"].startswith("TP8 on Dear serves most")


def test_what_a_front_end_takes_is_no_queue(view: ServingView) -> None:
    run = view.served[0].runs[-1]
    assert run.requests is not None
    wait_s = float((run.requests.first_scheduled_s - run.requests.arrival_s).max())
    assert run.queued_s(run.requests).max() == pytest.approx(wait_s)
    assert not list(words.queued(replace(run, front_end_s=wait_s)))
