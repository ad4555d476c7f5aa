"""Tables of training runs, one run with its plan per row: step times, rates, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model

from . import nanotron
from .answers import Predictor, RowAnswers, each_row
from .cells import Row, count_of, number_of
from .devices import named_device
from .runs import TOO_LARGE, Run, memory_of, simulate_run

NANOTRON = "nanotron"


@each_row
def predict_nanotron(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict tokens/s per GPU of runs that ran, and memory and the verdict of every run."""
    run = nanotron_run(row)
    memory = memory_of(run)
    # # The first stage logs memory at the end of a step, when activations are freed, in GiB: only in this unit does a
    # replica take the 20 B per weight of its bf16 and fp32 copies.
    answers.also(position, "mem_alloc_gb", memory.state_bytes / 2**30)
    answers.also(position, "predicted_status", "Success" if memory.fits else "OOM")
    if not math.isfinite(number_of(row["tokens_per_s_per_gpu"])):
        raise InputError("no rate was measured: memory alone is predicted")
    if not memory.fits:
        raise InputError(TOO_LARGE)
    step, per_gpu = simulate_run(run), run.tokens / run.gpus
    answers.predict(position, per_gpu / step.seconds, per_gpu / step.high, per_gpu / step.low)


#: Bytes per weight: nanotron keeps bf16 weights, fp32 gradients (the accumulated ones), fp32 Adam state, and bf16
#: gradients in DDP's buckets: the table's 20 B. With ZeRO-1 it shows 10 B and 14 more over the replicas: gathered
#: slices.
NANOTRON_OPTIMIZER = {
    0: (("weights", 2.0), ("gradients", 4.0), ("buffers", 2.0), ("state", 12.0)),
    1: (("weights", 2.0), ("gradients", 4.0), ("buffers", 4.0), ("state", 14.0)),
}


def version_of(row: Row) -> str:
    """The stack of a run of the sweep: by its label, unless :func:`nanotron.versions` says more."""
    version = row.get(nanotron.VERSION)
    if version is None and str(row.get("after_pp_fix", "True")) == "False":
        version = nanotron.POLLING if count_of(row, "pp") > 1 else nanotron.UNMENDED
    return f"{NANOTRON}@{version}" if version else NANOTRON


def nanotron_run(row: Row) -> Run:
    """A run of the nanotron sweep: Llama-like models, sequence regions, no recomputation."""
    heads = count_of(row, "num_heads")
    model = Architecture(
        name=f"nanotron {count_of(row, 'hidden_size')}x{count_of(row, 'num_layers')}",
        layers=count_of(row, "num_layers"),
        hidden=count_of(row, "hidden_size"),
        heads=heads,
        kv_heads=count_of(row, "num_kv_heads", heads),
        head_dim=count_of(row, "hidden_size") // heads,
        ffn=count_of(row, "ffn", 4 * count_of(row, "hidden_size")),
        vocab=count_of(row, "vocab_size"),
        tied_embeddings=True,
        source="the row's own columns",
    )
    name = named_device(row["gpu"])
    return Run(
        model=model,
        device=name,
        gpus=count_of(row, "dp") * count_of(row, "tp") * count_of(row, "pp"),
        sequence=count_of(row, "seq_len"),
        micro_batch=count_of(row, "mbs"),
        global_batch=count_of(row, "gbs"),
        tp=count_of(row, "tp"),
        pp=count_of(row, "pp"),
        stage_layers=layers_by_cost(model, count_of(row, "pp")),
        zero=count_of(row, "zero_stage"),
        recomputation="none",
        sequence_regions=str(row["tp_mode"]) == "REDUCE_SCATTER",
        stack=version_of(row),
        fabric="efa-400g",
        optimizer=NANOTRON_OPTIMIZER[count_of(row, "zero_stage")],
    )


def layers_by_cost(model: Architecture, stages: int) -> tuple[int, ...]:
    """Layers of each stage in nanotron: a cut by the weights of layers and head, without the embedding.

    A stage takes layers until all layers so far reach its share of the total (nanotron, ``build_model``). It leaves one
    for every later stage except the last, where the head may be alone. Empty if there are too few layers.
    """
    query = model.heads * model.head_dim
    layer = 4 * query * model.hidden + 3 * model.ffn * model.hidden
    whole = model.layers * layer + model.vocab * model.hidden
    if stages == 1 or model.layers < stages - 1:
        return ()
    shares = (math.ceil(whole * stage / (stages * layer)) for stage in range(1, stages))
    ends = [min(share, model.layers - (stages - 1 - stage)) for stage, share in enumerate(shares, start=1)]
    return tuple(end - start for start, end in pairwise([0, *ends, model.layers]))


def vtrain_run(row: Row) -> Run:
    """A run of a GPT model on A100 (vTrain).

    The table does not state recomputation. Full is assumed, as Megatron ran such models then (Narayanan et al. 2021,
    §3.5). With less, predictions for small micro-batches would be a quarter too fast, and right for large ones. Its
    Megatron is that of 2021: the model in VIA-Research/vTrain@f8dda84 has its names (``checkpoint_activations``), turns
    tokens over inside the transformer (src/model/gpt_modeling.py), has no asynchronous sum in its column-split products
    (layers.py), and its graph awaits both sums of a backward (predictor.py, ``_add_tp_communication``).
    """
    return Run(
        model=gpt("vtrain", count_of(row, "# layers"), count_of(row, "hidden size"), count_of(row, "attention heads")),
        device="a100-80gb",
        stack="megatron-2022@2021",
        recomputation="full",
        gpus=count_of(row, "# GPUs"),
        sequence=count_of(row, "sequence length"),
        micro_batch=count_of(row, "micro batch"),
        global_batch=count_of(row, "global batch"),
        tp=count_of(row, "tensor parallelism"),
        pp=count_of(row, "pipeline parallelism"),
    )


def megatron_run(row: Row) -> Run:
    """A run of one of the four models of Korthikanti et al. 2022 on A100."""
    return Run(
        model=load_model(MEGATRON_MODELS.get(str(row["model"]), str(row["model"]))),
        device="a100-80gb",
        stack="megatron-2022",
        gpus=count_of(row, "n_gpus"),
        sequence=count_of(row, "seq_len"),
        micro_batch=count_of(row, "micro_batch_size"),
        global_batch=count_of(row, "global_batch"),
        tp=count_of(row, "tp"),
        pp=count_of(row, "pp"),
        vpp=count_of(row, "vpp", 1),
        recomputation=str(row["recompute"]),
        sequence_regions=count_of(row, "sequence_regions") == 1,
    )


#: The table's name of a model → the catalog's.
MEGATRON_MODELS = {"gpt3-175b": "gpt-3-175b", "turing-530b": "megatron-530b"}
#: Models of the SimuMax table in the catalog; the table cuts their layers.
SIMUMAX_MODELS = {
    "llama3-405b": "llama-3.1-405b",
    "llama3-70b": "llama-3.1-70b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}
#: Megatron with bf16 weights: fp32 main gradients, master weights and two moments (its distributed optimizer's docs).
MEGATRON_OPTIMIZER = (("weights", 2.0), ("gradients", 4.0), ("state", 12.0), ("temporaries", 0.0))
#: Dense layers at the start of a cut DeepSeek: with none or three the prediction would miss the measured memory by a
#: fifth.
SIMUMAX_DENSE = 1


def simumax_run(row: Row) -> Run:
    """A run of a cut model on 8 B200: overlap off, all-to-all context parallelism."""
    name = str(row["model"])
    if name not in SIMUMAX_MODELS:
        raise InputError(f"no model '{name}' in the catalog")
    case = str(row["case"])
    degree = {axis: int(size) for axis, size in re.findall(r"(tp|cp|pp|ep|dp)(\d+)", case)}
    sequence = re.search(r"seq(\d+)", case)
    layers = count_of(row, "layer_num")
    model = load_model(SIMUMAX_MODELS[name])
    if model.experts:
        model = replace(model, experts=replace(model.experts, first_dense=SIMUMAX_DENSE))
    micro_batches, dp = count_of(row, "mbc"), degree.get("dp", 1)
    return Run(
        model=replace(model, layers=layers, name=f"{name} of {layers} layers"),
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
        stack="megatron-plain",
        optimizer=MEGATRON_OPTIMIZER,
        vpp=count_of(row, "vp_size", 1),
        zero=1,
        recomputation="none",
        sequence_regions=degree.get("tp", 1) > 1,
        exchange="ulysses",
    )


#: Tokens per sequence, for cases that do not state them (SimuMax's benchmark configurations).
SIMUMAX_SEQUENCE = 4096


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 51200) -> Architecture:
    """A GPT of Megatron's shape: an ungated MLP of 4·h, as many key/value heads as heads."""
    return Architecture(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, ffn=4 * hidden,
        gated=False, vocab=vocab, tied_embeddings=True, linear_bias=True, learned_positions=True, max_context=2048,
        source="the row's own columns",
    )  # fmt: skip


def steps(run_of: Callable[[Row], Run], unit: float, memory: str | None = None) -> Predictor:
    """A predictor of step times in ``1/unit`` seconds; ``memory`` names a column in GiB."""

    @each_row
    def predict(row: Row, position: int, answers: RowAnswers) -> None:
        step = simulate_run(run_of(row))
        if memory is not None:
            answers.also(position, memory, step.allocated_bytes / 2**30)
        if not step.fits:
            raise InputError(TOO_LARGE)
        answers.predict(position, *(unit * value for value in (step.seconds, step.low, step.high)))

    return predict
