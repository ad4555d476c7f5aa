"""Training kernels as a share of peak: products (one, or a group of equal ones) and attention, at sustained clocks.

The source counts attention's FLOPs without halving them for the causal mask, 4·b·s²·heads·d forward and 10
backward, with d the mean of the query-key and the value width; so does the efficiency predicted here.
"""

from __future__ import annotations

import re

from tspsim.base.errors import InputError
from tspsim.operators import Attention, Gemm, GroupedGemm, Operator

from .answers import RowAnswers, each_row
from .cells import Row
from .devices import device, named_device

#: Systems of the table → device names.
SYSTEMS = {"a100_pcie": "a100-80gb", "b200_bf16_ceperm": "b200"}


@each_row
def predict(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict efficiency: FLOPs / (predicted time · the peak in the row)."""
    system = str(row["system"])
    name = SYSTEMS.get(system) or named_device(system)
    operator, flops = shape(str(row["op"]), str(row["shape"]))
    peak = row["peak_tflops"] * 1e12
    seconds, low, high = device(name).time(operator)
    answers.predict(position, flops / (seconds * peak), flops / (high * peak), flops / (low * peak))


def shape(op: str, text: str) -> tuple[Operator, float]:
    """The operator of a row, and its FLOPs by the source's count.

    Raises
    ------
    InputError
        The operation is unknown, or a size is missing.
    """
    sizes = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)\b", text)}
    try:
        if op == "matmul":
            product = Gemm(sizes["m"], sizes["n"], sizes["k"], batch=sizes["b"])
            return product, product.flops
        if op == "group_matmul":
            product = GroupedGemm(sizes["M"], sizes["N"], sizes["K"], batch=sizes["ng"])
            return product, product.flops
        if op in ("sdp_fwd", "sdp_bwd"):
            tokens, heads = sizes["seq_len"], sizes["head_num"]
            width = (sizes["qk_head_dim"] + sizes["v_head_dim"]) // 2
            direction = "forward" if op == "sdp_fwd" else "backward"
            segments = ((tokens, tokens),) * sizes["batch"]
            attention = Attention(segments, heads, sizes["kv_head_num"], width, direction=direction)
            factor = 4.0 if op == "sdp_fwd" else 10.0
            return attention, factor * sizes["batch"] * float(tokens) ** 2 * heads * width
    except KeyError as error:
        raise InputError(f"shape of {op} lacks {error.args[0]}") from None
    raise InputError(f"no model of operation {op}")
