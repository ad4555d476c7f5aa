"""Sweeps: rows, errors that stay in their row, questions by content, the same bytes for any number of workers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from helpers.sweeps import write_catalog

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.cli import main
from tspsim.scenario import ClusterInline
from tspsim.studies import Sweep
from tspsim.studies.query import Library
from tspsim.studies.store import AnswerStore
from tspsim.studies.table import Table


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_catalog(tmp_path / "catalog")
    monkeypatch.setenv("TSPSIM_CATALOG", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def steady(table: Table) -> list[dict[str, object]]:
    """Rows without what differs from run to run."""
    return [{name: cell for name, cell in row.items() if not name.startswith("wall_")} for row in table.rows()]


def test_a_row_a_plan_a_point_in_the_order_of_points(catalog: Path) -> None:
    table = Sweep("tiny", ["workload.sequence=4Ki..16Ki*2", "workload.sequences_per_replica=1,2"]).run(jobs=1)
    assert table.columns["point"] == [p for p in range(6) for _ in range(2)]
    assert table.columns["plan"] == ["TP8", "TP2"] * 6
    assert table.columns["workload.sequence"] == [n for n in (4096, 8192, 16384) for _ in range(4)]
    assert table.ran == 12


def test_a_row_holds_what_simulate_answers(catalog: Path) -> None:
    (row, *_) = Sweep("tiny", ["workload.sequence=4Ki"]).run(jobs=1).rows()
    answer = tspsim.simulate(tspsim.load("tiny", ["workload.sequence=4Ki"])).plan("TP8").to_json()
    assert row["step_time_s"] == answer["step_time_s"]
    assert (row["tokens_per_s_low"], row["tokens_per_s_high"]) == (answer["range"]["low"], answer["range"]["high"])
    assert row["compute_gemm_s"] == answer["compute_by_kind_s"]["gemm"]
    assert row["exposed_communication_s"] == sum(answer["breakdown_s"]["exposed_communication"].values())
    assert row["usd_per_million_tokens_rental"] == answer["cost"]["usd_per_million_tokens"]["rental"]
    assert (row["gpus"], row["device"], row["error"]) == (8, "mi300x", None)


def test_wrong_input_stays_in_its_row_and_hinders_no_other_plan(catalog: Path) -> None:
    table = Sweep("tiny", ["plans.TP8.tp=8,3,0"]).run(jobs=1)
    errors = list(zip(table.columns["point"], table.columns["plan"], table.columns["error"], strict=True))
    assert [error[:2] for error in errors] == [(0, "TP8"), (0, "TP2"), (1, "TP8"), (1, "TP2"), (2, None)]
    assert [error[2] is None for error in errors] == [True, True, False, True, False]
    assert "3 GPUs a replica do not divide" in str(errors[2][2])
    assert "plans.TP8.tp" in str(errors[4][2])
    assert table.columns["plans.TP8.tp"] == [8, 8, 3, 3, 0]


def test_a_plan_that_does_not_fit_keeps_its_memory(catalog: Path) -> None:
    table = Sweep("tiny", ["workload.model=llama-3.1-405b,tiny", "plans=TP2"]).run(jobs=1)
    refused, fine = table.rows()
    assert "GiB more than" in str(refused["error"])
    assert refused["memory_peak_bytes"] > refused["memory_capacity_bytes"]  # type: ignore[operator]
    assert refused["tokens_per_s"] is None
    assert fine["error"] is None


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ("workload.sequnce=1", "sequence"),
        ("plans.TP9.tp=1", "TP8"),
        ("plans=TP8,TP9", "TP8"),
        ("cluster.nodes=1..4", "no keys"),
        ("nothing=1", "unknown key"),
    ],
)
def test_a_path_that_is_wrong_everywhere_is_refused_before_the_work(catalog: Path, over: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        Sweep("tiny", [over])
    assert "--over" in str(error.value)


def test_clusters_can_be_swept_like_anything_else(catalog: Path) -> None:
    over = ["cluster=mi300x-8,hgx-h100-8,{device: mi300x, nodes: 2, fabric: rails-400g}", "plans=TP8"]
    table = Sweep("tiny", over).run(jobs=1)
    assert table.columns["device"] == ["mi300x", "h100", "mi300x"]
    assert table.columns["gpus"] == [8, 8, 16]
    assert table.ran == 3


def test_the_same_question_is_asked_once(catalog: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    sweep = Sweep("tiny", ["plans.TP8.partition=zigzag,contiguous", "plans.TP2.tp=2,2"])
    assert len(sweep.run(store=store, jobs=1)) == 8
    import sqlite3

    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone() == (3,)  # TP8 twice, TP2 once


def key_of(*overrides: str, name: str = "tiny") -> str:
    library = Library()
    return library.key(library.look_up(tspsim.load(name, overrides)))


def test_the_key_is_the_content_of_the_question(catalog: Path, tmp_path: Path) -> None:
    same = key_of()
    assert key_of("name=other", "description=words", "source=me") == same
    assert key_of("plans.TP8.dp=null", "workload.sequence=8192") == same
    copy = tmp_path / "copy.yaml"
    copy.write_text((catalog / "workloads/models/tiny.yaml").read_text() + "# a remark changes nothing\n")
    assert key_of(f"workload.model={copy}") == same
    others = [key_of(one) for one in ("workload.sequence=4Ki", "plans.TP2.tp=4", "prices.gpu_hour=1 USD/h")]
    assert len({same, *others}) == 4


#: Of every key of a cluster another value than the first one's.
OTHER_CLUSTERS: dict[str, Any] = {
    "device": "h100",
    "nodes": 4,
    "fabric": "rails-400g",
    "topology": "two-nodes.graphml",
    "node": "torus-4x4",
    "gpus_per_node": 4,
    "oversubscription": 4,
    "library": "RCCL graph",
    "islands": [{"nodes": 1, "fabric": "rails-400g"}, {"nodes": 1, "fabric": "rails-200g"}],
    "measured": {"unit": "GB/s", "rows": [[0, 20], [20, 0]]},
    "routing": "planned",
    "transport": "roce",
    "nic_bandwidth": "100 Gb/s",
    "power_limit": "500 W",
    "faults": {"slow_gpus": [{"gpu": 0, "factor": 1.2}]},
    "variation": {"gpu": "2 %", "seed": 0},
}


def test_the_key_follows_every_key_of_a_cluster(catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import networkx as nx

    monkeypatch.chdir(tmp_path)
    graph = tspsim.load_cluster("mi300x-2x8").graph.copy()
    nx.write_graphml(graph, "two-nodes.graphml")
    assert OTHER_CLUSTERS.keys() == ClusterInline.model_fields.keys()
    first = {"device": "mi300x", "nodes": 2, "fabric": "fat-tree-400g"}
    faults = [{"links": [{"between": [0, 1], "factor": each}]} for each in (0.25, 0.5)]
    faults += [{"dead": ["node1/nic3"]}]
    varied = [{"step": "1 %", "seed": 0}, {"gpu": "2 %", "seed": 1}, {"gpu": "3 %", "seed": 0}]
    others = [{key: value} for key, value in OTHER_CLUSTERS.items()]
    others += [*({"faults": each} for each in faults), *({"variation": each} for each in varied)]
    keys = {key_of("cluster=" + json.dumps(first | each)) for each in ({}, *others)}
    assert len(keys) == 1 + len(others)
    # A graph is what its file holds, not what the file is called.
    own = "cluster=" + json.dumps(first | {"topology": "two-nodes.graphml"})
    before = key_of(own)
    graph.edges[0, 1]["bandwidth_bytes_per_s"] /= 2
    nx.write_graphml(graph, "two-nodes.graphml")
    assert before in keys and key_of(own) not in keys


def test_the_key_follows_the_catalog_and_the_version(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of()
    write_catalog(catalog, layers=3)
    changed = key_of()
    monkeypatch.setattr("tspsim.studies.query.__version__", "9.9.9")
    assert len({before, changed, key_of()}) == 3


def test_a_sweep_that_grows_asks_only_what_is_new(catalog: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    first = Sweep("tiny", ["workload.sequence=4Ki,8Ki"]).run(store=store, jobs=1)
    second = Sweep("tiny", ["workload.sequence=4Ki,8Ki,16Ki"]).run(store=store, resume=True, jobs=1)
    assert second.columns["wall_s"][:4] == first.columns["wall_s"]
    assert steady(second)[:4] == steady(first)


def test_a_file_that_changed_between_two_sweeps_of_a_process_is_read_again(catalog: Path) -> None:
    before = Sweep("tiny", ["workload.sequence=4Ki"]).run(jobs=1)
    write_catalog(catalog, layers=4)
    after = Sweep("tiny", ["workload.sequence=4Ki"]).run(jobs=1)
    assert after.columns["error"] == before.columns["error"] == [None, None]
    then, now = (table.columns["step_time_s"] for table in (before, after))
    assert all(four > two for two, four in zip(then, now, strict=True))


@pytest.mark.in_turn(2, group="processes")
def test_any_number_of_workers_gives_the_same_bytes(catalog: Path, tmp_path: Path) -> None:
    over = ["workload.sequence=2Ki..32Ki*2", "workload.sequences_per_replica=1..2"]
    for jobs in (1, 2):
        Sweep("tiny", over).run(jobs=jobs).write(tmp_path / f"{jobs}.csv")
    texts = [without_wall((tmp_path / f"{jobs}.csv").read_text()) for jobs in (1, 2)]
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 21


def without_wall(text: str) -> str:
    rows = list(csv.reader(io.StringIO(text)))
    kept = [index for index, name in enumerate(rows[0]) if not name.startswith("wall_")]
    return "\n".join(",".join(row[index] for index in kept) for row in rows)


def test_parquet_and_csv_hold_the_same_with_types(catalog: Path, tmp_path: Path) -> None:
    table = Sweep("tiny", ["workload.sequence=4Ki,8Ki", "workload.causal=true,false", "plans.TP8.tp=8,3"]).run(jobs=1)
    table.write(tmp_path / "t.parquet")
    table.write(tmp_path / "t.csv")
    read = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert read.to_pylist() == list(table.rows())
    types = {field.name: str(field.type) for field in read.schema}
    assert (types["workload.sequence"], types["workload.causal"], types["plan"]) == ("int64", "bool", "string")
    assert (types["tokens_per_s"], types["error"], types["wall_s"]) == ("double", "string", "double")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert [float(row["tokens_per_s"]) if row["tokens_per_s"] else None for row in rows] == table.columns[
        "tokens_per_s"
    ]
    table.write(tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        table.write(tmp_path / "t.xlsx")


def test_text_that_a_spreadsheet_would_run_is_quoted(catalog: Path) -> None:
    table = Sweep("tiny", ["plans.TP8.name='=1+1',x", "plans=[TP2]"]).run(jobs=1)
    assert "'=1+1'" in table.csv() or "''=1+1'" in table.csv()
    assert ",=1+1" not in table.csv()


def test_swept_clusters_of_one_name_are_told_apart(catalog: Path) -> None:
    """Their rows would pass for one another's; where names differ they stand."""
    told = Sweep("tiny", ["cluster={node: mi300x-8},{node: mi300x-8, library: RCCL graph}", "plans=TP8"]).run(jobs=1)
    assert told.columns["cluster"] == ["{node: mi300x-8}", "{node: mi300x-8, library: RCCL graph}"]
    named = Sweep("tiny", ["cluster=mi300x-8,{device: mi325x},no-such", "plans=TP8"]).run(jobs=1)
    assert named.columns["cluster"][0] == "mi300x-8" and named.columns["cluster"][2] == "no-such"


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_writes_the_table_the_store_and_the_page(
    catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["sweep", "tiny", "--over", "workload.sequence=4Ki,8Ki", "--out", "o.parquet", "--html", "o.html"])
    assert code == 0
    assert "4 rows of 2 points; 4 ran" in capsys.readouterr().out
    made = {path.name for path in tmp_path.iterdir()} - {"catalog"}
    assert made == {"o.parquet", "o.sqlite", "o.html"}
    page = (tmp_path / "o.html").read_text()
    assert "sequence 4Ki" in page
    assert "TP2" in page


def test_without_out_the_table_is_printed_and_nothing_written(
    catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "tiny", "--over", "workload.sequence=4Ki,8Ki"]) == 0
    assert "sequence 8192" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["catalog"]


def test_an_existing_store_needs_resume_and_resume_without_one_starts_fresh(
    catalog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "tiny", "--over", "workload.sequence=4Ki", "--out", "o.csv"]
    assert main([*arguments, "--resume"]) == 0
    first = Path("o.csv").read_bytes()
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert Path("o.csv").read_bytes() == first  # the wall times too: nothing was asked again


def test_exit_codes(catalog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "tiny", "--over", "plans.TP8.tp=3,8"]) == 0
    assert main(["sweep", "tiny", "--over", "plans.TP8.tp=3,5", "--over", "plans=TP8", "--out", "none.csv"]) == 3
    assert "nothing ran at any point; the first: " in capsys.readouterr().err
    assert len(Path("none.csv").read_text().splitlines()) == 3
    for wrong in (
        ["--over", "workload.sequnce=1"],
        ["--over", "workload.sequence=9..1"],
        ["--over", "workload.sequence=1", "--out", "o.xlsx"],
        ["--over", "workload.sequence=1", "--out", "missing/o.csv"],
        ["--over", "workload.sequence=1", "--out", "o.csv", "--html", "o.csv"],
        ["--over", "workload.sequence=1", "--jobs", "0"],
        ["--over", "workload.sequence=1", "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"],
        ["--over", "workload.sequence=1", "--resume"],
        ["--over", "workload.sequence=1,2", "--over", "workload.causal=true", "--zip"],
        [],
    ):
        assert main(["sweep", "tiny", *wrong]) == 2, wrong
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error


def test_a_scheduler_that_is_not_there_is_told_in_a_line(catalog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    over = ["--over", "workload.sequence=1Ki", "--scheduler"]
    for address in ("nonsense://", "not an address"):
        assert main(["sweep", "tiny", *over, address]) == 2
        error = capsys.readouterr().err
        assert error.startswith("tspsim: --scheduler: no Dask scheduler answers at "), error


def test_answers_of_a_store_are_documents_of_the_contract(catalog: Path, tmp_path: Path) -> None:
    import sqlite3

    Sweep("tiny", ["workload.sequence=4Ki", "plans=TP8"]).run(store=tmp_path / "s.sqlite", jobs=1)
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        ((text,),) = connection.execute("SELECT answer FROM answers").fetchall()
    expected = tspsim.simulate(tspsim.load("tiny", ["workload.sequence=4Ki"])).plan("TP8").to_json()
    assert json.loads(text)["plan"] == json.loads(json.dumps(expected))


def test_unknown_plans_offer_the_nearest(catalog: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'TP8'"):
        Sweep("tiny", ["plans=TP88"])


@pytest.mark.parametrize("damage", ["no table", "another column", "answer", "overwritten", "no store"])
def test_a_damaged_store_promises_nothing(catalog: Path, tmp_path: Path, damage: str) -> None:
    """Nobody can know what such a file still holds."""
    import sqlite3

    file = tmp_path / "s.sqlite"
    Sweep("tiny", ["workload.sequence=4Ki", "plans=TP8"]).run(store=file, jobs=1)
    changes = {
        "no table": "DROP TABLE answers",
        "another column": "ALTER TABLE answers RENAME answer TO said",
        "answer": "UPDATE answers SET answer = '{}'",
    }
    if damage in changes:
        with sqlite3.connect(file) as connection:
            connection.execute(changes[damage])
    else:
        whole = file.read_bytes()
        file.write_bytes(b"nothing" * 1000 if damage == "no store" else whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(InputError, match=r"s\.sqlite: .*name another --out") as caught:
        Sweep("tiny", ["workload.sequence=4Ki,8Ki", "plans=TP8"]).run(store=file, resume=True, jobs=1)
    assert not any(word in str(caught.value) for word in ("safe", "still there"))


def test_a_store_that_somebody_holds_keeps_what_it_has(tmp_path: Path) -> None:
    import sqlite3

    store = AnswerStore(tmp_path / "s.sqlite")
    store._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(tmp_path / "s.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match=r"another program holds it.*what was kept before is still there"):
        store.add([])
    other.close()
    store.close()
