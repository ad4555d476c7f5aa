"""Hugging Face configurations of every kind of attention, and types of checkpoints from what they quantise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.model.checkpoints import checkpoint_of
from tspsim.model.parts import BF16, WeightClass

V3 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1, "n_group": 8, "topk_group": 4, "tie_word_embeddings": False,
}  # fmt: skip
V32 = V3 | {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
GLM = V3 | {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 12288, "vocab_size": 154880, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
SHARED = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
KIMI = V3 | {
    "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
    "n_routed_experts": 384, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "n_group": 1, "topk_group": 1,
}  # fmt: skip
FLASH = {
    "model_type": "deepseek_v4", "num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "vocab_size": 129280, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "moe_intermediate_size": 2048, "num_nextn_predict_layers": 1, "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "o_groups": 8, "o_lora_rank": 1024, "expert_dtype": "fp4",
    "tie_word_embeddings": False, "hc_mult": 4,
}  # fmt: skip
MINIMAX = {
    "model_type": "minimax_m2", "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
    "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 256, "num_experts_per_tok": 8, "use_routing_bias": True, "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "attn_output_gate": True,
    "full_attention_interval": 4, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
NEXT = {key: value for key, value in QWEN.items() if key not in ("attn_output_gate", "layer_types")} | {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "vocab_size": 151936, "num_experts": 512,
    "num_experts_per_tok": 10,
}  # fmt: skip
LINEAR = {
    "model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 9216, "head_dim": 72,
    "model_max_length": 1048576, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256, "moe_intermediate_size": 1024,
    "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "num_expert_group": 1, "topk_group": 1, "tie_word_embeddings": False, "num_nextn_predict_layers": 0,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4
    },
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
#: As Kimi K2.5 leaves everything but routed experts alone.
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4, "group_size": 32}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
}


def read(folder: Path, config: dict[str, Any]) -> Architecture:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return load_model(path)


def shape(model: Architecture) -> Architecture:
    return replace(model, name="", source="", note="", max_context=0, checkpoint=BF16)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (V32, "deepseek-v3.2"), (GLM, "glm-5"), (GLM, "glm-5.1"), (GLM | SHARED, "glm-5.2"),
        ({"model_type": "kimi_k25", "text_config": KIMI}, "kimi-k2.5"), (FLASH, "deepseek-v4-flash"),
        (MINIMAX, "minimax-m2.5"), ({"model_type": "qwen3_5_moe", "text_config": QWEN}, "qwen3.5-35b-a3b"),
        (NEXT, "qwen3-next-80b-a3b"), (LINEAR, "kimi-linear-48b"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model_type"],
)  # fmt: skip
def test_a_configuration_is_the_catalog_model(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    model = read(tmp_path, config)
    assert shape(model) == shape(load_model(name))
    assert "read as full" not in model.note


def test_kinds_of_layers_say_the_same_as_ratios(tmp_path: Path) -> None:
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    kinds = [names[ratio] for ratio in FLASH["compress_ratios"][:43]]
    by_kind = {key: value for key, value in FLASH.items() if key != "compress_ratios"} | {"layer_types": kinds}
    assert shape(read(tmp_path, by_kind)) == shape(load_model("deepseek-v4-flash"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (V32 | {"index_n_heads": None}, "index_n_heads: is required in a Hugging Face configuration"),
        (GLM | SHARED | {"indexer_types": ["full"] * 78}, "indexer_types: indexers in another order than"),
        (GLM | {"index_topk_pattern": "FSSF"}, "index_topk_pattern: indexers in another order than"),
        (FLASH | {"compress_ratios": [4]}, "compress_ratios: a whole number for each of 43 layers"),
        (FLASH | {"compress_ratios": "4"}, "compress_ratios: must be a list"),
        (FLASH | {"index_topk": None}, "index_topk: is required in a Hugging Face configuration"),
        (QWEN | {"layer_types": 4}, "layer_types: must be a list"),
        (QWEN | {"layer_types": ["full_attention", "linear_attention"] * 20}, "layer_types: layers with full"),
        (QWEN | {"linear_num_key_heads": 0}, "linear_num_key_heads: '0' must be more than zero"),
        (LINEAR | {"linear_attn_config": {"num_heads": 32}}, "head_dim: is required"),
    ],
)
def test_what_is_no_such_kind_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, config)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'}: {says}")


# --- checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (V32 | {"quantization_config": FP8}, "deepseek-v3.2"),
        ({"model_type": "kimi_k25", "text_config": KIMI | {"quantization_config": INT4}}, "kimi-k2.5"),
        ({"model_type": "kimi_k25", "text_config": KIMI, "quantization_config": INT4}, "kimi-k2.6"),
        (GLM, "glm-5"),
    ],
    ids=["fp8", "int4", "int4-outside", "bf16"],
)
def test_the_checkpoint_is_the_catalogs(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    assert read(tmp_path, config).checkpoint == load_model(name).checkpoint


def test_fp4_experts_stand_beside_fp8() -> None:
    found = checkpoint_of(FLASH | {"quantization_config": FP8})
    assert {part: found.kept(part) for part in WeightClass} == {
        WeightClass.ATTENTION: "fp8_block", WeightClass.DENSE: "fp8_block", WeightClass.SHARED: "fp8_block",
        WeightClass.EXPERTS: "mxfp4", WeightClass.EMBEDDING: "bf16",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "experts", "attention"),
    [
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "mxfp4", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*", "lm_head"]}, "nvfp4", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "fp8"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}, "fp8", "bf16"),
        ({"quant_method": "awq", "bits": 4}, "int4", "int4"),
        ({"config_groups": {"a": {"weights": {"type": "float", "num_bits": 4, "group_size": 16}}}}, "nvfp4", "nvfp4"),
        ({"config_groups": [1], "ignore": ["re:(", 3]}, "bf16", "bf16"),
    ],
)
def test_types_of_quantised_weights(stated: dict[str, Any], experts: str, attention: str) -> None:
    found = checkpoint_of({"quantization_config": stated})
    assert (found.kept(WeightClass.EXPERTS), found.kept(WeightClass.ATTENTION)) == (experts, attention)
    assert found.kept(WeightClass.EMBEDDING) == "bf16"


def test_a_router_is_corrected_whatever_names_its_family(tmp_path: Path) -> None:
    sizes = {key: value for key, value in V3.items() if not key.startswith(("q_lora", "kv_lora", "qk_", "v_head"))}
    for said in (
        {"model_type": "glm4_moe"}, {"architectures": ["Glm4MoeForCausalLM"]}, {"model_type": "glm4_moe_lite"},
        {"model_type": "glm4v_moe"}, {"model_type": "somebodys_moe", "topk_method": "noaux_tc"},
    ):  # fmt: skip
        experts = read(tmp_path, sizes | said).experts
        assert experts is not None and experts.router_bias and experts.scores == "sigmoid", said
    plain = read(tmp_path, sizes | {"model_type": "qwen3_moe"}).experts
    assert plain is not None and not plain.router_bias
