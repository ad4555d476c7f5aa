"""Read a Hugging Face ``config.json`` of a decoder as an :class:`Architecture`.

Families differ in the names of their keys, in the meaning of an absent key, and in facts that no key states (gates,
biases, norms of Q and K): :mod:`.families`. Indexers, delta rules and compressed caches are read where a family has
keys for them. Other recurrent layers and encoders are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tspsim.base.errors import InputError, UnitError, did_you_mean, shorten
from tspsim.base.units import parse

from . import families, zaya
from .architecture import Architecture
from .attention import COMPRESSED, GATED_DELTA, KIMI_DELTA, SPARSE_LATENT
from .checkpoints import checkpoint_of, unread_note
from .parts import CompressedAttention, Experts, IndexerSpec, LatentAttention, LinearAttention
from .spec import MOST_LAYERS

#: Keys of a multimodal model that hold for its decoder, unless ``text_config`` has its own.
_OF_THE_WHOLE = ("_name_or_path", "quantization_config", "tie_word_embeddings")
#: Substrings of keys that belong to layers other than attention and MLPs.
_OTHER_PARTS = (
    *("ssm", "mamba", "rwkv", "recurrent", "state_size", "conv_", "conv1d", "time_step", "encoder", "decoder_layers"),
    *("image_size", "patch_size", "diffusion", "lru_width", "block_types", "layer_period", "layer_offset", "memory_"),
    *("num_labels_", "codebook", "per_layer_input", "altup", "cross_attention", "loop_", "retention"),
)


def _stranger(data: Mapping[str, Any], family: str) -> str:
    """Note about an unknown family; empty for a known one.

    Raises
    ------
    InputError
        The unknown family has parts that cannot be read.
    """
    family = family or _family_of(data)
    if not family or family in families.FAMILIES:
        return ""
    unreadable = next((key for key in data if any(part in key.lower() for part in _OTHER_PARTS) and data[key]), None)
    like = did_you_mean(family, sorted(families.FAMILIES), limit=0)
    if unreadable is not None:
        problem = f"unknown family '{shorten(family, 40)}'{like} with parts that cannot be read ({shorten(unreadable)})"
        raise InputError(f"{problem}; write its shape as a model of your own (tspsim docs models.md)", key="model_type")
    return (
        f"model_type '{shorten(family, 40)}' is not known here{like}: read by its sizes as attention and gated "
        "MLPs in turn, without biases; check its parameters against the published count"
    )


def _family_of(data: Mapping[str, Any]) -> str:
    """Unknown family by the class that a configuration names; empty without a class or with a known family's."""
    return "" if _known_class(data) else _class_of(data)


def _known_class(data: Mapping[str, Any]) -> str:
    """Known family by the class that a configuration names (``Glm4MoeForCausalLM``); else empty."""
    plain = _class_of(data)
    return next((family for family in sorted(families.FAMILIES) if family.replace("_", "") == plain), "")


def _class_of(data: Mapping[str, Any]) -> str:
    named = data.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    return first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()


def is_huggingface(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face configuration rather than a catalog entry."""
    return "layers" not in data and any(
        key in data for key in ("model_type", "architectures", "text_config", *families.NAMES["layers"])
    )


def read_huggingface(data: Mapping[str, Any], *, name: str) -> Architecture:
    """Read the decoder that a configuration describes.

    Parameters
    ----------
    data
        The mapping in ``config.json``. Of a multimodal model, ``text_config`` is read.
    name
        Name of the model where the configuration states none.

    Raises
    ------
    InputError
        A size is missing or no positive whole number, or the model is no decoder that can be read.
    """
    if isinstance(data.get("text_config"), Mapping):
        outer = {key: data[key] for key in _OF_THE_WHOLE if key in data}
        data = {**outer, **data["text_config"]}
    data = zaya.in_usual_names(data) if str(data.get("model_type", "")).lower() == zaya.FAMILY else data
    _refuse_what_is_not_a_decoder(data)
    family = str(data.get("model_type", "")).lower() or _known_class(data)
    note = _stranger(data, family)
    layers, hidden, heads = (_size(data, field) for field in ("layers", "hidden", "heads"))
    if layers > MOST_LAYERS:
        raise InputError(f"{layers} layers; at most {MOST_LAYERS}", key=families.NAMES["layers"][0])
    kv_heads = _kv_heads(data, heads)
    if heads % kv_heads:
        raise InputError(f"{kv_heads} key/value heads do not divide {heads} heads", key=families.NAMES["kv_heads"][0])
    if _key_of(data, "head_dim") is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide hidden size {hidden}; give the width", key="head_dim")
    activation = str(next((data[key] for key in families.ACTIVATION if data.get(key)), "silu")).lower()
    gated = family in families.GATED or (family not in families.UNGATED and activation.startswith(families.GATES))
    tied = data.get("tie_word_embeddings")
    experts = _experts(data, family, layers)
    compressed = _compressed(data, layers)
    latent = None if compressed else _latent(data)
    linear, indexing = _linear(data, layers), _indexing(data, layers, needed=compressed is not None)
    window, full_every = (0, 0) if compressed else _window(data, family)
    chunk, chunk_every = (0, 0) if compressed or window else _chunk(data, layers)
    ffn = _size(data, "ffn", None if gated else 4 * hidden) if _has_dense_layers(experts) else 0
    if ffn and experts and _key_of(data, "dense_width"):
        ffn = _size(data, "dense_width")
    if family in families.WIDTH_OF_GATE_AND_UP:
        ffn //= 2
    return Architecture(
        name=shorten(_own_name(data) or name, 60),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else kv_heads,
        head_dim=(latent.query_dim + latent.value_dim) // 2 if latent else _size(data, "head_dim", hidden // heads),
        ffn=ffn,
        gated=gated,
        vocab=_size(data, "vocab"),
        tied_embeddings=tied if isinstance(tied, bool) else family in families.TIED_BY_DEFAULT,
        qk_norm=family in families.QK_NORM or data.get("use_qk_norm") is True or data.get("qk_layernorm") is True,
        qk_norm_wide=data.get("qk_norm_type") == "per_layer",
        attention_bias=data.get("attention_bias") is True or family in families.QKV_BIAS,
        linear_bias=family in families.LINEAR_BIAS,
        learned_positions=family in families.LEARNED_POSITIONS,
        max_context=_size(data, "max_context", 0),
        chat=families.CHAT.get(family, "template"),
        source=f"Hugging Face config.json, model_type {shorten(family or 'not given', 40)}",
        note="; ".join(filter(None, (note, _note(data, bool(window or compressed), bool(chunk))))),
        latent=latent,
        experts=experts,
        window=window,
        full_every=chunk_every if chunk else full_every,
        chunk=chunk,
        multi_token=_size(data, "multi_token", 0),
        residual_lanes=_size(data, "residual_lanes", 1),
        attention=_kind(latent, indexing, linear, compressed),
        output_gate=bool(data.get("attn_output_gate", family in families.QWEN_GATED)),
        indexing=indexing if latent or compressed else None,
        linear=linear,
        compressed=compressed,
        checkpoint=checkpoint_of(data),
    )


def _kind(
    latent: LatentAttention | None,
    indexing: IndexerSpec | None,
    linear: LinearAttention | None,
    compressed: CompressedAttention | None,
) -> str:
    """Name of the attention kind with these parts; empty: grouped-query or plain latent attention."""
    if compressed:
        return COMPRESSED.name
    if linear:
        return KIMI_DELTA.name if latent else GATED_DELTA.name
    return SPARSE_LATENT.name if latent and indexing else ""


def _experts(data: Mapping[str, Any], family: str, layers: int) -> Experts | None:
    count = _size(data, "experts", 0)
    if count < 2:
        return None
    dense = _list(data, "mlp_only_layers")
    if dense != list(range(len(dense))):
        raise InputError("layers with a dense MLP that are not the first ones cannot be read", key="mlp_only_layers")
    width = _size(data, "ffn") if family in families.WIDTH_IS_AN_EXPERTS else _size(data, "expert_width")
    shared = _size(data, "shared", 1 if family in families.ONE_SHARED else 0)
    topk = _size(data, "topk", 0)
    if not 0 < topk <= count:
        raise InputError(f"{topk} experts a token of {count}", key=families.NAMES["topk"][0])
    return Experts(
        count,
        topk,
        width,
        shared_width=_size(data, "shared_width", shared * width),
        first_dense=min(_size(data, "first_dense", len(dense)), layers),
        every=_size(data, "every", 1),
        router_bias=family in families.ROUTER_BIAS or data.get("topk_method") == families.CORRECTED,
        groups=_size(data, "groups", 1),
        kept_groups=_size(data, "kept_groups", 1),
        shared_gate=family in families.SHARED_GATE,
        scores="softmax" if family in families.BIAS_OF_SCORES else "sigmoid",
        expert_bias=family in families.EXPERT_BIAS,
    )


def _has_dense_layers(experts: Experts | None) -> bool:
    return experts is None or experts.first_dense > 0 or experts.every > 1


def _latent(data: Mapping[str, Any]) -> LatentAttention | None:
    if data.get("kv_lora_rank") is None:
        return None
    sizes = [_plain_size(data, key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    return LatentAttention(_plain_size(data, "q_lora_rank") if data.get("q_lora_rank") else 0, *sizes)


def _indexing(data: Mapping[str, Any], layers: int, *, needed: bool) -> IndexerSpec | None:
    """Indexers in every layer or at a regular stride; raises InputError where ``indexer_types`` disagrees."""
    if not data.get("index_topk") and not needed:
        return None
    heads, width, topk = (_plain_size(data, key) for key in ("index_n_heads", "index_head_dim", "index_topk"))
    every = _plain_size(data, "index_topk_freq") if data.get("index_topk_freq") else 1
    indexing = IndexerSpec(heads, width, topk, every, _plain_size(data, _OFFSET) if data.get(_OFFSET) else 0)
    kinds = _list(data, "indexer_types")[:layers]
    regular = ["full" if indexing.owned(layer) else "shared" for layer in range(len(kinds))]
    if kinds != regular or data.get("index_topk_pattern"):
        key = "indexer_types" if kinds != regular else "index_topk_pattern"
        raise InputError("indexers in another order than index_topk_freq says cannot be read", key=key)
    return indexing


_OFFSET = "index_skip_topk_offset"


def _linear(data: Mapping[str, Any], layers: int) -> LinearAttention | None:
    """Delta-rule layers, from Qwen's keys or Kimi's ``linear_attn_config``."""
    stated = data.get("linear_attn_config")
    if isinstance(stated, Mapping):
        heads, width, taps = (_plain_size(stated, key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
        every, last = _period(_list(stated, "full_attn_layers"), layers, "linear_attn_config")
        return LinearAttention(heads, width, heads, width, taps, every, last)
    if data.get("linear_num_value_heads") is None:
        return None
    names = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    k_heads, k_dim, v_heads, v_dim, taps = (_plain_size(data, f"linear_{name}") for name in names)
    kinds = _list(data, "layer_types")
    if kinds:
        full = [layer + 1 for layer, kind in enumerate(kinds) if kind == "full_attention"]
        every, last = _period(full, layers, "layer_types")
    else:
        every, last = _plain_size({_INTERVAL: 4, **data}, _INTERVAL), False
    return LinearAttention(k_heads, k_dim, v_heads, v_dim, taps, every, last)


_INTERVAL, _PATTERN = "full_attention_interval", "sliding_window_pattern"


def _period(full: list[Any], layers: int, key: str) -> tuple[int, bool]:
    """Period of full-attention layers (numbered from 1), and whether the last layer is full out of turn."""
    every = full[0] if full else 0
    if isinstance(every, int) and 0 < every <= layers:
        regular = list(range(every, layers + 1, every))
        if full == regular:
            return every, False
        if full == [*regular, layers]:
            return every, True
    raise InputError("layers with full attention are not every n-th one, with or without the last", key=key)


_INDEXED = "compressed_sparse_attention"
#: Default tokens a cache entry, by kind of layer.
_COMPRESSION = {_INDEXED: 4, "heavily_compressed_attention": 128, "sliding_attention": 0}


def _compressed(data: Mapping[str, Any], layers: int) -> CompressedAttention | None:
    """Compressed attention, from a list of compression ratios or of kinds of layers."""
    if data.get("o_lora_rank") is None:
        return None
    rates = data.get("compress_rates")
    rates_of = {**_COMPRESSION, **(rates if isinstance(rates, Mapping) else {})}
    ratios = _list(data, "compress_ratios") or [rates_of.get(str(kind)) for kind in _list(data, "layer_types")]
    if len(ratios) < layers or not all(isinstance(ratio, int) and ratio >= 0 for ratio in ratios):
        raise InputError(f"a whole number for each of {layers} layers is needed", key="compress_ratios")
    names = ("q_lora_rank", "qk_rope_head_dim", "o_groups", "o_lora_rank")
    q_rank, rope_dim, groups, rank = (_plain_size(data, name) for name in names)
    window, indexed = _plain_size(data, "sliding_window"), _plain_size(rates_of, _INDEXED)
    return CompressedAttention(q_rank, rope_dim, groups, rank, tuple(ratios[:layers]), window, indexed)


def _kv_heads(data: Mapping[str, Any], heads: int) -> int:
    """Key/value heads. Multi-query attention has one, whatever number stands beside it (Falcon-7B states 71), except in
    Falcon's new decoder; groups of GLM's are of ``multi_query_attention`` alone."""
    if data.get("multi_query") is True and data.get("new_decoder_architecture") is not True:
        return 1
    return heads if data.get("multi_query_attention") is False else _size(data, "kv_heads", heads)


def _window(data: Mapping[str, Any], family: str) -> tuple[int, int]:
    """(window in tokens, period of full layers, 0: none); no window where the two do not alternate regularly."""
    kinds = _list(data, "layer_types")
    period: int | None
    if kinds:
        period = _alternation(kinds, "sliding_attention")
    else:
        period = _plain_size(data, _PATTERN) if data.get(_PATTERN) is not None else families.FULL_EVERY.get(family)
    if not data.get("sliding_window") or data.get("use_sliding_window") is False or period is None:
        return 0, 0
    return _plain_size(data, "sliding_window"), period


def _chunk(data: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """(chunk in tokens, period of full layers, 0: none); no chunks where the two do not alternate regularly.

    Layers without rotary positions have full attention: every fourth by default (transformers, Llama4TextConfig).
    """
    if not data.get("attention_chunk_size"):
        return 0, 0
    rotary = _list(data, "no_rope_layers")
    kinds = _list(data, "layer_types") or [
        "chunked_attention" if (rotary[layer] if layer < len(rotary) else (layer + 1) % 4) else "full_attention"
        for layer in range(layers)
    ]
    period = _alternation(kinds, "chunked_attention")
    return (0, 0) if period is None else (_plain_size(data, "attention_chunk_size"), period)


def _alternation(kinds: Sequence[Any], kind: str) -> int | None:
    """Period of full-attention layers among layers of ``kind``, 0 without any; None where the order is not regular."""
    if kind not in kinds:
        return None
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else 0
    regular = ["full_attention" if period and (layer + 1) % period == 0 else kind for layer in range(len(kinds))]
    return period if list(kinds) == regular else None


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    """The list under ``key``; empty where the key is absent."""
    kinds = data.get(key) or []
    if not isinstance(kinds, list):
        raise InputError("must be a list", key=key)
    return kinds


def _own_name(data: Mapping[str, Any]) -> str | None:
    """The hub name; None for a local folder."""
    name = data.get("_name_or_path")
    return name if isinstance(name, str) and name[:1] not in (".", "/", "~", "") else None


def _key_of(data: Mapping[str, Any], field: str) -> str | None:
    """The configuration's key for ``field``; None where it is absent or null."""
    return next((key for key in families.NAMES[field] if data.get(key) is not None), None)


def _size(data: Mapping[str, Any], field: str, default: int | None = None) -> int:
    key = _key_of(data, field)
    if key is None:
        if default is None:
            raise InputError("is required in a Hugging Face configuration", key=families.NAMES[field][0])
        return default
    if default is not None and data[key] == 0 and field in _MAY_BE_ZERO:
        return 0
    return _plain_size(data, key)


#: Fields that a configuration may state as 0: no such part.
_MAY_BE_ZERO = {"experts", "shared", "shared_width", "first_dense", "multi_token"}


def _plain_size(data: Mapping[str, Any], key: str) -> int:
    if data.get(key) is None:
        raise InputError("is required in a Hugging Face configuration", key=key)
    try:
        return int(parse(data[key], "count", positive=True))
    except UnitError as error:
        raise InputError(error.message, key=key) from None


def _refuse_what_is_not_a_decoder(data: Mapping[str, Any]) -> None:
    if data.get("is_encoder_decoder") is True:
        raise InputError("the model has an encoder; only decoders can be read", key="is_encoder_decoder")
    kinds = _list(data, "layer_types") or _list(data, "layers_block_type")
    allowed = ["full_attention", "sliding_attention", "chunked_attention", "attention"]
    allowed += ["linear_attention"] if data.get("linear_num_value_heads") or data.get("linear_attn_config") else []
    allowed += list(_COMPRESSION) if data.get("o_lora_rank") else []
    unreadable = [kind for kind in kinds if kind not in allowed]
    if unreadable:
        raise InputError(f"layers of kind '{shorten(unreadable[0])}' cannot be read", key="layer_types")


def _note(data: Mapping[str, Any], window: bool, chunk: bool) -> str:
    """Note on simplifications: irregular windows and chunks, indexers without latents, parts of ZAYA1."""
    notes = []
    stated, kinds = data.get("sliding_window"), _list(data, "layer_types")
    windowed = data.get("use_sliding_window", True) is not False and "full_attention" not in set(kinds)
    if stated and not window and (windowed or "sliding_attention" in kinds):
        notes.append(f"sliding window of {shorten(stated, 20)} tokens is read as full attention")
    if data.get("attention_chunk_size") and not chunk:
        notes.append(f"attention in chunks of {shorten(data['attention_chunk_size'], 20)} tokens is read as full")
    if data.get("index_topk") and data.get("kv_lora_rank") is None and data.get("o_lora_rank") is None:
        notes.append(f"attention to {shorten(data['index_topk'], 20)} chosen tokens is read as full; no indexer")
    family = str(data.get("model_type", "")).lower()
    if family in families.SIDE_BY_SIDE and data.get(families.SIDE_BY_SIDE[family]) is not False:
        notes.append("attention and MLP of a block, which read one input, run in turn; `residual: parallel` of a plan")
    if note := unread_note(data):
        notes.append(note)
    if data.get("model_type") == zaya.FAMILY:
        notes.append(zaya.NOTE)
    return "; ".join(notes)
