"""Published training runs: one row is one metric of one run with its plan."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tspsim import catalog
from tspsim.errors import InputError
from tspsim.model import Architecture, load_model

from .answers import Answers
from .conventions import convention_of, step_flops
from .devices import device, device_name, no_device
from .runs import Run, Step, memory_of, nearest_gating, simulate_run

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]


def predict_published(frame: pd.DataFrame, answers: Answers) -> None:
    """Step time, tokens/s/GPU, TFLOP/s/GPU, MFU and HFU of runs in bf16 whose rows are complete."""
    for position, row in enumerate(frame.to_dict("records")):
        try:
            run = published_run(row)
            step = simulate_run(run)
            if not step.fits:
                raise InputError("does not fit by the memory model")
            metric = metric_of(str(row["metric"]), str(row["source_url"]), run, step)
        except InputError as error:
            answers.skip(position, error.message)
            continue
        predicted, one, other = (metric(seconds) for seconds in (step.seconds, step.low, step.high))
        answers.predict(position, predicted, min(one, other), max(one, other))


def published_run(row: Row) -> Run:
    """The run of a row of published/training.csv; raises InputError with why the simulator does not cover it."""
    if str(row.get("usable", "1")).strip() == "0":
        raise InputError("marked as not usable")
    metric, model = str(row["metric"]), str(row["model"])
    if metric == "time_to_train_min":
        raise InputError("time to train is not predicted")
    if "lora" in model.lower():
        raise InputError("LoRA not simulated yet")
    name = device_name(row["gpu"])
    if name is None:
        raise InputError(no_device(row["gpu"]))
    for column in ("tp", "pp", "cp", "mbs", "gbs", "seq_len", "n_gpus"):
        if not _count(row, column):
            raise InputError(f"incomplete: {column} not stated")
    precision = precision_of(str(row["precision"]))
    if precision != "bf16":
        raise InputError(f"training in {precision} not simulated yet")
    tp = _count(row, "tp")
    return Run(
        model=architecture(row),
        device=name,
        gpus=_count(row, "n_gpus"),
        sequence=_count(row, "seq_len"),
        micro_batch=_count(row, "mbs"),
        global_batch=_count(row, "gbs"),
        tp=tp,
        cp=_count(row, "cp"),
        pp=_count(row, "pp"),
        vpp=_count(row, "vpp", 1),
        zero=zero_of(str(row.get("zero_stage", ""))),
        recomputation=recomputation_of(str(row.get("recompute", ""))),
        ep=_count(row, "ep", 1),
        sequence_regions=tp > 1 and (str(row.get("sp", "")).startswith("on") or _count(row, "ep", 1) > 1),
        multi_token="w/ mtp" in model.lower(),
    )


#: Models with experts: a published name, without remarks in parentheses → the catalog's.
EXPERT_MODELS = {
    "deepseek v3 671b": "deepseek-v3",
    "deepseek-v3 671b": "deepseek-v3",
    "deepseekv3": "deepseek-v3",
    "gpt oss 120b": "gpt-oss-120b",
    "kimi_k2": "kimi-k2",
    "llama 4 maverick 400b": "llama-4-maverick",
    "moonlight-16b": "moonlight-16b-a3b",
    "qwen3 moe 30b": "qwen3-30b-a3b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
}


def architecture(row: Row) -> Architecture:
    """The model of a row: its own columns, or the catalog's model of that name."""
    shape = {name: _count(row, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    name = str(row["model"])
    if str(row.get("moe", "")).strip():
        # Columns do not hold all of a mixture of experts, and some rows here are hybrids of other layers.
        listed = EXPERT_MODELS.get(name.split("(")[0].strip().lower())
        if listed is None:
            raise InputError("no model of experts by that name in the catalog")
        return load_model(listed)
    if not all(shape.values()):
        known = name.lower().strip().replace(" ", "-")
        if known not in catalog.names("models"):
            raise InputError("incomplete: the model's shape is not known")
        return load_model(known)
    model = Architecture(
        name=name.strip(),
        layers=shape["layers"],
        hidden=shape["hidden"],
        heads=shape["heads"],
        kv_heads=shape["kv_heads"],
        head_dim=shape["hidden"] // shape["heads"],
        ffn=shape["ffn"],
        vocab=shape["vocab"],
        source="the row's own columns",
    )
    parameters = _number(row.get("n_params"))
    return nearest_gating(model, parameters) if parameters > 0.0 else model


def precision_of(text: str) -> str:
    """The simulator's name of a precision, or the source's own where it has none.

    >>> precision_of("amp_bf16"), precision_of("BF16 (assumed)"), precision_of("MXFP8")
    ('bf16', 'bf16', 'mxfp8')
    """
    word = text.lower()
    if word.startswith(("bf16", "amp_bf16", "fp16")):
        return "bf16"
    if word.startswith("mxfp8") or "fp8-mx" in word:
        return "mxfp8"
    if "fp4" in word:
        return "nvfp4"
    return "fp8" if "fp8" in word else (word or "an unknown precision")


def zero_of(text: str) -> int:
    """What replicas divide, from a source's words; groups smaller than all replicas count as all of them.

    >>> [zero_of(t) for t in ("dist-optimizer (zero1)", "FSDP FULL_SHARD (zero3)", "MaxText FSDP 128 x DP", "DDP")]
    [1, 3, 3, 0]
    """
    found = re.search(r"zero-?(\d)", text)
    if found:
        return min(3, int(found.group(1)))
    return 3 if "FSDP" in text else 0


def recomputation_of(text: str) -> str | None:
    """``none``, ``selective`` or ``full`` from a source's words; None where it does not say.

    >>> [recomputation_of(t) for t in ("none/see config", "full uniform 1", "selective: core_attn", "see config")]
    ['none', 'full', 'selective', None]
    """
    word = text.strip().lower()
    if word.startswith(("none", "selective: []")):
        return "none"
    if word.startswith("full") and "layers" not in word:
        return "full"
    return "selective" if word.startswith("selective") else None


def metric_of(metric: str, address: str, run: Run, step: Step) -> Callable[[float], float]:
    """Seconds of a step → the metric in its unit, by the convention of the source."""
    if metric == "step_time_s":
        return lambda seconds: seconds
    if metric == "tokens/s/gpu":
        return lambda seconds: run.tokens / (seconds * run.gpus)
    if metric not in ("TFLOP/s/gpu", "MFU", "HFU"):
        raise InputError(f"metric '{metric}' is not predicted")
    convention = convention_of(address)
    recomputed = step.recomputation == "full" and (metric == "HFU" or convention.recomputed)
    flops = step_flops(run.model, run.sequence, run.tokens, convention, recomputed=recomputed) / run.gpus
    unit = 1e12 if metric == "TFLOP/s/gpu" else device(run.device).peak_flops_per_s["bf16"]
    return lambda seconds: flops / (seconds * unit)


def predict_nanotron(frame: pd.DataFrame, answers: Answers) -> None:
    """Tokens/s a GPU of runs that ran, and memory and the verdict of every run."""
    for position, row in enumerate(frame.to_dict("records")):
        try:
            run = nanotron_run(row)
            memory = memory_of(run)
        except InputError as error:
            answers.skip(position, error.message)
            continue
        answers.also(position, "mem_alloc_gb", memory.memory_bytes / 1e9)
        answers.also(position, "predicted_status", "Success" if memory.fits else "OOM")
        if not math.isfinite(_number(row["tokens_per_s_per_gpu"])):
            answers.skip(position, "no rate was measured: memory alone is predicted")
        elif str(row.get("after_pp_fix", "True")) == "False" and run.pp > 1:
            answers.skip(position, "measured before the pipeline was mended: memory alone is predicted")
        elif not memory.fits:
            answers.skip(position, "does not fit by the memory model")
        else:
            step = simulate_run(run)
            per_gpu = run.tokens / run.gpus
            answers.predict(position, per_gpu / step.seconds, per_gpu / step.high, per_gpu / step.low)


def nanotron_run(row: Row) -> Run:
    """A run of the nanotron sweep: Llama-like models, sequence regions, no recomputation."""
    heads = _count(row, "num_heads")
    model = Architecture(
        name=f"nanotron {_count(row, 'hidden_size')}x{_count(row, 'num_layers')}",
        layers=_count(row, "num_layers"),
        hidden=_count(row, "hidden_size"),
        heads=heads,
        kv_heads=_count(row, "num_kv_heads", heads),
        head_dim=_count(row, "hidden_size") // heads,
        ffn=_count(row, "ffn", 4 * _count(row, "hidden_size")),
        vocab=_count(row, "vocab_size"),
        tied_embeddings=True,
        source="the row's own columns",
    )
    name = device_name(row["gpu"])
    if name is None:
        raise InputError(no_device(row["gpu"]))
    return Run(
        model=model,
        device=name,
        gpus=_count(row, "dp") * _count(row, "tp") * _count(row, "pp"),
        sequence=_count(row, "seq_len"),
        micro_batch=_count(row, "mbs"),
        global_batch=_count(row, "gbs"),
        tp=_count(row, "tp"),
        pp=_count(row, "pp"),
        zero=_count(row, "zero_stage"),
        recomputation="none",
        sequence_regions=str(row["tp_mode"]) == "REDUCE_SCATTER",
    )


def predict_vtrain(frame: pd.DataFrame, answers: Answers) -> None:
    """Iteration time of GPT models on A100 (vTrain); recomputation is not stated, so the least that fits."""

    def run(row: Row) -> Run:
        return Run(
            model=gpt("vtrain", _count(row, "# layers"), _count(row, "hidden size"), _count(row, "attention heads")),
            device="a100-80gb",
            gpus=_count(row, "# GPUs"),
            sequence=_count(row, "sequence length"),
            micro_batch=_count(row, "micro batch"),
            global_batch=_count(row, "global batch"),
            tp=_count(row, "tensor parallelism"),
            pp=_count(row, "pipeline parallelism"),
        )

    _predict_steps(frame, answers, run, 1e3)


def predict_megatron(frame: pd.DataFrame, answers: Answers) -> None:
    """Iteration time of the four models of Korthikanti et al. 2022 on A100."""

    def run(row: Row) -> Run:
        return Run(
            model=load_model(MEGATRON_MODELS.get(str(row["model"]), str(row["model"]))),
            device="a100-80gb",
            gpus=_count(row, "n_gpus"),
            sequence=_count(row, "seq_len"),
            micro_batch=_count(row, "micro_batch_size"),
            global_batch=_count(row, "global_batch"),
            tp=_count(row, "tp"),
            pp=_count(row, "pp"),
            vpp=_count(row, "vpp", 1),
            recomputation=str(row["recompute"]),
            sequence_regions=_count(row, "sequence_regions") == 1,
        )

    _predict_steps(frame, answers, run, 1.0)


#: The table's names → the catalog's.
MEGATRON_MODELS = {"gpt3-175b": "gpt-3-175b", "turing-530b": "megatron-530b"}
#: Models of the SimuMax table in the catalog; it cuts their layers.
SIMUMAX_MODELS = {
    "llama3-405b": "llama-3.1-405b",
    "llama3-70b": "llama-3.1-70b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}
#: Dense layers at the start of a cut DeepSeek: with none or three the measured memory would be missed by a fifth.
SIMUMAX_DENSE = 1


def predict_simumax(frame: pd.DataFrame, answers: Answers) -> None:
    """Iteration time and memory of cut models on 8 B200: overlap off, all-to-all context parallelism."""

    def run(row: Row) -> Run:
        name = str(row["model"])
        if name not in SIMUMAX_MODELS:
            raise InputError(f"no model '{name}' in the catalog")
        case = str(row["case"])
        degree = {axis: int(size) for axis, size in re.findall(r"(tp|cp|pp|ep|dp)(\d+)", case)}
        sequence = re.search(r"seq(\d+)", case)
        layers = _count(row, "layer_num")
        model = load_model(SIMUMAX_MODELS[name])
        if model.experts:
            model = replace(model, experts=replace(model.experts, first_dense=SIMUMAX_DENSE))
        micro_batches, dp = _count(row, "mbc"), degree.get("dp", 1)
        return Run(
            model=Architecture(**{**_fields(model), "layers": layers, "name": f"{name} of {layers} layers"}),
            device="b200",
            gpus=8,
            sequence=int(sequence.group(1)) if sequence else SIMUMAX_SEQUENCE,
            micro_batch=1,
            global_batch=micro_batches * dp,
            tp=degree.get("tp", 1),
            cp=degree.get("cp", 1),
            pp=degree.get("pp", 1),
            ep=degree.get("ep", 1),
            expert_dispatch="experts",
            vpp=_count(row, "vp_size", 1),
            zero=1,
            recomputation="none",
            sequence_regions=degree.get("tp", 1) > 1,
            exchange="ulysses",
        )

    _predict_steps(frame, answers, run, 1e3, memory="real_alloc_gib")


#: Tokens a sequence where a case does not say (SimuMax's benchmark configurations).
SIMUMAX_SEQUENCE = 4096


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 51200) -> Architecture:
    """A GPT of Megatron's shape: an ungated MLP of 4·h, as many key/value heads as heads."""
    return Architecture(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, ffn=4 * hidden,
        gated=False, vocab=vocab, tied_embeddings=True, linear_bias=True, learned_positions=True, max_context=2048,
        source="the row's own columns",
    )  # fmt: skip


def _predict_steps(
    frame: pd.DataFrame, answers: Answers, run_of: Callable[[Row], Run], unit: float, memory: str | None = None
) -> None:
    """Step times in ``1/unit`` seconds; ``memory`` names a column in GiB."""
    for position, row in enumerate(frame.to_dict("records")):
        try:
            step = simulate_run(run_of(row))
        except InputError as error:
            answers.skip(position, error.message)
            continue
        if memory is not None:
            answers.also(position, memory, step.memory_bytes / 2**30)
        if step.fits:
            answers.predict(position, *(unit * value for value in (step.seconds, step.low, step.high)))
        else:
            answers.skip(position, "does not fit by the memory model")


def _fields(model: Architecture) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__dataclass_fields__}


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _count(row: Row, column: str, default: int = 0) -> int:
    """A whole number of a cell; the default where there is none."""
    value = _number(row.get(column, ""))
    return int(value) if math.isfinite(value) and value > 0.0 and value == int(value) else default
