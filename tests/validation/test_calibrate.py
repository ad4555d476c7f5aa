"""Calibration: what is fitted to measurements is written, found first, and used."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.nccl_logs import nccl_log
from helpers.processes import said_in_any_process

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.calibration import calibrate, places
from tspsim.cli import main
from tspsim.hardware import load_device
from tspsim.network import ExpertExchange, build_cluster, collective, exchange_experts
from tspsim.validation.devices import forget

TABLE = "kernels/memory_bound_h200_own.csv"
COLLECTIVES = "collectives/all.csv"
DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
shared = pytest.mark.skipif(
    not (DATA / COLLECTIVES).is_file(), reason=f"measured tables not found at {DATA}; set TSPSIM_SHARED_DATA"
)


def write_copies(folder: Path, bandwidth_bytes_per_s: float, *, outliers: int = 0) -> None:
    """Copies of a device that starts a kernel in 3 us and then moves bytes at one rate."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    sizes = np.geomspace(1e5, 1e9, 40).astype(int) // 16384 * 16384 + 16384
    lines = ["op,rows,cols,bytes,time_us,gpu"]
    for index, size in enumerate(sizes):
        time_us = 3.0 + size / bandwidth_bytes_per_s * 1e6
        slow = 5.0 if index % 7 == 3 and index // 7 < outliers else 1.0
        lines.append(f"copy,{size // 16384},4096,{size},{time_us * slow:.4f},H200")
    (folder / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_collectives(folder: Path, *, library: str = "NCCL 9.1", slower: float = 1.3, nodes: int = 1) -> None:
    """All-gathers of an H200's node, or all-reduces of several, that take longer than the catalog says."""
    (folder / "collectives").mkdir(parents=True, exist_ok=True)
    kind = "all_gather" if nodes == 1 else "all_reduce"
    cluster = build_cluster("h200", nodes, None if nodes == 1 else "rail-optimised-400g")
    random = np.random.default_rng(2)
    lines = ["gpu,nodes,gpus,op,bytes,time_us,library"]
    for gpus in (2, 4, 8) if nodes == 1 else (8 * nodes,):
        for power in range(9, 33):
            seconds = collective(cluster, range(gpus), kind, 2**power).alone_s * slower * random.uniform(0.97, 1.03)
            lines.append(f"H200,{nodes},{gpus},{kind},{2**power},{seconds * 1e6:.3f},{library}")
    lines.append(f"H200,{nodes},8,gather,4096,10,{library}")
    (folder / COLLECTIVES).write_text("\n".join(lines) + "\n", encoding="utf-8")


def fresh() -> None:
    """As a new process would find the catalog."""
    forget()


def validated(data: Path, out: Path) -> dict[str, Any]:
    """Errors of the collective table, by the real entry."""
    fresh()
    assert main(["validate", "--data", str(data), "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["tables"][COLLECTIVES]
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fresh()
    yield tmp_path
    fresh()


def test_the_written_device_is_found_first_and_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_device("h200")
    write_copies(here / "data", 2.0e12)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    after = load_device("h200")
    assert after.memory_bound(2e8).seconds == pytest.approx(3e-6 + 2e8 / 2.0e12, rel=0.05)
    assert after.memory_bound(2e8).seconds > 1.3 * before.memory_bound(2e8).seconds
    assert after.gemm(4096, 4096, 4096) == before.gemm(4096, 4096, 4096)
    shown = capsys.readouterr().out
    assert "rows used" in shown and "As it was" in shown and "gemm bf16" in shown


def test_the_file_tells_rows_used_error_on_others_date_and_library(here: Path) -> None:
    write_copies(here / "data", 2.0e12)
    fit = calibrate("H200", here / "data", today="2026-01-02").fits[0]
    assert fit.held_out is not None and fit.held_out.median < 0.05
    assert 0 < fit.rows_used <= 0.8 * 40 and fit.rows_used + fit.held_out.rows == 40
    assert (fit.date, fit.library) == ("2026-01-02", "copy")


@pytest.mark.in_turn(5, group="fits")
def test_outliers_hardly_move_the_fit(here: Path) -> None:
    write_copies(here / "clean", 2.0e12)
    write_copies(here / "dirty", 2.0e12, outliers=4)
    for name in ("clean", "dirty"):
        (here / name / "h200.yaml").write_text(calibrate("h200", here / name).yaml(), encoding="utf-8")
    clean, dirty = (load_device(here / name / "h200.yaml").memory_bound(2e8).seconds for name in ("clean", "dirty"))
    assert dirty == pytest.approx(clean, rel=0.06)


def test_a_file_that_is_there_is_not_replaced_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_copies(here / "data", 2.0e12)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    assert main(["calibrate", "h200", "--data", "data"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["calibrate", "h200", "--data", "data", "--out", "topologies/devices/h200.yaml"]) == 0


def test_an_unknown_device_offers_the_nearest(here: Path) -> None:
    with pytest.raises(UnknownNameError, match="h200"):
        calibrate("h2000", here)


def test_a_folder_without_kernels_or_without_the_device_is_refused(here: Path) -> None:
    with pytest.raises(InputError, match="no kernel table"):
        calibrate("h200", here)
    write_copies(here / "data", 2.0e12)
    with pytest.raises(InputError, match="no table has rows of b200"):
        calibrate("b200", here / "data")


# --- collectives ----------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5, group="fits")
def test_a_table_of_collectives_alone_writes_the_node_and_validation_is_nearer_then(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_collectives(here / "data")
    before = validated(here / "data", here / "before.json")
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    shown = capsys.readouterr().out
    assert "node: topologies/nodes/hgx-h200-8.yaml" in shown
    assert "NCCL 9.1" in shown and "no collective 'gather' (1 rows)" in shown and "As it was" in shown
    assert not (here / "topologies" / "devices").exists()
    after = validated(here / "data", here / "after.json")
    assert before["median_ape"] > 0.2
    assert after["median_ape"] < 0.03 and after["in_range"] >= 0.85
    assert not after["notes"]
    node = build_cluster("h200")
    assert collective(node, range(8), "all_gather", 2**24) == collective(
        node, range(8), "all_gather", 2**24, library="NCCL 9.1"
    )


@pytest.mark.parametrize(
    ("device", "kinds", "form", "stated"),
    [
        ("h100", ["all_reduce", "all_gather"], {}, []),
        ("h100", ["all_gather"], {"prefix": "[1,0]<stdout>:"}, []),
        ("mi300x", ["all_reduce"], {"prefix": " 0: ", "ranks": False}, ["--gpus", "8", "--nodes", "1"]),
        ("mi300x", ["all_reduce"], {"old": True}, ["--gpus", "8"]),
        ("h100", ["all_gather"], {"ranks": False}, ["--gpus", "8"]),  # its header has all eight in one process
    ],
)
def test_logs_of_nccl_tests_move_the_node(
    here: Path,
    device: str,
    kinds: list[str],
    form: dict[str, Any],
    stated: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    was = [collective(build_cluster(device), range(8), kind, 2**28).alone_s for kind in kinds]
    arguments = []
    for kind in kinds:
        nccl_log(here / f"{kind}.log", kind, device=device, **form)
        arguments += ["--nccl-tests", f"{kind}.log", "--op", kind]
    assert main(["calibrate", device, *arguments, *stated, "--library", "Mine 9.1"]) == 0
    shown = capsys.readouterr().out
    assert f"{device}: {24 * len(kinds)} rows" in shown and "node: topologies/nodes/" in shown
    now = [collective(build_cluster(device), range(8), kind, 2**28, library="Mine 9.1").alone_s for kind in kinds]
    assert now == pytest.approx([1.3 * seconds for seconds in was], rel=0.06)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--data nowhere", "nowhere: no such folder"),
        ("--data a.log", "a.log: is a file, not a folder of tables; give a log of nccl-tests with --nccl-tests"),
        ("--data raw", "raw/collectives/all.csv: is the log of nccl-tests as printed, not a table; give it with --"),
        ("", "give --data DIR, --nccl-tests FILE or --trace FILE"),
        ("--nccl-tests a.log", "--op: is needed for a log"),
        ("--nccl-tests a.log --op allreduce", "did you mean 'all_reduce'"),
        ("--nccl-tests a.log --op all_reduce --gpus 4", "a.log: --gpus 4, but the log lists 8"),
        ("--nccl-tests bare.log --op all_reduce", "bare.log: does not list its ranks; say --gpus and --nodes, of all"),
        ("--nccl-tests bare.log --op all_reduce --nodes 2", "bare.log: does not list its ranks; say --gpus and --node"),
        ("--nccl-tests bare.log --op all_reduce --gpus 16", "bare.log: does not list its ranks; say --gpus and --node"),
        ("--nccl-tests a.log --op all_reduce --node hgx-h200-9", "--node: unknown node 'hgx-h200-9' (did you mean"),
        ("--nccl-tests a.log --op all_reduce --node mi300x-8", "--node: node 'mi300x-8' has mi300x GPUs, not h100"),
        ("--nccl-tests b.log --op all_reduce", "b.log: no such file"),
        ("--nccl-tests raw --op all_reduce", "raw: is a folder; name a log in it"),
        ("--nccl-tests cut.log --op all_reduce", "cells for 13 columns; was the log cut off"),
        ("--nccl-tests several.log --op all_reduce", "several.log: holds several tests"),
        ("--nccl-tests other.log --op all_reduce", "other.log: is of all_to_all, not of --op all_reduce"),
        ("--nccl-tests starts.log --op all_reduce", "starts.log: is of all_gather, not of --op all_reduce"),
        ("--nccl-tests gaps.log --op all_reduce", "gaps.log: lists rank 7 and not rank 1; say --gpus and --nodes"),
        ("--nccl-tests empty.log --op all_reduce --gpus 8 --nodes 1", "empty.log: has no row with a size and a time"),
        ("--op all_reduce --data raw", "--op: describes logs"),
        ("--nccl-tests a.log --nccl-tests a.log --nccl-tests a.log --op all_reduce --gpus 8 --gpus 8", "2 times for 3"),
    ],
)
def test_a_log_that_cannot_be_read_is_told_in_one_line(
    here: Path, arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nccl_log(here / "a.log", "all_reduce")
    nccl_log(here / "bare.log", "all_reduce", ranks=False)
    text = (here / "a.log").read_text()
    (here / "raw/collectives").mkdir(parents=True)
    (here / "raw/collectives/all.csv").write_text(text)
    (here / "cut.log").write_text(text[: text.index("1048576") + 60])
    ends = [f"# Collective test concluded: {name}_perf\n" for name in ("alltoall", "scatter")]
    (here / "other.log").write_text(text + ends[0])
    (here / "several.log").write_text(text + "".join(ends))
    (here / "starts.log").write_text("# Collective test starting: all_gather_perf_mpi\n" + text)
    kept = [line for line in text.splitlines() if not line.startswith("#  Rank") or line.split()[2] in "07"]
    (here / "gaps.log").write_text("\n".join(kept))
    (here / "empty.log").write_text("")
    assert main(["calibrate", "h100", *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert told in message and message.count("\n") == 1
    assert not (here / "topologies").exists()


OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def test_a_node_of_one_s_own_is_calibrated_with_logs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From ``tspsim init device`` in an empty folder: a node without any measured curve gets its first ones, and what
    is predicted then is what was measured."""
    assert main(["init", "device"]) == 0
    logs = []
    for op in OPS:
        nccl_log(here / f"{op}.log", op, device="h200")
        logs += ["--nccl-tests", f"{op}.log", "--op", op]
    assert main(["validate", *logs, "--node", "my-gpu-8", "--json", "before.json"]) == 0
    node = "topologies/nodes/my-gpu-8.yaml"
    assert main(["calibrate", "my-gpu", *logs]) == 2
    assert f"{node}: exists already; name it with --out" in capsys.readouterr().err
    assert main(["calibrate", "my-gpu", *logs, "--out", node]) == 0
    shown = capsys.readouterr().out
    assert "my-gpu: 120 rows" in shown and f"node: {node}" in shown and "nothing to write" not in shown
    assert main(["check", node]) == 0
    fresh()
    assert main(["validate", *logs, "--gpu", "my-gpu", "--json", "after.json"]) == 0
    before, after = (
        json.loads((here / f"{name}.json").read_text())["tables"][COLLECTIVES] for name in ("before", "after")
    )
    assert before["rows"] == before["predicted"] == after["predicted"] == 120
    assert before["median_ape"] > 0.2 and after["median_ape"] < 0.05


def test_logs_go_to_the_node_that_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not to the usual node of its GPU."""
    text = catalog.locate("nodes", "hgx-h100-8").read_text().replace("name: hgx-h100-8", "name: mine-8", 1)
    (here / "topologies/nodes").mkdir(parents=True)
    (here / "topologies/nodes/mine-8.yaml").write_text(text)
    nccl_log(here / "a.log", "all_gather")
    log = ["--nccl-tests", "a.log", "--op", "all_gather", "--library", "Mine 9.1", "--node", "mine-8"]
    was = collective(build_cluster(node="hgx-h100-8"), range(8), "all_gather", 2**28).alone_s
    assert main(["calibrate", "h100", *log, "--out", "topologies/nodes/mine-8.yaml"]) == 0
    capsys.readouterr()
    now = collective(build_cluster(node="mine-8"), range(8), "all_gather", 2**28, library="Mine 9.1").alone_s
    assert now == pytest.approx(1.3 * was, rel=0.06)
    assert collective(build_cluster(node="hgx-h100-8"), range(8), "all_gather", 2**28).alone_s == was
    assert not (here / "topologies/nodes/hgx-h100-8.yaml").exists()
    fresh()
    assert main(["validate", *log, "--json", "after.json"]) == 0
    assert json.loads((here / "after.json").read_text())["tables"][COLLECTIVES]["median_ape"] < 0.05


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--nccl-tests a.log --op all_gather", "--gpu: is needed for a log, or --node NAME of the catalog"),
        ("--nccl-tests a.log --op all_gather --gpu h10", "--gpu: unknown device 'h10' (did you mean 'h100'"),
        ("--nccl-tests a.log --gpu h100", "--op: is needed for a log"),
        ("--node hgx-h100-8", "--node: describes logs; name them with --nccl-tests"),
    ],
)
def test_a_log_to_validate_needs_its_gpu(
    here: Path, arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nccl_log(here / "a.log", "all_gather")
    assert main(["validate", *arguments.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.in_turn(5, group="fits")
def test_kernels_and_collectives_are_written_side_by_side(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_copies(here / "data", 2.0e12)
    write_collectives(here / "data")
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    files = ["topologies/devices/h200.yaml", "topologies/nodes/hgx-h200-8.yaml"]
    before = [(here / file).read_bytes() for file in files]
    assert main(["calibrate", "h200", "--data", "data"]) == 2
    assert "--out" in capsys.readouterr().err
    (here / files[0]).unlink()
    assert main(["calibrate", "h200", "--data", "data"]) == 2
    assert "hgx-h200-8.yaml" in capsys.readouterr().err
    assert main(["calibrate", "h200", "--data", "data", "--out", files[0]]) == 0
    assert (here / files[0]).read_bytes() == before[0]
    assert sorted((here / "topologies").rglob("*.yaml")) == sorted(here / file for file in files)


@pytest.mark.in_turn(5, group="fits")
def test_a_file_says_when_it_was_made(here: Path) -> None:
    write_collectives(here / "data")
    text = calibrate("h200", here / "data", today="2026-01-02").yaml("nodes")
    assert "(2026-01-02): NCCL 9.1, " in " ".join(text.split())


@pytest.mark.in_turn(5, group="fits")
def test_any_process_writes_the_same_file(here: Path) -> None:
    """The same tables make the same files."""
    write_collectives(here / "data")
    script = (
        "import contextlib, io, os, pathlib\n"
        "from tspsim.cli import main\n"
        "file = f'{os.getpid()}.yaml'\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert main(['calibrate', 'h200', '--data', 'data', '--out', file]) == 0\n"
        "print(pathlib.Path(file).read_text())\n"
    )
    assert "name: hgx-h200-8" in said_in_any_process(script)
    assert len([*here.glob("*.yaml")]) == 2


@pytest.mark.in_turn(5, group="fits")
def test_rows_without_a_library_move_what_collectives_get_that_name_none(here: Path) -> None:
    write_collectives(here / "data", library="")
    was = collective(build_cluster("h200"), range(8), "all_gather", 2**24).alone_s
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    now = collective(build_cluster("h200"), range(8), "all_gather", 2**24).alone_s
    assert now == pytest.approx(1.3 * was, rel=0.04)
    assert validated(here / "data", here / "after.json")["median_ape"] < 0.03


def test_rows_of_several_nodes_move_the_fabric(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_collectives(here / "data", slower=1.6, nodes=2)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    assert "fabric: topologies/fabrics/rail-optimised-400g.yaml" in capsys.readouterr().out
    assert not (here / "topologies" / "nodes").exists()
    assert validated(here / "data", here / "after.json")["median_ape"] < 0.1


def test_a_file_that_tells_the_rows_as_well_is_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_collectives(here / "data", slower=1.0, nodes=2)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    shown = capsys.readouterr().out
    assert "nothing to write" in shown and "predicted the others better" in shown
    assert not (here / "topologies").exists()


@pytest.mark.in_turn(5, group="fits")
def test_a_name_from_a_table_cannot_steer_the_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_collectives(here / "data", library="\x1b[31mred")
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert validated(here / "data", here / "after.json")["median_ape"] < 0.03


def test_expert_exchanges_are_fitted_and_read_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """mori's combine on eight MI300X, a third slower than the catalog says, and a kernel that nobody knows."""
    table = "collectives/moe_dispatch_combine_amd.csv"
    (here / "data" / "collectives").mkdir(parents=True)
    lines = ["gpu,kernel,ep,phase,dtype,quant,zero_copy,num_tokens,hidden_dim,latency_us"]
    for power in range(4, 14):
        exchange = ExpertExchange(tokens=2.0**power, token_bytes=7168.0 * 2.0)
        seconds = exchange_experts(build_cluster("mi300x"), range(8), "combine", exchange).alone_s
        lines.append(f"MI300X,IntraNode,8,combine,bf16,none,False,{2**power},7168,{seconds * 1.33e6:.3f}")
    lines.append("MI300X,Elsewhere,8,combine,bf16,none,False,64,7168,9")
    (here / "data" / table).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["calibrate", "mi300x", "--data", "data"]) == 0
    shown = capsys.readouterr().out
    assert "normal combine of mori, one node" in shown and "no kernel 'Elsewhere' of mori (1 rows)" in shown
    fresh()
    assert main(["validate", "--data", "data", "--json", "after.json"]) == 0
    after = json.loads((here / "after.json").read_text(encoding="utf-8"))["tables"][table]
    assert after["median_ape"] < 0.03 and after["scored"] == 10


def test_files_go_beside_the_one_that_is_named() -> None:
    both = [("devices", "h200"), ("nodes", "hgx-h200-8")]
    assert places(both, Path("mine/h200.yaml"))["nodes", "hgx-h200-8"] == Path("mine/hgx-h200-8.yaml")
    assert places(both, Path("mine/devices/x.yaml")) == {
        both[0]: Path("mine/devices/x.yaml"), both[1]: Path("mine/nodes/hgx-h200-8.yaml"),
    }  # fmt: skip
    assert places(both[1:], Path("mine/node.yaml")) == {both[1]: Path("mine/node.yaml")}
    with pytest.raises(InputError, match="place of another file"):
        places(both, Path("mine/hgx-h200-8.yaml"))


@shared
@pytest.mark.parametrize(("gpu", "rows"), [pytest.param("H100", 442, marks=pytest.mark.slow), ("MI300X", 69)])
def test_published_collectives_stay_within_their_bars(here: Path, gpu: str, rows: int) -> None:
    """Of rows inside one node, whether the fit used them or not."""
    with (DATA / COLLECTIVES).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        mine = [row for row in reader if row["gpu"] == gpu and row["nodes"] == "1"]
        assert reader.fieldnames is not None
        (here / "data" / "collectives").mkdir(parents=True)
        with (here / "data" / COLLECTIVES).open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, reader.fieldnames)
            writer.writeheader()
            writer.writerows(mine)
    assert len(mine) == rows
    assert main(["calibrate", gpu, "--data", "data"]) == 0
    after = validated(here / "data", here / "after.json")
    for group, error in after["by"]["gpu, nodes, gpus, op"].items():
        assert error["median_ape"] <= 0.08, group
        assert error["mape"] <= 0.12, group
    assert math.floor(0.85 * rows) <= after["in_range"] * rows <= math.ceil(0.97 * rows)
