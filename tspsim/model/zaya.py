"""Configurations of ZAYA1 (Zyphra, arXiv:2511.17127): two sets of names, of which one counts every layer twice.

A layer is compressed convolutional attention and a mixture of experts. In ``transformers`` it is one of
``num_hidden_layers``, of a kind ``hybrid`` or ``hybrid_sliding``; checkpoints from before count attention and experts
as a layer each, and an expert's gate and up projections as one width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tspsim.base.errors import InputError

FAMILY = "zaya"
#: Kinds of layers by what their attention sees.
_SEES = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
#: What is not read; every configuration has it.
NOTE = "convolutions in attention, routers of three products, residual scales and skipped tokens are left out"


def in_usual_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the family with the keys that others have.

    Raises
    ------
    InputError
        Layers or widths of an old checkpoint are no even numbers.

    Examples
    --------
    >>> old = {"num_hidden_layers": 80, "ffn_hidden_size": 4096, "moe_router_topk": 1}
    >>> new = in_usual_names(old)
    >>> new["num_hidden_layers"], new["moe_intermediate_size"], new["num_experts_per_tok"]
    (40, 2048, 1)
    """
    values = dict(data)
    kinds = data.get("layer_types")
    if isinstance(kinds, list):
        values["layer_types"] = [_SEES.get(str(kind), kind) for kind in kinds]
    if "moe_router_topk" not in data:
        return values
    for old, new in (("num_hidden_layers", "num_hidden_layers"), ("ffn_hidden_size", "moe_intermediate_size")):
        whole = data.get(old)
        if isinstance(whole, bool) or not isinstance(whole, int) or whole < 2 or whole % 2:
            raise InputError("an even number is needed: a layer, or an expert's width, counts twice", key=old)
        values[new] = whole // 2
    return values | {"num_experts_per_tok": data["moe_router_topk"], "head_dim": data.get("kv_channels")}
