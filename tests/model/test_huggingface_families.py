"""Configurations as they are published: parameters as their model cards count them, and keys that say otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model

GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208, "sliding_window": 1024,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
}  # fmt: skip
CHATGLM = {
    "model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28,
    "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
    "padded_vocab_size": 65024, "add_qkv_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {
    "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 151936, "kv_channels": 128, "no_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
OLMOE = {
    "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 50304, "tie_word_embeddings": False,
}  # fmt: skip
ERNIE = {
    "model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
    "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 103424, "moe_num_experts": 64,
    "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    "moe_layer_interval": 1, "tie_word_embeddings": True,
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


def read(folder: Path, stated: dict[str, Any]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(stated))
    return load_model(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("stated", "billions", "kv_heads"),
    [
        (FALCON, 6.9217, 1),  # 7.2172 of the checkpoint, which keeps the tied table of 0.2955 twice
        (CHATGLM, 6.2436, 2),
        (QWEN, 7.7213, 32),
        (OLMOE, 6.9192, 16),
        (ERNIE, 21.8257, 4),
        (SMOLLM3, 3.0751, 4),
        (GEMMA2, 9.2417, 8),
        (GEMMA3, 27.009, 16),
    ],
    ids=["falcon-7b", "chatglm3-6b", "qwen-7b", "olmoe-7b", "ernie-4.5-21b", "smollm3-3b", "gemma-2-9b", "gemma-3-27b"],
)
def test_parameters_are_the_published(tmp_path: Path, stated: dict[str, Any], billions: float, kv_heads: int) -> None:
    model = read(tmp_path, stated)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=1e-4)
    assert model.kv_heads == kv_heads


@pytest.mark.parametrize(
    ("stated", "window", "every"),
    [
        (GEMMA2, 4096, 2),
        (GEMMA3, 1024, 6),
        (GEMMA3 | {"sliding_window_pattern": 4}, 1024, 4),
        (GEMMA2 | {"layer_types": ["full_attention"] * 42}, 0, 1),
        (GEMMA2 | {"layer_types": ["sliding_attention"] * 42}, 4096, 43),
        (SMOLLM3 | {"model_type": "mistral", "sliding_window": 4096}, 4096, 37),
        (SMOLLM3 | {"model_type": "mistral", "sliding_window": None}, 0, 37),
        (SMOLLM3 | {"model_type": "phi3", "sliding_window": 2047, "use_sliding_window": False}, 0, 37),
    ],
)
def test_windows_of_a_family_need_no_list_of_layers(
    tmp_path: Path, stated: dict[str, Any], window: int, every: int
) -> None:
    model = read(tmp_path, stated)
    windows = [block.window for block in model.blocks]
    assert windows == [0 if (layer + 1) % every == 0 else window for layer in range(model.layers)]
    assert not model.note


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({key: value for key, value in SMOLLM3.items() if key != "vocab_size"}, "vocab_size: is required"),
        (QWEN3_MOE | {"mlp_only_layers": [3]}, "mlp_only_layers: layers with a dense MLP"),
        (OLMOE | {"model_type": "jamba", "attn_layer_period": 8}, "parts that cannot be read"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(tmp_path: Path, stated: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(tmp_path, stated)


def test_first_layers_without_experts_are_read(tmp_path: Path) -> None:
    model = read(tmp_path, QWEN3_MOE | {"mlp_only_layers": [0, 1]})
    assert [bool(block.experts) for block in model.blocks[:3]] == [False, False, True]


@pytest.mark.parametrize(("whole", "text", "tied"), [(True, {}, True), (True, {"tie_word_embeddings": False}, False)])
def test_tied_tables_of_a_multimodal_model(tmp_path: Path, whole: bool, text: dict[str, Any], tied: bool) -> None:
    stated = {key: value for key, value in QWEN3_MOE.items() if key != "tie_word_embeddings"}
    model = read(
        tmp_path, {"model_type": "qwen3_vl_moe", "tie_word_embeddings": whole, "text_config": {**stated, **text}}
    )
    assert model.tied_embeddings is tied


def test_blocks_side_by_side_are_noted(tmp_path: Path) -> None:
    assert "residual: parallel" in read(tmp_path, FALCON).note
    assert not read(tmp_path, FALCON | {"parallel_attn": False}).note


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
STAGES = [{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4", "qscheme": "per_channel"}]


@pytest.mark.parametrize(
    ("stated", "attention", "dense"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", "int4"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]}, "bf16", "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "int8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": MX}, "exclude": ["lm_head"]}, "mxfp4", "mxfp4"),
        ({"quant_method": "quark", "global_quant_config": {"weight": STAGES}}, "int4", "int4"),
        (
            {
                "quant_method": "quark", "global_quant_config": {"weight": STAGES[0]},
                "layer_quant_config": {"*.mlp.*": {"weight": MX}},
            },
            "fp8", "mxfp4",
        ),
    ],
)  # fmt: skip
def test_published_ways_of_quantising_are_read(
    tmp_path: Path, stated: dict[str, Any], attention: str, dense: str
) -> None:
    model = read(tmp_path, LLAMA | {"quantization_config": stated})
    kept = {str(part): name for part, name in model.checkpoint.weights.items()}
    assert (kept.get("attention", "bf16"), kept.get("dense", "bf16")) == (attention, dense)
    assert not model.note


def test_an_awq_checkpoint_is_as_large_as_published(tmp_path: Path) -> None:
    """Llama-3.1-8B in AWQ's four bits is 5.73 GB: its groups are of 128, and count as of 32 here."""
    model = read(tmp_path, LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    assert model.weight_bytes() == pytest.approx(5.73e9, rel=0.06)


def test_weights_that_cannot_be_read_are_noted(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA | {"quantization_config": {"quant_method": "eetq"}})
    assert "quantised by 'eetq' are read as bf16" in model.note
    assert not read(tmp_path, LLAMA).note
