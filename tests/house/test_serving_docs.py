"""docs/serving.md and queues.md: scenarios do what the pages say, tables say what the package says now."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import documents

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_serving")


def committed(script: ModuleType, name: str) -> str:
    page = script.PAGE if name in script.TABLES else script.QUEUES
    (text,) = script.pages.block(name).findall(page.read_text(encoding="utf-8"))
    return str(text).rstrip("\n")


def check(script: ModuleType, name: str) -> None:
    """The same words, and numbers within a tenth or two units of their last digit: queues magnify what steps take."""
    stands, now = committed(script, name), script.QUEUE_TABLES[name]()
    assert NUMBER.sub("#", stands) == NUMBER.sub("#", now), "python docs/generate_serving.py"
    for old, new in zip(NUMBER.findall(stands), NUMBER.findall(now), strict=True):
        was, is_ = float(old.replace(",", "")), float(new.replace(",", ""))
        digit = 10.0 ** -len(old.partition(".")[2])
        assert abs(is_ - was) <= max(0.1 * was, 2 * digit) * (1 + 1e-9), f"python docs/generate_serving.py {name}"


def test_the_pages_have_every_table_and_picture(script: ModuleType) -> None:
    for page, tables in ((script.PAGE, script.TABLES), (script.QUEUES, script.QUEUE_TABLES)):
        assert set(re.findall(r"<!-- begin (\S+) -->", page.read_text(encoding="utf-8"))) == set(tables)
    text = script.QUEUES.read_text(encoding="utf-8")
    assert set(re.findall(r"images/serving-(\S+)\.svg", text)) == set(script.PICTURES)
    assert all((DOCS / "images" / f"serving-{name}.svg").stat().st_size < 60_000 for name in script.PICTURES)


@pytest.mark.parametrize("name", ["kinds", "schedulers"])
def test_everything_that_is_registered_is_listed(script: ModuleType, name: str) -> None:
    assert committed(script, name) == script.TABLES[name](), f"python docs/generate_serving.py {name}"


@pytest.mark.in_turn(2, group="pages")
def test_the_burst_of_a_closed_loop_is_a_tenth_of_ten_waves(script: ModuleType) -> None:
    requests, _ = script.told(script.one("burst"))
    first = requests.arrival_s <= 0.0
    assert first.sum() == 64 and len(requests) == 640
    assert requests.ttft_s[first].mean() > 10 * requests.ttft_s[~first].mean()
    assert requests.ttft_s.mean() > 2 * np.median(requests.ttft_s)


@pytest.mark.in_turn(2, group="pages")
def test_short_prompts_wait_for_long_ones_in_front(script: ModuleType) -> None:
    def mean_wait(*overrides: str) -> float:
        requests, _ = script.told(script.one("head-of-line", *overrides))
        short = requests.prompt_tokens <= 500
        return float((requests.first_scheduled_s - requests.arrival_s)[short].mean())

    assert mean_wait() > 4 * mean_wait("traffic.prompt.cap=500")
    check(script, "head-of-line")


@pytest.mark.in_turn(2, group="pages")
def test_a_short_cache_preempts_by_the_hundred_or_stands_half_empty(script: ModuleType) -> None:
    preempts, reserves = script.asked("storm").served
    assert preempts.runs[0].rate("preemptions") == 0
    assert preempts.runs[-1].rate("preemptions") > 240
    assert all(run.rate("preemptions") == 0 for run in reserves.runs)
    assert max(run.metrics["kv"]["peak_share"] for run in reserves.runs) < 0.9
    assert preempts.runs[-1].mean("tpot_s") > 1.3 * preempts.runs[0].mean("tpot_s")
    check(script, "storm")


@pytest.mark.in_turn(2, group="pages")
def test_beyond_the_highest_rate_a_first_token_s_wait_is_how_long_somebody_measured(script: ModuleType) -> None:
    rates = "traffic.arrivals.rate=[2, 14]"
    short, long = (script.asked("cliff", rates, f"traffic.requests={count}").served[0].runs for count in (250, 1000))
    below, above = 0, 1
    assert long[below].mean("ttft_s") == pytest.approx(short[below].mean("ttft_s"), rel=0.1)
    assert long[above].mean("ttft_s") > 4 * short[above].mean("ttft_s")
    assert long[above].rate("requests_per_s") < 0.9 * long[above].load


@pytest.mark.slow
def test_replicas_in_lock_step_lose_most_where_requests_are_uneven(script: ModuleType) -> None:
    def ratio(sigma: float) -> float:
        replicas, one = (served.runs[0].rate("output_tokens_per_s") for served in script.uneven(sigma).served)
        return float(replicas / one)

    assert ratio(0.0) > 0.9 and ratio(0.5) < 0.75


@pytest.mark.slow
def test_prefill_and_decode_part_where_tokens_must_be_even(script: ModuleType) -> None:
    both, parted = script.asked("crossover").served

    def most(served: object, token_s: float) -> float:
        return max(script.kept(run, token_s) for run in served.runs)  # type: ignore[attr-defined]

    assert most(parted, 0.015) > 1.5 * most(both, 0.015)
    assert most(both, 0.06) > 1.2 * most(parted, 0.06)
    check(script, "crossover")
