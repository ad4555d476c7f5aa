"""Requests as traffic draws them: arrivals, lengths, what prompts share, traces; the same from the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.scenario.traffic import TrafficSpec
from tspsim.traffic import ARRIVALS, LENGTHS, PREFIXES, PROTOCOLS, Arrivals, locate_trace, read_trace
from tspsim.traffic.kind import OneKind

MANY = 20_000
AZURE = "azure-2023-conv-1000"


def traffic(arrivals: Mapping[str, Any] | None = None, **more: Any) -> TrafficSpec:
    stated = {"arrivals": arrivals or {"kind": "closed", "concurrency": 4}, "prompt": 100, "output": 10, **more}
    return catalog.validate({key: value for key, value in stated.items() if value is not None}, TrafficSpec)


def gaps(arrivals: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    times = traffic(arrivals, requests=MANY).draw().arrival_s
    assert times is not None and times[0] == 0.0 and (np.diff(times) >= 0.0).all()
    return np.diff(times)


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    found = gaps({"kind": "poisson", "rate": "4 requests/s"})
    assert found.mean() == pytest.approx(0.25, rel=0.03)
    assert found.std() / found.mean() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("shape", [{"burstiness": 0.25}, {"cv": 2.0}])
def test_gamma_gaps_vary_as_stated(shape: Mapping[str, float]) -> None:
    found = gaps({"kind": "gamma", "rate": 10, **shape})
    assert found.mean() == pytest.approx(0.1, rel=0.06)
    assert found.std() / found.mean() == pytest.approx(2.0, rel=0.06)


def test_fixed_arrivals_are_equally_apart() -> None:
    assert gaps({"kind": "fixed", "rate": "120 requests/min"}) == pytest.approx(0.5)


def test_lengths_keep_to_their_ends() -> None:
    drawn = traffic(prompt={"kind": "uniform", "of": "1Ki", "from": 0.8}, requests=MANY).draw().prompt_tokens
    assert (drawn.min(), drawn.max()) == (819, 1024)
    assert drawn.mean() == pytest.approx((819 + 1024) / 2, rel=0.01)


def test_log_normal_lengths_have_the_median_and_the_mean_that_were_stated() -> None:
    lengths = {"kind": "lognormal", "median": 1020, "mean": 1155}
    drawn = traffic(prompt=lengths, requests=MANY).draw().prompt_tokens
    assert np.median(drawn) == pytest.approx(1020, rel=0.02)
    assert drawn.mean() == pytest.approx(1155, rel=0.02)
    capped = traffic(prompt={**lengths, "cap": 1500}, requests=MANY).draw().prompt_tokens
    assert capped.max() == 1500 and (np.minimum(drawn, 1500) == capped).all()


def test_a_log_normal_is_placed_by_mu_median_or_mean_alike() -> None:
    sigma = 0.7
    ways = [{"mu": math.log(200)}, {"median": 200}, {"mean": 200 * math.exp(sigma**2 / 2)}]
    drawn = [traffic(prompt={"kind": "lognormal", "sigma": sigma, **way}).draw().prompt_tokens for way in ways]
    assert all((each == drawn[0]).all() for each in drawn)


def test_a_mixture_has_as_much_of_each_part_as_its_weight() -> None:
    parts = [{"lengths": 10, "weight": 3}, {"lengths": 1000}]
    drawn = traffic(prompt={"kind": "mixture", "parts": parts}, requests=MANY).draw().prompt_tokens
    assert (drawn == 10).mean() == pytest.approx(0.75, abs=0.01)


def test_other_lengths_leave_arrivals_as_they_are() -> None:
    arrivals = {"kind": "poisson", "rate": 1}
    one, other = traffic(arrivals).draw(), traffic(arrivals, prompt={"kind": "uniform", "of": 50, "from": 0.1}).draw()
    assert (one.arrival_s == other.arrival_s).all()
    assert not (one.arrival_s == traffic(arrivals, seed=1).draw().arrival_s).all()


def test_a_turn_s_prompt_is_all_that_was_said() -> None:
    asked = traffic(prefix={"turns": 3, "think": "5 s"}, requests=7, prompt=100, output=20).draw()
    assert asked.prompt_tokens.tolist() == [100, 220, 340, 100, 220, 340, 100]
    first, second = asked.shared.blocks(0), asked.shared.blocks(1)
    # Turn by turn, with the answer, which engines keep as they keep prompts.
    assert second[: len(first)] == first and len(first) == 120 // asked.shared.block_tokens
    assert not set(asked.shared.blocks(3)) & set(second)
    assert [asked.shared.conversation(number) for number in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_shared_beginnings_are_as_long_as_their_share() -> None:
    asked = traffic(prefix={"share": 0.5, "groups": 2}, prompt=320, requests=100).draw()
    blocks = {asked.shared.blocks(number) for number in range(100)}
    assert len(blocks) == 2 and {len(each) for each in blocks} == {160 // asked.shared.block_tokens}


# --- traces ---------------------------------------------------------------------------------------------------


def test_the_shipped_sample_says_where_it_is_from() -> None:
    text = locate_trace(AZURE).read_text("utf-8")
    assert "CC-BY 4.0" in text and "Splitwise" in text
    trace = read_trace(AZURE)
    assert len(trace) == 1000 and trace.arrival_s[0] == 0.0
    assert trace.prompt_tokens.mean() == pytest.approx(1155, rel=0.1)


def test_a_trace_may_be_replayed_at_a_rate_of_its_own() -> None:
    asked = traffic({"kind": "trace", "file": AZURE, "rate": 8}, prompt=None, output=None).draw()
    assert asked.arrival_s is not None
    assert len(asked) / asked.arrival_s[-1] == pytest.approx(8, rel=0.01)
    own = traffic({"kind": "trace", "file": AZURE}, prompt=None, output=None).draw()
    assert own.arrival_s is not None and (np.diff(own.arrival_s) > 0).all()


AZURE_ROWS = ("2023-11-16 18:15:46.6805900,10,3", "2023-11-16 18:15:48.1805900,20,4")
AZURE_2024_ROWS = ("2024-05-10 02:00:00.500000+02:00,10,3", "2024-05-10 00:00:02+00:00,20,4")
BURST_ROWS = ("5,a,10,3,13,x", "6.5,a,20,4,24,x")
FORMS = {
    "plain": "arrival_s,prompt_tokens,output_tokens\n0,10,3\n1.5,20,4\n",
    "seconds": "timestamp_s,prompt_tokens,output_tokens,hash_ids\n0,10,3,0\n1.5,20,4,0 7\n",
    "azure": "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *AZURE_ROWS]),
    "azure 2024": "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *AZURE_2024_ROWS]),
    "burstgpt": "\n".join(["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *BURST_ROWS]),
}


def test_arrivals_need_a_column_of_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp_ms,prompt_tokens,output_tokens\n0,100,10\n500,100,10\n")
    with pytest.raises(InputError, match=r"no column of times .*timestamp_s of seconds"):
        traffic({"kind": "trace", "file": str(file)}, prompt=None, output=None).draw()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_trace_says_the_same(form: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"# where it is from\n{FORMS[form]}")
    trace = read_trace(str(file))
    assert np.diff(trace.arrival_s) == pytest.approx(1.5)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 20], [3, 4])


def test_mooncake_s_lines_have_milliseconds_and_block_hashes(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}]
    lines += [{"timestamp": 3000, "input_length": 1100, "output_length": 4, "hash_ids": [4, 5, 6]}]
    file.write_text("\n".join(str(line).replace("'", '"') for line in lines))
    asked = traffic({"kind": "trace", "file": str(file)}, prompt=None, output=None, prefix={"hash_ids": True}).draw()
    assert asked.arrival_s is not None and asked.arrival_s.tolist() == [0.0, 3.0]
    assert [asked.shared.blocks(number) for number in (0, 1)] == [(4,), (4, 5)]  # the last is not full


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("0,10,3\n1,,4\n", "line 3: prompt_tokens is missing; a trace has no holes"),
        ("0,10,3\n1,nan,4\n", "line 3: prompt_tokens 'nan' is not a number"),
        ("0,10,3\n1,20\n", "line 3 has 2 values for 3 columns"),
        ("0,10,3\n1,-20,4\n", "line 3: prompt_tokens -20 is negative"),
        ("2,10,3\n1,20,4\n", "line 3: arrival_s goes back"),
        ("", "has no rows"),
    ],
)
def test_a_trace_with_holes_is_refused_by_its_line(rows: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    with pytest.raises(InputError) as error:
        read_trace(str(file))
    assert told in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_no_known_form_is_told_the_forms(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"of no known form.*azure: TIMESTAMP"):
        read_trace(str(file))


def test_no_deviation_is_none_whatever_its_sign() -> None:
    prompt = {"kind": "lognormal", "median": 40, "sigma": -0.0}
    asked = traffic({"kind": "at_once"}, requests=3, prompt=prompt, prefix={
        "kind": "agents", "turns": 3, "tool": "1 s", "tool_sigma": -0.0,
    }).draw()  # fmt: skip
    assert asked.think_s.tolist() == [1.0] * 3 and len(set(asked.output_tokens.tolist())) == 1


# --- registered kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", [ARRIVALS, LENGTHS, PREFIXES, PROTOCOLS], ids=lambda registry: registry.what)
def test_every_kind_has_a_schema_and_keys_with_descriptions(registry: Any) -> None:
    listed = OneKind(registry).__get_pydantic_json_schema__({}, lambda schema: schema)["anyOf"]  # type: ignore[arg-type]
    assert [each["properties"]["kind"]["const"] for each in listed] == list(registry.names())
    assert all(kind.__doc__ for kind in registry.values())


def test_a_stranger_s_arrivals_are_read_told_and_drawn() -> None:
    class Twice(Arrivals):
        """Two requests at a time."""

        name = "twice"
        every: float = 1.0

        def times(self, random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
            return np.repeat(np.arange(-(-count // 2)) * self.every, 2)[:count]

        def in_words(self) -> str:
            return "two at a time"

    ARRIVALS.register(Twice)
    try:
        read = traffic({"kind": "twice", "every": 2}, requests=4)
        times = read.draw().arrival_s
        assert times is not None and times.tolist() == [0.0, 0.0, 2.0, 2.0]
        assert "Two at a time" in next(read.in_words("m"))
        assert read.model_dump(mode="json")["arrivals"] == {"kind": "twice", "every": 2.0}
    finally:
        ARRIVALS.remove("twice")


@pytest.mark.parametrize(
    ("protocol", "arrivals", "measured"),
    [
        ("plain", {"kind": "closed", "concurrency": 32}, 320),
        ("plain", {"kind": "closed", "concurrency": 1}, 100),
        ("inferencex", {"kind": "closed", "concurrency": 4}, 40),
        ("vllm_bench", {"kind": "poisson", "rate": 2}, 1000),
        ("mlperf_server", {"kind": "poisson", "rate": 20}, 12_000),
        ("mlperf_offline", {"kind": "at_once"}, 24_576),
        ("plain", {"kind": "trace", "file": AZURE}, 1000),
    ],
)
def test_a_protocol_sends_as_many_as_the_benchmark(protocol: str, arrivals: dict[str, Any], measured: int) -> None:
    asked = traffic(arrivals, protocol=protocol).draw()
    assert len(range(*asked.counted.indices(len(asked)))) == measured


def test_warm_up_is_left_out_where_it_leaves_nothing_behind() -> None:
    alone = traffic(protocol="inferencex").draw()
    shared = traffic(protocol="inferencex", prefix={"share": 0.5}).draw()
    assert (alone.warm_up, shared.warm_up, len(shared) - len(alone)) == (0, 8, 8)


def test_mlperf_bounds_are_those_of_the_model() -> None:
    read = traffic({"kind": "poisson", "rate": 4}, protocol="mlperf_interactive")
    assert read.bounds("llama-2-70b") == {"ttft": 0.45, "tpot": 0.04} and read.share == 0.99
    assert read.bounds("llama-3.2-1b") == {}


@pytest.mark.parametrize(("model", "samples"), [("llama-3.1-405b", 8_313), ("llama-2-70b", 24_576), ("tsp-8b", 24_576)])
def test_mlperf_offline_sends_the_samples_of_the_model_s_data_set(model: str, samples: int) -> None:
    asked = traffic({"kind": "at_once"}, protocol="mlperf_offline")
    assert len(asked.draw(load_model(model))) == samples
    assert len(asked.model_copy(update={"requests": 50}).draw(load_model(model))) == 50
