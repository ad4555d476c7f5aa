"""Validation: no row is lost, cells stay as they were, and what is not predicted has a reason."""

from __future__ import annotations

import csv
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.texts import texts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.hardware import load_device
from tspsim.network import collective, load_cluster
from tspsim.studies.executors import in_order
from tspsim.validation import reference_folder, validate
from tspsim.validation.answers import RowAnswers
from tspsim.validation.run import read
from tspsim.validation.statistics import errors
from tspsim.validation.tables import TABLES

GEMM = "kernels/gemm.csv"
GEMM_TEXT = """\
gpu,dtype,m,n,k,time_us,library,source
H200,bf16,4096,4096,4096,200.0,PyTorch 2.11 CUDA 13,"one, with a comma"
TPU,bf16,4096,4096,4096,200.0,x,
H200,fp7,4096,4096,4096,200.0,x,
H200,bf16,many,4096,4096,200.0,x,007
H200,bf16,-1,4096,4096,200.0,x,
,bf16,1,4096,4096,200.0,x,
h200,bf16,1,4096,4096,,nobody's library, spaces kept
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, GEMM, GEMM_TEXT)
    return tmp_path


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text, encoding="utf-8")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_every_row_comes_back_in_order_with_its_cells_and_a_prediction_or_a_reason(folder: Path) -> None:
    outcome = validate(folder).outcome(GEMM)
    before, after = rows_of(GEMM_TEXT), rows_of(outcome.csv())
    assert [{name: row[name] for name in before[0]} for row in after] == before
    assert all(bool(row["predicted"]) != bool(row["reason"]) for row in after)
    no_count = "m is not a whole number of one or more"
    assert [row["reason"] for row in after] == [
        "", "no device 'TPU' in the catalog", "type not modelled: fp7", no_count, no_count,
        "gpu is empty", "",
    ]  # fmt: skip


def test_a_prediction_is_the_devices_own_in_the_columns_unit(folder: Path) -> None:
    answers = validate(folder).outcome(GEMM).answers
    library = "PyTorch 2.11 CUDA 13"
    expected = load_device("h200").gemm(4096, 4096, 4096, library=library)
    assert [answers.predicted[0], answers.low[0], answers.high[0]] == pytest.approx(
        [value * 1e6 for value in expected], rel=1e-12
    )


def test_grouped_products_are_predicted_in_both_directions_on_any_device(tmp_path: Path) -> None:
    path = "kernels/grouped_gemm_mi300x.csv"
    library = "Primus-Turbo eager"
    write(
        tmp_path,
        path,
        f"""gpu,dtype,groups,m,n,k,library,time_us,backward_us
MI300X,bf16,8,4096,4096,7168,{library},3700.0,8700.0
MI300X,bf16,1,8192,8192,16384,{library},3797.0,7688.0
MI300X,bf16,0,4096,4096,7168,{library},1.0,1.0
H200,bf16,8,4096,4096,7168,x,,
TPU,bf16,8,4096,4096,7168,x,1.0,
""",
    )
    outcome = validate(tmp_path).outcome(path)
    after = rows_of(outcome.csv())
    assert [bool(row["reason"]) for row in after] == [False, False, True, False, True]
    assert [bool(row["predicted_backward_us"]) for row in after] == [True, True, False, True, False]
    device = load_device("mi300x")
    for row, groups, name in ((0, 8, library), (1, 1, f"{library}, one group")):
        sizes = [int(after[row][side]) for side in "mnk"]
        forward = device.grouped_gemm(groups, *sizes, library=name).seconds
        both = device.grouped_gemm(groups, *sizes, direction="backward", library=name).seconds
        assert float(after[row]["predicted"]) == pytest.approx(forward * 1e6, rel=1e-5)
        assert float(after[row]["predicted_backward_us"]) == pytest.approx(both * 1e6, rel=1e-5)
    assert outcome.summary()["further"]["backward_us"]["scored"] == 2


def test_a_library_without_parameters_is_predicted_with_the_default_and_says_so(folder: Path) -> None:
    outcome = validate(folder).outcome(GEMM)
    expected = load_device("h200").gemm(1, 4096, 4096).seconds * 1e6
    assert outcome.answers.predicted[6] == pytest.approx(expected)
    assert any("nobody's library" in note for note in outcome.answers.notes)


def test_the_summary_counts_rows_and_scores_only_what_was_measured(folder: Path) -> None:
    summary = validate(folder).to_json()["tables"][GEMM]
    assert (summary["rows"], summary["predicted"], summary["scored"]) == (7, 2, 1)
    assert sum(summary["skipped"].values()) == 5
    assert summary["mape"] == summary["median_ape"] == summary["p90_ape"] == abs(summary["bias"])
    assert summary["by"]["gpu"]["H200"]["scored"] == 1


def test_a_missing_column_skips_every_row_with_that_reason(tmp_path: Path) -> None:
    write(tmp_path, GEMM, "gpu,dtype,m,n\nH200,bf16,1,1\nH200,bf16,2,2\n")
    summary = validate(tmp_path).to_json()["tables"][GEMM]
    assert summary["skipped"] == {"column k is missing": 2}
    assert summary["mape"] is None


def test_a_table_of_a_header_alone_has_no_rows_and_no_error(tmp_path: Path) -> None:
    write(tmp_path, GEMM, "gpu,dtype,m,n,k,time_us\n")
    summary = validate(tmp_path).to_json()["tables"][GEMM]
    assert (summary["rows"], summary["predicted"], summary["mape"]) == (0, 0, None)


def test_tables_that_nothing_predicts_come_back_with_the_reason_in_every_row(tmp_path: Path) -> None:
    text = "gpu,op,dtype,tokens_per_rank,time_us\nGB200,combine,bf16,1,12.41\n"
    paths = [f"kernels/{name}.csv" for name in ("wideep_alltoall", "wideep_megamoe")]
    for path in paths:
        write(tmp_path, path, text)
    found = validate(tmp_path)
    assert list(found.to_json()["tables"]) == paths and not found.to_json()["unknown_files"]
    for path in paths:
        (row,) = rows_of(found.outcome(path).csv())
        assert row["predicted"] == "" and row["reason"] and row["time_us"] == "12.41"


def test_files_that_are_no_known_table_are_named(folder: Path) -> None:
    write(folder, "kernels/mine.csv", "a,b\n1,2\n")
    assert validate(folder).unknown == ("kernels/mine.csv",)


@pytest.mark.parametrize(("content", "message"), [(None, "none of the known tables"), (b"\xff\x00\x00,\n", "as CSV")])
def test_a_folder_without_tables_or_with_no_text_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        write(tmp_path, GEMM, "")
        (tmp_path / GEMM).write_bytes(content)
    with pytest.raises(InputError, match=message):
        validate(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        validate(tmp_path / "nowhere")


def test_a_predictor_that_forgets_a_row_is_a_bug() -> None:
    answers = RowAnswers(2)
    answers.predict(0, 1.0, 0.9, 1.1)
    with pytest.raises(AssertionError, match="row 1"):
        answers.check()


def test_errors_are_those_of_the_definition() -> None:
    measured = np.array([100.0, 100.0, 100.0, np.nan])
    predicted = np.array([110.0, 80.0, np.nan, 5.0])
    found = errors(measured, predicted, predicted * 0.9, predicted * 1.1)
    assert found["scored"] == 2
    assert found["mape"] == pytest.approx(0.15)
    assert found["bias"] == pytest.approx(-0.05)
    assert found["in_range"] == 0.5


def test_collectives_are_asked_of_the_node_with_nccl_tests_bytes(tmp_path: Path) -> None:
    path = "collectives/all.csv"
    write(
        tmp_path, path, "gpu,nodes,gpus,op,bytes,time_us\nH100,1,8,all_reduce,67108864,325\nH100,1,9,all_gather,64,1\n"
    )
    outcome = validate(tmp_path).outcome(path)
    traffic = collective(load_cluster("hgx-h100-8"), range(8), "all_reduce", 67108864)
    assert outcome.answers.predicted[0] == pytest.approx((traffic.latency_s + traffic.fluid_s) * 1e6)
    assert outcome.answers.reason[1] != ""


def test_the_rack_is_one_domain(tmp_path: Path) -> None:
    path = "collectives/all.csv"
    write(tmp_path, path, "gpu,nodes,gpus,op,bytes,time_us\nGB200,0,72,all_reduce,4294967296,10094\n")
    traffic = collective(load_cluster("gb200-nvl72"), range(72), "all_reduce", 4294967296)
    assert validate(tmp_path).outcome(path).answers.predicted[0] == pytest.approx(
        (traffic.latency_s + traffic.fluid_s) * 1e6
    )


def test_kernels_are_predicted_at_a_million_rows_a_minute(tmp_path: Path) -> None:
    rows = 30_000
    random = np.random.default_rng(1)
    sizes = random.integers(16, 16384, size=(rows, 3))
    lines = [f"H200,bf16,{m},{n},{k},1.0" for m, n, k in sizes]
    write(tmp_path, GEMM, "gpu,dtype,m,n,k,time_us\n" + "\n".join(lines) + "\n")
    frame = read(tmp_path / GEMM)
    for name in ("m", "n", "k"):
        frame[name] = frame[name].astype(float)
    answers = RowAnswers(rows)
    start = time.process_time()
    TABLES[GEMM].predict(frame, answers)
    assert rows / (time.process_time() - start) > 1e6 / 60


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([p for p in TABLES if not p.startswith("published/training")]),
    cells=st.lists(
        texts(8) | st.sampled_from(["H200", "bf16", "0", "1", "8", "1e14", "nan", "all_reduce", "fwd", "decode"]),
        max_size=24,
    ),
)
@example(path="published/serving_silicon.csv", cells=[":"] * 24)
@example(path="published/inference.csv", cells=[":"] * 24)
@example(path="published/serving_cookbook.csv", cells=["1"] * 24)
@example(path="published/serving_cookbook.csv", cells=[""] * 24)
def test_whatever_stands_in_a_table_is_predicted_or_skipped(tmp_path: Path, path: str, cells: list[str]) -> None:
    table = TABLES[path]
    columns = [*table.texts, *table.counts, *table.numbers, table.column or "value"]
    file = tmp_path / "data" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        width = len(columns)
        writer.writerows(cells[i : i + width] for i in range(0, len(cells) - width + 1, width))
    try:
        outcome = validate(tmp_path / "data").outcome(path)
    except InputError:
        return
    finally:
        file.unlink()
    json.dumps(outcome.summary(), allow_nan=False)
    assert np.all(outcome.predicted ^ (outcome.answers.reason != ""))


def test_the_command_writes_json_rows_and_a_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["--data", str(folder), "--json", str(out / "v.json"), "--rows", str(out / "rows")]
    assert main(["validate", *arguments, "--html", str(out / "v.html")]) == 0
    assert "kernels/gemm.csv" in capsys.readouterr().out
    assert json.loads((out / "v.json").read_text())["tables"][GEMM]["rows"] == 7
    assert len(rows_of((out / "rows" / GEMM).read_text())) == 7
    page = (out / "v.html").read_text()
    assert "predicted / measured" in page
    assert "http-equiv" in page


@pytest.mark.in_turn(2, group="processes")
def test_processes_change_no_answer(tmp_path: Path) -> None:
    found = reference_folder()
    for path in (GEMM, "published/training_megatron_a100.csv"):
        write(tmp_path, path, (found / path).read_text(encoding="utf-8"))
    alone = validate(tmp_path)
    spread = validate(tmp_path, mapper=partial(in_order, 2))
    assert spread.to_json() == alone.to_json()
    assert [outcome.csv() for outcome in spread.outcomes] == [outcome.csv() for outcome in alone.outcomes]


def test_the_page_escapes_what_stands_in_a_table(tmp_path: Path) -> None:
    write(tmp_path, GEMM, GEMM_TEXT.replace("PyTorch 2.11 CUDA 13", "<script>alert(1)</script>"))
    assert main(["validate", "--data", str(tmp_path), "--html", str(tmp_path / "v.html")]) == 0
    assert "<script>alert(1)" not in (tmp_path / "v.html").read_text()


def test_the_command_refuses_a_folder_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--data", str(tmp_path)]) == 2
    assert "none of the known tables" in capsys.readouterr().err
