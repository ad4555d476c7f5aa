"""A Hugging Face ``config.json`` as an :class:`Architecture`: any dense decoder, under any family's names.

Families differ in three ways: the names of their keys (:data:`_NAMES`), what an absent key means
(:data:`_TIED_BY_DEFAULT` and its neighbours, from each family's configuration class in ``transformers``), and
what they cannot say in a key at all (gate, biases, norms of Q and K). Models with experts, latent attention
or recurrent layers are refused: their costs are not a dense decoder's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tspsim.errors import InputError, UnitError, shorten
from tspsim.units import parse

from .architecture import Architecture
from .spec import MOST_LAYERS

_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_attention_groups"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "max_context": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
}
_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation")
_GATES = ("silu", "swish", "swiglu", "geglu")

_LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "opt"}
_LINEAR_BIAS = {"gpt2", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom", "phi", "starcoder2"}
_UNGATED = _LINEAR_BIAS | {"gptj", "codegen", "falcon", "mpt", "nemotron"}
_GATED = {"gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "glm", "glm4", "chatglm", "helium"}
_QK_NORM = {"qwen3", "gemma3", "gemma3_text", "olmo2", "olmo3"}
_QKV_BIAS = {"qwen2", "qwen2_5", "qwen", "chatglm", "glm"}
_TIED_BY_DEFAULT = {
    *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2", "cohere", "cohere2"),
    *("gemma", "gemma2", "gemma3", "gemma3_text"),
}
_EXPERT_KEYS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok"),
)


def is_huggingface(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face configuration rather than a catalog entry."""
    return "layers" not in data and any(
        key in data for key in ("model_type", "architectures", "text_config", *_NAMES["layers"])
    )


def read_huggingface(data: Mapping[str, Any], *, name: str) -> Architecture:
    """The dense decoder a configuration describes.

    Parameters
    ----------
    data
        The mapping in ``config.json``; of a multimodal model the text part is read.
    name
        Used where the configuration does not name itself.

    Raises
    ------
    InputError
        A size is missing or is not a positive whole number, or the model is not a dense decoder.
    """
    if isinstance(data.get("text_config"), Mapping):
        data = {"_name_or_path": data.get("_name_or_path"), **data["text_config"]}
    _refuse_what_is_not_dense(data)
    family = str(data.get("model_type", "")).lower()
    layers, hidden, heads = (_size(data, field) for field in ("layers", "hidden", "heads"))
    if layers > MOST_LAYERS:
        raise InputError(f"{layers} layers; at most {MOST_LAYERS}", key=_NAMES["layers"][0])
    kv_heads = _size(data, "kv_heads", 1 if data.get("multi_query") is True else heads)
    if heads % kv_heads:
        raise InputError(f"{kv_heads} key/value heads do not divide {heads} heads", key=_NAMES["kv_heads"][0])
    if _found(data, "head_dim") is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide hidden size {hidden}; give the width", key="head_dim")
    activation = str(next((data[key] for key in _ACTIVATION if data.get(key)), "silu")).lower()
    gated = family in _GATED or (family not in _UNGATED and activation.startswith(_GATES))
    tied = data.get("tie_word_embeddings")
    return Architecture(
        name=shorten(_own_name(data) or name, 60),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(data, "head_dim", hidden // heads),
        ffn=_size(data, "ffn", None if gated else 4 * hidden),
        gated=gated,
        vocab=_size(data, "vocab", 0),
        tied_embeddings=tied if isinstance(tied, bool) else family in _TIED_BY_DEFAULT,
        qk_norm=family in _QK_NORM or data.get("use_qk_norm") is True or data.get("qk_layernorm") is True,
        attention_bias=data.get("attention_bias") is True or family in _QKV_BIAS,
        linear_bias=family in _LINEAR_BIAS,
        learned_positions=family in _LEARNED_POSITIONS,
        max_context=_size(data, "max_context", 0),
        source=f"Hugging Face config.json, model_type {shorten(family or 'not given', 40)}",
        note=_note(data),
    )


def _own_name(data: Mapping[str, Any]) -> str | None:
    """The hub name, unless it is a folder on somebody's disk."""
    name = data.get("_name_or_path")
    return name if isinstance(name, str) and name[:1] not in (".", "/", "~", "") else None


def _found(data: Mapping[str, Any], field: str) -> str | None:
    """The key under which this family keeps ``field``; an explicit null is as good as absent."""
    return next((key for key in _NAMES[field] if data.get(key) is not None), None)


def _size(data: Mapping[str, Any], field: str, default: int | None = None) -> int:
    key = _found(data, field)
    if key is None:
        if default is None:
            raise InputError("is required in a Hugging Face configuration", key=_NAMES[field][0])
        return default
    try:
        return int(parse(data[key], "count", positive=True))
    except UnitError as error:
        raise InputError(error.message, key=key) from None


def _refuse_what_is_not_dense(data: Mapping[str, Any]) -> None:
    key = next((key for key in _EXPERT_KEYS if isinstance(data.get(key), int) and data[key] > 1), None)
    if key:
        raise InputError("the model has experts; only dense decoders can be read for now", key=key)
    if data.get("kv_lora_rank") is not None:
        why = "the model has multi-head latent attention; only dense decoders can be read for now"
        raise InputError(why, key="kv_lora_rank")
    if data.get("is_encoder_decoder") is True:
        raise InputError("the model has an encoder; only decoders can be read", key="is_encoder_decoder")
    kinds = data.get("layer_types") or data.get("layers_block_type") or []
    strange = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention", "attention")]
    if strange:
        why = f"layers of kind '{shorten(strange[0])}' are not a dense decoder's"
        raise InputError(why, key="layer_types")


def _note(data: Mapping[str, Any]) -> str:
    """What of the configuration is simplified: attention windows, which are read as full attention."""
    window = data.get("sliding_window")
    kinds = data.get("layer_types") or []
    windowed = data.get("use_sliding_window", True) is not False and "full_attention" not in set(kinds)
    if window and (windowed or "sliding_attention" in kinds):
        return f"sliding window of {shorten(window, 20)} tokens is read as full attention"
    return ""
