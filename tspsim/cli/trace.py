"""``tspsim trace``: measured traces and logs, beside the simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..answer.refusals import placed
from ..base.errors import printable, shorten
from .completion import scenarios
from .grammar import Commands, json_option, set_option
from .outputs import Outputs, files_of, json_text, print_rich, short, writable

if TYPE_CHECKING:
    from ..traces import Trace
    from ..traces.comparison import Laid


_captures = click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE",
    help="A profile of a graph's capture, with the shapes of replayed kernels; repeatable.",
)


@click.group(cls=Commands)
def trace() -> None:
    """Measured traces: read one, lay it over the simulated step, start a scenario from it."""


@trace.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--out", "out_file", metavar="FILE", help="Write the kernels as a Parquet table, one per row.")
@_captures
def read(files: tuple[str, ...], out_file: str | None, captures: tuple[str, ...]) -> None:
    """Describe traces and logs of one run, one file per rank.

    FILE is a trace of PyTorch's profiler (JSON), of rocprofv3 (JSON), Nsight Systems (SQLite) or Chakra, a log
    of Megatron, torchtitan, NeMo, vLLM or SGLang, or the result of a serving benchmark.
    """
    from ..traces import read as read_files

    target = writable(out_file, inputs=files_of(*files, *captures)) if out_file is not None else None
    profile = read_files(files, captures)
    if target is not None:
        profile.write(target)
    print_rich(*(printable(line) for line in _described(profile)))
    if target is not None:
        click.echo(f"table: {printable(str(short(target)))}")


@trace.command()
@click.argument("file", metavar="FILE")
@click.argument("scenario", shell_complete=scenarios)
@click.option("--plan", metavar="NAME", help="The plan that ran; the first when left out.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="A rank of the trace; its first when left out.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="A step, from 0; the median one when left out.")
@_captures
@set_option
@click.option("--html", "html_file", metavar="FILE", help="Write the page: both timelines, tables, gaps, other plans.")
@json_option
@click.option("--trace", "trace_file", metavar="FILE", help="Write both timelines as one trace for Perfetto.")
def lay(
    file: str,
    scenario: str,
    plan: str | None,
    rank: int | None,
    step: int | None,
    captures: tuple[str, ...],
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    trace_file: str | None,
) -> None:
    """Lay a measured step over the simulated one: which operators differ, and why.

    FILE is a trace with kernels. Kernels are matched with SCENARIO's operators by order and kind, never by time; a
    trace of another plan, batch or model is refused before any number.
    """
    from ..report.measured_page import write_both, write_measured
    from ..scenario import load
    from ..step.question import look_up
    from ..traces import read as read_files
    from ..traces.lay import lay as lay_over
    from ..traces.learned import what_follows

    loaded = load(scenario, overrides)
    outputs = Outputs(inputs=files_of(loaded, file, *captures), html=html_file, json=json_file, trace=trace_file)
    profile = read_files([file], captures)
    with placed(loaded):
        question = look_up(loaded)
        laid = lay_over(profile, question, plan, rank, step)
        follows = what_follows(laid, question) if html_file is not None and len(question.plans) > 1 else None
    outputs.write(
        {
            "html": lambda target: write_measured(laid, target, follows),
            "json": lambda: json_text(laid.to_json()),
            "trace": lambda target: write_both(laid, target),
        },
        show=lambda: _print_laid(laid),
    )


@trace.command()
@click.argument("file", metavar="FILE")
@click.option("--out", "out_file", metavar="FILE", help="Write it here; printed when left out.")
def scenario(file: str, out_file: str | None) -> None:
    """Write a first scenario from a trace: device, model, degrees and batch, as far as the trace has them.

    What the trace lacks stands as a comment. A dense model that is not in the catalog is written beside FILE of --out,
    as NAME-model.yaml. An existing file is not replaced.
    """
    from ..base.errors import InputError
    from ..base.files import atomic_write
    from ..traces import read as read_files
    from ..traces.scenario import guess
    from ..traces.scenario_text import lines, model_lines

    target = writable(out_file, inputs=files_of(file)) if out_file is not None else None
    if target is not None and target.exists():
        raise InputError("exists already; name another file", file=str(short(target)))
    profile = read_files([file])
    run = guess(profile)
    model = list(model_lines(run, profile.files[0].name)) if target is not None else []
    beside = target.with_name(f"{target.stem}-model.yaml") if target is not None and model else None
    if beside is not None and beside.exists():
        raise InputError("exists already; name another file", file=str(short(beside)))
    named = beside.name if beside is not None else ""
    text = "".join(f"{printable(line)}\n" for line in lines(profile, run, named))
    if target is None:
        click.echo(text, nl=False)
        return
    if beside is not None:
        atomic_write(beside, "".join(f"{printable(line)}\n" for line in model))
        click.echo(f"model: {printable(str(short(beside)))}")
    atomic_write(target, text)
    click.echo(f"scenario: {printable(str(short(target)))}; check it with tspsim check {printable(str(short(target)))}")


def _print_laid(laid: Laid) -> None:
    """The comparison on the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..base.units import duration, percent, signed_duration

    lines = [
        f"step: measured {duration(laid.measured_s)}, simulated {duration(laid.simulated_s)} "
        f"({signed_duration(laid.measured_s - laid.simulated_s)} lost)"
    ]
    if laid.layer_s is not None:
        lines.append(f"layer: measured {duration(laid.layer_s[0])}, simulated {duration(laid.layer_s[1])}")
    lines.append(f"matched: {percent(laid.matched_share)} of the kernels' time")
    # Differences below a picosecond are of sums in another order.
    causes = {name[:-2]: round(seconds, 12) for name, seconds in laid.causes.to_json().items()}
    lines += [f"lost to {name}: {signed_duration(seconds)}" for name, seconds in causes.items()]
    lines += [*laid.notes, laid.in_a_sentence]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kind", "measured", "simulated", "lost"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in laid.kinds:
        cells = (duration(row.measured_s), duration(row.simulated_s), signed_duration(row.lost_s))
        table.add_row(Text(row.kind), *cells)
    print_rich(*(printable(line) for line in lines), table)


def _described(profile: Trace) -> Iterator[str]:
    """The trace in lines."""
    import numpy as np

    from ..base.units import duration, percent
    from ..traces.clocks import in_words
    from ..traces.kinds import MEASURE, STEP
    from ..traces.named_facts import forward_layers
    from ..traces.table import busy_s, step_length_s

    by_kind = profile.time_by("kind")
    measured = set(by_kind) <= {STEP, MEASURE}
    yield f"format: {profile.format}" + (f" ({profile.facts['written_by']})" if "written_by" in profile.facts else "")
    if measured:
        yield from _steps_of_a_log(profile)
    else:
        name = shorten(profile.machine.name, 60) or "not named"
        units = f", {profile.machine.compute_units} compute units" if profile.machine.compute_units else ""
        memory = f", {profile.machine.memory_bytes / 1e9:.0f} GB" if profile.machine.memory_bytes else ""
        yield f"device: {profile.device or 'none of the catalog'} ({name}{units}{memory})"
        of = f" of {profile.world_size:,}" if profile.world_size else ""
        yield f"ranks: {_numbers(profile.ranks)}{of}"
        steps = np.unique(profile.columns["step"])
        steps = steps[steps >= 0]
        how = f", by {profile.facts['steps_by']}" if profile.facts.get("steps_by") else ""
        own = profile.of(profile.columns["rank"] == profile.ranks[0])
        several = " each" if len(steps) > 1 else ""
        lasting = f", {duration(length)}{several}" if (length := step_length_s(own)) else ""
        yield f"steps: {len(steps)}{how}{lasting}"
        yield f"layers: {forward_layers(profile) or 'no repetition'}"
        total = sum(by_kind.values())
        busy = busy_s(own.columns["start_s"], own.end_s)
        device = "the device" if len(profile.ranks) == 1 else f"rank {profile.ranks[0]}"
        yield f"kernels: {len(profile):,}, {duration(total)} together; {device} is busy for {duration(busy)}"
        for kind, seconds in by_kind.items():
            yield f"  {kind:<16} {duration(seconds):>9}  {percent(seconds / total):>6}"
        streams = own.time_by("stream")
        for stream, seconds in list(streams.items())[:8]:
            rows = own.word("stream") == stream
            busy = busy_s(own.columns["start_s"][rows], own.end_s[rows])
            said = f"{int(rows.sum()):,} kernels, busy for {duration(busy)} ({duration(seconds)} added up)"
            yield f"stream {stream or '?'} of rank {profile.ranks[0]}: {said}"
        if len(streams) > 8:
            yield f"and {len(streams) - 8} streams more"
        for group in profile.groups[:8]:
            ranks = f": ranks {_numbers(group.ranks)}" if group.ranks else ""
            yield f"group {shorten(group.name, 40)} of {group.size}{ranks}"
        if len(profile.groups) > 8:
            yield f"and {len(profile.groups) - 8} groups more"
        yield from in_words(profile)
        if "captured" in profile.facts:
            covered, replayed = profile.facts["captured"]
            yield f"captures: operators and shapes of {covered:,} of {replayed:,} replayed kernels"
    for word in profile.missing:
        yield f"missing: {word}"


def _steps_of_a_log(profile: Trace) -> Iterator[str]:
    import numpy as np

    from ..base.units import duration
    from ..traces.kinds import STEP

    rows = profile.word("kind") == STEP
    if rows.any():
        seconds = profile.columns["duration_s"][rows]
        for phase in dict.fromkeys(profile.word("phase")[rows].tolist()):
            own = seconds[profile.word("phase")[rows] == phase]
            yield (
                f"steps: {len(own):,} of {phase or 'work'}, median {duration(float(np.median(own)))}, "
                f"from {duration(float(own.min()))} to {duration(float(own.max()))}"
            )
        return
    for name, value, unit in zip(
        profile.word("name"), profile.columns["value"].tolist(), profile.word("shapes"), strict=True
    ):
        yield f"  {shorten(name, 50):<40} {value:,.6g} {shorten(unit, 20)}".rstrip()


def _numbers(ranks: tuple[int, ...]) -> str:
    """``0-3, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(shown[:12]) + (f", … ({len(ranks)})" if len(shown) > 12 else "")
