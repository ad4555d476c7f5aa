"""What a sweep survives: kill -9 of itself and of its workers, Ctrl-C, a full disk, a folder nobody may write to."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.processes import files_limited_to, heed_interrupts
from helpers.sweeps import command, environment, write_catalog

from tspsim.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: 108 points of two plans, some of them wrong: a second or two of work for two processes.
OVER = (
    "--over", "workload.sequence=1Ki..32Ki*2", "--over", "workload.sequences_per_replica=1..9",
    "--over", "plans.TP8.tp=8,3",
)  # fmt: skip
LAYERS = 60
ANSWERS = 108  # TP8 where it divides, TP2 once for both values of TP8's degree


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalog(tmp_path_factory.mktemp("catalog"), layers=LAYERS)


@pytest.fixture(scope="module")
def undisturbed(catalog: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    out = tmp_path_factory.mktemp("undisturbed") / "t.csv"
    assert sweep_here(catalog, *OVER, "--out", out) == (0, "")
    return table_of(out)


def sweep_here(catalog: Path, *arguments: object) -> tuple[int, str]:
    """A sweep by this process alone: its exit code, and what it says on standard error."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(told):
        patch.setenv("TSPSIM_CATALOG", str(catalog))
        code = main(["sweep", "tiny", *map(str, arguments), "--jobs", "1"])
    return code, told.getvalue()


def table_of(path: Path) -> list[list[str]]:
    """A table without the columns that differ from run to run."""
    rows = list(csv.reader(path.read_text().splitlines()))
    kept = [index for index, name in enumerate(rows[0]) if not name.startswith("wall_")]
    return [[row[index] for index in kept] for row in rows]


def kept_in(store: Path) -> dict[str, tuple[str, float]]:
    """Answers of a store that may be unfinished, and the wall time that tells one run of a question from another."""
    if not store.exists():
        return {}
    connection = sqlite3.connect(store)
    try:
        rows = connection.execute("SELECT key, answer, wall_s FROM answers").fetchall()
    except sqlite3.OperationalError:  # killed before the table was made
        return {}
    finally:
        connection.close()
    return {key: (answer, wall_s) for key, answer, wall_s in rows}


def start(catalog: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        env=environment(catalog),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def workers_of(pid: int) -> list[int]:
    """Worker processes of a sweep: children that multiprocessing spawned (its tracker of resources is none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == pid and b"spawn_main" in words:
            found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], patience_s: float = 30.0) -> bool:
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z"
    except (OSError, IndexError):
        return False


def killed_and_resumed(catalog: Path, out: Path, kills: int, seed: int) -> None:
    """Kill a sweep at random moments, resuming each time; nothing that was kept is lost or asked again."""
    store, moments = out.with_suffix(".sqlite"), random.Random(seed)
    known: dict[str, tuple[str, float]] = {}
    for _ in range(kills):
        sweep = start(catalog, *OVER, "--out", out, "--jobs", 2, "--resume")
        # Half of the moments are counted from the start, half from the first new answer: the work itself is short.
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0.2, 2.0))
        else:
            before = len(known)
            wait_until(lambda: sweep.poll() is not None or len(kept_in(store)) > before)  # noqa: B023
            time.sleep(moments.uniform(0.0, 0.8))
        workers = workers_of(sweep.pid)
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate(timeout=30)
        assert wait_until(lambda: not any(map(alive, workers))), "workers outlive the sweep"  # noqa: B023
        now = kept_in(store)
        assert {key: now.get(key) for key in known} == known
        known = now
    assert sweep_here(catalog, *OVER, "--out", out, "--resume") == (0, "")
    now = kept_in(store)
    assert {key: now[key] for key in known} == known
    assert len(now) == ANSWERS


@pytest.mark.in_turn(2, group="processes")
def test_kill_9_at_random_moments_loses_nothing_and_repeats_nothing(
    catalog: Path, undisturbed: list[list[str]], tmp_path: Path
) -> None:
    killed_and_resumed(catalog, tmp_path / "t.csv", kills=2, seed=1)  # once after the start, once amid answers
    assert table_of(tmp_path / "t.csv") == undisturbed
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "t.sqlite"}


SERVED = """\
name: tiny
cluster: {device: mi300x, nodes: 1}
workload: {model: tiny, stack: vllm}
traffic: {arrivals: {kind: closed, concurrency: 4}, prompt: 200, output: 40, requests: 60}
plans: [{name: TP8, tp: 8}]
"""


@pytest.mark.slow  # a sweep of steps does so above
def test_a_sweep_of_requests_resumes_after_kill_9(tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "catalog")
    (folder / "scenarios/tiny.yaml").write_text(SERVED)
    over = ("--over", "traffic.arrivals.concurrency=1..4", "--over", "traffic.seed=0,1", "--out")
    assert sweep_here(folder, *over, tmp_path / "whole.csv") == (0, "")
    store = tmp_path / "t.sqlite"
    sweep = start(folder, *over, tmp_path / "t.csv", "--jobs", 1)
    assert wait_until(lambda: sweep.poll() is not None or len(kept_in(store)) > 1)
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate(timeout=30)
    known = kept_in(store)
    assert known
    assert sweep_here(folder, *over, tmp_path / "t.csv", "--resume")[0] == 0
    now = kept_in(store)
    assert len(now) == 8 and {key: now[key] for key in known} == known
    assert table_of(tmp_path / "t.csv") == table_of(tmp_path / "whole.csv")


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments(catalog: Path, undisturbed: list[list[str]], tmp_path: Path) -> None:
    for seed in range(4):
        out = tmp_path / f"{seed}.csv"
        killed_and_resumed(catalog, out, kills=5, seed=100 + seed)
        assert table_of(out) == undisturbed


@pytest.mark.slow
def test_a_worker_killed_on_the_way_changes_nothing(
    catalog: Path, undisturbed: list[list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "t.csv"
    sweep = start(catalog, *OVER, "--out", out, "--jobs", 2)
    assert wait_until(lambda: sweep.poll() is not None or len(kept_in(out.with_suffix(".sqlite"))) >= 1)
    os.kill(workers_of(sweep.pid)[0], signal.SIGKILL)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, errors
    assert table_of(out) == undisturbed


@pytest.mark.in_turn(2, group="processes")
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    catalog: Path, undisturbed: list[list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "t.csv"
    sweep = start(catalog, *OVER, "--out", out, "--jobs", 2)
    assert wait_until(lambda: len(kept_in(out.with_suffix(".sqlite"))) > 0)
    workers = workers_of(sweep.pid)
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=30)
    assert sweep.returncode == 130
    assert errors.count("\n") == 1, errors
    assert "--resume" in errors
    assert wait_until(lambda: not any(map(alive, workers)))
    assert not out.exists()
    assert sweep_here(catalog, *OVER, "--out", out, "--resume") == (0, "")
    assert table_of(out) == undisturbed


@pytest.mark.in_turn(2, group="processes")
def test_a_full_disk_is_one_clear_message_and_nothing_is_lost(
    catalog: Path, undisturbed: list[list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "t.csv"
    with files_limited_to(64 * 1024):
        code, errors = sweep_here(catalog, *OVER, "--out", out)
    assert code == 2
    assert errors.count("\n") == 1, errors
    assert "t.sqlite" in errors
    assert "--resume" in errors
    kept = kept_in(out.with_suffix(".sqlite"))
    assert kept
    assert not out.exists()
    assert sweep_here(catalog, *OVER, "--out", out, "--resume") == (0, "")
    assert table_of(out) == undisturbed
    now = kept_in(out.with_suffix(".sqlite"))
    assert {key: now[key] for key in kept} == kept


def test_a_table_that_does_not_fit_leaves_the_store_and_no_half_table(catalog: Path, tmp_path: Path) -> None:
    arguments = ("--over", "workload.sequence=1Ki..32Ki*2", "--out", tmp_path / "t.parquet")
    assert sweep_here(catalog, *arguments) == (0, "")
    (tmp_path / "t.parquet").write_bytes(b"the older one")
    with files_limited_to(4096):
        code, errors = sweep_here(catalog, *arguments, "--resume")
    assert code == 2
    assert errors.count("\n") == 1, errors
    assert "t.parquet: cannot write" in errors
    assert (tmp_path / "t.parquet").read_bytes() == b"the older one"
    assert {path.name for path in tmp_path.iterdir()} == {"t.parquet", "t.sqlite"}


def test_a_folder_nobody_may_write_to_is_refused_before_the_work(catalog: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        folder = Path("/proc")  # root may write anywhere else
    code, errors = sweep_here(catalog, "--over", "workload.sequence=1Ki", "--out", folder / "t.csv")
    assert code == 2
    assert errors.count("\n") == 1, errors
    assert "write" in errors or "keep" in errors


# --- Dask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dask_cluster(catalog: Path, tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A real scheduler on loopback and two workers with one thread each; address and the workers."""
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    contact = tmp_path / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []

    def run(module: str, *options: str) -> None:
        words = [sys.executable, "-m", module, "--scheduler-file", str(contact), "--no-dashboard", *options]
        quiet = subprocess.DEVNULL
        processes.append(subprocess.Popen(words, env=environment(catalog), stdout=quiet, stderr=quiet, cwd=tmp_path))

    try:
        run("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        assert wait_until(contact.exists)
        for _ in range(2):
            run("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path))
        yield json.loads(contact.read_text())["address"], processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait(timeout=30)


def test_dask_gives_the_same_bytes_though_a_worker_is_killed(
    catalog: Path,
    undisturbed: list[list[str]],
    tmp_path: Path,
    dask_cluster: tuple[str, list[subprocess.Popen[bytes]]],
) -> None:
    address, workers = dask_cluster
    folder = tmp_path / "table"
    folder.mkdir()
    out = folder / "t.csv"
    sweep = start(catalog, *OVER, "--out", out, "--scheduler", address)
    assert wait_until(lambda: sweep.poll() is not None or len(kept_in(out.with_suffix(".sqlite"))) >= 4)
    workers[0].kill()
    _, errors = sweep.communicate(timeout=90)
    assert sweep.returncode == 0, errors
    assert table_of(out) == undisturbed
    assert errors == ""
