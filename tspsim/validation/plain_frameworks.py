"""Published runs of frameworks: a row has a machine, a model, and its plan as keys of a scenario.

The table is ``published/training_frameworks.csv``: ``plan`` and ``extra`` are JSON objects of keys of a plan and of the
workload, ``published`` is in ``unit``. Which stack ran is read from the words of a row (:mod:`.frameworks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.model.parts import Experts
from tspsim.scenario import load
from tspsim.step.simulation import Question, look_up

from ..base.memo import remembered
from .answers import RowAnswers, each_row
from .cells import Row, count_of, number_of
from .devices import LOOKUPS, named_device
from .frameworks import as_routed, layers_of_chunks, stack_in_words, turns_of, version_run
from .runs import TOO_LARGE, Predicted, fabric_of, file_of, first_plan_of, machine

#: Words of a row that name another board than its ``gpu`` column.
BOARDS = {"500w": "h100-96gb-500w"}
#: Words of a row → GPUs of a node, for machines that use a part of one.
GPUS_PER_NODE = {"kempnerforge": 4}
#: Words of a row → fabric between its nodes, where it is known. KempnerForge's own profile of 13B on 24 GPUs has fp32
#: reduce-scatters of 355 MB over six nodes in 14.4 ms, 20.5 GB/s: 200 Gb/s a GPU and not 400
#: (benchmarks/profiling/13b_24gpu_profiling.md; its tables say InfiniBand alone). IBM's first runs had 400 Gb/s between
#: nodes of eight A100 and 800 between nodes of H100, its later ones 3.2 Tb/s (PyTorch's blog of 2024-03 and the next).
FABRICS = {
    "kempnerforge": {"h200": "rails-200g"},
    "blog 2024-03": {"a100-80gb": "roce-50g", "h100": "roce-100g"},
}

Shape = Mapping[str, int]
#: Llama-like models that the catalog lacks: layers, hidden, heads, KV heads, FFN and vocabulary.
SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    "k7b": (32, 4096, 32, 8, 14336, 128256),  # KempnerForge, benchmarks/mfu_scaling and weak_scaling_160gpu
    "k13b": (40, 5120, 40, 8, 17920, 128256),
    "cl34b": (48, 8192, 64, 8, 22016, 32000),  # codellama/CodeLlama-34b-hf, config.json
    "k175b": (96, 12288, 96, 8, 39680, 128256),  # KempnerForge, benchmarks/175b_360gpu
    "llama2-13b": (40, 5120, 40, 40, 13824, 32000),  # meta-llama/Llama-2-13b-hf, config.json
}
#: A table's name of a model, as letters and digits alone → the catalog's.
NAMES = {"llama38b": "llama-3.1-8b", "llama370b": "llama-3.1-70b", "llama3405b": "llama-3.1-405b"}
#: KempnerForge's models with this number of experts, two of them per token (benchmarks/moe_packed).
OF_EXPERTS = re.compile(r"kmoe(\d+)")


def letters(name: str) -> str:
    """A name's letters and digits, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@remembered(64)
def architecture(name: str) -> Architecture:
    """The model of a row. Raises InputError if its shape is unknown.

    >>> [architecture(name).name for name in ("llama2-7b", "Llama 3 70B", "Qwen3-30B-A3B", "Llama-2-13b")]
    ['llama-2-7b', 'llama-3.1-70b', 'qwen3-30b-a3b', 'llama2-13b']
    """
    experts = OF_EXPERTS.fullmatch(name)
    if experts:
        return Architecture(
            name, 24, 2048, 16, 4, 128, 0, vocab=128256, experts=Experts(int(experts.group(1)), 2, 7168),
            source="KempnerInstitute/KempnerForge@abbbac3, benchmarks/moe_packed/moe_packed_benchmark.md",
        )  # fmt: skip
    own = {letters(shape): shape for shape in SHAPES}.get(letters(name))
    if own is not None:
        layers, hidden, heads, kv_heads, ffn, vocab = SHAPES[own]
        return Architecture(
            own, layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab=vocab, source="the model's own page"
        )
    catalogs = {letters(model): model for model in catalog.names("models")}
    listed = NAMES.get(letters(name)) or catalogs.get(letters(name))
    if listed is None:
        raise InputError(f"the shape of the model '{name}' is not known")
    return load_model(listed)


#: DualPipeV as ours runs it: the pipeline folded like a V holds every weight once (deepseek-ai/DualPipe, README: "1×"
#: for DualPipe's "2×"), two chunks a rank, and forwards stand beside backwards. In ours chunks come round robin, which
#: moves the bubble alone.
CUT_IN_HALF = {"schedule": "1f1b", "vpp": 2, "expert_overlap": "micro_batches"}


def question(row: Row) -> Question:
    """The resolved scenario of a row. Raises InputError for a row that cannot be simulated."""
    words = [str(row.get(column, "")) for column in ("note", "group", "source")]
    whole = " ".join(words).lower()
    board = next((device for word, device in BOARDS.items() if word in whole), None)
    device, gpus = board or named_device(row["gpu"]), count_of(row, "gpus")
    part = next((count for word, count in GPUS_PER_NODE.items() if word in whole), None)
    if part is not None and gpus % part == 0:
        cluster: dict[str, Any] = {"device": device, "nodes": gpus // part, "gpus_per_node": part}
    else:
        node, nodes = machine(device, gpus)
        cluster = {"device": device, "node": node, "nodes": nodes}
    if cluster["nodes"] > 1:
        usual = fabric_of(named_device(row["gpu"]))
        own = next((fabrics for word, fabrics in FABRICS.items() if word in whole), {})
        cluster["fabric"] = own.get(named_device(row["gpu"]), usual)
    model = architecture(str(row["model"]).strip())
    workload = {
        "model": str(file_of(as_routed(model, *words))),
        "pass": "training",
        "sequence": count_of(row, "sequence"),
        "sequences_per_replica": count_of(row, "sequences_per_replica"),
        "precision": str(row["precision"]).strip(),
        "stack": version_run(stack_in_words(*words), str(row["model"])),
        **keys(row, "extra"),
    }
    plan = {"name": "run", **keys(row, "plan")}
    if "dualpipev" in whole:
        plan |= CUT_IN_HALF
    chunks = int(plan.get("pp", 1)) * int(plan.get("vpp", 1))
    uneven = layers_of_chunks("Automodel", model, chunks) if "automodel" in whole else ()
    if uneven:
        plan.setdefault("stage_layers", list(uneven))
    turns = turns_of(whole, str(row.get("note", "")), int(plan.get("pp", 1)))
    if turns > 1:
        plan.setdefault("accumulation", turns)
    return look_up(load({"name": "validation", "cluster": cluster, "workload": workload, "plans": [plan]}), LOOKUPS)


def keys(row: Row, column: str) -> dict[str, Any]:
    """The JSON object of a cell, or an empty one for an empty cell. Raises InputError for anything else."""
    text = str(row.get(column, "")).strip() or "{}"
    try:
        entries = json.loads(text)
    except ValueError:
        raise InputError(f"{column} is not JSON") from None
    if not isinstance(entries, dict):
        raise InputError(f"{column} is not a JSON object")
    return entries


def _rate(resolved: Question, gpus: int) -> Callable[[float], float]:
    job = resolved.job(resolved.plans[0])
    tokens = job.work.counted_over(job.plan.dp)
    return lambda seconds: tokens / seconds / gpus


#: Unit → function from a job and its GPUs to the function from step seconds to that unit.
UNITS: dict[str, Callable[[Question, int], Callable[[float], float]]] = {
    "tokens/s/gpu": _rate,
    "tokens/s": lambda resolved, gpus: _rate(resolved, 1),
    "s": lambda resolved, gpus: lambda seconds: seconds,
}


@each_row
def predict(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict tokens/s per GPU of runs whose plan fits. The assumed stack is a label, and memory a further column."""
    unit = str(row["unit"]).strip()
    if unit not in UNITS:
        raise InputError(f"no prediction in '{unit}'; known: {', '.join(UNITS)}")
    if not number_of(row["published"]) > 0.0:
        raise InputError("nothing was published")
    resolved = question(row)
    step: Predicted = first_plan_of(resolved, "as stated")
    answers.label(position, "stack", resolved.work.stack.name)
    answers.also(position, "predicted_memory_gib", step.allocated_bytes / 2**30)
    if not step.fits:
        raise InputError(TOO_LARGE)
    value = UNITS[unit](resolved, count_of(row, "gpus"))
    answers.predict(position, value(step.seconds), *sorted((value(step.low), value(step.high))))
