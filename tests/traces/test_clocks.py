"""Ranks whose clocks differ come on one clock, and a collective's waiting is told apart from its transfer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.profiles import kineto, written
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim import traces
from tspsim.cli import main

RANKS, USES = 4, 12


def kernel(name: str, start_us: float, length_us: float, number: int, stream: int = 7) -> dict[str, Any]:
    arguments = {"device": 0, "stream": stream, "correlation": number}
    if name.startswith("nccl"):
        arguments |= {"Process Group Name": "tp", "Collective name": "allreduce", "Group size": RANKS}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start_us, "dur": length_us,
            "args": arguments}  # fmt: skip


def machine(folder: Path, work_us: np.ndarray, ahead_us: list[float], moves_us: float = 30.0) -> list[Path]:
    """Ranks that work for ``work_us`` (ranks, uses) and then meet in an all-reduce, each by a clock of its own."""
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    now = 1_000_000.0
    for use in range(USES):
        arrive = now + work_us[:, use]
        end = arrive.max() + moves_us
        for rank in range(RANKS):
            begin = now + ahead_us[rank]
            events[rank].append(kernel("Cijk_gemm", begin, work_us[rank, use], 2 * use + 1))
            start = arrive[rank] + ahead_us[rank]
            events[rank].append(kernel("ncclDevKernel_AllReduce_Sum", start, end + ahead_us[rank] - start, 2 * use + 2))
        now = end + 1.0
    files = []
    for rank in range(RANKS):
        document = kineto([], device="h100", rank=rank, world_size=RANKS)
        document["traceEvents"] = events[rank]
        files.append(written(folder / f"r{rank}.json", document))
    return files


@settings(max_examples=8, deadline=None)
@given(
    ahead=st.lists(st.integers(-50_000, 50_000), min_size=RANKS, max_size=RANKS),
    seed=st.integers(0, 2**31),
)
def test_clocks_and_waits_are_those_of_the_machine(
    ahead: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work_us = np.random.default_rng(seed).uniform(20.0, 200.0, (RANKS, USES)).round(2)
    found = traces.read(machine(tmp_path_factory.mktemp("ranks"), work_us, [float(each) for each in ahead]))
    clocks = found.facts["clocks"]
    assert clocks.uses == USES and not clocks.unmatched
    for rank in range(RANKS):
        assert 1e6 * clocks.ahead_s[rank] == pytest.approx(ahead[rank] - ahead[0], abs=0.01)
        rows = (found.columns["rank"] == rank) & (found.word("kind") == "all_reduce")
        waits = 1e6 * found.columns["wait_s"][rows]
        assert waits == pytest.approx(work_us.max(axis=0) - work_us[rank], abs=0.02)
        assert 1e6 * found.columns["duration_s"][rows] - waits == pytest.approx(np.full(USES, 30.0), abs=0.02)
    assert np.isnan(found.columns["wait_s"][found.word("kind") == "gemm"]).all()


def test_the_command_says_how_clocks_were_set_and_who_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work_us = np.full((RANKS, USES), 100.0)
    work_us[2] = 130.0  # a slow rank: the others wait 30 of 60 µs
    files = machine(tmp_path, work_us, [0.0, 0.0, 1500.0, 0.0])
    assert main(["trace", "read", *map(str, files)]) == 0
    shown = capsys.readouterr().out
    (clocks,) = (line for line in shown.splitlines() if line.strip().startswith("clocks:"))
    assert all(part in clocks for part in ("12 collectives", "rank 2", "1.50 ms"))
    assert "all_reduce" in shown and "42.9 %" in shown


def test_a_rank_alone_and_ranks_that_never_meet_keep_their_clocks(tmp_path: Path) -> None:
    files = machine(tmp_path, np.full((RANKS, USES), 100.0), [0.0, 7.0, 0.0, 0.0])
    assert "clocks" not in traces.read(files[:1]).facts
    assert np.isnan(traces.read(files[:1]).columns["wait_s"]).all()


def unnamed(files: list[Path]) -> list[Path]:
    """The same files with an engine's own all-reduce, whose group no profiler names."""
    for path in files:
        text = path.read_text().replace('"Process Group Name": "tp", ', "")
        path.write_text(text.replace("ncclDevKernel_AllReduce_Sum", "vllm::cross_device_reduce_1stage<4>"))
    return files


def test_collectives_without_groups_set_clocks_where_all_ranks_leave_them_together(tmp_path: Path) -> None:
    work_us = np.random.default_rng(3).uniform(20.0, 200.0, (RANKS, USES)).round(2)
    found = traces.read(unnamed(machine(tmp_path, work_us, [0.0, 4000.0, -70.0, 9.0])))
    assert not any(found.words["group"])
    assert 1e6 * found.facts["clocks"].ahead_s[1] == pytest.approx(4000.0, abs=0.01)
    rows = (found.columns["rank"] == 3) & (found.word("kind") == "all_reduce")
    assert 1e6 * found.columns["wait_s"][rows] == pytest.approx(work_us.max(axis=0) - work_us[3], abs=0.02)


def test_ranks_of_two_groups_without_names_keep_their_clocks(tmp_path: Path) -> None:
    drawn = np.random.default_rng(5)
    one, other = (unnamed(machine(tmp_path / str(part), drawn.uniform(20.0, 900.0, (RANKS, USES)), [0.0] * RANKS))
                  for part in range(2) if (tmp_path / str(part)).mkdir() is None)  # fmt: skip
    for rank, path in enumerate(other):
        path.write_text(path.read_text().replace(f'"rank": {rank}', f'"rank": {rank + RANKS}'))
    assert "clocks" not in traces.read([*one, *other]).facts
