"""Measured kernel tables (the layout of a measurements folder) , read as calls of a kernel family.

A table's rows are *normalised*: the family's shape columns as floats, ``dtype`` and ``second_dtype`` by the
names of :data:`tspsim.operators.DTYPES`, ``library``, ``gpu``, ``time_us``, and ``reason`` where a row
is not one of these calls. Fitting, validation and a user's own tables all go through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tspsim.operators import DTYPES

from ..hardware.families import FAMILIES
from ..hardware.moe import touched_by

if TYPE_CHECKING:
    import pandas as pd


#: Tables that hold kernels, relative to a measurements folder.
KERNEL_TABLES: tuple[str, ...] = (
    "kernels/gemm.csv",
    "kernels/gemm_h200_own.csv",
    "kernels/grouped_gemm_mi300x.csv",
    "kernels/attention_prefill.csv",
    "kernels/attention_decode.csv",
    "kernels/memory_bound.csv",
    "kernels/memory_bound_h200_own.csv",
    "kernels/fused_moe.csv",
    "kernels/mla_prefill.csv",
    "kernels/mla_decode.csv",
    "kernels/mla_bmm.csv",
    "kernels/linear_attention.csv",
    "kernels/fused_moe_nvidia.csv",
    "kernels/wideep_moe.csv",
)
#: Rows with equal values here share a kernel model.
GROUP_COLUMNS = ("family", "dtype", "second_dtype", "library")
#: Further columns with a time beside ``time_us``, by the start of a table's name.
FURTHER_TIMES: dict[str, tuple[str, ...]] = {"grouped_gemm": ("backward_us",)}
#: Suffix of a library's name for a single group: the library then runs its plain product, another kernel.
ONE_GROUP = ", one group"
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "fp8_e4m3": "fp8",
    "float4_e2m1fn_x2": "mxfp4",
}
#: Reason for a row of a latent-attention table that is no single kernel.
MODULE = "a whole module"


#: Types of experts' activations and weights, by NVIDIA's name for the pair.
_EXPERT_TYPES = {"int4_w4a16": ("bf16", "int4"), "mxfp4_w4a16": ("bf16", "mxfp4"), "mxfp4_w4a8": ("mxfp8", "mxfp4")}


def times_of(table: str) -> tuple[str, ...]:
    """The columns of a table that hold the time of a call."""
    name = _name(table)
    return ("time_us", *(column for start, more in FURTHER_TIMES.items() if name.startswith(start) for column in more))


def calls(table: str, frame: pd.DataFrame, column: str = "time_us") -> pd.DataFrame:
    """The rows of one table, normalised (same index and order).

    Parameters
    ----------
    table
        File name, such as ``gemm.csv`` or ``kernels/gemm.csv``; it decides the family.
    frame
        The table as read.
    column
        The column with the time of the calls to read (see :func:`times_of`).

    Returns
    -------
    DataFrame
        Columns ``family, gpu, dtype, second_dtype, library, time_us, reason`` and the shape columns of the
        families in the table. ``reason`` is empty where the row is a call.

    Raises
    ------
    KeyError
        The table is not one of :data:`KERNEL_TABLES`, or lacks a column it must have.
    """
    import pandas as pd

    name = _name(table)
    reader = next((reader for start, reader in READERS.items() if name.startswith(start)), None)
    if reader is None:
        raise KeyError(f"{table} is not a kernel table; known: {', '.join(KERNEL_TABLES)}")
    out = reader(frame)
    if column == "backward_us":
        out["family"] += "_backward"
    out["gpu"] = frame["gpu"].str.lower()
    out["time_us"] = frame[column].astype(float) if column in frame else float("nan")
    unknown = ~out["dtype"].isin(list(DTYPES)) | ~out["second_dtype"].isin(list(DTYPES))
    out["reason"] = ""
    out.loc[unknown, "reason"] = "type not modelled: " + frame.loc[unknown].get("dtype", pd.Series("", frame.index))
    if name.startswith("mla_") and "scope" in frame:
        out.loc[frame["scope"] != "kernel", "reason"] = MODULE
    return out


def _name(table: str) -> str:
    return table.rsplit("/", 1)[-1].removesuffix(".csv")


def _columns(frame: pd.DataFrame, family: str, **renamed: str) -> pd.DataFrame:
    import pandas as pd

    names = FAMILIES[family].shape
    data = {name: frame[renamed.get(name, name)].astype(float) for name in names if renamed.get(name, name) in frame}
    return pd.DataFrame(data, index=frame.index)


def _library(frame: pd.DataFrame, default: str = "") -> pd.Series[str]:
    import pandas as pd

    if "library" not in frame:
        return pd.Series(default, index=frame.index)
    return frame["library"].fillna(default).astype(str)


def _named(out: pd.DataFrame, frame: pd.DataFrame, family: str, second: str = "dtype") -> pd.DataFrame:
    """Add family, library, and the types in ``dtype`` and a ``second`` column."""
    out["family"] = family
    out["dtype"] = frame["dtype"].replace(_DTYPES)
    out["second_dtype"] = frame[second].replace(_DTYPES)
    out["library"] = _library(frame)
    return out


def _gemm(frame: pd.DataFrame) -> pd.DataFrame:
    return _named(_columns(frame, "gemm").assign(batch=1.0), frame, "gemm")


def _grouped_gemm(frame: pd.DataFrame) -> pd.DataFrame:
    out = _named(_columns(frame, "grouped_gemm", batch="groups"), frame, "grouped_gemm")
    out["library"] = out["library"].where(out["batch"] > 1.0, out["library"] + ONE_GROUP)
    return out


def _prefill(frame: pd.DataFrame) -> pd.DataFrame:
    out = _columns(frame, "attention_forward")
    out["family"] = frame["direction"].map({"fwd": "attention_forward", "bwd": "attention_backward"})
    out["dtype"] = frame["dtype"].replace(_DTYPES)
    out["second_dtype"] = frame.get("kv_dtype", frame["dtype"]).fillna(frame["dtype"]).replace(_DTYPES)
    out["library"] = _library(frame)
    return out


def _decode(frame: pd.DataFrame) -> pd.DataFrame:
    out = _columns(frame, "attention_decode")
    out["family"] = "attention_decode"
    out["dtype"] = "bf16"
    out["second_dtype"] = frame["kv_dtype"].replace(_DTYPES)
    out["library"] = _library(frame)
    return out


def _memory_bound(frame: pd.DataFrame) -> pd.DataFrame:
    out = _columns(frame, "memory_bound", size_bytes="bytes", columns="cols")
    out["family"] = "memory_bound"
    out["dtype"] = out["second_dtype"] = "bf16"
    out["library"] = frame["op"]
    return out


def _moe(frame: pd.DataFrame) -> pd.DataFrame:
    """AITER's table: all experts are on the device, and random choices touch them."""
    out = _columns(frame, "fused_moe")
    out["pairs"] = out["tokens"] * out["topk"]
    least = out[["topk", "experts"]].min(axis=1)
    out["touched"] = touched_by(out["pairs"].to_numpy(), out["experts"].to_numpy(), least.to_numpy())
    out["gated"] = 1.0
    out["family"] = "fused_moe"
    out["dtype"] = frame["dtype_a"].replace(_DTYPES)
    out["second_dtype"] = frame["dtype_w"].replace(_DTYPES)
    out["library"] = "aiter " + frame["quant"].astype(str)
    return out


def _moe_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """NVIDIA's table: sizes are of the whole model; ``moe_tp`` and ``moe_ep`` give the part on the measured rank."""
    out = _columns(frame, "fused_moe", pairs="local_pairs", touched="local_experts")
    out["expert_ffn"] = out["expert_ffn"] / frame["moe_tp"]
    out["experts"] = out["experts"] / frame["moe_ep"]
    out["family"] = "fused_moe"
    for column, which in (("dtype", 0), ("second_dtype", 1)):
        out[column] = frame["dtype"].map({name: types[which] for name, types in _EXPERT_TYPES.items()})
        out[column] = out[column].fillna(frame["dtype"].replace(_DTYPES))
    out["library"] = _library(frame)
    return out


def _latent_prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """Widths are of one head's key and value in every ``form`` of the library (a switch of its kernels)."""
    out = _columns(frame, "latent_prefill", kv_len="q_len", value_dim="v")
    out["key_dim"] = (frame["nope"] + frame["rope"]).astype(float)
    out["form"] = frame.get("form", "expanded")
    return _named(out, frame, "latent_prefill", second="kv_dtype")


def _latent_decode(frame: pd.DataFrame) -> pd.DataFrame:
    """The decoded token attends to itself too."""
    out = _columns(frame, "latent_decode", latent_dim="kv_lora", rope_dim="rope")
    out["context"] += 1.0
    out["queries"] = 1.0
    return _named(out, frame, "latent_decode", second="kv_dtype")


def _absorb(frame: pd.DataFrame) -> pd.DataFrame:
    """Queries into the latent space, [tokens, nope]·[nope, kv_lora] per head, or values out of it."""
    out = _columns(frame, "absorb")
    queries = frame["op"] == "q_absorb"
    out["n"] = frame["kv_lora"].where(queries, frame["nope_or_v"]).astype(float)
    out["k"] = frame["nope_or_v"].where(queries, frame["kv_lora"]).astype(float)
    return _named(out, frame, "absorb")


def _linear(frame: pd.DataFrame) -> pd.DataFrame:
    """The recurrence and the short convolution, separately for prompts and for decoding."""
    import pandas as pd

    out = pd.DataFrame({name: frame[name].astype(float) for name in ("k_heads", "k_dim", "v_heads", "v_dim")})
    out["sequences"], out["longest"] = frame["batch"].astype(float), frame["seq_len"].astype(float)
    out["tokens"] = out["sequences"] * out["longest"]
    out["channels"] = 2.0 * out["k_heads"] * out["k_dim"] + out["v_heads"] * out["v_dim"]
    scan, decode = frame["part"] == "scan", frame["phase"] == "decode"
    what = scan.map({True: "_scan", False: "_convolution"}).mask(decode & scan, "_step")
    out["family"] = frame["kind"] + what.mask(decode & ~scan, "_convolution_step")
    out.loc[~out["family"].isin(list(FAMILIES)), "family"] = float("nan")
    out["dtype"] = "bf16"
    out["library"] = _library(frame) + " " + frame["op"]
    # # TensorRT-LLM keeps the gated delta rule's states in bf16: its calls move half the bytes of the others.
    halved = scan & out["library"].str.startswith("TensorRT-LLM")
    out["second_dtype"] = halved.map({True: "bf16", False: "fp32"}).where(scan, "bf16")
    return out


def _moe_behind_all_to_all(frame: pd.DataFrame) -> pd.DataFrame:
    """Large expert groups: of all tokens ``rank0_tokens`` reach the rank, which holds ``slots``/``moe_ep`` experts.

    If one choice falls on this rank with probability q, 1 − (1 − q)^topk of the tokens reach it. This gives q and
    the rank's pairs, per token at most its number of experts; random choices touch its experts.
    """
    out = _columns(frame, "fused_moe", tokens="rank0_tokens", experts="slots")
    out["expert_ffn"] = out["expert_ffn"] / frame["moe_tp"]
    out["experts"] = out["experts"] / frame["moe_ep"]
    group, here = frame["tokens"].astype(float), out["tokens"]
    falls = 1.0 - (1.0 - here.clip(upper=group - 0.5) / group) ** (1.0 / out["topk"])
    most = here * out[["topk", "experts"]].min(axis=1)
    out["pairs"] = (group * out["topk"] * falls).clip(upper=most).clip(lower=here)
    touched = touched_by(out["pairs"].to_numpy(), out["experts"].to_numpy(), 1.0)
    out["touched"] = touched.clip(max=out["experts"].to_numpy())
    out["gated"] = 1.0
    return _named(out, frame, "fused_moe")


#: Start of a table's name → function from rows to normalised rows.
READERS: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "memory_bound": _memory_bound,
    "wideep_moe": _moe_behind_all_to_all,
    "fused_moe_nvidia": _moe_ranks,
    "fused_moe": _moe,
    "mla_prefill": _latent_prefill,
    "mla_decode": _latent_decode,
    "mla_bmm": _absorb,
    "linear_attention": _linear,
}
