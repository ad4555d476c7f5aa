"""Measured collectives, custom all-reduces and expert exchanges: every row predicted, errors within the bars.

The measured tables are not part of the package: set ``TSPSIM_SHARED_DATA`` or keep them beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tspsim.network import load_cluster
from tspsim.validation import TableOutcome
from tspsim.validation.collectives import custom_library, fabric_of
from tspsim.validation.experts import mori_bytes
from tspsim.validation.run import predict, read
from tspsim.validation.tables import TABLES

DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
measured = pytest.mark.skipif(
    not (DATA / "collectives").is_dir(), reason=f"measured tables not found at {DATA}; set TSPSIM_SHARED_DATA"
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, TableOutcome]:
    names = ("all", "custom_all_reduce", "moe_dispatch_combine_amd", "moe_dispatch_combine_deepep")
    paths = [f"collectives/{name}.csv" for name in names]
    return {path: predict(TABLES[path], read(DATA / path)) for path in paths}


@measured
def test_every_row_has_a_prediction_and_nine_of_ten_lie_in_its_range(outcomes: dict[str, TableOutcome]) -> None:
    for path, outcome in outcomes.items():
        summary = outcome.summary()
        assert summary["predicted"] == summary["rows"], path
        assert 0.85 <= summary["in_range"] <= 0.96, path


@measured
def test_one_node_meets_its_bar_by_gpu_ranks_and_operation(outcomes: dict[str, TableOutcome]) -> None:
    groups: dict[str, Any] = outcomes["collectives/all.csv"].summary()["by"]["gpu, nodes, gpus, op"]
    for name, error in groups.items():
        if name.split(", ")[1] == "1":
            assert error["median_ape"] <= 0.08, name
            assert error["mape"] <= 0.12, name


@measured
def test_two_nodes_and_more_meet_their_bar(outcomes: dict[str, TableOutcome]) -> None:
    groups: dict[str, Any] = outcomes["collectives/all.csv"].summary()["by"]["gpu, nodes, gpus, op"]
    across = {name: error for name, error in groups.items() if name.split(", ")[1] != "1"}
    assert len(across) >= 7
    for name, error in across.items():
        assert error["median_ape"] <= 0.15, name


@measured
def test_serving_engines_and_experts_meet_theirs(outcomes: dict[str, TableOutcome]) -> None:
    assert outcomes["collectives/custom_all_reduce.csv"].error()["median_ape"] <= 0.08
    mori = outcomes["collectives/moe_dispatch_combine_amd.csv"].summary()["by"]["gpu, kernel, ep, phase"]
    assert max(error["median_ape"] for error in mori.values()) <= 0.20
    deepep = outcomes["collectives/moe_dispatch_combine_deepep.csv"].summary()
    assert deepep["median_ape"] <= 0.10
    for column in ("combine_avg_t_us", "dispatch_transmit_us", "combine_transmit_us"):
        assert deepep["further"][column]["median_ape"] <= 0.12, column


def test_the_library_column_tells_fabric_and_engine() -> None:
    assert fabric_of("NCCL, GCP A3 High H100 TCPX 1.0 Tbps") == "tcpx-100g"
    assert fabric_of("NCCL, Lambda B200 8/node, IB (mlx5)") == "infiniband-400g-lambda"
    assert fabric_of("RCCL eager") is None
    engines = load_cluster("hgx-h100-8").node.collectives.custom_all_reduce
    known = {each.library for each in engines}
    for written in ("custom sglang SGLang_CustomAllReduce_graph", "custom trtllm TRTLLM", "custom sglang trtllm"):
        assert custom_library(written) in known


def test_rows_that_ask_for_nothing_or_for_what_nobody_knows_say_so(tmp_path: Path) -> None:
    tables = {
        "collectives/all.csv": [
            "gpu,nodes,gpus,op,bytes,library",
            "H100,1,1,all_reduce,1024,NCCL 2.29.2",
            "H100,1,3,all_reduce,1024,NCCL 9.99",
            "H100,1,16,all_reduce,1024,NCCL 2.29.2",
        ],
        "collectives/custom_all_reduce.csv": ["gpu,gpus,bytes,library", "H100,8,1024,custom vlm kernels"],
        "collectives/moe_dispatch_combine_amd.csv": [
            "gpu,kernel,ep,phase,dtype,num_tokens,hidden_dim",
            "MI355X,IntraNode,1,dispatch,bf16,100,7168",
            "MI355X,Elsewhere,8,dispatch,bf16,100,7168",
            "MI355X,IntraNode,8,dispatch,int4,100,7168",
        ],
        "collectives/moe_dispatch_combine_deepep.csv": [
            "system,mode,node_num,hidden_size,num_token,num_topk,num_experts",
            "a100_sxm,normal,1,7168,64,8,256",
            "h100_sxm,fast,1,7168,64,8,256",
        ],
    }
    reasons = {
        "collectives/all.csv": ["one GPU alone", "", "GPU 8 is not in"],
        "collectives/custom_all_reduce.csv": ["did you mean 'vllm custom'"],
        "collectives/moe_dispatch_combine_amd.csv": ["one GPU alone", "no kernel 'Elsewhere'", "no type 'int4'"],
        "collectives/moe_dispatch_combine_deepep.csv": ["has no normal dispatch", "no mode 'fast'"],
    }
    for path, lines in tables.items():
        file = tmp_path / Path(path).name
        file.write_text("\n".join(lines) + "\n")
        outcome = predict(TABLES[path], read(file))
        for told, expected in zip(outcome.answers.reason, reasons[path], strict=True):
            assert expected in told, path
            assert bool(told) == bool(expected)
        if path == "collectives/all.csv":
            assert any("knows no library 'NCCL 9.99'" in note for note in outcome.answers.notes)


def test_a_combine_that_casts_on_the_way_moves_half() -> None:
    row = {"hidden_dim": "7168", "dtype": "bf16", "quant": "fp8_direct_cast", "zero_copy": "False"}
    assert mori_bytes(row) == 7168.0
    assert mori_bytes(row | {"zero_copy": "True"}) == 2 * 7168.0
    assert mori_bytes(row | {"quant": "", "dtype": "fp8_e4m3_fnuz"}) == 7168.0
