"""Draw the maps of planner.md: where TSP wins and where it loses, over lengths and nodes, by device.

    python docs/generate_map.py [--jobs N] [--only DEVICE]

Writes ``planner-map.csv``, and the tables of ``planner.md`` between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``;
``--table`` writes only these. Half an hour on two cores. The same code and catalog give the same numbers for any number
of processes.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pages

import tspsim
from tspsim.scenario import Scenario
from tspsim.studies.executors import executor_of
from tspsim.studies.planner import load_planned, read_map
from tspsim.studies.planner.map_search import search_map
from tspsim.studies.planner.scheme_map import Cell, Side

DOCS = Path(__file__).parent
NUMBERS, PAGE = DOCS / "planner-map.csv", DOCS / "planner.md"
SCENARIO = "plan-70b-8k-1024-mi355x"
#: Tokens of a step at every point, as in the scenario.
TOKENS = 16 * 2**20
#: Points and fabric of every device.
MAPS = {
    "mi355x": ("sequences=8Ki,32Ki,128Ki,256Ki,1Mi,nodes=1,4,16,128", "rails-400g"),
    "mi300x": ("sequences=8Ki,32Ki,128Ki,1Mi,nodes=16,128", "rails-400g"),
    "b200": ("sequences=8Ki,32Ki,128Ki,1Mi,nodes=1,128", "rail-optimised-400g"),
}
SIDES = ("tsp", "other")
HEADER = (
    "device",
    *("sequence", "nodes", "batch_sequences"),
    *(f"{side}_{what}" for side in SIDES for what in ("plan", "step_s", "least_s")),
    *("ratio", "proven"),
)


def row_of(device: str, cell: Cell) -> list[str]:
    """A point as a row of the file; empty where no plan of a kind fits."""

    def side(found: Side | None) -> list[str]:
        return ["", "", ""] if found is None else [found.plan, f"{found.step_s:.4f}", f"{found.least_s:.4f}"]

    ratio = "" if cell.ratio is None else f"{cell.ratio:.4f}"
    place = [str(cell.sequence), str(cell.nodes), str(cell.batch)]
    return [device, *place, *side(cell.folded), *side(cell.other), ratio, str(cell.proven).lower()]


def numbers(rows: Iterable[Sequence[str]]) -> str:
    """The file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows)
    return text.getvalue()


def asked_of(device: str) -> Scenario:
    """The scenario on a device."""
    return load_planned(SCENARIO, [f"cluster={{device: {device}, nodes: 128, fabric: {MAPS[device][1]}}}"])[0]


def draw(device: str, jobs: int | None) -> list[list[str]]:
    """Every point of a device, smallest cluster first."""
    points = read_map(MAPS[device][0])
    executor = executor_of(jobs, None, len(points.cells()))
    cells = []
    try:
        for cell in search_map(asked_of(device), points, TOKENS, executor):
            print(",".join(row_of(device, cell)), flush=True)
            cells.append(cell)
    finally:
        executor.close(now=True)
    return [row_of(device, cell) for cell in sorted(cells, key=lambda cell: (cell.nodes, cell.sequence))]


def known() -> dict[str, list[list[str]]]:
    """The file's rows by device."""
    with NUMBERS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {device: [row for row in rows if row[0] == device] for device in MAPS}


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """Ratios, one line a number of nodes."""
    at = {(int(row["nodes"]), int(row["sequence"])): row for row in rows}
    lengths = sorted({length for _, length in at})

    def told(row: Mapping[str, str]) -> str:
        ratio, sure = row["ratio"], row["proven"] == "true"
        if ratio == "":
            return "–"
        if ratio in ("inf", "0.0000"):
            return "only TSP" if ratio == "inf" else "only others"
        words = f"{float(ratio):.2f}" if sure else f"≈ {float(ratio):.2f}"
        return f"**{words}**" if float(ratio) > 1.0 and sure else words

    lines = [["nodes", *(f"{length // 1024}Ki" if length < 2**20 else f"{length >> 20}Mi" for length in lengths)]]
    lines.append(["---:"] * (len(lengths) + 1))
    lines += [
        [str(nodes), *(told(at[nodes, length]) if (nodes, length) in at else "" for length in lengths)]
        for nodes in sorted({nodes for nodes, _ in at})
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


#: Two plans that differ in nothing but what is exchanged, at 128Ki tokens on all nodes.
PAIR = (
    "workload.sequence=128Ki",
    "workload.sequences_per_replica=1",
    "plans=[{name: TSP8, tsp: 8, zero: 3, micro_batch: 1, recomputation: cheap}, "
    "{name: SP8 ring, sp: 8, exchange: ring, zero: 3, micro_batch: 1, recomputation: cheap}]",
)


def seconds() -> str:
    """Where the seconds of the pair go, and the memory of both."""
    lines = [["plan", "step, s", "products", "attention", "other kernels", "exposed", "GiB per GPU"]]
    lines.append(["---", *(["---:"] * 6)])
    for plan in tspsim.simulate(tspsim.load(SCENARIO, PAIR)).plans:
        kinds, exposed = plan.compute_by_kind_s, sum(plan.breakdown_s["exposed_communication"].values())
        told = [plan.step_time_s, kinds["gemm"], kinds["attention"], kinds["memory_bound"], exposed]
        lines.append([plan.name, *(f"{value:.2f}" for value in told), f"{plan.memory.peak_bytes / 2**30:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rewrite() -> None:
    """The page's tables, that of the map from the file."""
    with NUMBERS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    written = {f"map-{device}": table(row for row in rows if row["device"] == device) for device in MAPS}
    written["seconds"] = seconds()
    pages.rewrite(PAGE, written)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the map of planner.md.")
    parser.add_argument("--jobs", type=int, default=None, help="processes; as many as there are cores when left out")
    parser.add_argument("--only", choices=MAPS, default=None, help="the map of one device; others stay as they are")
    parser.add_argument("--table", action="store_true", help="only the tables, from planner-map.csv as it is")
    asked = parser.parse_args()
    if not asked.table:
        drawn = known() if asked.only else {}
        drawn |= {device: draw(device, asked.jobs) for device in ([asked.only] if asked.only else MAPS)}
        NUMBERS.write_text(numbers(row for rows in drawn.values() for row in rows), encoding="utf-8")
    rewrite()


if __name__ == "__main__":
    main()
