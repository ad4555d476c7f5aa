"""The command line: read what was typed, call the rooms that know, print.

:func:`main` owns the exit codes. 0: answered. 2: the input is wrong. 3: no plan fits or can run. 1: a bug.
130: Ctrl-C. Whatever goes wrong is one line on stderr.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import click

from . import __version__
from .errors import InfeasibleError, InputError, TspsimError, UnknownNameError, shorten
from .outputs import (
    Outputs,
    json_text,
    part_of,
    print_rich,
    printable,
    progress_bar,
    report_file,
    terminal_width,
    writable,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .catalog import Kind
    from .result import Memory, PlanResult, Result

INTERRUPTED = 130
#: What a shell reports for a writer whose reader has gone (128 + SIGPIPE).
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except TspsimError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else "tspsim"
        return _fail(f"{error.format_message().rstrip('.')}; see {command} --help", 2)
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _silence_stdout()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or type(error).__name__}", 2)
    except Exception as error:
        if os.environ.get("TSPSIM_TRACEBACK"):
            raise
        what = f"bug: {type(error).__name__}: {shorten(error, 200)}"
        return _fail(f"{what}; please report; set TSPSIM_TRACEBACK=1 for the trace", 1)


def _invoke(arguments: list[str]) -> int:
    """Let click parse and run; unlike its own ``main`` this leaves Ctrl-C and broken pipes to the caller."""
    try:
        with cli.make_context("tspsim", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return 0


def _fail(message: str, code: int) -> int:
    """Print one line; whatever came from a file cannot steer the terminal."""
    with contextlib.suppress(OSError):
        print(f"tspsim: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


def _silence_stdout() -> None:
    """Nobody reads: let the interpreter's last flush go nowhere instead of failing once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Commands(click.Group):
    """A group that shows its help when nothing is asked, and the nearest command for one it doesn't know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Will this model train or serve on those GPUs, how fast, at what cost, and where does the time go?

    SCENARIO is a name from `tspsim catalog list scenarios` or a YAML file.
    """


_set = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a key, such as workload.sequence=64Ki or plans.TSP8.overlap=false; repeatable.",
)
_json = click.option("--json", "json_file", metavar="FILE", help="Write the numbers as JSON; - prints them.")


@cli.command()
@click.argument("scenario")
@_set
@click.option("--html", "html_file", metavar="FILE", help="Write the report here, not to reports/NAME.html.")
@_json
@click.option("--trace", "trace_file", metavar="FILE", help="Write the timelines as a trace for Perfetto.")
@click.option("--every-rank", is_flag=True, help="Simulate every rank instead of one of each kind.")
def run(
    scenario: str,
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    trace_file: str | None,
    every_rank: bool,
) -> None:
    """Answer one question: every plan of SCENARIO, and a report.

    Without --html, --json or --trace the report goes to reports/NAME.html in the current folder.
    """
    from . import report
    from .scenario import load

    question = load(scenario, overrides)
    outputs = Outputs(report_file(question.name), html=html_file, json=json_file, trace=trace_file)
    from .simulation import simulate

    with progress_bar() as progress:
        result = simulate(question, every_rank=every_rank, progress=progress)
    if not outputs.quiet:
        _print_answer(result)
    outputs.write(
        {
            "html": lambda path: report.write_report(result, path),
            "json": lambda: result.dumps() + "\n",
            "trace": lambda path: report.write_trace(result, path),
        }
    )
    if not any(plan.ran for plan in result.plans):
        raise _nothing_runs(result.plans)


@cli.command()
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@click.option("--html", "html_file", metavar="FILE", help="Write the comparison as an HTML page.")
@_json
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table as CSV; - prints it.")
def compare(scenarios: tuple[str, ...], html_file: str | None, json_file: str | None, csv_file: str | None) -> None:
    """Several scenarios side by side: rates, ratios to the first plan, memory and cost.

    A scenario with offers becomes one scenario an offer; its page and JSON also have scaling, the project, and doubts.
    """
    from .purchase import decide
    from .purchase.offers import expand_all
    from .report import comparison
    from .result import SCHEMA_VERSION
    from .scenario import load

    asked = [load(name) for name in scenarios]
    questions = expand_all(asked)
    outputs = Outputs(html=html_file, json=json_file, csv=csv_file)
    from .simulation import simulate

    with progress_bar() as progress:
        results = [
            simulate(question, progress=part_of(progress, question.name, index, len(questions)))
            for index, question in enumerate(questions)
        ]
        purchase = any(question.offers for question in asked) and bool(html_file or json_file)
        decision = decide(questions, results, progress=progress) if purchase else None
    if not outputs.quiet:
        print_rich(comparison.table(results), "")
    one = asked[0] if len(asked) == 1 else None
    words = {"title": one.name, "description": one.description} if one else {}
    documents = {"schema": SCHEMA_VERSION, "results": [result.to_json() for result in results]}
    if decision is not None:
        documents["purchase"] = decision.to_json()
    outputs.write(
        {
            "html": lambda path: comparison.write_comparison(results, path, decision, reports=purchase, **words),
            "json": lambda: json_text(documents),
            "csv": lambda: comparison.csv(results),
        }
    )
    plans = [plan for result in results for plan in result.plans]
    if not any(plan.ran for plan in plans):
        raise _nothing_runs(plans)


@cli.command()
@click.argument("scenario")
@click.option("--objective", default="tokens_per_s", metavar="NAME", help="tokens_per_s, tokens_per_dollar, ….")
@click.option("--top", type=click.IntRange(1, 50), default=3, show_default=True, help="How many of the best plans.")
@_set
@click.option("--html", "html_file", metavar="FILE", help="Write the answer as an HTML page.")
@_json
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes; as many as this machine lends when left out.")
@click.option("--budget", default="40 s", show_default=True, metavar="TIME", help="Time for it all; none: as it takes.")
@click.option("--map", "map_text", metavar="AXES", help="Where TSP wins: sequences=8Ki,128Ki,nodes=1,8,128.")
def plan(
    scenario: str,
    objective: str,
    top: int,
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    jobs: int | None,
    budget: str,
    map_text: str | None,
) -> None:
    """The best parallel plans for SCENARIO's cluster and workload, from all that are legal.

    Its own plans are compared at the same batch. What a plan cannot undercut is known before it is simulated, so few
    are; --budget none goes on until nothing better can be left. Ctrl-C gives the best so far.
    """
    from .report import plan as shown
    from .search.planner import Planner, load_planned, read_budget, read_map

    budget_s = read_budget(budget)
    points = read_map(map_text) if map_text is not None else None
    question, stated = load_planned(scenario, overrides)
    outputs = Outputs(html=html_file, json=json_file)
    with progress_bar() as progress:
        planner = Planner(
            question, stated=stated, objective=objective, top=top, jobs=jobs, budget_s=budget_s, progress=progress
        )
        answer = planner.run(points)
    if not outputs.quiet:
        print_rich(*shown.summary(answer, terminal_width()))
    outputs.write({"html": lambda path: shown.write_page(answer, path), "json": lambda: json_text(answer.to_json())})
    if answer.interrupted:
        raise KeyboardInterrupt


@cli.command()
@click.argument("scenario")
@click.option("--claim", metavar="RATE", help='A rate to judge, such as "173e6 tokens/s" or "26 Mtokens/s".')
@_set
@_json
def bound(scenario: str, claim: str | None, overrides: tuple[str, ...], json_file: str | None) -> None:
    """Physical ceilings of SCENARIO: says when a claim is impossible, and why."""
    from .scenario import load
    from .units import parse

    claimed = None
    if claim is not None:
        try:
            claimed = parse(claim, "tokens/s", positive=True)
        except InputError as error:
            raise error.at(key="--claim") from None
    question = load(scenario, overrides)
    outputs = Outputs(json=json_file)
    from .bound import bounds
    from .report.ceilings import ceilings

    answer = bounds(question)
    if not outputs.quiet:
        print_rich(*ceilings(answer, claimed))
    outputs.write({"json": lambda: json_text(answer.to_json(claimed))})
    if not answer.fitting:
        raise _nothing_fits([(plan.name, plan.memory) for plan in answer.plans])


@cli.group(cls=_Commands)
def catalog() -> None:
    """What can be named: devices, nodes, fabrics, clusters, models and scenarios."""


@catalog.command("list")
@click.argument("kind", required=False, metavar="[devices|nodes|fabrics|clusters|models|scenarios]")
def list_(kind: str | None) -> None:
    """Every entry with a line about it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from .catalog import names

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("kind", style="dim")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for each in _kinds() if kind is None else [_known(kind)]:
        for name in names(each):
            table.add_row(Text(each), Text(printable(name)), Text(_description(each, name)))
        table.add_section()
    print_rich(table)


@catalog.command()
@click.argument("name")
def show(name: str) -> None:
    """An entry's YAML and where it lies; KIND/NAME tells a cluster from a node of the same name."""
    from .catalog import locate, names, read_yaml

    kind, slash, rest = name.partition("/")
    if slash:
        path = locate(_known(kind), rest)
    else:
        kinds = [each for each in _kinds() if name in names(each)]
        if not kinds:
            every = {entry for each in _kinds() for entry in names(each)}
            raise UnknownNameError("catalog entry", name, every)
        if len(kinds) > 1:
            forms = " or ".join(f"{each}/{name}" for each in kinds)
            raise InputError(f"'{name}' is the name of {len(kinds)} entries; write {forms}")
        path = locate(kinds[0], name)
    read_yaml(path)  # what is no catalog entry is refused before it reaches the terminal
    text = path.read_text(encoding="utf-8-sig").rstrip()
    click.echo(f"# {path}\n" + "\n".join(printable(line) for line in text.splitlines()))


@cli.command()
@click.option("--data", metavar="DIR", help="Folder of measured tables; the rows that ship with tspsim if left out.")
@click.option("--rows", "rows_folder", metavar="DIR", help="Write every row with its prediction, a file a table.")
@_json
@click.option("--html", "html_file", metavar="FILE", help="Write predicted-over-measured plots and the worst rows.")
def validate(data: str | None, rows_folder: str | None, json_file: str | None, html_file: str | None) -> None:
    """Predictions against measured tables: errors by table and GPU; rows that are skipped, and why."""
    from pathlib import Path

    from . import validation
    from .validation.page import write_page
    from .validation.terminal import summary

    outputs = Outputs(json=json_file, html=html_file)
    with progress_bar() as progress:
        found = validation.validate(data, progress=progress)
    if not outputs.quiet:
        print_rich(*summary(found))
    if rows_folder is not None:
        found.write_rows(Path(rows_folder))
    outputs.write({"json": lambda: json_text(found.to_json()), "html": lambda path: write_page(found, path)})


@cli.command()
@click.argument("gpu")
@click.option("--data", metavar="DIR", required=True, help="Folder of measured kernel tables.")
@click.option("--out", "out_file", metavar="FILE", help="Where it goes; topologies/devices/GPU.yaml if left out.")
def calibrate(gpu: str, data: str, out_file: str | None) -> None:
    """Fit GPU's kernel models to measurements and write its device file.

    A file in topologies/devices of the current folder is found before the one that ships with tspsim.
    """
    from pathlib import Path

    from .outputs import writable
    from .report.files import atomic_write
    from .validation.calibrate import calibrate as fit
    from .validation.devices import device_name
    from .validation.terminal import calibrated

    usual = Path("topologies") / "devices" / f"{device_name(gpu) or 'device'}.yaml"
    if out_file is None and usual.exists():
        raise InputError("exists already; name it with --out to replace it", file=str(usual))
    target = usual.absolute() if out_file is None else writable(out_file)
    found = fit(gpu, data)
    print_rich(*calibrated(found))
    atomic_write(target, found.yaml())
    click.echo(f"device: {printable(str(out_file or usual))}")


def _kinds() -> list[Kind]:
    from .catalog import FOLDERS

    return [cast("Kind", kind) for kind in FOLDERS]


def _known(kind: str) -> Kind:
    kinds = _kinds()
    if kind not in kinds:
        raise UnknownNameError("kind of entry", kind, kinds)
    return kind


def _description(kind: Kind, name: str) -> str:
    """An entry in a line; one that cannot be read says why instead of hiding the others."""
    from .catalog import locate, read_yaml

    try:
        data = read_yaml(locate(kind, name))
    except InputError as error:
        return f"cannot be read: {shorten(error.message, 100)}"
    return printable(shorten(data.get("description") or data.get("source") or "", 160))


def _nothing_runs(plans: Sequence[PlanResult]) -> InfeasibleError:
    """Every plan was refused: by its memory, or though it fits (dead links cut its ranks off)."""
    fitting = [plan for plan in plans if plan.memory.fits]
    if fitting:
        return InfeasibleError(f"no plan can run; {fitting[0].name}: {fitting[0].error}")
    return _nothing_fits([(plan.name, plan.memory) for plan in plans])


def _nothing_fits(plans: Sequence[tuple[str, Memory]]) -> InfeasibleError:
    """Every plan was refused: the nearest one, by how much it misses, and what of it is largest."""
    name, memory = min(plans, key=lambda plan: plan[1].peak_bytes - plan[1].capacity_bytes)
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    gib = 2.0**30
    over = (memory.peak_bytes - memory.capacity_bytes) / gib
    return InfeasibleError(
        f"no plan fits; the nearest, {name}, needs {memory.peak_bytes / gib:.1f} GiB a GPU, "
        f"{over:.1f} GiB more than its {memory.capacity_bytes / gib:.1f}; "
        f"largest part: {largest.replace('_', ' ')}, {memory.parts[largest] / gib:.1f} GiB"
    )


def _print_answer(result: Result) -> None:
    """The table, what limits the fastest plan, what a reader should know, and what was assumed."""
    from rich.padding import Padding
    from rich.text import Text

    from .report import table

    best = max((plan for plan in result.plans if plan.ran), key=lambda plan: plan.tokens_per_s, default=None)
    parts: list[RenderableType] = [table(result, terminal_width()), ""]
    if best is not None:
        fastest = " is the fastest" if len(result.plans) > 1 else ""
        parts += [Text(f"{best.name}{fastest}: {best.bottleneck}."), ""]
    notes = [f"{plan.name}: {note}" for plan in result.plans for note in plan.notes]
    for title, sentences in (("Worth knowing", notes), ("Assumed; each can be switched", result.defaults)):
        if sentences:
            indented = (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            parts += [Text(title, style="bold"), *indented, ""]
    print_rich(*parts)


@cli.command()
@click.argument("scenario")
@click.option("--over", multiple=True, required=True, metavar="PATH=VALUES", help="What to vary; repeatable.")
@click.option("--zip", "zipped", is_flag=True, help="Step through all --over together instead of every combination.")
@_set
@click.option("--out", "out_file", metavar="FILE", help="Write the table here (.parquet or .csv), the store beside it.")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes; as many as this machine lends when left out.")
@click.option("--scheduler", metavar="ADDRESS", help="Scheduler of a Dask cluster that runs already: tcp://HOST:PORT.")
@click.option("--resume", is_flag=True, help="Go on with the store beside --out; what it holds is not asked again.")
@click.option("--html", "html_file", metavar="FILE", help="Write all points as one HTML page, ranked.")
def sweep(
    scenario: str,
    over: tuple[str, ...],
    zipped: bool,
    overrides: tuple[str, ...],
    out_file: str | None,
    jobs: int | None,
    scheduler: str | None,
    resume: bool,
    html_file: str | None,
) -> None:
    """Ask SCENARIO at many points; answers are kept as they come, in FILE.sqlite beside --out.

    VALUES are separated by commas, or ranges: 1..8 (steps of one), 1..4+0.5 (equal steps), 32Ki..1Mi*2 (equal
    factors). The path plans chooses plans by name: --over plans=TSP8,TP8.
    """
    from .search import Sweep
    from .search.table import check_suffix

    if jobs is not None and scheduler is not None:
        raise InputError("names other workers than --scheduler; give one of the two", file="--jobs")
    if resume and out_file is None:
        raise InputError("goes on with the store beside --out; name that", file="--resume")
    question = Sweep(scenario, over, zipped=zipped, overrides=overrides)
    out = store = None
    if out_file is not None:
        out = writable(out_file)
        check_suffix(out)
        store = writable(str(out.with_suffix(".sqlite")))
    outputs = Outputs(html=html_file)
    if html_file is not None and writable(html_file) in (out, store):
        raise InputError("is the place of another output too; name two", file=shorten(html_file))
    with progress_bar() as progress:
        table = question.run(store=store, resume=resume, jobs=jobs, scheduler=scheduler, progress=progress)
    from .report import comparison

    if out is not None:
        table.write(out)
    if out is None or len(table) <= _ROWS_SHOWN:
        print_rich(comparison.table(table.results), "")
    click.echo(f"{len(table):,} rows of {len(question.points):,} points; {table.ran:,} ran")
    if out_file is not None:
        click.echo(f"table: {printable(out_file)}")
    outputs.write({"html": lambda path: comparison.write_comparison(table.results, path)})
    if not table.ran:
        first = next(error for error in table.columns["error"] if error is not None)
        raise InfeasibleError(f"no plan ran at any point; the first: {first}")


#: A table written to a file is shown too if it is this short.
_ROWS_SHOWN = 40
