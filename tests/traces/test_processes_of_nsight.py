"""Exports of Nsight Systems with several processes, old columns, and graphs recorded whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tspsim import traces
from tspsim.cli import main


def export(path: Path, *, processes: int = 2, own_device: bool = True, old: bool = False, graphs: int = 0) -> Path:
    """Processes that each launch two products inside an NVTX range of an operator, all numbering their calls from 1."""
    with closing(sqlite3.connect(path)) as base:
        name, owner = ("shortName", "") if old else ("demangledName", ", globalPid")
        base.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL "
            f"(start, end, deviceId, streamId, correlationId, {name}, gridX, gridY, gridZ{owner})"
        )
        base.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid)")
        base.execute("create table NVTX_EVENTS (start, end, text, textId, globalTid)")
        base.execute("create table StringIds (id, value)")
        base.execute("insert into StringIds values (1, 'sm90_xmma_gemm_bf16')")
        for number in range(processes):
            process, device = (number + 1) << 24, 0 if own_device else number
            for call in (1, 2):
                at = 1000 * call + 10 * number
                row = [at + 100, at + 600, device, 7, call, 1, 1, 1, 1] + ([] if old else [process])
                base.execute(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({','.join('?' * len(row))})", row)
                base.execute(
                    "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,?,?)", (at, at + 5, call, process + 9)
                )
                text = f"aten::mm, seq = {call}, op_id = 3, sizes = [[{number + 8}, 16], [16, 4]]"
                base.execute("insert into NVTX_EVENTS values (?,?,?,null,?)", (at - 5, at + 8, text, process + 9))
        if graphs:
            base.execute("create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end)")
            base.executemany("insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (0, 2000000)", [()] * graphs)
        base.commit()
    return path


@pytest.mark.parametrize("own_device", [True, False])
def test_each_process_is_a_rank_with_its_own_launches(own_device: bool, tmp_path: Path) -> None:
    found = traces.read([export(tmp_path / "a.sqlite", own_device=own_device)])
    assert found.ranks == (0, 1)
    for rank in found.ranks:
        rows = found.columns["rank"] == rank
        assert set(found.word("shapes")[rows]) == {f"[[{rank + 8},16],[16,4]]"}
        assert set(found.word("operator")[rows]) == {"aten::mm"}


def test_old_columns_and_graphs_that_are_recorded_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = export(tmp_path / "a.sqlite", processes=1, old=True, graphs=3)
    assert main(["trace", "read", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "gemm" in shown
    assert "kernels inside graphs: 3 launches of 6.0 ms are recorded whole" in " ".join(shown.split())
