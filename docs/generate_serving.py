"""Rewrite the tables of serving.md, and the pictures and tables of queues.md from the scenarios of that page.

    python docs/generate_serving.py [NAME ...]

A table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, a picture in ``images/serving-NAME.svg``; with
names only those are rewritten. Half a minute of one core. ``tests/house/test_serving_docs.py`` holds tables against
what the package says now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pages
import yaml
from pictures import Panel, Picture, Points
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import tspsim
from tspsim.report.serving.adapter import view_of
from tspsim.report.serving.thinning import columns
from tspsim.report.serving.view import MIXED, PREFILL, LoadRun, Requests, ServingView, StepRuns
from tspsim.serving import POLICIES
from tspsim.serving.routers import ROUTERS
from tspsim.traffic import ARRIVALS, LENGTHS, PREFIXES, PROTOCOLS

DOCS = Path(__file__).parent
PAGE, QUEUES = DOCS / "serving.md", DOCS / "queues.md"
SCENARIO = re.compile(r"^```yaml\n(name: ([\w-]+)\n.*?)^```$", re.DOTALL | re.MULTILINE)


@cache
def scenarios() -> dict[str, str]:
    """Scenarios of the page by name, as text."""
    return {name: text for text, name in SCENARIO.findall(QUEUES.read_text(encoding="utf-8"))}


@cache
def asked(name: str, *overrides: str) -> ServingView:
    """A scenario of the page, with keys changed as ``--set`` changes them."""
    return view_of(tspsim.simulate(tspsim.load(yaml.safe_load(scenarios()[name]), overrides)))


def one(name: str, *overrides: str) -> LoadRun:
    """The only run of a scenario."""
    (served,) = asked(name, *overrides).served
    (run,) = served.runs
    return run


def told(run: LoadRun) -> tuple[Requests, StepRuns]:
    """Requests and the only engine's log."""
    assert run.requests is not None
    (engine,) = run.engines
    return run.requests, engine.steps


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Markdown; the first ``words`` columns are of words."""
    sides = ["---" if place < words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, sides, *rows))


def seconds(value: float) -> str:
    """Three digits, in milliseconds below one second."""
    value, unit = (1e3 * value, "ms") if value < 1.0 else (value, "s")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def percentile(values: Any, share: float) -> float:
    return float(np.percentile(values[np.isfinite(values)], share))


def over_time(steps: StepRuns, end_s: float, *names: str) -> dict[str, Points]:
    """Means of columns of a log over 240 columns of time."""
    at = np.linspace(0.0, end_s, 241)
    cut = columns(steps, at)
    return {name: list(zip(at[:-1].tolist(), getattr(cut, name).tolist(), strict=True)) for name in names}


# --- what there is ------------------------------------------------------------------------------------------


def keys_of(model: Any) -> str:
    """Fields with their defaults."""
    told_ = []
    for name, field in model.model_fields.items():
        default = field.default
        shown = "" if default is PydanticUndefined or default is None else f" ({stated(default)})"
        told_.append(f"`{field.alias or name}`{shown}")
    return ", ".join(told_)


def stated(default: Any) -> str:
    """A default as YAML writes it; of a section its own keys."""
    if isinstance(default, BaseModel):
        return "{" + ", ".join(f"{name}: {stated(value)}" for name, value in default) + "}"
    return str(default).lower() if isinstance(default, bool) else str(default)


def summary(thing: Any) -> str:
    """The first sentence of its docstring, on one line."""
    text = " ".join((thing.__doc__ or "").split()).replace("``", "`")
    return re.split(r"(?<! al)\. ", text)[0].rstrip(".")


def kinds() -> str:
    """Everything that traffic can be, from the registries."""
    rows = []
    families = (("arrivals", ARRIVALS), ("prompt, output", LENGTHS), ("prefix", PREFIXES), ("protocol", PROTOCOLS))
    for what, registry in families:
        rows += [[f"`{what}`", f"`{kind.name}`", keys_of(kind) or "–", summary(kind)] for kind in registry.values()]
    return table(["of", "kind", "its keys (defaults)", "what it is"], rows, words=4)


def schedulers() -> str:
    """Registered schedulers and their options."""
    return table(
        ["scheduler", "options (defaults)"],
        [[f"`{name}`", keys_of(POLICIES.get(name).options)] for name in POLICIES.names()],
        words=2,
    )


def routers() -> str:
    """Registered routers and what they go by."""
    rows = [[f"`{each.name}`", each.summary] for each in ROUTERS.values()]
    return table(["router", "a request goes to"], rows, words=2)


# --- the burst ----------------------------------------------------------------------------------------------


def burst_picture() -> Picture:
    requests, steps = told(one("burst"))
    until = percentile(requests.end_s, 60.0)
    waits = Panel("time to the first token, s", 150)
    first = requests.arrival_s <= 0.0
    for chosen, colour in ((first, "red"), (~first, "blue")):
        points = zip(requests.arrival_s[chosen].tolist(), requests.ttft_s[chosen].tolist(), strict=True)
        waits.dots([(x, y) for x, y in points if x <= until], colour)
    queue = Panel("requests", 90)
    drawn = over_time(steps.within(0.0, until), until, "waiting", "sequences")
    queue.line(drawn["waiting"], "red")
    queue.line(drawn["sequences"], "blue")
    legend = (("red", "sent at the start; waiting"), ("blue", "sent when another ended; decoding"))
    return Picture("The burst of a closed loop", "seconds since the start", (0.0, until), [waits, queue], legend)


def burst() -> str:
    """First tokens of the burst and of all others, and the mean by length of the run."""
    rows = []
    for count in (128, 320, 640, 2560):
        requests, _ = told(one("burst", f"traffic.requests={count}"))
        first = requests.arrival_s <= 0.0
        waits = (requests.ttft_s[first].mean(), requests.ttft_s[~first].mean(), requests.ttft_s.mean())
        rows.append([f"{count:,}", *(seconds(float(each)) for each in (*waits, percentile(requests.ttft_s, 50)))])
    return table(["requests", "TTFT, mean of the first 64", "of the others", "of all", "median of all"], rows)


# --- head of line -------------------------------------------------------------------------------------------


def blocked(requests: Requests) -> np.ndarray[Any, Any]:
    """Prompts of at most 500 tokens."""
    return requests.prompt_tokens <= 500


def head_of_line_picture() -> Picture:
    requests, steps = told(one("head-of-line"))
    short = blocked(requests)
    queued = requests.first_scheduled_s - requests.arrival_s
    worst = int(np.argmax(np.where(short, queued, -1.0)))
    middle = float(requests.arrival_s[worst])
    from_s, to_s = max(0.0, middle - 40.0), middle + 40.0
    shown = np.flatnonzero((requests.arrival_s < to_s) & (requests.end_s > from_s))
    rows = Panel("requests in order of arrival: waiting, then served", 12 * len(shown), names=[""] * len(shown))
    for row, place in enumerate(shown):
        sent, begun, end = (
            float(each[place]) for each in (requests.arrival_s, requests.first_scheduled_s, requests.end_s)
        )
        rows.bar(row, sent, begun, "orange")
        rows.bar(row, begun, end, "blue" if short[place] else "red")
    used = Panel("tokens in the cache", 80)
    part = steps.within(from_s, to_s)
    used.line(list(zip(part.start_s.tolist(), part.used_tokens.tolist(), strict=True)), "green", steps=True)
    legend = (("orange", "waiting"), ("blue", "short prompt served"), ("red", "long prompt served"))
    return Picture("Head-of-line blocking", "seconds", (from_s, to_s), [rows, used], legend)


def head_of_line() -> str:
    rows = []
    for words, *overrides in (
        ("as above",),
        ("no prompt above 500", "traffic.prompt.cap=500"),
        ("as above, half the cache free: fp8", "workload.precision={kv: fp8}"),
    ):
        requests, _ = told(one("head-of-line", *overrides))
        short = blocked(requests)
        wait = (requests.first_scheduled_s - requests.arrival_s)[short]
        cells = [float(np.mean(wait > 1.0)), float(wait.mean()), percentile(wait, 99)]
        rows.append([words, f"{100 * cells[0]:.0f} %", *(seconds(each) for each in cells[1:])])
    return table(["", "short prompts that wait over 1 s", "their mean wait until they are read", "99 of 100"], rows)


# --- storms -------------------------------------------------------------------------------------------------


def storm_picture() -> Picture:
    panels = Panel("output tokens/s", 90), Panel("preemptions of 240 requests", 90), Panel("TTFT, mean, s", 90)
    load = asked("storm").loads
    for served, colour in zip(asked("storm").served, ("blue", "orange"), strict=True):
        for panel, value in zip(
            panels,
            (
                lambda run: run.rate("output_tokens_per_s"),
                lambda run: run.rate("preemptions"),
                lambda run: run.mean("ttft_s"),
            ),
            strict=True,
        ):
            panel.line([(run.load, value(run)) for run in served.runs], colour)
    legend = (("blue", "admits what has room for its prompt"), ("orange", "admits what has room to its last token"))
    return Picture("Preemptions by load", "requests at once", (load[0], load[-1]), list(panels), legend, ticks=load)


def storm() -> str:
    rows = []
    for served in asked("storm").served:
        for run in served.runs:
            requests, steps = told(run)
            prompts = float(np.sum(requests.prompt_tokens))
            again = float(np.sum(steps.chunk_tokens)) / prompts - 1.0
            counts = [run.rate(key) for key in ("output_tokens_per_s", "preemptions")]
            cells = [*(f"{each:,.0f}" for each in counts), f"{100 * again:.0f} %"]
            share = float(run.metrics["kv"]["peak_share"])
            waits = [seconds(run.mean("ttft_s")), seconds(run.mean("tpot_s"))]
            rows.append([f"{served.plan.name}, {run.load:.0f}", *cells, f"{100 * share:.0f} %", *waits])
    header = ["plan, at once", "output tokens/s", "preemptions", "read again, of the prompts", "cache at its peak"]
    return table([*header, "TTFT", "TPOT"], rows)


# --- the cliff ----------------------------------------------------------------------------------------------


def cliff_picture() -> Picture:
    short, long = (asked("cliff", f"traffic.requests={count}").served[0].runs for count in (500, 2000))
    load = [run.load for run in short]
    waits = Panel("time to the first token, mean, s", 170, log=True)
    for runs, colour in ((short, "blue"), (long, "red")):
        waits.line(list(zip(load, [run.mean("ttft_s") for run in runs], strict=True)), colour)
        waits.dots(list(zip(load, [run.mean("ttft_s") for run in runs], strict=True)), colour)
    done = Panel("output tokens/s", 90)
    done.line(list(zip(load, [run.rate("output_tokens_per_s") for run in long], strict=True)), "red")
    done.line([(x, 256.0 * x) for x in load], "grey", dashed=True)
    legend = (("blue", "500 requests"), ("red", "2,000 requests"), ("grey", "what is asked"))
    title = "The first token over the rate"
    return Picture(title, "requests/s sent", (load[0], load[-1]), [waits, done], legend, ticks=load)


def cliff() -> str:
    short, long = (asked("cliff", f"traffic.requests={count}").served[0].runs for count in (500, 2000))
    rows = [
        [
            f"{a.load:g}", f"{b.rate('requests_per_s'):.2f}", seconds(a.mean("ttft_s")), seconds(b.mean("ttft_s")),
            seconds(b.mean("tpot_s")),
        ]
        for a, b in zip(short, long, strict=True)
    ]  # fmt: skip
    return table(["requests/s sent", "served", "TTFT of 500", "of 2,000", "TPOT"], rows)


# --- lock step ----------------------------------------------------------------------------------------------

#: Deviation of the logarithm of lengths, of the same means.
UNEVEN = (0.0, 0.5, 1.0, 1.5)


def uneven(sigma: float) -> ServingView:
    """The scenario with prompts and outputs of the same mean that vary by so much."""
    keys = (("prompt", 2048, 16384), ("output", 512, 4096))
    overrides = [
        f"traffic.{what}={{kind: lognormal, mean: {mean}, sigma: {sigma}, cap: {cap}}}" for what, mean, cap in keys
    ]
    return asked("lock-step", *(overrides if sigma else ()))


def lock_step_picture() -> Picture:
    panel = Panel("output tokens/s", 170)
    for plan, colour in ((0, "blue"), (1, "orange")):
        rates = [uneven(sigma).served[plan].runs[0].rate("output_tokens_per_s") for sigma in UNEVEN]
        panel.line(list(zip(UNEVEN, rates, strict=True)), colour)
        panel.dots(list(zip(UNEVEN, rates, strict=True)), colour)
    legend = (("blue", "eight attention replicas in lock step"), ("orange", "one replica of eight GPUs"))
    title = "deviation of the logarithm of lengths, of the same means"
    return Picture("Lock step", title, (UNEVEN[0], UNEVEN[-1]), [panel], legend, ticks=UNEVEN)


def lock_step() -> str:
    rows = []
    for sigma in UNEVEN:
        for served in uneven(sigma).served:
            (run,) = served.runs
            _, steps = told(run)
            length = (steps.end_s - steps.start_s) * 1.0
            reading = float(length[(steps.kind == MIXED) | (steps.kind == PREFILL)].sum() / length.sum())
            cells = [f"{run.rate('output_tokens_per_s'):,.0f}", f"{100 * reading:.0f} %"]
            rows.append([f"{sigma:g}, {served.name}", *cells, seconds(run.mean("ttft_s")), seconds(run.mean("tpot_s"))])
    return table(["σ, plan", "output tokens/s", "time in steps with prompts", "TTFT", "TPOT"], rows)


# --- where prefill and decode part --------------------------------------------------------------------------

#: Bounds on a token, and on the first one, in seconds; and the share of requests that must keep both.
TOKEN_S = (0.0115, 0.012, 0.013, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06)
FIRST_S, SHARE = 2.0, 0.9


def kept(run: LoadRun, token_s: float) -> float:
    """Requests/s served, if at least :data:`SHARE` of them keep the bounds; else none."""
    assert run.requests is not None
    good = (run.requests.ttft_s <= FIRST_S) & (run.requests.tpot_s <= token_s)
    return run.rate("requests_per_s") if good.mean() >= SHARE else 0.0


def crossover_picture() -> Picture:
    panel = Panel("requests/s with the first token within 2 s and each further one within the bound", 190)
    for served, colour in zip(asked("crossover").served, ("blue", "orange"), strict=True):
        panel.line([(1e3 * s, max(kept(run, s) for run in served.runs)) for s in TOKEN_S], colour, steps=True)
    legend = (("blue", "two replicas that do both"), ("orange", "one that reads, one that writes"))
    ends = (1e3 * TOKEN_S[0], 1e3 * TOKEN_S[-1])
    return Picture("Where prefill and decode part", "bound on a token, ms", ends, [panel], legend)


def crossover() -> str:
    both, parted = asked("crossover").served
    rows = []
    for a, b in zip(both.runs, parted.runs, strict=True):
        waits = [seconds(run.mean(key)) for key in ("tpot_s", "ttft_s") for run in (a, b)]
        sent = b.transfers
        flight = "–" if sent is None else seconds(float(np.mean(sent.end_s - sent.start_s)))
        rows.append([f"{a.load:g}", *waits, flight])
    header = ["requests/s", "TPOT of two that do both", "of 1P1D", "TTFT of two that do both", "of 1P1D"]
    return table([*header, "a cache on its way"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "kinds": kinds,
    "schedulers": schedulers,
    "routers": routers,
}
QUEUE_TABLES: dict[str, Callable[[], str]] = {
    "burst": burst,
    "head-of-line": head_of_line,
    "storm": storm,
    "cliff": cliff,
    "lock-step": lock_step,
    "crossover": crossover,
}
PICTURES: dict[str, Callable[[], Picture]] = {
    "burst": burst_picture,
    "head-of-line": head_of_line_picture,
    "storm": storm_picture,
    "cliff": cliff_picture,
    "lock-step": lock_step_picture,
    "crossover": crossover_picture,
}


def main(names: Sequence[str]) -> None:
    """Rewrite tables and pictures, all or those that are named."""
    for page, tables in ((PAGE, TABLES), (QUEUES, QUEUE_TABLES)):
        pages.rewrite(page, {name: write() for name, write in tables.items() if name in names or not names})
    for name in names or PICTURES:
        if name in PICTURES:
            (DOCS / "images" / f"serving-{name}.svg").write_text(PICTURES[name]().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(pages.asked(__doc__, TABLES | QUEUE_TABLES))
