"""Published rows that leave their recipe out: versions of stacks, recomputation, dispatch, packed examples."""

from __future__ import annotations

import pytest

from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.operators import Attention
from tspsim.parallel import load_stack
from tspsim.parallel.dispatch import DISPATCHES
from tspsim.parallel.recomputed import PartialRecompute
from tspsim.validation.as_run import RECIPES, ROUND_ROBIN, as_run, stack_as_run
from tspsim.validation.frameworks import as_routed
from tspsim.validation.published import recomputation_of, recomputed_of, schedule_of
from tspsim.validation.recipe_rows import RowFacts
from tspsim.validation.unstated import completed

PRIMUS = "https://github.com/AMD-AGI/Primus/blob/main/docs_deprecated/tech_blogs/projection/projection.md"
PIPELINE = "https://github.com/AMD-AGI/Primus/blob/main/docs_deprecated/tech_blogs/primus_pipeline/primus_pipeline.md"
CLOUD = "https://github.com/NVIDIA/dgxc-benchmarking/blob"
NEMO = "https://github.com/NVIDIA/NeMo/blob/main/docs/source/performance/performance_summary.md"


def test_recipes_name_versions_dispatchers_and_recomputation_that_exist() -> None:
    for recipe in RECIPES:
        for stack in ("primus", "megatron-core"):
            if recipe.version in load_stack(stack).versions:
                assert load_stack(f"{stack}@{recipe.version}").name == f"{stack}@{recipe.version}"
                break
        else:
            pytest.fail(f"no stack has a version {recipe.version}")
        assert not recipe.dispatch or recipe.dispatch in DISPATCHES
        assert not recipe.recompute or recomputation_of(recipe.recompute) in ("full", "none")


@pytest.mark.parametrize(
    ("address", "notes", "model", "precision", "gpus", "stack"),
    [
        (PRIMUS, "8-node", "Llama 3.1 70B", "bf16", 64, "primus@fsdp2"),
        (PRIMUS, "1-node", "Llama 3.1 70B", "bf16", 8, "primus@fsdp2"),
        (PIPELINE, "pipeline schedule v-min", "Qwen3-235B-A22B", "bf16", 32, "primus@pipeline"),
        (PRIMUS, "forced balance", "Qwen3-30B-A3B", "bf16", 8, "primus@precision-aware"),
        (PRIMUS, "forced balance", "MiniMax-M2.5", "bf16", 64, "primus@precision-aware"),
        (PRIMUS, "real routing", "DeepSeek-V2-Lite [LoRA SFT packed]", "bf16", 8, "primus@deepseek-v2"),
        ("04_megatron-pyxis", "ROCm Megatron-LM v25.9, torch FSDP2", "Llama 3.1 70B", "fp8", 64, "megatron-core@fsdp2"),
        ("03_primus", "distributed optimizer", "Mixtral 8x7B", "bf16", 64, "primus@unfused"),
        ("train_amd_prim_llama.json", "", "Llama-3.1-8B", "bf16", 8, "primus@separate-sums"),
        (NEMO, "NeMo 24.07, DGX-H100", "LLAMA2-7B", "fp8", 8, "megatron-core@flash-attention-2"),
        (NEMO, "NeMo 24.03.01", "LLAMA2-7B", "fp8", 8, "megatron-core@flash-attention-2"),
        (NEMO, "NeMo 25.02, DGX-H100", "LLAMA3-8B", "fp8", 8, ""),
        (f"{CLOUD}/v24.11.1/nemo_megatron", "", "GPT-3 175B", "bf16", 128, "megatron-core@flash-attention-2"),
        (f"{CLOUD}/v25.02.01/nemo_megatron", "", "GPT-3 175B", "fp8", 128, "megatron-core@delayed-reduced"),
        (f"{CLOUD}/v25.02.01/nemo_megatron", "", "GPT-3 175B", "bf16", 128, ""),
        (f"{CLOUD}/v25.02/nemotron", "", "Nemotron4 340B", "fp8", 128, "megatron-core@flash-attention-2"),
        (f"{CLOUD}/v25.04.01/nemotron", "", "Nemotron4 340B", "fp8", 128, "megatron-core@delayed-reduced"),
        (f"{CLOUD}/v25.02/maxtext", "", "Llama3 70B (MaxText)", "fp8", 128, "megatron-core@delayed"),
        # With experts, what the recipe has of graphs and fusions decides (recipes.py).
        (f"{CLOUD}/v25.05.04/llama4", "", "Llama 4 Maverick", "fp8", 128, ""),
        ("mlcommons/training_results_v4.1/NVIDIA", "", "Llama2-70B LoRA", "fp8", 8, "megatron-core@delayed"),
        ("NVIDIA-NeMo/Megatron-Bridge", "NeMo 25.09", "LLAMA3_70B", "fp8", 64, ""),
    ],
)
def test_the_stack_that_a_row_ran(address: str, notes: str, model: str, precision: str, gpus: int, stack: str) -> None:
    assert stack_as_run(address, as_run(RowFacts(address, model, "", precision, gpus, notes))) == stack


def test_balanced_benchmarks_of_primus_send_tokens_round_robin() -> None:
    rows = (
        (PRIMUS, "Qwen3-30B-A3B", "forced balance"),
        (PIPELINE, "Qwen3-235B-A22B", "pipeline schedule v-min"),
        (PRIMUS, "DeepSeek-V2-Lite [LoRA SFT packed]", "forced balance; max mem 146 GB"),
        (PRIMUS, "DeepSeek-V2-Lite [LoRA SFT packed]", "real routing (force_load_balancing=false)"),
        ("03_primus", "Mixtral 8x7B", ""),
    )
    routed = [as_run(RowFacts(source, model, notes=notes)).routing for source, model, notes in rows]
    assert routed == [ROUND_ROBIN] * 3 + ["", ""]
    whole = load_model("qwen3-235b-a22b")
    neighbours = as_routed(whole, ROUND_ROBIN).experts
    assert neighbours is not None and (neighbours.groups, neighbours.kept_groups) == (16, 1)
    assert as_routed(whole, "") == whole


def test_eight_nodes_recompute_what_rocms_page_says() -> None:
    wide, narrow = (as_run(RowFacts(PRIMUS, "Llama 3.1 70B", "", kind, 64)) for kind in ("bf16", "fp8"))
    assert recomputed_of(wide.recompute) == PartialRecompute(12)
    assert recomputed_of(narrow.recompute) is None and recomputation_of(narrow.recompute) == "full"
    row = {
        "source_url": PRIMUS,
        "model": "Llama 3.1 70B",
        "precision": "BF16",
        "n_gpus": "64",
        "mbs": "1",
        "gpu": "MI325X",
    }
    row |= {"tp": "1", "pp": "1", "cp": "1", "notes": ""}
    batches = [
        next(iter(completed(row | changed)))[0]["gbs"] for changed in ({}, {"n_gpus": "8"}, {"precision": "FP8"})
    ]
    assert batches == ["256", "8", "64"]


def test_fine_tuning_packs_short_examples() -> None:
    notes = "NeMo 24.07, DGX-H100"
    tuned, trained = (as_run(RowFacts(NEMO, f"LLAMA2-7B{kind}", notes=notes)) for kind in (" [LoRA]", ""))
    assert (tuned.example, trained.example) == (256, 0)


def test_versions_state_what_their_stack_does() -> None:
    usual, separate, sharded = (load_stack(f"primus{part}").stack() for part in ("", "@separate-sums", "@fsdp2"))
    assert (usual.accumulation_bytes, separate.accumulation_bytes) == (0.0, 10.0)
    assert (usual.gathered_copy_bytes, sharded.gathered_copy_bytes, sharded.reduced_bytes) == (0.0, 4.0, 2.0)
    # A version that states no libraries keeps those of its stack.
    assert load_stack("megatron-core@graphs").libraries == load_stack("megatron-core").libraries


def test_early_nemo_attends_in_flash_attention_2() -> None:
    call = Attention(segments=((8192, 8192),), heads=32, kv_heads=32, head_dim=128)
    times = [
        load_device("h100")
        .with_engine("", dict(load_stack(f"megatron-core{part}").stack().libraries))
        .time(call)
        .seconds
        for part in ("", "@flash-attention-2")
    ]
    # cuDNN's kernels on Hopper: 1.7 to 2.3 times as fast in training's shapes (huggingface/transformers, 48163).
    assert 1.4 < times[1] / times[0] < 2.3


def test_a_page_of_schedules_is_asked_with_the_script_that_runs_them() -> None:
    row = {"source_url": PIPELINE, "model": "Qwen3-235B-A22B", "precision": "BF16 (assumed)", "n_gpus": "32", "pp": "4"}
    whole, words = next(completed({**row, "tp": "1", "cp": "1", "mbs": "", "gbs": "", "gpu": "MI355X", "notes": ""}))
    assert (whole["mbs"], whole["gbs"]) == ("1", "128") and words
    assert [schedule_of(f"pipeline schedule {name}; 4 nodes") for name in ("zbv-formatted", "v-min", "1f1b")] == [
        "zbv", "v-min", "1f1b",
    ]  # fmt: skip


def test_primus_sums_gradients_in_fp32_unless_its_recipe_keeps_them_in_bf16() -> None:
    """trainer_base.yaml: grad_reduce_in_bf16 false; Megatron-LM then sums gradients of bf16 parameters in fp32."""
    summed = {name: load_stack(f"primus{name}").stack().reduced_bytes for name in ("", "@precision-aware", "@fsdp2")}
    assert summed == {"": 4.0, "@precision-aware": 2.0, "@fsdp2": 2.0}
    assert load_stack("primus@pipeline").stack().overlap_gradients is False


def test_recipes_state_the_multiprocessors_of_their_exchanges() -> None:
    """turbo_deepep_num_cu of the configurations that ran."""
    units = [load_stack(f"primus{name}").stack().exchange_units for name in ("", "@separate-sums", "@pipeline")]
    assert units == [80, 64, 32]
