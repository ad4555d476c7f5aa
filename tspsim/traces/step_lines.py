"""Step lines of any program: a line that states the number of a step and, with its unit, the step's time.

nanoGPT (*iter 100: loss 2.3, time 250.12ms*), nanochat and llm.c (*step 10/100 | … dt: 512.34ms*), LitGPT (*iter time:
250 ms*), nanotron (*elapsed_time_per_iteration_ms: 4.71K*) and the loggers of MLPerf's submissions are of this form.
Where a line has rates instead, the time is what they give: Composer's batches a second, Picotron's tokens a second over
the tokens of a batch, LLaMA-Factory's elapsed time between two lines, MLPerf's samples a second over the global batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_NUMBER = r"(?P<{0}>\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)(?P<{0}_times>(?-i:[KMB]?))"
_TIMES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0}
_UNIT = r"us|ms|secs?|seconds?|s"
_STEP = re.compile(
    r"(?:^|[\s\[|>])(?:global[_ ]?step|train[_ ]?step|steps?|iter(?:ation)?s?|batch)\s*[:=#]?\s*(?P<step>\d+)\b",
    re.IGNORECASE,
)
#: What a line calls the time of a step. The bare words need a unit; what stands before them may make them another time.
_TIME = re.compile(
    r"(?P<what>elapsed[ _]time[ _]per[ _]iteration|step[ _]?(?:time|timing|duration)|iter(?:ation)?[ _]?tim(?:e|ing)"
    r"|time[ _]per[ _](?:step|iter(?:ation)?)|sec(?:onds)?[ _]per[ _](?:step|iter(?:ation)?)|\bdt|\btime)"
    rf"\s*[_ (]*(?P<unit_before>{_UNIT})?\)?\s*(?:in (?P<unit_in>{_UNIT}))?\s*[:=]?\s*"
    + _NUMBER.format("time")
    + rf"\s*(?P<unit>{_UNIT})?(?![\w.])",
    re.IGNORECASE,
)
_BARE = ("dt", "time")
#: Times of a step's parts, of a run, and of what is no step.
_OTHER = re.compile(
    r"\b(total|eval\w*|val\w*|forward|backward|fwd|bwd|data\w*|load\w*|save|checkpoint|remaining|elapsed|optimizer|wall)"
    r"[ _/-]*$",
    re.IGNORECASE,
)
#: llm.c: a column of its own.
_COLUMN = re.compile(r"\|\s*(?P<time>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)\s*\|")
_BATCHES = re.compile(r"throughput/batches_per_sec:\s*(?P<rate>\d+(?:\.\d+)?)")
_TOKENS = re.compile(
    r"\bglobal batch size:\s*" + _NUMBER.format("batch") + r".*?\btokens/s:\s*" + _NUMBER.format("rate"), re.IGNORECASE
)
_MLPERF = re.compile(r":::MLLOG\s+(\{.*\})")
_FACTORY = re.compile(
    r'"current_steps": (?P<step>\d+).*?"elapsed_time": "(?:(?P<days>\d+) days?, )?(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"'
)


_RATES = "single times of steps: lines have rates, whose inverse stands here"


@dataclass(frozen=True)
class StepLine:
    """A step of a log: its number, its time (0: not stated), and a rate that the line states."""

    number: int
    seconds: float
    rate: float = 0.0


def step_lines(lines: Iterable[str]) -> tuple[list[StepLine], str]:
    """The steps of a log, and what their times are where they are no measured ones."""
    lines = list(lines)
    for steps, note in (
        (_timed(lines), ""),
        (_by_rates(lines), _RATES),
        (_by_clock(lines), "single steps: the time between two lines is shared by their steps"),
        (_of_mlperf(lines), "times of steps: MLPerf's lines have samples a second (`value`) and no global batch"),
    ):
        listed = list(steps)
        if listed:
            return listed, note if listed[0].seconds == 0.0 or not listed[0].rate else _RATES
    return [], ""


def _number(match: re.Match[str], name: str) -> float:
    return float(match[name].replace(",", "")) * _TIMES[match[f"{name}_times"].upper()]


def _timed(lines: list[str]) -> Iterator[StepLine]:
    for line in lines:
        if ":::MLLOG" in line:
            continue
        step = _STEP.search(line)
        seconds = _seconds(line, numbered=step is not None)
        if seconds is not None:
            yield StepLine(int(step["step"]) if step is not None else -1, seconds)


def _seconds(line: str, numbered: bool) -> float | None:
    for match in _TIME.finditer(line):
        unit = match["unit_before"] or match["unit_in"] or match["unit"]
        bare = match["what"].lower() in _BARE
        if (bare and (unit is None or not numbered)) or _OTHER.search(line[: match.start()]):
            continue
        return _number(match, "time") * _SECONDS[(unit or "s").lower()]
    column = _COLUMN.search(line) if numbered else None
    return float(column["time"]) * _SECONDS[column["unit"]] if column is not None else None


def _by_rates(lines: list[str]) -> Iterator[StepLine]:
    number = -1
    for line in lines:
        step = _STEP.search(line)
        number = int(step["step"]) if step is not None else number
        if (batches := _BATCHES.search(line)) and float(batches["rate"]):
            yield StepLine(number, 1.0 / float(batches["rate"]))
        elif step is not None and (tokens := _TOKENS.search(line)) and (rate := _number(tokens, "rate")):
            yield StepLine(number, _number(tokens, "batch") / rate, rate)


def _by_clock(lines: list[str]) -> Iterator[StepLine]:
    marks = []
    for line in lines:
        if match := _FACTORY.search(line):
            hours = 24 * int(match["days"] or 0) + int(match["h"])
            marks.append((int(match["step"]), 3600.0 * hours + 60.0 * int(match["m"]) + int(match["s"])))
    for (before, then), (number, now) in pairwise(marks):
        if number > before and now > then:
            yield StepLine(number, (now - then) / (number - before))


def _of_mlperf(lines: list[str]) -> Iterator[StepLine]:
    batch = 0.0
    for line in lines:
        match = _MLPERF.search(line)
        if match is None:
            continue
        try:
            entry = json.loads(match[1])
        except (ValueError, RecursionError):
            continue
        value, beside = entry.get("value"), entry.get("metadata") or {}
        if entry.get("key") == "global_batch_size" and isinstance(value, int | float):
            batch = float(value)
        if not isinstance(value, dict) or not isinstance(beside, dict):
            continue
        rate = value.get("throughput")
        seconds = value.get("train_step_time", value.get("train_step_timing"))
        number = beside.get("step", beside.get("samples_count", -1))
        number = number if isinstance(number, int) else -1
        if isinstance(seconds, int | float):
            yield StepLine(number, float(seconds))
        elif isinstance(rate, int | float) and rate > 0:
            yield StepLine(number, batch / rate, float(rate))
