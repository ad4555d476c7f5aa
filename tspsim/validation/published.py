"""Published training runs: one row is one metric of one run with its plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.parallel.recomputed import PartialRecompute

from .answers import RowAnswers, each_row
from .as_run import as_run, stack_as_run
from .cells import Row, count_of, number_of, precision_of
from .conventions import convention_of, step_flops
from .devices import device, named_device
from .frameworks import (
    FABRICS,
    adapters_of,
    as_routed,
    chunks_by_recipe,
    further_tokens,
    layers_of_chunks,
    recomputed_by_recipe,
    stack_of,
    turns_of,
    version_run,
)
from .recipe_rows import RowFacts
from .recipes import how_run
from .runs import TOO_LARGE, Predicted, Run, memory_of, nearest_gating, simulate_run
from .unstated import completed

if TYPE_CHECKING:
    import pandas as pd


@each_row
def predict_published(row: Row, position: int, answers: RowAnswers) -> None:
    """Step time, tokens/s/GPU, TFLOP/s/GPU, MFU and HFU of runs whose rows are complete or can be completed."""
    run, words = published_run(row)
    if words:
        answers.note(f"not stated, taken as the framework has it: {words}", 1)
        answers.also(position, "predicted_taken", words)
    step = simulate_run(run)
    if not step.fits:
        raise InputError(TOO_LARGE)
    metric = metric_of(row, run, step)
    predicted, one, other = (metric(seconds) for seconds in (step.seconds, step.low, step.high))
    answers.predict(position, predicted, min(one, other), max(one, other))


def run_by_run(frame: pd.DataFrame) -> Iterable[Sequence[int]]:
    """Positions of the rows that are metrics of one run; rows without a run are grouped by the reason."""
    positions: dict[Run | str, list[int]] = {}
    for position, row in enumerate(frame.to_dict("records")):
        try:
            key: Run | str = published_run(row)[0]
        except InputError as error:
            key = error.message
        positions.setdefault(key, []).append(position)
    return positions.values()


def published_run(row: Row) -> tuple[Run, str]:
    """The run of a row of published/training.csv, and the values assumed for keys that it does not state.

    Raises
    ------
    InputError
        The simulator does not cover the row; the message says why.
    """
    if str(row.get("usable", "1")).strip() == "0":
        raise InputError("marked as not usable")
    if str(row["metric"]) == "time_to_train_min":
        raise InputError("time to train is not predicted")
    first: tuple[Run, str] | None = None
    for whole, words in completed(row):
        run = stated_run(whole)
        if not words or memory_of(run).fits:
            return run, words
        first = first or (run, words)
    if first is None:
        raise InputError("incomplete: no plan divides its GPUs and batch")
    return first


def stated_run(row: Row) -> Run:
    """The run of a row that states its plan. Raises InputError with the reason if the simulator does not cover it."""
    metric, model, source = (str(row[column]) for column in ("metric", "model", "source_url"))
    name = named_device(row["gpu"])
    if (name, model, metric, str(row["precision"]), count_of(row, "n_gpus")) in OTHER_PEAK and OTHER_PEAK_IN in source:
        raise InputError("its MFU is over the peak of another type: half of what its own step time gives")
    for column in ("tp", "pp", "cp", "mbs", "gbs", "seq_len", "n_gpus"):
        if not count_of(row, column):
            raise InputError(f"incomplete: {column} not stated")
    notes = str(row.get("notes", ""))
    shape = as_routed(architecture(row), notes)
    rank, targets, experts = adapters_of(model, str(row["source_url"]), latent=shape.latent is not None)
    tp, ep, gpus = count_of(row, "tp"), count_of(row, "ep", 1), count_of(row, "n_gpus")
    zero, precision = str(row.get("zero_stage", "")), precision_of(str(row["precision"]))
    facts = RowFacts(source, model, name, precision, gpus, notes)
    how, ran = how_run(facts), as_run(facts)
    recompute = next((words for words in (str(row.get("recompute", "")), ran.recompute) if recomputation_of(words)), "")
    examples = count_of(row, "seq_len") // ran.example if ran.example else 1
    own = how.chunks or chunks_by_recipe(source, shape, gpus, count_of(row, "pp"))
    vpp = own or count_of(row, "vpp") or chunks_of(source, model)
    if str(row.get("vpp", "")).strip() == "interleaved":
        vpp = 2  # torchtitan's Interleaved1F1B: two stages a rank
    return Run(
        model=shape,
        device=name,
        gpus=gpus,
        sequence=count_of(row, "seq_len") // examples,
        micro_batch=how.micro_batch or micro_batch_of(row) * examples,
        global_batch=count_of(row, "gbs") * examples,
        tp=tp,
        cp=count_of(row, "cp"),
        pp=count_of(row, "pp"),
        vpp=vpp,
        schedule=schedule_of(notes),
        stage_layers=layers_of_chunks(source, shape, count_of(row, "pp") * vpp),
        accumulation=turns_of(source, notes, count_of(row, "pp")),
        zero=zero_of(zero),
        shard_group=sharded(row, zero, gpus // (tp * count_of(row, "pp"))) if zero_of(zero) else None,
        recomputation=recomputation_of(recompute) or recomputed_by_recipe(source, model, gpus),
        recomputed=recomputed_of(recompute),
        ep=ep,
        expert_dispatch=ran.dispatch or how.dispatch,
        expert_overlap=how.overlap if ep > 1 else "none",
        sequence_regions=tp > 1 and (str(row.get("sp", "")).startswith("on") or ep > 1),
        multi_token=further_tokens(model, source),
        precision=precision,
        stack=stack_as_run(source, ran) or (version_run(how.stack, model) if shape.experts else stack_of(source)),
        fabric=next((fabric for words, fabric in FABRICS.items() if words in notes), ""),
        adapter_rank=rank,
        adapter_targets=targets,
        adapter_experts=experts,
    )


#: The (GPU, model, metric, precision, GPUs) of a row of DGX Cloud's page that has its MFU over FP8's peak: its
#: 0.1871 is its 8,420 tokens/s per GPU over 4,900 TFLOP/s; all other rows in BF16 are over 2,450.
OTHER_PEAK = {("gb200", "Llama 4 Maverick 400B", "MFU", "BF16", 128)}
OTHER_PEAK_IN = "dgxc-benchmarking/blob/v25.05.04"
#: Words of a source, and of a model → chunks of a stage, where the release does not state them: those that the releases
#: before and after it state of the same model, plan and batch (Nemotron-4 340B, TP 8, PP 8: v25.02's README_340b.md and
#: nemotron/README.md at 1f6d9f4 have VP 12). Llama 3's 126 layers are one a chunk, with embedding and head alone in the
#: first and last of 16 stages (§3.3.2: one layer fewer at both ends).
CHUNKS = {("dgxc-benchmarking/blob/v25.04.01/nemotron", "340B"): 12, ("2407.21783", "405B"): 8}


#: Pipeline schedules as pages call them → ``schedule`` of a plan; all others are 1F1B, interleaved or not.
SCHEDULES = {"zero-bubble": "zb-h1", "zbv-formatted": "zbv", "zbv": "zbv", "v-half": "v-half", "v-min": "v-min"}


def schedule_of(notes: str) -> str:
    """The schedule that notes name.

    >>> schedule_of("pipeline schedule v-min; 4 nodes"), schedule_of("pipeline schedule 1f1b-interleaved; 4 nodes")
    ('v-min', '1f1b')
    """
    named = re.search(r"pipeline schedule ([\w-]+)", notes)
    return SCHEDULES.get(named.group(1), "1f1b") if named else "1f1b"


def chunks_of(source: str, model: str) -> int:
    """Chunks of a stage, for a run whose row states none.

    >>> chunks_of("https://github.com/NVIDIA/dgxc-benchmarking/blob/v25.04.01/nemotron/README.md", "Nemotron4 340B")
    12
    """
    return next((chunks for (words, name), chunks in CHUNKS.items() if words in source and name in model), 1)


def micro_batch_of(row: Row) -> int:
    """Sequences of a micro-batch, as stated. For torchtitan's pipelines of 2024 the row states the local batch, which
    is split into as many micro-batches as there are pipeline ranks by default (``pipeline_parallel_microbatches``: "the
    default value will be the number of pipeline stages")."""
    stated, ranks = count_of(row, "mbs"), count_of(row, "pp")
    return max(1, stated // ranks) if "torchtitan" in str(row["source_url"]) and ranks > 1 else stated


#: Models with experts: a published name, without remarks in parentheses → the catalog name.
EXPERT_MODELS = {
    "deepseek v3 671b": "deepseek-v3",
    "deepseek-v3 671b": "deepseek-v3",
    "deepseekv3": "deepseek-v3",
    "deepseek-v2-lite": "deepseek-v2-lite",
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
    """The model of a row: its own columns, or the catalog's model with that name."""
    shape = {name: count_of(row, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    name = str(row["model"]).split("[")[0].strip()
    if str(row.get("moe", "")).strip():
        # # The columns do not describe all of a mixture of experts, and some rows are hybrids with other layers.
        written = name.split("(")[0].strip().lower()
        listed = EXPERT_MODELS.get(written, re.sub(r"[ _]+", "-", written))
        experts_model = load_model(listed) if listed in catalog.names("models") else None
        if experts_model is None or experts_model.experts is None:
            raise InputError("no model of experts by that name in the catalog")
        return experts_model
    if not all(shape.values()):
        listed_name = name.lower().strip().replace(" ", "-")
        if listed_name not in catalog.names("models"):
            raise InputError("incomplete: the model's shape is not known")
        return load_model(listed_name)
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
    parameters = number_of(row.get("n_params"))
    return nearest_gating(model, parameters) if parameters > 0.0 else model


def zero_of(text: str) -> int:
    """The ZeRO stage, from a source's words.

    >>> [zero_of(t) for t in ("dist-optimizer (zero1)", "FSDP FULL_SHARD (zero3)", "MaxText FSDP 128 x DP", "DDP")]
    [1, 3, 3, 0]
    """
    match = re.search(r"zero-?(\d)", text)
    if match:
        return min(3, int(match.group(1)))
    return 3 if "FSDP" in text else 0


def sharded(row: Row, words: str, copies: int) -> int | None:
    """The number of ranks that shard state, as stated. Torchtitan shards over sequence shards too (``dp_shard_cp``)."""
    group = shard_group_of(words, copies)
    beside = "torchtitan" in str(row["source_url"]) and count_of(row, "cp") > 1
    return None if group is None or (beside and group * count_of(row, "cp") >= copies) else group


def shard_group_of(text: str, replicas: int) -> int | None:
    """Ranks that shard state among themselves, from a source's words; None: all replicas.

    >>> shard_group_of("zero1 within groups of 8", 64), shard_group_of("FSDP2 (zero3), shard 4", 8)
    (8, 4)
    >>> shard_group_of("MaxText FSDP 128 x DP", 256), shard_group_of("FSDP2 (zero3), shard 8", 8)
    (128, None)
    """
    match = re.search(r"(?:groups of|shard|FSDP) (\d+)", text)
    group = int(match.group(1)) if match else replicas
    return group if 1 < group < replicas else None


def recomputation_of(text: str) -> str | None:
    """``none``, ``selective``, ``cheap`` or ``full`` from a source's words; None if they do not say.

    >>> [recomputation_of(t) for t in ("none/see config", "full uniform 1", "selective: core_attn", "see config")]
    ['none', 'full', 'selective', None]
    >>> recomputation_of("selective: layernorm,moe_act")
    'cheap'
    """
    word = text.strip().lower()
    if word.startswith(("none", "selective: []")):
        return "none"
    if word.startswith("full") and ("layers" not in word or recomputed_of(word)):
        return "full"
    if word.startswith("selective"):
        return "cheap" if any(module in word for module in ("layernorm", "moe_act", "mla_up_proj")) else "selective"
    return None


def recomputed_of(text: str) -> PartialRecompute | None:
    """The part of the layers that is recomputed, from a source's words; None if it is not a part.

    >>> recomputed_of("full block, 5 layers"), recomputed_of("full uniform 1")
    (PartialRecompute(layers=5, method='block'), None)
    """
    match = re.search(r"full block, (\d+) layers", text.strip().lower())
    return PartialRecompute(int(match.group(1))) if match else None


def metric_of(row: Row, run: Run, step: Predicted) -> Callable[[float], float]:
    """The function from a step's seconds to a row's metric in its unit, by the convention of the source."""
    metric = str(row["metric"])
    if metric == "step_time_s":
        return lambda seconds: seconds
    if metric == "tokens/s/gpu":
        return lambda seconds: run.tokens / (seconds * run.gpus)
    if metric not in ("TFLOP/s/gpu", "MFU", "HFU"):
        raise InputError(f"metric '{metric}' is not predicted")
    convention = convention_of(str(row["source_url"]), str(row["model"]), str(row.get("notes", "")))
    recomputed = step.recomputation == "full" and (metric == "HFU" or convention.recomputed)
    passes = convention.adapter_passes if run.adapter_rank else 3.0
    flops = step_flops(
        run.model, run.sequence, run.tokens, convention,
        passes=passes, recomputed=recomputed, multi_token=run.multi_token,
    ) / run.gpus  # fmt: skip
    unit = 1e12 if metric == "TFLOP/s/gpu" else device(run.device).peak_of(run.precision)
    return lambda seconds: flops / (seconds * unit)
