"""Published training runs: plans become scenarios, steps become the metrics that sources print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.parallel.recomputed import PartialRecompute
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.validation import validate
from tspsim.validation.conventions import convention_of, step_flops
from tspsim.validation.published import metric_of, published_run, stated_run
from tspsim.validation.runs import Predicted, Run, machine, memory_of, nearest_gating, scenario, simulate_run
from tspsim.validation.training import layers_by_cost

SMALL = Architecture("small", 8, 1024, 16, 16, 64, 4096, gated=False, vocab=32000, source="a test")
RUN = Run(SMALL, "h100", gpus=8, sequence=2048, micro_batch=1, global_batch=16, tp=2, pp=2, recomputation="none")
ROW = {
    "id": "x-1", "source_url": "https://github.com/NVIDIA/dgxc-benchmarking", "model": "Llama 3.1 8B", "gpu": "H100",
    "n_gpus": "8", "tp": "1.0", "cp": "2.0", "pp": "1.0", "vpp": "", "ep": "1.0", "mbs": "1.0", "gbs": "128.0",
    "seq_len": "8192", "precision": "BF16", "recompute": "none", "metric": "step_time_s", "value": "10",
    "zero_stage": "dist-optimizer (zero1)", "sp": "off", "usable": "1", "moe": "",
}  # fmt: skip


def test_a_long_step_is_extended_from_short_ones_as_the_whole_simulation_has_it() -> None:
    run = replace(RUN, global_batch=24)
    whole = simulate(scenario(run, 12)).plans[0]
    assert simulate_run(run).seconds == pytest.approx(whole.step_time_s, rel=2e-3)


def test_a_run_becomes_the_plan_it_states() -> None:
    run, taken = published_run(ROW)
    assert taken == ""
    assert (run.dp, run.cp, run.zero, run.recomputation, run.tokens) == (4, 2, 1, "none", 128 * 8192)
    assert run.model == load_model("llama-3.1-8b")
    plan = load(scenario(run, 2)).plans[0]
    assert (plan.sp, plan.exchange, plan.zero, plan.micro_batch) == (2, "ring", 1, 1)


def test_a_run_with_experts_becomes_the_plan_it_states() -> None:
    stated = {"model": "Qwen3_30B_a3B (tokendrop)", "moe": "128 experts", "ep": "4", "tp": "2", "cp": "1"}
    run = published_run(ROW | stated)[0]
    assert run.model == load_model("qwen3-30b-a3b") and run.sequence_regions
    asked = load(scenario(run, 2))
    assert (asked.plans[0].ep, asked.workload.multi_token) == (4, False)
    assert published_run(ROW | {"model": "DeepSeekV3 (w/ MTP)", "moe": "256 experts"})[0].multi_token


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"usable": "0"}, "not usable"),
        ({"metric": "time_to_train_min"}, "time to train"),
        ({"moe": "8 experts top2"}, "no model of experts by that name"),
        ({"gpu": "GB900"}, "no device 'GB900'"),
        ({"gbs": "", "pp": "2", "cp": "1"}, "gbs not stated, and the bubble"),
        ({"n_gpus": ""}, "n_gpus not stated"),
        ({"model": "nobody's model"}, "shape is not known"),
    ],
)
def test_a_row_that_is_not_covered_says_why(change: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        published_run(ROW | change)


@pytest.mark.parametrize(
    ("row", "degrees", "says"),
    [
        # MLPerf's LoRA: eight sequences in two turns on eight GPUs are four replicas of two GPUs each
        ({"tp": "", "cp": "", "pp": "", "mbs": "", "gbs": "8", "notes": "GA 2; x"}, (2, 1, 1, 1, 4), "cp 1, mbs 1"),
        ({"tp": "", "cp": "", "pp": "", "mbs": "", "gbs": "32", "notes": "GA 2; x"}, (1, 1, 1, 2, 8), "cp 1, mbs 2"),
        ({"tp": "", "cp": "8", "pp": "", "gbs": "9", "n_gpus": "72", "notes": "GA 1"}, (1, 8, 1, 1, 9), "tp 1, pp 1"),
        # nothing is accumulated; and the framework's smallest micro-batch
        ({"cp": "1", "gbs": "", "mbs": "4"}, (1, 1, 1, 4, 8), "gbs 32"),
        ({"mbs": ""}, (1, 2, 1, 1, 4), "mbs 1"),
        # of a model too large for a GPU or two the first plan that fits
        (
            {"model": "Llama 3.1 70B", "tp": "", "pp": "", "cp": "1", "n_gpus": "64", "recompute": ""},
            (8, 1, 1, 1, 8),
            "tp 8, pp 1",
        ),
    ],
)
def test_what_a_row_leaves_out_follows_or_is_the_frameworks(
    row: dict[str, str], degrees: tuple[int, ...], says: str
) -> None:
    run, taken = published_run(ROW | row)
    assert (run.tp, run.cp, run.pp, run.micro_batch, run.dp) == degrees
    assert says in taken


def test_a_row_that_was_completed_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    row = ROW | {"mbs": "", "model": "small", "layers": "2", "hidden": "1024", "heads": "8", "kv_heads": "8"}
    row |= {"ffn": "4096", "vocab": "32000", "cp": "1", "gbs": "8", "metric": "tokens/s/gpu"}
    (folder / "training.csv").write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n", encoding="utf-8")
    found = validate(tmp_path).outcome("published/training.csv")
    assert found.answers.notes["not stated, taken as the framework has it: mbs 1"] == 1
    assert found.csv().splitlines()[0].endswith("predicted,low,high,predicted_taken,reason")


def test_embedding_and_head_are_chunks_where_layers_do_not_divide() -> None:
    shape = {"layers": "126", "hidden": "16384", "heads": "128", "kv_heads": "8", "ffn": "53248", "vocab": "128256"}
    plan = {"n_gpus": "16384", "tp": "8", "cp": "1", "pp": "16", "gbs": "2048", "mbs": ""}
    address = {"source_url": "arXiv:2407.21783 Table 4", "model": "Llama 3.1 405B pretraining"}
    run, _ = published_run(ROW | shape | plan | address)
    assert (run.vpp, run.stack, run.dp, run.micro_batch) == (8, "llama-3", 128, 1)
    assert len(run.stage_layers) == 128 and sum(run.stage_layers) == 126
    assert (run.stage_layers[0], run.stage_layers[1], run.stage_layers[-1]) == (0, 1, 0)


def test_a_pipeline_of_torchtitans_splits_its_local_batch() -> None:
    shape = {"layers": "126", "hidden": "16384", "heads": "128", "kv_heads": "8", "ffn": "53248", "vocab": "128256"}
    plan = {"n_gpus": "512", "tp": "8", "cp": "1", "pp": "8", "vpp": "interleaved", "gbs": "256", "mbs": "32"}
    address = {"source_url": "https://github.com/pytorch/torchtitan/blob/main/benchmarks", "model": "Llama 3.1 405B"}
    run, _ = published_run(ROW | shape | plan | address | {"recompute": "full AC"})
    assert (run.micro_batch, run.vpp, run.stage_layers[0]) == (4, 2, 7)
    assert published_run(ROW | address | {"model": "Llama 3.1 8B", "mbs": "2"})[0].micro_batch == 2


def test_state_of_torchtitans_is_divided_by_sequence_shards_too() -> None:
    shape = {"layers": "126", "hidden": "16384", "heads": "128", "kv_heads": "8", "ffn": "53248", "vocab": "128256"}
    plan = {"n_gpus": "512", "tp": "8", "cp": "4", "pp": "8", "gbs": "16", "mbs": "8", "vpp": ""}
    address = {"source_url": "https://github.com/pytorch/torchtitan/blob/main/benchmarks", "model": "Llama 3.1 405B"}
    words = {"recompute": "full AC", "zero_stage": "FSDP2 (zero3 unless noted), shard 2"}
    run, _ = published_run(ROW | shape | plan | address | words)
    assert (run.shard_group, run.micro_batch) == (None, 1)


def test_what_automodels_rows_leave_to_its_recipes_is_read_there() -> None:
    address = {"source_url": "https://github.com/NVIDIA-NeMo/Automodel/blob/main/docs/performance-summary.mdx"}
    words = {"recompute": "per yaml (not in table)", "zero_stage": "FSDP2 (zero3), shard 64", "moe": "256"}
    plan = {"n_gpus": "256", "tp": "1", "cp": "1", "pp": "4", "vpp": "8", "ep": "64", "gbs": "512", "mbs": "1"}
    notes = {"notes": "local batch 8, GA 1; mock data, fake balanced gate", "model": "DeepSeek V3 671B"}
    run, _ = published_run(ROW | address | words | plan | notes)
    assert run.model.experts is not None
    assert (run.recomputation, run.model.experts.groups, run.model.experts.kept_groups) == ("full", 32, 1)
    assert (run.stack, run.vpp, run.stage_layers[0]) == ("automodel@2025.10", 8, 2)
    larger = {"n_gpus": "1024", "gbs": "8192", "notes": "local batch 8, GA 4; mock data, fake balanced gate"}
    run, _ = published_run(ROW | address | words | plan | notes | larger)
    # Its recipe has four layers in a chunk, whatever the table says.
    assert (run.stack, run.vpp, run.stage_layers[0]) == ("automodel@2025.10", 4, 4)
    shape = {"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "128256"}
    alone = {"n_gpus": "1", "tp": "1", "cp": "1", "pp": "1", "gbs": "32", "mbs": "2", "model": "Llama3 8B [LoRA]"}
    run, _ = published_run(ROW | address | words | shape | alone | {"moe": "", "ep": "", "vpp": ""})
    assert (run.recomputation, run.adapter_rank) == ("none", 16)


def test_metrics_follow_from_the_step_by_the_sources_convention() -> None:
    run = replace(RUN, model=load_model("llama-3.1-8b"), tp=1, pp=1, sequence=8192)
    step = Predicted(2.0, 1.9, 2.1, 0.0, True, "none")
    row = {"source_url": "https://github.com/NVIDIA/dgxc-benchmarking", "model": "Llama 3.1 8B"}
    tokens = run.tokens / 2.0 / 8

    def told(metric: str) -> float:
        return metric_of({**row, "metric": metric}, run, step)(2.0)

    assert told("step_time_s") == 2.0
    assert told("tokens/s/gpu") == tokens
    flops = 3 * run.model.forward_flops_per_token(8192, causal=False) * tokens
    assert told("TFLOP/s/gpu") == pytest.approx(flops / 1e12)
    assert told("MFU") == pytest.approx(flops / 989e12)


@pytest.mark.parametrize(
    ("address", "name", "notes", "model", "sequence", "options", "published"),
    [
        ("InternLM/InternEvo", "InternLM-7B", "", "internlm", 2048, {"recomputed": True}, 193e12 / 3314),
        ("Automodel", "DeepSeek V3 671B", "", "deepseek-v3", 4096, {}, 250e12 / 1002),
        ("Automodel", "Qwen3 MoE 30B", "", "qwen3-30b-a3b", 4096, {}, 277e12 / 12040),
        ("Megatron-Bridge", "GPT OSS 120B", "NeMo 26.04 container", "gpt-oss-120b", 4096, {}, 27.2e9),
        ("Megatron-Bridge", "GPT OSS 120B", "NeMo 25.11 container", "gpt-oss-120b", 8192, {}, 30.8e9),
        ("Megatron-Bridge", "GPT OSS 120B", "NeMo 26.06 container", "gpt-oss-120b", 4096, {}, 32.6e9),
        ("Megatron-Bridge", "DeepSeekV3", "NeMo 26.06", "deepseek-v3", 4096, {"multi_token": True}, 259.8e9),
        ("Megatron-Bridge", "DeepSeekV3 (w/o MTP)", "NeMo 25.11", "deepseek-v3", 4096, {}, 249.1e9),
        ("dgxc-benchmarking", "DeepSeek-V3 671B", "", "deepseek-v3", 4096, {"multi_token": True}, 174.02e12 / 669.45),
        ("NVIDIA/NeMo", "LLAMA2-7B [LoRA]", "", "llama-2-7b", 4096, {"passes": 2.0}, 26.71e9),
    ],
)
def test_a_sources_flops_a_token_are_those_of_its_own_pairs(
    address: str, name: str, notes: str, model: str, sequence: int, options: dict[str, Any], published: float
) -> None:
    """TFLOP/s over tokens/s, as a page prints both of one run."""
    internlm = replace(load_model("llama-2-7b"), vocab=103168)
    shape = internlm if model == "internlm" else load_model(model)
    found = step_flops(shape, sequence, 1.0, convention_of(address, name, notes), **options)
    assert found == pytest.approx(published, rel=0.02)


def test_what_a_row_says_of_its_machine_and_its_recipe_is_asked() -> None:
    notes = "4x100Gb RoCE per node; micro_num 4"
    assert stated_run({**ROW, "notes": notes}).fabric == "roce-50g" and stated_run(ROW).fabric == ""
    source = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
    plan = {"ep": "8", "pp": "8", "n_gpus": "256", "tp": "1"}
    expert = {"model": "DeepSeekV3", "moe": "256 routed", "source_url": source, **plan}
    run = stated_run({**ROW, **expert})
    assert run.multi_token and run.stage_layers == (8, 8, 8, 8, 8, 8, 8, 5)
    assert not stated_run({**ROW, **expert, "model": "DeepSeekV3 (w/o MTP)"}).multi_token


@pytest.mark.parametrize(
    ("container", "model", "gpu", "overlap"),
    [
        ("26.06", "DeepSeekV3", "GB200", "micro_batches"),
        ("26.04.01", "DeepSeekV3", "GB200", "none"),
        ("26.06", "DeepSeekV3", "B300", "none"),
        ("26.06.01", "Qwen3_235B_a22B", "B300", "micro_batches"),
        ("26.06", "Kimi_K2", "GB300", "none"),
        ("26.08", "Kimi_K2", "GB300", "micro_batches"),
    ],
)
def test_exchanges_are_hidden_where_the_recipe_of_a_container_does(
    container: str, model: str, gpu: str, overlap: str
) -> None:
    source = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/performance-summary.md"
    plan = {"ep": "8", "pp": "8", "n_gpus": "256", "tp": "1", "cp": "1", "mbs": "1", "gbs": "4096"}
    row = ROW | plan | {"model": model, "moe": "experts", "gpu": gpu, "precision": "MXFP8", "source_url": source}
    run = stated_run({**row, "notes": f"NeMo {container} container"})
    assert run.expert_overlap == overlap
    assert load(scenario(run, 8)).plans[0].expert_overlap == overlap
    assert stated_run({**row, "precision": "BF16", "notes": "NeMo 26.08 container"}).expert_overlap == "none"


def test_sources_differ_in_what_they_count() -> None:
    model = load_model("megatron-22b")
    counts = {
        part: step_flops(model, 2048, 1.0, convention_of(part), recomputed=convention_of(part).recomputed)
        for part in ("arXiv:2104.04473", "Megatron-Bridge", "NVIDIA/NeMo", "anything else")
    }
    full = 3 * model.forward_flops_per_token(2048, causal=False)
    assert counts["NVIDIA/NeMo"] == counts["anything else"] == pytest.approx(full)
    assert counts["Megatron-Bridge"] == pytest.approx(3 * model.forward_flops_per_token(2048, causal=True))
    # Narayanan et al. 2021, formula 3: 96·B·s·l·h²·(1 + s/6h + V/16lh)
    layers, h, s, v = model.layers, model.hidden, 2048, model.vocab
    formula = 96 * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert counts["arXiv:2104.04473"] == pytest.approx(formula)


def test_a_page_counts_keys_of_every_head() -> None:
    # its notes: 4096 · (869730877440 + 1565515579392 + 28311552000) = 1.01e16 of Nemotron-4 340B, which has 8 for 96
    model = replace(
        load_model("megatron-22b"), layers=96, hidden=18432, heads=96, kv_heads=8, head_dim=192, ffn=73728, vocab=256000
    )
    address = "https://github.com/NVIDIA/dgxc-benchmarking/blob/v25.02/nemotron/README_340b.md"
    assert step_flops(model, 4096, 4096.0, convention_of(address)) == pytest.approx(1.0091e16, rel=1e-4)


def test_what_a_release_leaves_out_is_what_those_beside_it_state() -> None:
    shape = {"layers": "96", "hidden": "18432", "heads": "96", "kv_heads": "8", "ffn": "73728", "vocab": "256000"}
    row = ROW | shape | {"model": "Nemotron4 340B", "vpp": ""}
    address = "https://github.com/NVIDIA/dgxc-benchmarking/blob/v25.04.01/nemotron/README.md"
    assert published_run(row | {"source_url": address})[0].vpp == 12
    assert published_run(row)[0].vpp == 1
    other = {"gpu": "GB200", "model": "Llama 4 Maverick 400B", "metric": "MFU", "precision": "BF16", "n_gpus": "128"}
    address = "https://github.com/NVIDIA/dgxc-benchmarking/blob/v25.05.04/llama4/README.md"
    with pytest.raises(InputError, match="half of what its own step time gives"):
        published_run(row | other | {"source_url": address})


def test_a_run_on_part_of_a_rack_uses_that_part_of_each() -> None:
    node, nodes = machine("gb200", 256)
    assert nodes == 4 and Path(node).exists()
    assert machine("h100", 16) == ("hgx-h100-8", 2)


def test_the_gate_is_what_the_stated_parameters_say() -> None:
    llama = load_model("llama-3.1-8b")
    assert nearest_gating(replace(llama, gated=False), 8.03e9) == llama
    gpt = load_model("megatron-22b")
    assert nearest_gating(replace(gpt, gated=True), 22e9) == gpt


def test_recomputation_that_is_not_stated_is_the_least_that_fits() -> None:
    model = load_model("llama-3.1-8b")
    run = Run(model, "h100", 8, 8192, 1, 8, tp=8, sequence_regions=True)
    assert memory_of(run).recomputation == "none"
    long = replace(run, sequence=2**18)
    assert memory_of(long).recomputation == "full of 29 layers a chunk"
    assert memory_of(replace(long, recomputation="full", recomputed=PartialRecompute(29))).fits
    assert not memory_of(replace(long, recomputation="full", recomputed=PartialRecompute(28))).fits
    assert memory_of(replace(run, sequence=2**19)).recomputation == "full"
    narrow = replace(run, precision="fp8", sequence=12 * 2**13)
    assert memory_of(narrow).recomputation == "none" and memory_of(replace(narrow, recomputation="none")).fits is False


@pytest.mark.parametrize(
    ("hidden", "ffn", "layers", "stages", "expected"),
    [
        (2048, 8192, 16, 2, (10, 6)),  # the head weighs as much as four layers
        (2048, 8192, 16, 4, (5, 5, 5, 1)),
        (2048, 8192, 16, 8, (3, 2, 3, 2, 3, 2, 1, 0)),
        (4096, 14336, 32, 4, (9, 9, 8, 6)),
        (4096, 14336, 32, 1, ()),
    ],
)
def test_nanotron_cuts_models_by_weights(
    hidden: int, ffn: int, layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    """The first stage's memory in the table is that of so many layers and the embedding."""
    model = Architecture("sweep", layers, hidden, 32, 32, hidden // 32, ffn, vocab=131072, source="a test")
    assert layers_by_cost(model, stages) == expected


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="do not divide the global batch"):
        simulate_run(replace(RUN, global_batch=17))


def test_a_run_that_failed_has_its_memory_and_verdict_predicted(tmp_path: Path) -> None:
    path = "published/training_nanotron_h100.csv"
    header = (
        "name,nodes,seq_len,mbs,batch_accum,gbs,dp,pp,tp,tp_mode,hidden_size,num_layers,num_heads,num_kv_heads,ffn,"
        "vocab_size,zero_stage,tokens_per_s_per_gpu,mem_alloc_gb,status,after_pp_fix,gpu\n"
    )
    rows = (
        "ran,1,4096,1,1,8,1,1,8,REDUCE_SCATTER,2048,16,32,32,8192,131072,0,9000,5,Success,True,H100\n"
        "failed,1,4096,1,1,8,8,1,1,REDUCE_SCATTER,16384,126,128,8,53248,131072,0,,,OOM,True,H100\n"
    )
    (tmp_path / "published").mkdir()
    (tmp_path / path).write_text(header + rows)
    outcome = validate(tmp_path).outcome(path)
    assert outcome.predicted.tolist() == [True, False]
    assert outcome.answers.further["predicted_status"].tolist() == ["Success", "OOM"]
    assert outcome.summary()["further"]["predicted_status"] == {"predicted": 2, "right": 1.0}
