"""Types of a checkpoint's weights, from the ``quantization_config`` of a Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..base.errors import shorten
from .parts import BF16, Formats, WeightClass

#: Names of a module of each class, against which lists of unquantised modules are matched.
_MODULES: dict[WeightClass, tuple[str, ...]] = {
    WeightClass.ATTENTION: ("model.layers.0.self_attn.o_proj",),
    WeightClass.DENSE: ("model.layers.0.mlp.down_proj",),
    WeightClass.SHARED: ("model.layers.4.mlp.shared_experts.down_proj", "model.layers.4.mlp.shared_expert.down_proj"),
    WeightClass.EXPERTS: ("model.layers.4.mlp.experts.0.down_proj",),
}
#: Longest pattern that is matched; real ones are shorter.
_LONGEST = 200


def checkpoint_of(data: Mapping[str, Any]) -> Formats:
    """Types of a configuration's checkpoint; unquantised weights, and methods that are not read, are bf16."""
    stated = _stated(data)
    dtype = _type_of(stated)
    weights: dict[WeightClass, str] = {}
    if dtype is not None and str(stated.get("quant_method", "")).lower() == dtype == "mxfp4":
        weights = {WeightClass.EXPERTS: dtype}  # gpt-oss: experts alone
    elif dtype is not None:
        left = list(_left_alone(stated))
        weights = {part: dtype for part, names in _MODULES.items() if not any(_matches(name, left) for name in names)}
    for pattern, apart in _mapping(stated.get("layer_quant_config")).items():
        own = _quark(apart)
        matched = [part for part, names in _MODULES.items() if any(_matches(name, [str(pattern)]) for name in names)]
        weights |= dict.fromkeys(matched, own) if own else {}
    if str(data.get("expert_dtype", "")).lower() == "fp4":
        weights[WeightClass.EXPERTS] = "mxfp4"
    return Formats(weights=weights) if weights else BF16


def unread_note(data: Mapping[str, Any]) -> str:
    """Note on quantised weights that are read as bf16; empty where none are."""
    stated = _stated(data)
    method = str(stated.get("quant_method", "")).lower()
    if not method or checkpoint_of(data) is not BF16:
        return ""
    return f"weights quantised by '{shorten(method, 40)}' are read as bf16; state `precision`"


def _stated(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(data.get("quantization_config"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _type_of(stated: Mapping[str, Any]) -> str | None:
    """Type of the quantised weights; None: unknown or not quantised."""
    method = str(stated.get("quant_method", "")).lower()
    algorithm = str(stated.get("quant_algo", "")).lower()
    if "nvfp4" in algorithm:
        return "nvfp4"
    if method == "fp8" or algorithm == "fp8":
        return "fp8_block" if stated.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in _OF_BITS and stated.get("bits") in range(2, 9):
        return f"int{stated['bits']}"
    if method == "bitsandbytes":
        return "int4" if stated.get("load_in_4bit") else "int8" if stated.get("load_in_8bit") else None
    if method == "quark":
        return _quark(stated.get("global_quant_config"))
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            bits, size = f"{weights.get('type', '')}{weights.get('num_bits', '')}", str(weights.get("group_size"))
            return _COMPRESSED.get(f"{bits} by {size}", _COMPRESSED.get(bits))
    return None


#: Methods whose weights are whole numbers of ``bits`` with a scale a group.
_OF_BITS = {"gptq", "awq", "auto-round", "intel/auto-round"}


def _quark(stated: Any) -> str | None:
    """Type of weights by Quark's specification; of several stages the last is what a checkpoint keeps."""
    weight = _mapping(stated).get("weight")
    weight = weight[-1] if isinstance(weight, list) and weight else weight
    dtype = str(_mapping(weight).get("dtype", "")).lower()
    return next((name for start, name in _QUARK.items() if dtype.startswith(start)), None)


#: Beginning of Quark's name of a type → type.
_QUARK = {"fp4": "mxfp4", "fp6": "mxfp6", "fp8": "fp8", "int4": "int4", "uint4": "int4", "int8": "int8"}
#: Format of compressed-tensors, with its group size where that decides → type.
_COMPRESSED = {
    "int4": "int4", "int8": "int8", "float8": "fp8", "float4 by 16": "nvfp4", "float4 by 32": "mxfp4",
}  # fmt: skip


def _left_alone(stated: Mapping[str, Any]) -> Iterator[str]:
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude"):
        names = stated.get(key)
        yield from (name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _matches(module: str, patterns: list[str]) -> bool:
    return any(_match(module, pattern) for pattern in patterns if len(pattern) <= _LONGEST)


def _match(module: str, pattern: str) -> bool:
    """Whether a module matches: by a regular expression after ``re:``, a glob, or a part of its name. The prefix
    ``language_model.`` of multimodal models matches too."""
    names = module, f"language_model.{module}"
    if pattern.startswith("re:"):
        try:
            return any(re.match(pattern[3:], name) for name in names)
        except re.error:
            return False
    if "*" in pattern:
        return any(fnmatchcase(name, pattern) for name in names)
    return any(name == pattern or name.startswith(f"{pattern}.") for name in names) or f".{pattern}." in f".{module}."
