"""Architectures: published parameter totals, FLOPs in closed form, Hugging Face configurations."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import further_parameters

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.model import load_model
from tspsim.model.layer import LayerShard
from tspsim.model.parts import BF16
from tspsim.model.spec import ModelSpec, describe

# Totals recomputed from the published configurations, in units of 1e9.
PUBLISHED = {
    "llama-2-7b": 6.738,
    "llama-2-70b": 68.98,
    "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213,
    "llama-3.1-8b": 8.030,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "qwen2.5-7b": 7.616,
    "qwen2.5-32b": 32.76,
    "qwen3-8b": 8.191,
    "qwen3-32b": 32.76,
    "megatron-22b": 22.07,
    "gpt-3-175b": 174.6,
    "megatron-530b": 529.6,
    "megatron-1t": 1008.0,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_match_the_published_total(name: str) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)


#: Total, active a token, and of modules for further tokens, in units of 1e9: as published, or (marked) recomputed from
#: the configuration with the input embedding counted as active.
PUBLISHED_EXPERTS = {
    "mixtral-8x7b": (46.7, 12.9, 0.0),
    "mixtral-8x22b": (141.0, 39.0, 0.0),
    "qwen3-30b-a3b": (30.5, 3.35, 0.0),  # active recomputed
    "qwen3-235b-a22b": (235.0, 22.0, 0.0),
    "qwen3-coder-480b-a35b": (480.0, 35.0, 0.0),
    "deepseek-v3": (671.0, 37.55, 11.6),  # active recomputed
    "deepseek-v2-lite": (15.7, None, 0.0),
    "moonlight-16b-a3b": (16.0, None, 0.0),
    "kimi-k2": (1026.41, 32.86, 0.0),  # both recomputed; published "1T" and "32B"
    "glm-5": (744.0, None, 9.95),
    "glm-4.5": (352.8, 33.6, 3.99),  # recomputed; published 355 and 32 with other parts
    "gpt-oss-20b": (20.92, None, 0.0),
    "gpt-oss-120b": (116.83, None, 0.0),
    "llama-4-maverick": (400.0, 17.0, 0.0),
    "llama-4-scout": (107.77, 17.17, 0.0),  # recomputed; published 109 with the vision encoder
    "grok-1": (314.0, None, 0.0),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED_EXPERTS))
def test_parameters_of_experts_match_the_published_totals_within_a_hundredth(name: str) -> None:
    model, (total, active, further) = load_model(name), PUBLISHED_EXPERTS[name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert further_parameters(model) / 1e9 == pytest.approx(further, rel=0.01)
    if active is not None:
        assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.015)


def test_gpt_oss_has_its_published_active_parameters_without_the_input_embedding() -> None:
    for name, billions in (("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)):
        model = load_model(name)
        assert (model.active_parameters - model.vocab * model.hidden) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "cache_bytes"),
    [
        ("deepseek-v3", 70_272), ("kimi-k2", 70_272), ("glm-4.5", 376_832), ("qwen3-235b-a22b", 192_512),
        ("qwen3-30b-a3b", 98_304), ("mixtral-8x7b", 131_072), ("mixtral-8x22b", 229_376), ("llama-3.1-405b", 516_096),
        ("tsp-8b", 524_288),
    ],
)  # fmt: skip
def test_cache_bytes_a_token(name: str, cache_bytes: int) -> None:
    """bf16, all layers, before any sharding; latent attention keeps 576 elements a layer whatever its heads."""
    assert load_model(name).cache_bytes_per_token("bf16") == cache_bytes


def test_windowed_layers_keep_and_see_no_more_than_their_window() -> None:
    model = load_model("gpt-oss-120b")
    assert [block.window for block in model.blocks[:4]] == [128, 0, 128, 0]
    assert model.cache_bytes(128 * 1024, "bf16") == 36_864 * 128 * 1024 + 36_864 * 128
    full, windowed = (
        model.block_forward_flops_per_token(block, 8192) - 2 * model.active_matrix_parameters(block)
        for block in (model.blocks[1], model.blocks[0])
    )
    assert (full, windowed) == (4 * 4096 * 4096, 4 * 4096 * (128 - 128**2 / 2 / 8192))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("window", [64, 1000, 4096])
@pytest.mark.parametrize("share", [0.3, 1.0, 1.01, 1.5, 2.0, 2.01, 3.0, 40.0])
@pytest.mark.parametrize("cached", [0.0, 0.5, 1.0, 7.0])
def test_a_window_is_counted_query_by_query(window: int, share: float, cached: float) -> None:
    """Between one and two windows all pairs were counted: a third too many at two. Beyond, the corner in which the
    window fills is counted as full."""
    model = load_model("gpt-oss-20b")
    block = model.block(0)._replace(window=window)
    queries, before = int(window * share), int(window * cached)
    segments, causal = LayerShard(model, 1, block=block).windowed(((queries, before + queries),), True)
    counted = sum(q * kv - (q * q / 2 if causal else 0) for q, kv in segments)
    exact = sum(min(before + i + 0.5, window) for i in range(queries))
    assert sum(q for q, _ in segments) == queries
    corner = window**2 / 2 if queries - max(window - before, 0) > window else 0.0
    assert exact - queries <= counted <= exact + queries + corner


def test_flops_of_a_layer_with_experts_count_the_experts_a_token_visits() -> None:
    """2·(active matrices) + 4·H·(192 + 128)/2 a pair: DeepSeek-V3 at 4096 tokens, causal."""
    model = load_model("deepseek-v3")
    attention = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 9 * 3 * 7168 * 2048 + 7168 * 256
    pairs = 4 * 128 * 160 * 2048
    assert model.block_forward_flops_per_token(model.blocks[-1], 4096) == 2 * (attention + experts) + pairs
    dense = 2 * (attention + 3 * 7168 * 18432) + pairs
    assert model.block_forward_flops_per_token(model.blocks[0], 4096) == dense
    whole = 3 * dense + 58 * (2 * (attention + experts) + pairs) + 2 * 7168 * 129280
    assert model.forward_flops_per_token(4096) == pytest.approx(whole, rel=1e-12)


def test_layers_come_in_their_order() -> None:
    assert [block.experts for block in load_model("deepseek-v3").blocks] == [False] * 3 + [True] * 58
    assert [block.experts for block in load_model("llama-4-maverick").blocks[:4]] == [False, True, False, True]
    assert all(block.experts for block in load_model("mixtral-8x7b").blocks)


@pytest.mark.parametrize("name", sorted({*PUBLISHED, *PUBLISHED_EXPERTS, "tsp-8b"}))
def test_a_described_model_is_read_back_the_same(name: str) -> None:
    model = load_model(name)
    assert catalog.validate(describe(model), ModelSpec).architecture() == model


def test_the_catalog_holds_the_benchmark_and_all_published_models() -> None:
    assert {*PUBLISHED, "tsp-8b"} <= set(catalog.names("models"))


def test_the_benchmark_model_has_16_h_squared_matrix_parameters_a_layer() -> None:
    model = load_model("tsp-8b")
    assert model.attention_parameters(model.blocks[0]) + model.mlp_parameters_per_layer == 16 * model.hidden**2
    assert model.embedding_parameters == 0
    # Its blocks alone are 2^33; only the norms come on top.
    assert model.parameters - 2**33 == model.layers * 2 * model.hidden


@pytest.mark.parametrize("name", ["gpt-3-175b", "megatron-22b", "megatron-530b", "megatron-1t"])
def test_gpt_parameters_follow_the_megatron_formula(name: str) -> None:
    """P = 12·L·h²·(1 + 13/(12h) + (V + s)/(12·L·h)), and the final norm (Narayanan et al. 2021, eq. 2)."""
    model = load_model(name)
    h, layers = model.hidden, model.layers
    formula = 12 * layers * h**2 + 13 * layers * h + (model.vocab + model.max_context) * h
    assert model.parameters == formula + 2 * h


def test_forward_flops_of_the_benchmark_model() -> None:
    """51.5 GFLOP a token at 128Ki, causal: 32·(2·16h² + 4·a·S/2)."""
    model = load_model("tsp-8b")
    assert model.forward_flops_per_token(131072) == 32 * (32 * 4096**2 + 2 * 4096 * 131072)
    assert model.forward_flops_per_token(131072) / 1e9 == pytest.approx(51.5, rel=1e-3)
    whole = model.layer_forward_flops_per_token(1024, causal=False)
    assert whole - model.layer_forward_flops_per_token(1024) == 2 * model.attention_width * 1024


def test_attention_may_be_wider_than_the_hidden_size() -> None:
    model = load_model("qwen3-32b")
    assert (model.attention_width, model.kv_width, model.hidden) == (8192, 1024, 5120)


def test_unknown_model_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'lama-3.1-8b' \(did you mean 'llama-3.1-8b'\?\)"):
        load_model("lama-3.1-8b")


def test_a_name_of_the_hub_is_near_the_catalogs() -> None:
    """``.2-1B`` is no suffix of a file."""
    with pytest.raises(InputError, match=r"no such file \(did you mean 'llama-3.2-1b'\?\)"):
        load_model("meta-llama/Llama-3.2-1B")


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


def _write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent="\t"))
    return path


def test_hugging_face_llama_is_the_catalog_model(tmp_path: Path) -> None:
    read = load_model(_write(tmp_path, LLAMA))
    assert read.parameters == load_model("llama-3.1-8b").parameters
    assert read.name == tmp_path.name
    assert load_model(f"{tmp_path}/") == read


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (GPT2, 0.12444),  # GPT-2 small: 124,439,808
        (  # Mistral-7B-v0.1: 7,241,732,096
            LLAMA | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
            7.24173,
        ),
        (  # Qwen2-7B: 7,615,616,512
            {
                **LLAMA,
                "model_type": "qwen2",
                "num_hidden_layers": 28,
                "hidden_size": 3584,
                "num_attention_heads": 28,
            }
            | {"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
            7.61562,
        ),
        (  # Gemma-7B: 8,537,680,896
            {"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16}
            | {"num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000},
            8.53768,
        ),
        (  # Pythia-6.9B (GPT-NeoX): 6,857,302,016
            {
                "model_type": "gpt_neox",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
            }
            | {
                "intermediate_size": 16384,
                "vocab_size": 50432,
                "tie_word_embeddings": False,
                "hidden_act": "gelu",
            },
            6.85730,
        ),
    ],
    ids=["gpt2", "mistral", "qwen2", "gemma", "gpt_neox"],
)
def test_hugging_face_families_have_their_published_parameters(
    tmp_path: Path, config: dict[str, Any], billions: float
) -> None:
    assert load_model(_write(tmp_path, config)).parameters / 1e9 == pytest.approx(billions, rel=1e-4)


def test_the_text_part_of_a_multimodal_model_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path, {"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text"}})
    model = load_model(path)
    assert model.qk_norm
    assert model.layers == 32


def test_a_sliding_window_is_noted(tmp_path: Path) -> None:
    windowed = LLAMA | {"sliding_window": 4096}
    assert "4096 tokens is read as full attention" in load_model(_write(tmp_path, windowed)).note
    unused = LLAMA | {"sliding_window": 4096, "use_sliding_window": False}
    assert load_model(_write(tmp_path, unused)).note == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_local_experts": 8}, "moe_intermediate_size: is required in a Hugging Face configuration"),
        ({"num_local_experts": 8, "moe_intermediate_size": 512}, "num_experts_per_tok: 0 experts a token of 8"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim: is required in a Hugging Face configuration"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: the model has an encoder"),
        ({"layer_types": ["linear_attention"]}, "layer_types: layers of kind 'linear_attention'"),
        ({"hidden_size": None}, "hidden_size: is required in a Hugging Face configuration"),
        ({"hidden_size": -1}, "hidden_size: '-1' must be more than zero"),
        ({"hidden_size": "wide"}, "hidden_size: 'wide' does not begin with a number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 key/value heads do not divide 32 heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 layers; at most 10000"),
        ({"hidden_size": 4097}, "head_dim: 32 heads do not divide hidden size 4097"),
    ],
)
def test_what_is_not_a_decoder_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = _write(tmp_path, LLAMA | change)
    with pytest.raises(InputError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: {says}")


def test_an_own_model_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "name: tiny\nlayers: 2\nhidden: 64\nattention: {heads: 4, kv_heads: 2, head_dim: 16}\n"
        "mlp: {width: 128, gated: false}\nsource: a test\n"
    )
    assert load_model(path).parameters == 2 * (64 * 2 * (64 + 32) + 2 * 64 * 128 + 2 * 64)
    path.write_text(path.read_text().replace("kv_heads: 2", "kv_heads: 3"))
    with pytest.raises(InputError, match="attention: 3 kv_heads do not divide 4 heads"):
        load_model(path)


def shared_configurations() -> dict[str, Any]:
    """The verbatim configurations that stand beside the checkout, or nothing."""
    folder = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).parents[3] / "shared/data")).parent
    path = folder / "reference/models.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


@pytest.mark.parametrize(
    ("family", "key", "name"),
    [
        ("mixtral", "mistralai--Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mixtral", "mistralai--Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("qwen3_moe", "Qwen--Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("qwen3_moe", "Qwen--Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("deepseek_v3", "deepseek-ai--DeepSeek-V3", "deepseek-v3"),
        ("kimi_k2", "moonshotai--Kimi-K2-Instruct", "kimi-k2"),
        ("glm_moe_dsa", "zai-org--GLM-5", "glm-5"),
        ("gpt_oss", "openai--gpt-oss-20b", "gpt-oss-20b"),
        ("gpt_oss", "openai--gpt-oss-120b", "gpt-oss-120b"),
    ],
)
def test_hugging_face_configurations_are_the_catalog_models(tmp_path: Path, family: str, key: str, name: str) -> None:
    known = shared_configurations()
    if not known:
        pytest.skip("the reference configurations are not beside the checkout (TSPSIM_SHARED_DATA)")
    config = {"model_type": family, **{k: v for k, v in known[key].items() if k != "source"}}
    read, listed = load_model(_write(tmp_path, config)), load_model(name)
    same = {"name": "", "source": "", "note": "", "max_context": 0, "checkpoint": BF16}
    assert replace(read, **same) == replace(listed, **same)


def test_a_llama_4_configuration(tmp_path: Path) -> None:
    config = {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "vocab_size": 202048, "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
        },
    }  # fmt: skip
    read, listed = load_model(_write(tmp_path, config)), load_model("llama-4-maverick")
    assert read.parameters == listed.parameters and read.active_parameters == listed.active_parameters
    # Three layers in four attend in chunks, as transformers' Llama4TextConfig has it without a list of layers.
    assert [block.chunk for block in read.blocks[:5]] == [8192, 8192, 8192, 0, 8192]
    assert read.blocks == listed.blocks and not read.note
    irregular = config | {"text_config": config["text_config"] | {"no_rope_layers": [1, 0, 0] * 16}}
    assert "chunks of 8192 tokens" in load_model(_write(tmp_path, irregular)).note
