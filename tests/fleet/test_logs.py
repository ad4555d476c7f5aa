"""Logs of jobs: what each form says, and one line about what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.fleet import FleetAnswer
from tspsim.fleet.logs import Log, read

SACCT = """\
JobIDRaw|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|NNodes|AllocTRES
1|ann|train|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T02:00:10|7200|240|2|billing=16,cpu=256,gres/gpu=16,node=2
1.batch||||||7200|||
2|bob|tune|2024-03-01T00:10:00|2024-03-01T00:10:00|2024-03-01T01:10:00|3600|UNLIMITED|1|cpu=16,gres/gpu=4
3|bob|tune|2024-03-01T00:20:00|Unknown|Unknown|0|60|1|
4|cid|prep|2024-03-01T00:30:00|2024-03-01T00:30:00|2024-03-01T00:40:00|600|60|1|cpu=32
"""
SWF = """\
; MaxNodes: 4
; MaxProcs: 32
1 0 5 7200 16 -1 -1 16 14400 -1 1 7 -1 -1 -1 -1 -1 -1
2 600 0 3600 4 -1 -1 4 -1 -1 1 8 -1 -1 -1 -1 -1 -1
3 700 0 -1 4 -1 -1 4 100 -1 5 8 -1 -1 -1 -1 -1 -1
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
a,u1,2,16,256,Pretrain,COMPLETED,2023-03-01 00:00:00,2023-03-01 00:00:05,2023-03-01 02:00:05,7200,5,115200
b,u2,1,4,64,Debug,FAILED,2023-03-01 00:10:00,2023-03-01 00:10:00,2023-03-01 01:10:00,3600,0,14400
c,u2,1,0,64,Other,COMPLETED,2023-03-01 00:10:00,2023-03-01 00:10:00,2023-03-01 01:10:00,3600,0,0
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,state,submit_time,start_time,end_time
a,u1,vc1,16,64,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:05,2020-04-01 02:00:05
b,u2,vc2,4,16,COMPLETED,2020-04-01 00:10:00,2020-04-01 00:10:00,2020-04-01 01:10:00
"""
#: The entry that the trace's README shows, one that never ran, and one whose end is not known.
PHILLY = """[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1506638472019_14199", "attempts": [
 {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23", "detail": [{"ip": "m47",
  "gpus": ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]}]},
 {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-09 06:53:12", "detail": [{"ip": "m412",
  "gpus": ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]}]}],
 "submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"},
 {"status": "Killed", "vc": "a", "jobid": "b", "attempts": [], "submitted_time": "2017-10-07 01:12:00", "user": "c"},
 {"status": "Pass", "vc": "a", "jobid": "d", "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": null,
  "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}], "submitted_time": "2017-10-07 01:12:00", "user": "c"}]
"""


def fleet(path: Path, nodes: int = 4) -> FleetAnswer:
    machine = {"device": "h100", "nodes": nodes, "fabric": "rails-400g"}
    answer = tspsim.simulate({"name": "log", "cluster": machine, "jobs": [{"name": "log", "file": str(path)}]})
    assert isinstance(answer, FleetAnswer)
    return answer


@pytest.mark.parametrize(("name", "text"), [("sacct.txt", SACCT), ("a.csv", ACME), ("h.csv", HELIOS), ("l.swf", SWF)])
def test_jobs_of_every_form(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    answer = fleet(tmp_path / name)
    small = 8 if text is SWF else 4
    rows = [(job.submit_s, job.gpus, job.end_s - (job.start_s or 0.0)) for job in answer.facts.jobs if job.end_s]
    assert rows == [(0.0, 16, 7200.0), (600.0, small, 3600.0)]
    if text in (SACCT, ACME, SWF):
        assert any("that are left out" in sentence for sentence in answer.defaults)
    assert any("have no workload" in sentence for sentence in answer.defaults)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ACME.replace("gpu_num", "cards").replace("node_num", "hosts"), "row 1: no column says gpus"),
        (ACME.replace("submit_time", "when"), "row 1: no column says submit; name one submit_time or submitted_time"),
        ("when,what\n1,2\n", "row 1: is no known form of a job log"),
        (
            ACME.replace("3600,0,14400", "-3600,0,14400"),
            "row 3, column duration: '-3600' is not a number of at least 0",
        ),
        (ACME.replace("b,u2,1,4,", "b,u2,1,four,"), "row 3, column gpu_num: 'four'"),
        (HELIOS.replace("2020-04-01 01:10:00", "2020-04-01 00:01:00"), "row 3, column end_time: lies 540 s before"),
        (HELIOS.replace("u2,vc2,4,16", "u2,vc2,4"), "row 3: 8 columns, and row 1 has 9"),
        (SWF.replace("2 600 0 3600 4 -1 -1 4 -1", "2 600 0 3600 4"), "row 4: 14 columns"),
        (SACCT.replace("2024-03-01T00:10:00|2024", "yesterday|2024"), "row 4, column Submit: 'yesterday'"),
        (ACME.replace("a,u1,2,16,", "a,u1,9,72,"), "row 2: job a has 72 GPUs; at most the cluster's 4 nodes of 8 GPUs"),
        ("", "no known form of a job log"),
        # Times go back though the columns that count say nothing of it.
        (ACME.replace("2023-03-01 02:00:05", "2023-02-28 02:00:05"), "row 2, column end_time: lies 79200 s before"),
        (ACME.replace("2023-03-01 00:00:05", "2023-02-28 23:00:00"), "row 2, column start_time: lies 3600 s before"),
        (SACCT.replace("2024-03-01T02:00:10", "2024-03-01T00:00:00"), "row 2, column End: lies 10 s before Start"),
        (PHILLY.replace("01:13:23", "01:12:00"), "row 1, column end_time: lies 9 s before start_time"),
        (PHILLY.replace('"submitted_time": "2017-10-07 01:11:39", ', ""), "row 1, column submitted_time: 'None'"),
        (PHILLY.replace('"ce2f4c"}', '"ce2f4c"'), "row 7, column 2: is no JSON"),
    ],
)
def test_what_is_wrong_is_told_with_file_row_and_column(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        fleet(tmp_path / "log.csv")
    line = str(error.value)
    assert told in line and "log.csv" in line and "\n" not in line


def test_a_job_of_philly_has_the_gpus_of_its_first_attempt_for_as_long_as_all(tmp_path: Path) -> None:
    (tmp_path / "cluster_job_log").write_text(PHILLY, encoding="utf-8")
    log = Log(tmp_path / "cluster_job_log")
    (job,) = read(log.path, log)
    assert (job.name, job.user, job.kind) == ("application_1506638472019_14199", "ce2f4c", "ee9e8c")
    assert job.gpus == 8 and job.runs_s == 74 + (2 * 86_400 + 5 * 3600 + 39 * 60 + 42) and job.limit_s is None
    assert log.left_out == {"never ran, or for how long is not known": 2}


#: Cancelled before its start, two requeued rows, an array's tasks one of which lost its node, one still pending, steps.
ODD = """\
JobID|User|State|Submit|Start|End|Elapsed|Timelimit|NNodes|AllocTRES
7|ann|CANCELLED by 1001|2024-03-01T00:00:00|None|2024-03-01T00:06:00|00:00:00|UNLIMITED||
8|bob|REQUEUED|2024-03-01T00:00:00|2024-03-01T00:20:00|2024-03-01T00:30:00|00:10:00|UNLIMITED|2|gres/gpu=16,mem=2000Gn
8|bob|COMPLETED|2024-03-01T00:30:00|2024-03-01T00:50:00|2024-03-02T03:50:00|1-03:00:00|1-12:00:00|2|gres/gpu:h100=16,gres/gpu=16
8.extern|||2024-03-01T00:30:00|2024-03-01T00:50:00|2024-03-01T03:50:00|1-03:00:00||2|cpu=2
9_1|cid|NODE_FAIL|2024-03-01T00:40:00|2024-03-01T00:40:00|2024-03-01T00:50:00|00:10:00|Partition_Limit|1|cpu=1,gres/gpu=4,mem=1.5T
9_[2-8%2]|cid|PENDING|2024-03-01T00:40:00|Unknown|Unknown|00:00:00|01:00:00|1|
"""


def test_odd_rows_of_sacct_are_jobs_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_text(ODD, encoding="utf-8")
    log = Log(path)
    found = [(row.name, row.submit_s, row.runs_s, row.gpus, row.limit_s) for row in read(path, log)]
    first = found[0][1]
    assert found == [
        ("8", first, 600.0, 16, None),
        ("8", first + 1800, 97200.0, 16, 129600.0),
        ("9_1", first + 2400, 600.0, 4, None),
    ]
    assert log.left_out == {"never ran": 2}


def test_a_bad_row_among_very_many_is_found(tmp_path: Path) -> None:
    rows = [f"{n},u,8,{n},60" for n in range(50_000)]
    rows[41_234] = "41234,u,8,41234,sixty"
    (tmp_path / "log.csv").write_text("job_id,user,gpu_num,submit_time,duration\n" + "\n".join(rows), encoding="utf-8")
    with pytest.raises(InputError, match="row 41236, column duration: 'sixty'"):
        fleet(tmp_path / "log.csv")


def test_a_log_that_is_nowhere_is_told() -> None:
    with pytest.raises(InputError, match=r"jobs\.log\.file.*nowhere\.csv is no file"):
        fleet(Path("nowhere.csv"))
