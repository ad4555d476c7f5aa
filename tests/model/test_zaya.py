"""ZAYA1: its sizes against what was published, both sets of names of its configurations, and its cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.network import load_cluster

SIZES = {
    "model_type": "zaya", "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 16,
    "vocab_size": 262272, "tie_word_embeddings": True, "max_position_embeddings": 131072, "sliding_window": None,
}  # fmt: skip
OLD = SIZES | {"num_hidden_layers": 80, "ffn_hidden_size": 4096, "moe_router_topk": 1, "kv_channels": 128}
NEW = SIZES | {
    "num_hidden_layers": 40, "moe_intermediate_size": 2048, "num_experts_per_tok": 1, "head_dim": 128,
    "router_hidden_size": 256, "cca_time0": 2, "cca_time1": 2, "layer_types": ["hybrid"] * 40,
}  # fmt: skip
#: A layer's convolution of 10 heads over two tokens, and its router: 2048 to 256, twice 256 to 256, and to 17.
LEFT_OUT = 40 * (2 * 10 * 128 * 128 + 2048 * 256 + 2 * 256 * 256 + 17 * 256)


def read(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model(str(folder / "config.json"))


def test_its_parameters_are_those_published_with_what_is_left_out() -> None:
    """8.3B and 760M active without the table (arXiv:2511.17127), 17.68 GB of files (Zyphra/ZAYA1-8B)."""
    model = load_model("zaya1-8b")
    table = model.vocab * model.hidden
    assert model.parameters - table + LEFT_OUT == pytest.approx(8.3e9, rel=0.005)
    assert model.active_parameters - table + LEFT_OUT == pytest.approx(760e6, rel=0.01)
    assert 2 * (model.parameters + LEFT_OUT) == pytest.approx(17.68e9, rel=0.001)


@pytest.mark.parametrize("config", [OLD, NEW], ids=["old", "new"])
def test_both_sets_of_names_are_the_catalog_s_model(tmp_path: Path, config: dict[str, Any]) -> None:
    found, own = read(tmp_path, config), load_model("zaya1-8b")
    for fact in ("layers", "hidden", "heads", "kv_heads", "head_dim", "qk_norm", "experts", "parameters"):
        assert getattr(found, fact) == getattr(own, fact), fact
    assert "convolutions" in found.note and "not known" not in found.note


def test_windowed_layers_are_read_and_half_a_layer_is_not(tmp_path: Path) -> None:
    kinds = ["hybrid_sliding", "hybrid"] * 20
    found = read(tmp_path, NEW | {"layer_types": kinds, "sliding_window": 4096})
    assert (found.window, found.full_every) == (4096, 2)
    with pytest.raises(InputError, match="counts twice"):
        read(tmp_path, OLD | {"num_hidden_layers": 81})


def test_its_cluster_has_two_levels_of_switches_a_rail_and_no_way_between_rails() -> None:
    cluster = load_cluster("zaya1-128x8")
    assert cluster.gpus == 1024 and cluster.gpus_per_node == 8
    crossed = {cluster.graph.nodes[vertex]["kind"] for vertex in cluster.graph if not isinstance(vertex, int)}
    assert {"leaf", "spine"} <= crossed and "core" not in crossed
    assert len({str(vertex).split("/")[0] for vertex in cluster.graph if str(vertex).startswith("rail")}) == 8


@pytest.mark.slow
def test_replicas_of_one_gpu_are_the_fastest_of_what_was_trained_on_it() -> None:
    """As its authors chose: no expert and no tensor parallelism, for the state of a replica fits."""
    answer = tspsim.simulate("zaya1-1024-mi300x")
    assert answer.best is not None and answer.best.name == "DP1024"
    assert all(plan.ran for plan in answer.plans)
