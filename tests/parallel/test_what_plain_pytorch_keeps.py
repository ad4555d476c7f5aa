"""Parts of plain PyTorch's stacks against published peaks of memory, and what pipelines gather and sum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.model.layer import gradients
from tspsim.operators import Gemm
from tspsim.operators.base import Computes, Role
from tspsim.operators.products import GroupedGemm
from tspsim.parallel import load_stack
from tspsim.parallel.builder import lowering_of
from tspsim.parallel.expert_rows import routed_shard
from tspsim.parallel.state.memory import peak_bytes, stage_memory
from tspsim.scenario import load
from tspsim.step.question import Question
from tspsim.step.result import PlanResult
from tspsim.step.simulation import look_up
from tspsim.validation.plain_frameworks import architecture
from tspsim.validation.plain_frameworks import question as published
from tspsim.validation.published import published_run
from tspsim.validation.runs import file_of, memory_of

#: KempnerForge's 70B with TP4 on H200, 8 to 160 GPUs: GB a GPU at most (benchmarks/weak_scaling_160gpu/README.md).
PEAKS = {8: 128.5, 32: 93.2, 64: 86.8, 96: 84.6, 128: 83.6, 160: 82.9}
FSDP = {"zero": 3, "recomputation": "full"}


def asked(workload: dict[str, Any], cluster: dict[str, Any], **plan: Any) -> Question:
    whole = {"pass": "training", "sequence": 4096, **workload}
    data = {"name": "peaks", "cluster": cluster, "workload": whole, "plans": [{"name": "P", **FSDP, **plan}]}
    return look_up(load(data))


@pytest.mark.parametrize("gpus", PEAKS)
def test_peaks_of_a_plain_trainer_on_growing_clusters(gpus: int) -> None:
    """Whole fp32 gradients, and weights and moments in bf16: with Adam's fp32 state 8 GPUs would need 219 GB."""
    cluster = {"device": "h200", "nodes": gpus // 4, "gpus_per_node": 4, "fabric": "rails-200g"}
    workload = {"model": "llama-3.1-70b", "sequences_per_replica": 8, "stack": "kempnerforge"}
    question = asked(workload, cluster, tp=4, sequence_regions=True, micro_batch=2)
    assert peak_bytes(question.job(question.plans[0])) / 1e9 == pytest.approx(PEAKS[gpus], rel=0.05)


def test_a_stated_optimizer_comes_before_the_stacks() -> None:
    cluster = {"device": "h200", "nodes": 1}
    workload = {"model": "llama-3.1-8b", "stack": "kempnerforge"}
    of_stack, stated = asked(workload, cluster).work, asked(workload | {"optimizer": "adamw"}, cluster).work
    assert (of_stack.optimizer.state, of_stack.optimizer.name) == (4.0, "adamw of kempnerforge")
    assert (stated.optimizer.state, stated.optimizer.name) == (12.0, "adamw")
    assert asked(workload | {"stack": "torchtitan"}, cluster).work.optimizer.state == 12.0


def test_the_peak_of_405b_in_a_pipeline_is_what_torchtitan_published() -> None:
    """512 H100, 32Ki tokens, FSDP 8, TP 8, PP 8: 75.3 GiB (benchmarks/llama3_h100_202412_torchtitan.md, table 6)."""
    cluster = {"device": "h100-96gb-500w", "nodes": 64, "fabric": "rail-optimised-400g"}
    workload = {"model": "llama-3.1-405b", "sequence": 32768, "sequences_per_replica": 8, "stack": "torchtitan"}
    question = asked(workload | {"precision": "fp8"}, cluster, tp=8, pp=8, sequence_regions=True)
    job = question.job(question.plans[0])
    assert peak_bytes(job) / 2**30 == pytest.approx(75.3, rel=0.1)
    parts = stage_memory(job, job.scheme.residency, 0)
    assert parts["whole_gradients"] == pytest.approx(2 * parts["gathered_weights"], rel=0.01)


@pytest.mark.parametrize(
    ("parameters", "layers", "hidden", "sequence", "sequences"),
    [(1_315_950_592, 24, 2048, 2048, 20), (2_667_566_080, 32, 2560, 8192, 3)],
)
def test_a_loss_that_makes_its_softmax_again_keeps_logits_alone(
    parameters: int, layers: int, hidden: int, sequence: int, sequences: int
) -> None:
    """LLM Foundry's MPT-1b and -3b ran on H100 of 80 GB with nothing recomputed: no softmax in fp32 beside logits."""
    row = {
        "model": "MPT", "n_params": parameters, "layers": layers, "hidden": hidden, "heads": hidden // 128,
        "kv_heads": hidden // 128, "ffn": 4 * hidden, "vocab": 50368, "seq_len": sequence, "gpu": "H100", "n_gpus": 8,
        "tp": 1, "cp": 1, "pp": 1, "zero_stage": "zero3", "mbs": sequences, "gbs": 8 * sequences, "precision": "bf16",
        "recompute": "none", "metric": "tokens/s/gpu", "source_url": "mosaicml/llm-foundry",
    }  # fmt: skip
    run, _ = published_run(row)
    assert memory_of(run).fits and not memory_of(replace(run, stack="fsdp2")).fits


def test_a_pipeline_folded_like_a_v_holds_weights_once() -> None:
    """pith-train's DualPipeV ran where DualPipe, which holds them twice, has no room."""
    plan = '{"pp": 2, "ep": 4, "schedule": "dualpipe", "micro_batch": 1, "zero": 3, "recomputation": "none"}'
    row = {
        "group": "MoE B200", "source": "pithtrain EP4 PP2", "gpu": "b200", "gpus": "8", "model": "qwen3-30b-a3b",
        "sequence": "8192", "sequences_per_replica": "64", "precision": "bf16", "plan": plan, "extra": "{}",
        "unit": "tokens/s/gpu",
    }  # fmt: skip

    def gib(note: str) -> float:
        asking = published({**row, "note": note})
        return peak_bytes(asking.job(asking.plans[0])) / 2**30

    assert gib("DualPipe, FSDP") > 185 and gib("DualPipeV, FSDP") < 125


def pipelined(model: str, stack: str, sequence: int = 512, **plan: Any) -> PlanResult:
    question: dict[str, Any] = {
        "name": "pipelined",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": model, "pass": "training", "sequence": sequence, "sequences_per_replica": 4},
        "plans": [{"name": "P", **FSDP, "micro_batch": 1, **plan}],
    }
    question["workload"]["stack"] = stack
    result = tspsim.simulate(question).plan("P")
    assert result.timeline is not None, result.error
    return result


def count(result: PlanResult, kind: str) -> int:
    assert result.timeline is not None
    return sum(label.kind == kind for label in result.timeline.labels)


def test_weights_stay_and_gradients_are_summed_once_where_there_is_a_pipeline(tmp_path: Path) -> None:
    model = tmp_path / "small.yaml"
    model.write_text(file_of(architecture("k7b")).read_text(encoding="utf-8").replace("layers: 32", "layers: 4"))
    plain, titan = (pipelined(str(model), stack, pp=2) for stack in ("ideal", "torchtitan"))
    assert count(plain, "all_gather") >= 4 * count(titan, "all_gather") > 0
    assert count(plain, "reduce_scatter") >= 3 * count(titan, "reduce_scatter") > 0
    alone = pipelined(str(model), "torchtitan")
    assert count(alone, "all_gather") == count(pipelined(str(model), "ideal"), "all_gather")


def test_asynchronous_tensor_parallelism_goes_with_sequence_shards(tmp_path: Path) -> None:
    """torchtitan's 4D runs have both; fused slices never take longer than exchanges one after the other."""
    model = tmp_path / "small.yaml"
    model.write_text(file_of(architecture("k7b")).read_text(encoding="utf-8").replace("layers: 32", "layers: 2"))
    keys: dict[str, Any] = {"tp": 2, "sp": 2, "exchange": "all_gather", "sequence_regions": True}
    apart, fused = (pipelined(str(model), "ideal", 16384, **keys, **more) for more in ({}, {"overlap": "fused"}))
    assert 0.5 * apart.step_time_s < fused.step_time_s < apart.step_time_s


def test_a_version_of_a_trainer_changes_what_its_host_takes_alone() -> None:
    """nanotron's collectives took the host a ninth as long a rank before its repair; it is no engine for that."""
    since, before = (load_stack(name).stack() for name in ("nanotron", "nanotron@unmended"))
    assert (since.collective_s_per_rank, before.collective_s_per_rank) == (280e-6, 32e-6)
    own: dict[str, Any] = {
        "name": since.name,
        "collective_s_per_rank": since.collective_s_per_rank,
        "spread": since.spread,
    }
    assert before.spread != since.spread and replace(before, **own) == since


def test_a_cost_for_each_other_rank_is_the_sweeps_and_not_every_nanotron() -> None:
    """Hugging Face's sweep has it; its SmolLM3 on 384 H100 a few months later cannot have had it."""
    sweep, later = (load_stack(name).stack() for name in ("nanotron", "nanotron@2025"))
    assert replace(later, name=sweep.name, collective_s_per_rank=sweep.collective_s_per_rank) == sweep
    assert later.collective_s_per_rank == 0


def test_a_pipeline_that_looks_every_tenth_of_a_second_for_its_messages_loses_a_second_a_micro_batch() -> None:
    """Two tensors of metadata a message, four messages a micro-batch of a stage in the middle: 0.8 s at least."""
    since, before = (load_stack(name).stack() for name in ("nanotron", "nanotron@polling"))
    assert 0.2 <= before.message_s <= 0.3 and since.message_s < 1e-3
    own: dict[str, Any] = {"name": since.name, "message_s": since.message_s, "spread": since.spread}
    assert replace(before, **own) == since


@pytest.mark.parametrize(("sequences", "adds"), [(1, False), (2, True)])
def test_gradients_are_added_to_kept_ones_only_where_several_micro_batches_are(sequences: int, adds: bool) -> None:
    """Ten bytes a weight of a micro-batch, experts' with them: FSDP2's sum of a single one goes into the reduction."""
    cluster = {"device": "h100", "nodes": 1}
    workload = {"model": "qwen3-30b-a3b", "stack": "automodel", "sequences_per_replica": sequences}
    question = asked(workload, cluster, ep=8, micro_batch=1)
    job = question.job(question.plans[0])
    products = (
        Gemm(2048, 4096, 4096, "bf16", computes=Computes.WEIGHT_GRADIENT),
        GroupedGemm(2048, 768, 4096, "bf16", 16, computes=Computes.WEIGHT_GRADIENT),
    )
    added = [each for each in lowering_of(job)(products) if each.name == "add to gradient"]
    assert [each.hbm_bytes for each in added] == ([10.0 * 2048 * 4096, 10.0 * 16 * 2048 * 768] if adds else [])


@pytest.mark.parametrize(("nodes", "moved"), [(1, 6.0), (2, 10.0)])
def test_gradients_of_experts_of_one_copy_are_added_in_their_own_type(nodes: int, moved: float) -> None:
    """FSDP leaves them to autograd, which reads two and writes one in bf16; of two copies it sums in fp32."""
    cluster = {"device": "h100", "nodes": nodes, **({"fabric": "rail-optimised-400g"} if nodes > 1 else {})}
    workload = {"model": "qwen3-30b-a3b", "stack": "automodel", "sequences_per_replica": 2}
    question = asked(workload, cluster, ep=8, micro_batch=1)
    (product,) = [GroupedGemm(2048, 768, 4096, "bf16", 16, role=Role.EXPERTS_DOWN)]
    gradient = gradients(product)[1]
    (added,) = [
        each for each in lowering_of(question.job(question.plans[0]))([gradient]) if each.name == "add to gradient"
    ]
    assert added.hbm_bytes == moved * gradient.batch * gradient.m * gradient.n


def test_biases_of_experts_are_added_by_kernels_of_their_own_where_a_stack_says_so() -> None:
    """gpt-oss under Automodel, rows times columns times the bytes of its kernels; of models without biases none."""
    cluster = {"device": "h100", "nodes": 1}

    def added(model: str, stack: str) -> list[float]:
        question = asked({"model": model, "stack": stack}, cluster, ep=8)
        job = question.job(question.plans[0])
        up = GroupedGemm(8192, 5760, 2880, "bf16", 4, role=Role.EXPERTS_GATE_UP)
        down = GroupedGemm(8192, 2880, 2880, "bf16", 4, role=Role.EXPERTS_DOWN)
        products = (up, down, *gradients(up), *gradients(down))
        return [each.hbm_bytes for each in lowering_of(job)(products) if each.name == "biases of experts"]

    elements = 4 * 8192 * 2880
    assert added("gpt-oss-20b", "automodel") == [16 * elements, 28 * elements, 12 * elements, 40 * elements]
    assert added("gpt-oss-20b", "fsdp2") == added("qwen3-30b-a3b", "automodel") == []


@pytest.mark.parametrize(("experts", "published_gb"), [(8, 49.8), (16, 70.7)])
def test_experts_padded_to_the_busiest(experts: int, published_gb: float) -> None:
    """KempnerForge's 8 and 16 experts on eight H200, packed (benchmarks/moe_packed): its peaks lie near those of
    routers that send every token to the same two experts, far above even ones."""

    def asking(stack: str, **routing: Any) -> Question:
        plan = '{"zero": 3, "micro_batch": 4, "recomputation": "full"}'
        row = {
            "group": "KempnerForge MoE H200", "source": "KempnerForge", "gpu": "h200", "gpus": "8", "note": "",
            "model": f"kmoe{experts}", "sequence": "4096", "sequences_per_replica": "4", "precision": "bf16",
            "plan": plan, "extra": json.dumps({"stack": stack, "routing": routing}), "unit": "tokens/s/gpu",
        }  # fmt: skip
        return published(row)

    def gb(question: Question) -> float:
        return peak_bytes(question.job(question.plans[0])) / 1e9

    hot = {"load": "hot", "hot_experts": 2, "hot_share": 1.0}
    ragged, even = gb(asking("kempnerforge", **hot)), gb(asking("kempnerforge@padded"))
    assert ragged == even < 0.75 * published_gb
    assert gb(asking("kempnerforge@padded", **hot)) == pytest.approx(published_gb, rel=0.12)
    skewed = asking("kempnerforge@padded", load="hot", hot_experts=1, hot_share=0.25)
    assert routed_shard(skewed.job(skewed.plans[0])).rows == 0.25 * 2 * 4 * 4096
