"""Logs of training frameworks and engines: times of whole steps. A row is a step (kind ``step``).

The lines are those of Megatron-LM ``training.py`` (*elapsed time per iteration (ms)*; *(s)* in Megatron-DeepSpeed),
torchtitan ``metrics.py`` (*step: … tps: …*), NeMo (*train_step_timing in s*), DeepSpeed's timers (*iter time (s)*,
*global_step=… CurrSamplesPerSec=…*), MaxText (*completed step: … seconds: …*), verl (*timing_s/step*), progress bars
and the summary of Hugging Face's Trainer and Lightning, vLLM with ``--enable-logging-iteration-details``, its periodic
*Avg generation throughput*, and SGLang's *Decode batch*. Of other programs :mod:`.step_lines` finds the steps.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from ..base.errors import InputError
from .kinds import STEP
from .pieces import Ending, chunks, opened
from .reader import TRACE_READERS, FilePart, TraceReader
from .step_lines import step_lines
from .table import Rows

#: The largest log that is read, in bytes.
LARGEST = 1 << 28
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_MEGATRON = re.compile(
    r"\biteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \((?P<unit>ms|s)\):\s*(?P<time>[\d.]+)"
)
_BATCH = re.compile(r"global batch size:\s*(\d+)")
_FLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\):\s*([\d.]+)")
_TITAN = re.compile(r"\bstep:\s*(?P<step>\d+)\s.*?\b(?:tps|wps):\s*(?P<tps>[\d,.]+)")
_NEMO = re.compile(r"(?:global_step[:=]\s*(?P<step>[\d.]+).*?)?train_step_timing in s[:=]\s*(?P<s>[\d.]+)")
_NEMO_BATCH = re.compile(r"global_batch_size:\s*(\d+)")
_VLLM = re.compile(
    r"Iteration\((?P<step>\d+)\):\s+(?P<prompts>\d+)\s+context requests,\s+(?P<tokens>\d+)\s+context tokens,\s+"
    r"(?P<rows>\d+)\s+generation requests,\s+(?P<generated>\d+)\s+generation tokens,\s+"
    r"iteration elapsed time:\s+(?P<ms>[\d.]+)\s+ms"
)
#: DeepSpeed: a timer of the pipeline engine, and one with rates, between whose time stamps the steps are.
_DEEPSPEED = re.compile(r"\bsteps:\s*(?P<step>\d+)\s+loss:.*?iter time \(s\):\s*(?P<s>[\d.]+)")
_DEEPSPEED_RATE = re.compile(r"(?:global_step=|\b\d+/)(?P<step>\d+), (?:RunningAvg)?SamplesPerSec=(?P<rate>[\d.]+)")
_MAXTEXT = re.compile(r"completed step:\s*(?P<step>\d+), seconds:\s*(?P<s>[\d.]+)")
_VERL = re.compile(r"\bstep:(?P<step>\d+) - .*?\btiming_s/step:(?:np\.float64\()?(?P<s>[\d.]+)")
#: A progress bar of a trainer: no words before it but the epoch, and at its end the time of a step or its inverse.
_BAR = re.compile(
    r"^\s*(?:\[?\S*rank\S*:\s*)?(?:Epoch \d+[^|%]*|Training[^|%]*)?\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<of>\d+) "
    r"\[[\d:]+<[^,]*,\s*(?P<rate>[\d.]+)(?P<unit>s/it|it/s)"
)
_SUMMARY = re.compile(r"'train_steps_per_second':\s*'?(?P<rate>[\d.]+)")
_VLLM_RATE = re.compile(
    r"Avg prompt throughput:\s*(?P<prompts>[\d.]+) tokens/s, Avg generation throughput:\s*(?P<rate>[\d.]+) tokens/s, "
    r"Running:\s*(?P<rows>\d+) reqs"
)
_SGLANG = re.compile(r"Decode batch.*?#running-req:\s*(?P<rows>\d+).*?gen throughput \(token/s\):\s*(?P<rate>[\d.]+)")
#: Tokens that a step gives each sequence where a drafter proposes some: of SGLang in its line, of vLLM in the next one.
_ACCEPTED = re.compile(r"\baccept len:\s*(?P<tokens>[\d.]+)")
_VLLM_ACCEPTED = re.compile(r"SpecDecoding metrics: Mean acceptance length:\s*(?P<tokens>[\d.]+)")


_FORMS = (
    _MEGATRON, _VLLM, _NEMO, _TITAN, _SGLANG, _DEEPSPEED, _DEEPSPEED_RATE, _MAXTEXT, _VERL, _SUMMARY, _VLLM_RATE,
)  # fmt: skip


def lines_of(path: Path) -> list[str]:
    """The lines of a text, without terminal colours; raises InputError where it is too long."""
    text, ending = bytearray(), Ending()
    with opened(path) as file:
        for piece in chunks(file, ending):
            text += piece
            if len(text) > LARGEST:
                raise InputError("is a log over 256 MiB; cut it to the steps that matter", file=str(path))
    return _COLOURS.sub("", bytes(text).decode("utf-8", "replace")).splitlines()


def _number(text: str) -> float:
    value = float(text.replace(",", "").rstrip("."))
    if not 0.0 <= value < 1e12:
        raise ValueError
    return value


def _stamp(line: str) -> float | None:
    match = _STAMP.search(line)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match.group(1).replace(",", ".")).timestamp()
    except ValueError:
        return None


class _Steps:
    """Rows of a log, one step after the other on one clock."""

    def __init__(self) -> None:
        self.rows, self.clock, self.refused = Rows(), 0.0, 0

    def step(self, number: int, seconds: float, *, phase: str = "", shapes: str = "", rate: float = 0.0) -> None:
        self.rows.add(
            rank=0, start_s=self.clock, duration_s=seconds, name=f"step {number}", kind=STEP, phase=phase,
            shapes=shapes, step=number, value=rate,
        )  # fmt: skip
        self.clock += seconds

    def longer(self, times: float) -> None:
        """Make the last step so many times as long."""
        lengths = self.rows.numbers["duration_s"]
        self.clock += lengths[-1] * (times - 1.0)
        lengths[-1] *= times


def read_log(path: Path) -> FilePart:
    """Read the step lines of a log of any of the frameworks.

    Raises
    ------
    InputError
        No line states a step.
    """
    steps, missing = _Steps(), ["kernels: a log has times of whole steps"]
    titan: list[tuple[int, float, float | None]] = []
    bars: list[tuple[int, int, float, str]] = []
    mean: list[float] = []
    rates = 0
    written = "Megatron"
    lines = lines_of(path)
    for line in lines:
        try:
            if match := _MEGATRON.search(line):
                batch, flops = _BATCH.search(line), _FLOPS.search(line)
                shapes = f"global batch {batch.group(1)}" if batch else ""
                rate = _number(flops.group(1)) * 1e12 if flops else 0.0
                seconds = _number(match["time"]) * (1e-3 if match["unit"] == "ms" else 1.0)
                steps.step(int(match["step"]), seconds, phase="training", shapes=shapes, rate=rate)
            elif match := _VLLM.search(line):
                written = "vLLM"
                prompts, rows = int(match["prompts"]), int(match["rows"])
                phase = "mixed" if prompts and rows else "prefill" if prompts else "decode"
                shapes = f"{prompts} prompts of {match['tokens']} tokens, {rows} rows of {match['generated']} tokens"
                steps.step(int(match["step"]), _number(match["ms"]) / 1e3, phase=phase, shapes=shapes)
            elif match := _NEMO.search(line):
                written = "NeMo"
                number = int(float(match["step"])) if match["step"] else len(steps.rows)
                batch = _NEMO_BATCH.search(line)
                steps.step(
                    number,
                    _number(match["s"]),
                    phase="training",
                    shapes=f"global batch {batch.group(1)}" if batch else "",
                )
            elif match := _TITAN.search(line):
                written = "torchtitan"
                titan.append((int(match["step"]), _number(match["tps"]), _stamp(line)))
            elif match := _DEEPSPEED.search(line):
                written = "DeepSpeed"
                steps.step(int(match["step"]), _number(match["s"]), phase="training")
            elif match := _DEEPSPEED_RATE.search(line):
                written = "DeepSpeed"
                titan.append((int(match["step"]), _number(match["rate"]), _stamp(line)))
            elif match := _MAXTEXT.search(line):
                written = "MaxText"
                steps.step(int(match["step"]), _number(match["s"]), phase="training")
            elif match := _VERL.search(line):
                written = "verl"
                steps.step(int(match["step"]), _number(match["s"]), phase="training")
            elif match := _BAR.match(line):
                bars.append((int(match["step"]), int(match["of"]), _number(match["rate"]), match["unit"]))
            elif match := _SUMMARY.search(line):
                mean.append(_number(match["rate"]))
            elif match := _VLLM_RATE.search(line):
                written = "vLLM"
                rows, rate = int(match["rows"]), _number(match["rate"])
                if rate and rows:
                    phase = "mixed" if _number(match["prompts"]) else "decode"
                    rates += 1
                    steps.step(len(steps.rows), rows / rate, phase=phase, shapes=f"{rows} rows", rate=rate)
            elif (match := _VLLM_ACCEPTED.search(line)) and rates:
                steps.longer(_number(match["tokens"]))
            elif match := _SGLANG.search(line):
                written = "SGLang"
                rows, rate = int(match["rows"]), _number(match["rate"])
                accepted = _ACCEPTED.search(line)
                tokens = rows * (_number(accepted["tokens"]) if accepted is not None else 1.0)
                if rate:
                    steps.step(len(steps.rows), tokens / rate, phase="decode", shapes=f"{rows} rows", rate=rate)
        except (ValueError, OverflowError):
            steps.refused += 1
    _of_titan(steps, titan, missing)
    if not len(steps.rows):
        written = _of_any(steps, lines, missing) or written
    if not len(steps.rows) and (bars or mean):
        written = "Hugging Face's Trainer or Lightning"
        _of_bars(steps, bars, mean, missing)
    if steps.refused:
        missing.append(f"{steps.refused} lines whose numbers cannot be read; they are left out")
    if rates:
        missing.append(
            "steps: vLLM's periodic lines have rates; running requests over generated tokens a second stand here"
        )
    elif written == "vLLM":
        missing.append(
            "the device's share: vLLM's iteration time ends when the host has launched, with asynchronous scheduling"
        )
    return FilePart(steps.rows, missing=tuple(missing), facts={"written_by": written})


def _of_titan(steps: _Steps, lines: list[tuple[int, float, float | None]], missing: list[str]) -> None:
    """Add torchtitan's steps. Its lines have tokens per second and GPU but no time, so the steps between two lines
    share the time between them."""
    if not lines:
        return
    for (before, _, then), (number, rate, now) in pairwise(lines):
        if then is not None and now is not None and number > before and now > then:
            steps.step(number, (now - then) / (number - before), phase="training", rate=rate)
    if not len(steps.rows):
        number, rate, _ = lines[-1]
        missing.append("times of steps: all lines have the same time stamp; `value` has tokens per second and GPU")
        steps.step(number, 0.0, phase="training", rate=rate)


def _of_any(steps: _Steps, lines: list[str], missing: list[str]) -> str:
    """Add steps of a program that none of the forms above is of; returns what it is called, empty without steps."""
    listed, note = step_lines(lines)
    for place, line in enumerate(listed):
        number = line.number if line.number >= 0 else place
        steps.step(number, line.seconds, phase="training", rate=line.rate)
    missing.extend([note] if note else [])
    return "a program with times of steps" if listed else ""


def _of_bars(steps: _Steps, bars: list[tuple[int, int, float, str]], mean: list[float], missing: list[str]) -> None:
    """Add steps of a trainer's progress bars: of the longest bar, since evaluations have bars too; without one the mean
    step of the summary."""
    longest = max((of for _, of, _, _ in bars), default=0)
    last = 0
    for number, of, rate, unit in bars:
        if of == longest and rate and number > last:
            last = number
            steps.step(number, rate if unit == "s/it" else 1.0 / rate, phase="training")
    if len(steps.rows):
        missing.append("single steps: a progress bar shows a moving mean of them")
    elif mean and mean[-1]:
        missing.append("single steps: the summary has their mean")
        steps.step(0, 1.0 / mean[-1], phase="training")


def _takes_log(path: Path, start: bytes) -> bool:
    if re.match(rb'\s*\{"current_steps"', start):
        return True  # LLaMA-Factory
    # A Trainer's dictionaries have single quotes.
    if re.match(rb"\s*\{(?!')", start) or b"\x00" in start[:4096]:
        return False
    if path.suffix in (".log", ".txt", ".out"):
        return True
    text = _COLOURS.sub("", start.decode("utf-8", "replace"))
    return any(pattern.search(text) for pattern in _FORMS)


TRACE_READERS.register(
    TraceReader(
        "log",
        "step lines of Megatron, torchtitan, NeMo, DeepSpeed, MaxText, verl, Trainer, vLLM and SGLang",
        _takes_log,
        read_log,
    )
)
