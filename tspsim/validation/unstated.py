"""Values that a published training row leaves out, filled with the defaults of its framework.

A benchmark's page often states the number of GPUs and sequences but not how a replica is divided. Values that follow
from the stated ones are computed: with n GPUs, a global batch of g sequences in t turns (``GA t`` in the notes) and m
sequences per turn, g/(t·m) replicas have n·t·m/g GPUs each. The others are the framework's default, or the value in its
own recipe of the model. The notes of the outcome list completed rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from tspsim.base.errors import InputError

from .cells import Row, count_of, precision_of
from .recipe_rows import RowFacts, RowsOfRecipe, recipe_of

#: Keys that a run needs and a row may leave out.
KEYS = ("tp", "pp", "cp", "mbs", "gbs")
#: The most tensor-parallel ranks to try for rows that do not state them: the GPUs of a node.
WIDEST = 8
#: The most tensor-parallel ranks of a replica; its other ranks are context-parallel. GPUs not listed use only
#: context parallelism. From stated configurations of MLPerf Training 4.1 to 5.1: H200 on two nodes and more has TP 2
#: and 4 with CP 1 and 2, GB200 and Instinct TP 1.
TENSOR = {"h100": 4, "h200": 4}


@dataclass(frozen=True)
class FrameworkRecipe(RowsOfRecipe):
    """Values in a framework's own configuration of a model, for pages that show results without them."""

    mbs: int = 1
    #: Sequences of the global batch per GPU.
    sequences_per_gpu: int = 1
    #: Source of the values.
    configuration: str = ""


RECIPES = (
    FrameworkRecipe(
        "primus_pipeline", "qwen3235b", mbs=1, sequences_per_gpu=4,
        configuration="AMD-AGI/Primus@98641be, examples/customer_package/run_qwen3_235b_a22b_pretrain_mi355x.sh, which"
        " has the page's schedules: micro-batches of 1, 256 sequences on 8 nodes",
    ),
    FrameworkRecipe(
        "AMD-AGI/Primus", "qwen3235b", mbs=4, sequences_per_gpu=32,
        configuration="AMD-AGI/Primus@05b350b, examples/megatron/configs/MI355X/qwen3_235B_A22B-BF16-pretrain.yaml:"
        " micro-batches of 4, 8,192 sequences on 32 nodes",
    ),
    FrameworkRecipe(
        "AMD-AGI/Primus", "llama3170b", types=("bf16",), gpus=64, mbs=1, sequences_per_gpu=4,
        configuration="ROCm's page of training with Primus v25.9, eight nodes in BF16: micro-batches of 1, a global"
        " batch of 256",
    ),
)  # fmt: skip


def completed(row: Row) -> Iterator[tuple[Row, str]]:
    """The row with every key of a run, and the assumed values in words. Several candidates come in turn, and the first
    that fits is meant. A row that states all keys is returned as it is, with no words.

    Raises
    ------
    InputError
        A missing value does not follow from the others; the message names the first such key.
    """
    values = {key: count_of(row, key) for key in KEYS}
    missing = [key for key in KEYS if not values[key]]
    if not missing:
        yield row, ""
        return
    gpus = count_of(row, "n_gpus")
    if not gpus:
        raise InputError("incomplete: n_gpus not stated")
    for plan in _plans(row, values, gpus):
        words = ", ".join(f"{key} {plan[key]}" for key in missing)
        yield {**row, **{key: str(value) for key, value in plan.items()}}, words


def _plans(row: Row, values: dict[str, int], gpus: int) -> Iterator[dict[str, int]]:
    recipe = _recipe(row)
    pp, gbs, turns = values["pp"] or 1, values["gbs"], _turns(row)
    if recipe is not None and not gbs:
        gbs = recipe.sequences_per_gpu * gpus
    mbs = values["mbs"] or (recipe.mbs if recipe is not None else 1)
    if gbs and turns and gbs % turns == 0:
        # # The number of sequences at once: if there are more than GPUs, several share a micro-batch.
        together = gbs // turns
        mbs = values["mbs"] or max(1, together // gpus)
        if not (values["tp"] and values["cp"]):
            most = TENSOR.get(str(row["gpu"]).strip().lower(), 1)
            yield values | {"pp": pp, "gbs": gbs, "mbs": mbs, **_shared(values, pp, gpus * mbs, together, most)}
            return
    widths = (values["tp"],) if values["tp"] else _powers(WIDEST)
    for stages in (pp,) if values["pp"] else _powers(gpus):
        for tp in widths:
            plan = values | {"tp": tp, "pp": stages, "cp": values["cp"] or 1, "mbs": mbs, "gbs": gbs}
            replica = plan["tp"] * plan["cp"] * stages
            if gpus % replica:
                continue
            sequences = gpus // replica * mbs
            if not gbs and stages == 1:
                plan["gbs"] = sequences  # nothing is accumulated
            if not plan["gbs"]:
                raise InputError("incomplete: gbs not stated, and the bubble depends on it")
            if plan["gbs"] % sequences == 0:
                yield plan


def _shared(values: dict[str, int], pp: int, ranks: int, together: int, most: int) -> dict[str, int]:
    """``tp`` and ``cp`` of replicas that ``ranks/together`` GPUs share; ``most`` is the largest ``tp``."""
    if ranks % (together * pp):
        raise InputError("incomplete: tp not stated, and GPUs and sequences do not tell it")
    shared = ranks // (together * pp)
    tp = values["tp"] or (shared // values["cp"] if values["cp"] else gcd(shared, most))
    cp = values["cp"] or shared // tp
    if tp * cp != shared:
        raise InputError("incomplete: tp not stated, and GPUs and sequences do not tell it")
    return {"tp": tp, "cp": cp}


def _recipe(row: Row) -> FrameworkRecipe | None:
    source, model, precision = (str(row[column]) for column in ("source_url", "model", "precision"))
    facts = RowFacts(source, model, precision=precision_of(precision), gpus=count_of(row, "n_gpus"))
    return recipe_of(RECIPES, facts)


def _turns(row: Row) -> int:
    """Micro-batches of a replica's step, from the notes; 0 if they do not say.

    >>> _turns({"notes": "10 ok runs; GA 2; config not matched"}), _turns({"notes": ""})
    (2, 0)
    """
    match = re.search(r"\bGA (\d+)\b", str(row.get("notes", "")))
    return int(match.group(1)) if match else 0


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(most.bit_length()) if 1 << power <= most)
