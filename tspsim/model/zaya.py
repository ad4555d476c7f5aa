"""Configurations of ZAYA1 (Zyphra, arXiv:2511.17127), of which there are two forms.

A layer is compressed convolutional attention and a mixture of experts. ``transformers`` counts it once in
``num_hidden_layers``, as ``hybrid`` or ``hybrid_sliding``. Older checkpoints count attention and experts as two layers,
and an expert's gate and up projections as one width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tspsim.base.errors import InputError

FAMILY = "zaya"
#: Kind of layer → kind in the usual configurations.
_SEES = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
#: Note on the parts of every configuration that are not read.
NOTE = "convolutions in attention, routers of three products, residual scales and skipped tokens are left out"


def in_usual_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the family with the usual keys.

    Raises
    ------
    InputError
        The number of layers or the width of an old checkpoint is no even number.

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
