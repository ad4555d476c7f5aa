"""torchtitan: ``torchtitan.train`` and its TOML. Keys: torchtitan/config/job_config.py of pytorch/torchtitan, 0.2 (late
2025, the last releases that read TOML)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...parallel.pipeline import order_of
from ...parallel.whole import keeps_whole
from .command import Command
from .training import TRAINERS, TrainingRun, torchrun

#: Types of GEMMs: the converter's section, and its recipe.
RECIPES = {
    "fp8": ("quantize.linear.float8", {"recipe_name": "tensorwise"}),
    "mxfp8": ("quantize.linear.mx", {"recipe_name": "mxfp8_cublas"}),
}
NAME = "torchtitan"
FILE = "plan.toml"


class Torchtitan:
    """``torchtitan.train``."""

    name = NAME
    vendors = ("nvidia", "amd")
    beside = "model.name, model.flavor and its assets, the data set, the optimizer's rate"

    def command(self, run: TrainingRun) -> Command:
        cannot: list[str] = []
        plan, job = run.plan, run.job
        training: dict[str, Any] = {
            # A pipeline takes a replica's sequences of one turn; without a pipeline the rest is accumulated.
            "local_batch_size": job.work.sequences // plan.accumulation if plan.pp > 1 else job.sequences,
            "global_batch_size": run.batch,
            "seq_len": job.work.sequence,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        }
        keys: dict[str, Any] = {"training": training, "parallelism": _parallelism(run, cannot)}
        keys["activation_checkpoint"] = _recomputed(run, cannot)
        keys["compile"] = {"enable": job.work.stack.compiles}
        if job.work.precision in RECIPES:
            section, recipe = RECIPES[job.work.precision]
            converters = [section]
            keys[section] = recipe
            if job.model.experts is not None:
                grouped = section.replace("linear", "grouped_mm")
                converters.append(grouped)
                keys[grouped] = {"fqns": ["experts"]}
            keys = {"model": {"converters": converters}, **keys}
        elif job.work.precision != "bf16":
            cannot.append(f"products in {job.work.precision}")
        if job.work.optimizer.gradients != 4.0:
            cannot.append(f"gradients of {job.work.optimizer.gradients:g} bytes: they are summed and kept in fp32")
        if job.work.adapters is not None:
            cannot.append(f"adapters of rank {job.work.adapters.rank}")
        if job.multi_token:
            cannot.append(f"{job.multi_token} modules for further tokens")
        words = [*torchrun(run), "--module", "torchtitan.train", "--job.config_file", FILE]
        return Command(words, cannot, {FILE: toml(keys)})


def _parallelism(run: TrainingRun, cannot: list[str]) -> dict[str, Any]:
    """The section ``parallelism``."""
    plan = run.plan
    keys: dict[str, Any] = {**_replicas(run, cannot)}
    if plan.tp > 1:
        keys["tensor_parallel_degree"] = plan.tp
        keys["enable_async_tensor_parallel"] = bool(plan.overlap)
        if not plan.sequence_regions:
            cannot.append("tp without sequence_regions: it always has them")
    if plan.sp > 1:
        keys["context_parallel_degree"] = plan.sp
        if (method := run.exchange(NAME, cannot)) is not None:
            keys["context_parallel_rotate_method"] = method
        keys["context_parallel_load_balancer"] = "headtail"
    keys |= _stages(run, cannot) if plan.pp > 1 else {}
    keys |= _experts(run, cannot) if plan.ep > 1 else {}
    if not run.placed_as("tp", "sp", "dp", "pp"):
        cannot.append("placement: ranks stand in the order tp, sp, dp, pp")
    return keys


def _replicas(run: TrainingRun, cannot: list[str]) -> dict[str, Any]:
    """Replication and sharding: FSDP over the ranks of one group, copies of the groups."""
    plan = run.plan
    if not plan.zero:
        if run.copies > 1 and (plan.tp > 1 or plan.sp > 1 or plan.pp > 1):
            cannot.append("zero 0 beside other axes: copies that divide nothing are alone")
        return {"data_parallel_replicate_degree": plan.dp, "data_parallel_shard_degree": 1}
    parts = plan.shard_parts if plan.shard_group is not None else None
    shards = parts["dp"] if parts is not None else plan.dp
    if plan.zero == 1 and run.copies > 1:
        cannot.append("zero 1: gradients are divided too")
    # The stack's numbers are of PyTorch's pipelines, which keep what the first micro-batch gathered (torchtitan's own
    # default is "never" with a pipeline, "always" without one: distributed/fsdp.py).
    gathers_again = plan.zero == 3 and not keeps_whole(run.job)
    if gathers_again and plan.pp > 1:
        cannot.append(
            "zero 3 that gathers for every micro-batch's backward: from its first backward to its last a stage keeps "
            "its weights; stack torchtitan has its pipelines"
        )
    return {
        "data_parallel_replicate_degree": plan.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if gathers_again else "never",
    }


def _stages(run: TrainingRun, cannot: list[str]) -> dict[str, Any]:
    plan = run.plan
    keys: dict[str, Any] = {"pipeline_parallel_degree": plan.pp}
    schedule = order_of(plan.schedule, plan.vpp).launched.get(NAME)
    if schedule is not None:
        keys["pipeline_parallel_schedule"] = schedule
    else:
        cannot.append(f"schedule {plan.schedule}")
    keys["pipeline_parallel_microbatch_size"] = run.job.sequences
    if run.even:
        keys["pipeline_parallel_layers_per_stage"] = run.chunks[0]
        keys["pipeline_parallel_first_stage_less_layers"] = keys["pipeline_parallel_last_stage_less_layers"] = 0
    else:
        keys["module_fqns_per_model_part"] = modules(run)
    return keys


def modules(run: TrainingRun) -> list[list[str]]:
    """Names of the modules of every pipeline chunk."""
    parts, first = [], 0
    for layers in run.chunks:
        parts.append([f"layers.{number}" for number in range(first, first + layers)])
        first += layers
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _experts(run: TrainingRun, cannot: list[str]) -> dict[str, Any]:
    plan = run.plan
    keys: dict[str, Any] = {"expert_parallel_degree": plan.ep, "expert_tensor_parallel_degree": 1}
    backend = plan.dispatch.launched.get(NAME)
    if backend is None or (backend == "deepep" and run.vendor != "nvidia"):
        cannot.append(f"expert_dispatch {plan.expert_dispatch} on GPUs of {run.vendor}")
        backend = "standard"
    keys["expert_parallel_comm_backend"] = backend
    if plan.hiding.shared_beside:
        cannot.append(f"expert_overlap {plan.expert_overlap}")
    if run.job.work.routing.capacity_factor is not None:
        cannot.append(f"capacity_factor {run.job.work.routing.capacity_factor:g}: no token is dropped")
    return keys


def _recomputed(run: TrainingRun, cannot: list[str]) -> dict[str, Any]:
    again, partly = run.plan.recomputation, run.some_layers(NAME, cannot)
    if again == "full" and partly is not None:
        return {"mode": "selective", "selective_ac_option": str(partly[1])}
    if again in ("none", "full"):
        return {"mode": again}
    cannot.append(f"recomputation {again}: its own way between makes every second product again")
    return {"mode": "selective", "selective_ac_option": "op"}


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections as TOML.

    >>> print(toml({"training": {"seq_len": 8192, "dataset": "c4"}, "compile": {"enable": True}}))
    [training]
    seq_len = 8192
    dataset = "c4"
    <BLANKLINE>
    [compile]
    enable = true
    """
    # JSON's strings, numbers, booleans and lists are TOML's.
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for name, values in sections.items()
    )


TORCHTITAN = TRAINERS.register(Torchtitan())
