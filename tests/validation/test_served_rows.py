"""Rows of published serving runs are mended as docs/validation-served.md says, each counted, and mapped to runs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tspsim.base.errors import InputError
from tspsim.validation.run import read
from tspsim.validation.served import disaggregated, published, silicon
from tspsim.validation.served.groups import fitted, group_of, key_of
from tspsim.validation.served.run import ServedRun
from tspsim.validation.served.scripts import MeasuredRun, inferencex

DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SILICON, PUBLISHED = (DATA / "published" / name for name in ("serving_silicon.csv", "inference.csv"))
needs_silicon = pytest.mark.skipif(not SILICON.is_file(), reason=f"no table of runs at {SILICON}")
needs_published = pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"no table of runs at {PUBLISHED}")

ROW = {
    "id": "gpt_oss_120b_b200", "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=32",
    "backend": "vllm", "backend_version": "0.15.1", "model_path": "openai/gpt-oss-120b", "system": "b200_sxm",
    "precision": "fp4", "mode": "agg", "isl": "8192.0", "osl": "1024.0", "gemm_quant_mode": "nvfp4",
    "moe_quant_mode": "nvfp4", "batch_size": "32.0", "tp_size": "2.0", "attention_dp_size": "1.0",
    "moe_tp_size": "2.0", "moe_ep_size": "1.0", "silicon_ttft_ms": "100.0", "silicon_tpot_ms": "5.0",
}  # fmt: skip
PUBLISHED_ROW = {
    "id": "atom-ci-0001a", "source_url": "", "model": "GLM-5.2-FP8 MTP3", "gpu": "MI355X", "n_gpus": "4", "tp": "4",
    "ep": "", "dp": "1", "pp": "1", "precision": "FP8, FP8 KV", "engine": "ATOM (native)", "isl": "1024",
    "osl": "1024", "concurrency": "64", "metric": "TPOT mean ms", "value": "12.0", "usable": "1",
    "notes": "lengths uniform in [0.8,1.0]x nominal, num_prompts=10*conc",
}  # fmt: skip


def mended(*rows: dict[str, str]) -> silicon.Mended:
    return silicon.mend(pd.DataFrame([ROW | row for row in rows]))


def run_of(**row: str) -> ServedRun | str:
    return mended(row).runs[0]


def published_run(**row: str) -> ServedRun | str:
    return published.mend(pd.DataFrame([PUBLISHED_ROW | row])).runs[0]


def test_a_measurement_exported_twice_is_scored_once() -> None:
    once, again, other = mended({}, {"id": "other export"}, {"silicon_tpot_ms": "5.1"}).runs
    assert isinstance(once, ServedRun) and isinstance(other, ServedRun)
    assert again == "a measurement met before"


def test_exports_with_fewer_decimals_are_the_same_measurement() -> None:
    exact = {"silicon_ttft_ms": "341.303056", "silicon_tpot_ms": "5.0896071"}
    rounded = {"silicon_ttft_ms": "341.30", "silicon_tpot_ms": "5.09"}
    noise = {"silicon_ttft_ms": "341.3030560000002", "silicon_tpot_ms": "5.089607099999999"}
    once, *others = mended(exact, rounded, noise).runs
    assert isinstance(once, ServedRun) and others == 2 * ["a measurement met before"]


def test_drafts_that_no_row_states_are_those_of_the_script() -> None:
    """InferenceX ran Qwen3.5 in fp8 on four B200 with drafts, with whole experts without; DeepSeek-R1 both ways."""
    row = {"backend": "sglang", "backend_version": "0.5.9", "precision": "fp8", "moe_quant_mode": "fp8_block"}
    qwen = row | {"model_path": "Qwen/Qwen3.5-397B-A17B", "tp_size": "4.0", "moe_tp_size": "4.0"}
    drafting, plain = run_of(**qwen), run_of(**qwen | {"moe_tp_size": "1.0", "moe_ep_size": "4.0"})
    assert isinstance(drafting, ServedRun) and isinstance(plain, ServedRun)
    assert (drafting.plan.drafts, plain.plan.drafts) == (3, 0)
    assert group_of(drafting) == "drafts" and dict(drafting.options)["max_running_requests"] == 32
    r1 = row | {"model_path": "deepseek-ai/DeepSeek-R1", "tp_size": "8.0", "moe_tp_size": "8.0"}
    assert "drafts are not recorded" in str(run_of(**r1))


def test_llama_waits_for_batches_of_prompts_where_its_script_says_so() -> None:
    llama = {"backend": "trtllm", "model_path": "meta-llama/Llama-3.1-70B", "isl": "1024.0"}
    patient, whole = run_of(**llama), run_of(**llama | {"tp_size": "8.0", "moe_tp_size": "8.0"})
    assert isinstance(patient, ServedRun) and isinstance(whole, ServedRun)
    assert dict(patient.options)["batch_wait_timeout_iters"] == 20
    assert "batch_wait_timeout_iters" not in dict(whole.options)


@pytest.mark.parametrize(
    ("prompt", "clients", "ran"), [(1024, 64, (8, 1, 8)), (8192, 32, (8, 1, 8)), (8192, 64, (1, 8, 8))]
)
def test_deepseek_r1_under_tensorrt_llm_on_h200_has_whole_experts_whatever_its_label_says(
    prompt: int, clients: int, ran: tuple[int, int, int]
) -> None:
    """One script ran in November, labelled without expert parallelism, and in December, labelled with it (EP_SIZE=TP,
    InferenceMAX ff7e462): 13.81 and 13.82 ms a token for four clients, 48.3 and 47.8 for 64 of 8 Ki."""
    row = {"backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-V3", "system": "h200_sxm", "precision": "fp8"}
    source = {"isl": f"{prompt}.0", "silicon_data_source": f"db-dump; silicon_concurrency={clients}"}
    labels = {"tp_size": "8.0", "moe_tp_size": "8.0", "moe_ep_size": "1.0"}, {"tp_size": "64.0", "moe_ep_size": "8.0"}
    for label in labels:
        run = run_of(**row | source | {"moe_tp_size": "8.0"} | label)
        assert isinstance(run, ServedRun)
        assert (run.plan.tp, run.plan.dp, run.plan.ep) == ran
        options = run.engine_options
        assert options["max_num_tokens"] == (clients + prompt + 64 + 63) // 64 * 64
        assert options.get("attention_dp_config", {}).get("enable_balance", False) == (ran[1] > 1)


@pytest.mark.parametrize(
    ("stated", "run"),
    [
        (("8", "1", "8", "1"), (8, 1, 1)),
        (("8", "1", "1", "8"), (8, 1, 8)),
        (("16", "1", "4", "4"), (4, 1, 4)),
        (("64", "1", "8", "8"), (8, 1, 8)),
        (("4", "1", "2", "2"), (2, 1, 2)),
        (("1", "64", "8", "8"), (1, 8, 8)),
        (("1", "16", "4", "4"), (1, 4, 4)),
        (("4", "4", "1", "16"), (1, 4, 4)),
        (("2", "2", "1", "4"), (1, 2, 2)),
    ],
)
def test_degrees_are_those_that_ran(stated: tuple[str, ...], run: tuple[int, int, int]) -> None:
    assert silicon.degrees(dict(zip(silicon.DEGREES, stated, strict=True))) == run


def test_an_engine_whose_experts_are_cut_by_two_and_two_keeps_its_ranks() -> None:
    """Of aiconfigurator's own runs, which leave attention's replicas out: nothing is wrong with them."""
    stated = {"tp_size": "4", "attention_dp_size": "", "moe_tp_size": "2", "moe_ep_size": "2"}
    assert silicon.degrees(stated) == (4, 1, 2)


@pytest.mark.parametrize("tp", silicon.WIDE)
def test_wide_groups_of_racks_are_incomplete(tp: int) -> None:
    with pytest.raises(InputError, match="wide group"):
        silicon.degrees({"tp_size": str(tp), "attention_dp_size": "1", "moe_tp_size": str(tp), "moe_ep_size": "1"})


def test_concurrency_is_what_the_source_says() -> None:
    run = run_of(batch_size="8.0")
    assert isinstance(run, ServedRun)
    assert (run.concurrency, run.requests, run.least) == (32, 320, 0.8)


def test_doubtful_and_unlabelled_rows_say_why() -> None:
    assert "4.4 ms a token" in str(
        run_of(system="h100_sxm", silicon_data_source="silicon_concurrency=512", batch_size="512")
    )
    unlabelled = run_of(backend="trtllm", model_path="deepseek-ai/DeepSeek-R1")
    assert "drafts are not recorded" in str(unlabelled)
    assert "workers are not stated" in str(run_of(mode="disagg"))


def test_a_recipe_with_another_gpus_figures_is_not_scored() -> None:
    recipe = {"source_url": "https://github.com/ROCm/ATOM/blob/main/recipes/DeepSeek-R1.md", "tp": "8", "n_gpus": "8"}
    of_r1 = {**recipe, "model": "DeepSeek-R1-0528"}
    assert "has of 8 MI300X what its nightly has of 8 MI355X" in str(published_run(**of_r1, gpu="MI300X"))
    assert isinstance(published_run(**of_r1, gpu="MI355X"), ServedRun)
    assert isinstance(published_run(model="DeepSeek-R1-0528", gpu="MI300X", tp="8", n_gpus="8"), ServedRun)


def test_scripts_give_an_engine_its_options() -> None:
    run = run_of()
    assert isinstance(run, ServedRun)
    assert dict(run.options) == {"max_num_batched_tokens": 8192, "max_num_seqs": 512}
    assert (run.policy, run.plan.stack, run.memory, run.plan.kv) == ("vllm", "vllm@0.16", 0.9, "fp8")
    scripts = [inferencex("sglang", MeasuredRun("deepseek-r1", "b200", 8, 1024, 1024, clients)) for clients in (8, 16)]
    polled = [script.options["scheduler_recv_interval"] for script in scripts]
    assert polled == [10, 30]
    budgets = [
        inferencex("vllm", MeasuredRun("minimax-m2.5", "b200", 4, tokens, 1024, 8)).options["max_num_batched_tokens"]
        for tokens in (1024, 8192)
    ]
    assert budgets == [2048, 16384]


SGLANG_ROW = {
    "backend": "sglang", "backend_version": "0.5.6.post2", "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h200_sxm", "precision": "fp8", "gemm_quant_mode": "fp8", "moe_quant_mode": "fp8",
    "silicon_data_source": "source_file=auto-gap-analysis/data/x.csv; silicon_concurrency=64",
}  # fmt: skip


def test_a_generated_sglang_mixes_passes_and_is_asked_for_outputs_of_one_length() -> None:
    mixed, first = run_of(**SGLANG_ROW), run_of(**SGLANG_ROW | {"backend_version": "0.5.1.post1"})
    assert isinstance(mixed, ServedRun) and isinstance(first, ServedRun)
    assert (mixed.least, mixed.least_output, first.least_output) == (1.0, 1.0, 1.0)
    assert dict(mixed.options)["enable_mixed_chunk"] and "enable_mixed_chunk" not in dict(first.options)
    other = run_of(**SGLANG_ROW | {"backend": "vllm", "backend_version": "0.11.0"})
    assert isinstance(other, ServedRun) and other.least_output == 0.8


def test_prompts_of_deepseek_reach_a_server_of_transformers_5_five_times_as_long() -> None:
    row = SGLANG_ROW | {"model_path": "deepseek-ai/DeepSeek-V3", "system": "b300_sxm", "precision": "fp4"}
    lengths = []
    for version in ("0.5.9", "0.5.10.post1"):
        run = run_of(**row | {"backend_version": version, "silicon_data_source": "db-dump; silicon_concurrency=8"})
        assert isinstance(run, ServedRun)
        lengths.append(run.prompt)
    assert lengths == [8192, round(8192 * 35921 / 7140)]


def test_engines_that_no_request_had_warmed_are_said_to_be_cold() -> None:
    dates = ("2025-11-10", "2026-03-25")
    rows = [
        SGLANG_ROW | {"silicon_data_source": f"x; silicon_concurrency=8; measured={date}", "silicon_tpot_ms": date[-1]}
        for date in dates
    ]
    found = mended(*rows)
    assert [isinstance(run, ServedRun) and run.cold for run in found.runs] == [True, False]
    assert found.notes["of them cold, their times to the first token not scored"] == 1


def test_narrow_qwen_on_b200_is_polled_as_rarely_at_any_load() -> None:
    row = {
        "backend": "sglang", "backend_version": "0.5.9", "model_path": "Qwen/Qwen3.5-397B-A17B", "precision": "fp4",
        "silicon_data_source": "silicon_concurrency=4", "tp_size": "4",
    }  # fmt: skip
    intervals = []
    for system in ("b200_sxm", "b300_sxm"):
        run = run_of(**row | {"system": system})
        assert isinstance(run, ServedRun)
        intervals.append(dict(run.options)["scheduler_recv_interval"])
    assert intervals == [30, 10]


WORKERS = {
    "mode": "disagg", "prefill_num_workers": "1", "prefill_tp_size": "4", "prefill_attention_dp_size": "1",
    "prefill_moe_ep_size": "4", "decode_num_workers": "4", "decode_tp_size": "8", "decode_attention_dp_size": "1",
    "decode_moe_ep_size": "8", "backend": "trtllm", "backend_version": "1.1.0", "model_path": "moonshotai/Kimi-K2.5",
    "system": "gb200", "precision": "fp4", "gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4", "isl": "1024.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "version", "stack"),
    [
        ("vllm", "0.15.1", "vllm@0.16"), ("vllm", "0.18.0", "vllm@0.19"), ("vllm", "", "vllm@0.19"),
        ("sglang", "0.5.9", "sglang@0.5.9"), ("sglang", "0.5.10.post1", "sglang"),
        ("sglang", "0.5.6.post2", "sglang@0.5.6"), ("sglang", "", "sglang@0.5.6"),
        ("trtllm", "1.0.0rc3", "trtllm@1.0"), ("trtllm", "1.2.0", "trtllm"),
    ],
)  # fmt: skip
def test_a_row_has_the_stack_of_its_version(engine: str, version: str, stack: str) -> None:
    run = run_of(backend=engine, backend_version=version)
    assert isinstance(run, ServedRun) and run.plan.stack == stack


@pytest.mark.parametrize(
    ("engine", "version", "least"), [("trtllm", "1.0.0rc3", 1.0), ("sglang", "0.5.9", 1.0), ("vllm", "0.12.0", 0.8)]
)
def test_own_runs_of_aiconfigurator_have_outputs_of_one_length_but_under_vllm(
    engine: str, version: str, least: float
) -> None:
    source = "source_file=aic-auto-gap-analysis/data/x.csv; silicon_concurrency=32"
    run = run_of(backend=engine, backend_version=version, silicon_data_source=source)
    assert isinstance(run, ServedRun) and (run.least, run.least_output) == (1.0, least)


def test_atom_quantises_glm_5_2_while_it_loads() -> None:
    row = {"model": "GLM-5.2-FP8 MTP3", "precision": "FP8, FP8 KV", "date": "2026-08-10", "tp": "4", "n_gpus": "4"}
    run = published_run(**row)
    assert isinstance(run, ServedRun)
    assert dict(run.plan.weights) == {"attention": "fp8", "dense": "fp8", "experts": "mxfp8", "shared": "fp8"}


def test_offline_rows_of_models_with_experts_have_attention_on_every_gpu() -> None:
    row = {
        "gpu": "H200", "n_gpus": "8", "tp": "8", "ep": "see notes", "engine": "TensorRT-LLM 1.0", "isl": "128",
        "osl": "2048", "concurrency": "max (all requests queued; offline throughput)", "notes": "",
        "metric": "output tok/s (total)", "precision": "FP8, FP8 KV",
    }  # fmt: skip
    first, second = (published_run(**row, model=name) for name in ("Llama-4-Maverick-17B-128E", "Qwen3-235B-A22B"))
    assert isinstance(first, ServedRun) and isinstance(second, ServedRun)
    assert {(run.plan.tp, run.plan.dp, run.plan.ep) for run in (first, second)} == {(1, 8, 8)}


def test_disaggregated_rows_that_state_their_workers_are_two_pools() -> None:
    run = run_of(**WORKERS | {"prefill_tp_size": "1", "prefill_attention_dp_size": "4"})
    assert isinstance(run, ServedRun) and run.prefill is not None
    assert (run.prefill[0].tp, run.prefill[0].dp, run.prefill[1], run.plan.tp, run.replicas) == (1, 4, 1, 8, 4)
    assert (run.gpus, group_of(run)) == (36, "disaggregated")
    options, reading = dict(run.options), dict(run.reading)
    assert options["max_batch_size"] == 128, "the recipe's, of four workers of eight GPUs"
    assert reading["disable_overlap_scheduler"] and "max_batch_size" in reading
    assert "requests at once is not stated" in str(run_of(**WORKERS, silicon_data_source="x"))


def test_kimi_under_vllm_has_no_attention_replicas_and_its_checkpoint_s_cache() -> None:
    """kimik2.5_fp4_b200.sh starts vLLM with --tensor-parallel-size alone; two exports of three say so."""
    row = {
        "backend": "vllm", "backend_version": "0.17.0", "model_path": "moonshotai/Kimi-K2.5", "system": "b200_sxm",
        "precision": "fp4", "moe_quant_mode": "nvfp4", "tp_size": "4", "attention_dp_size": "4", "moe_ep_size": "16",
    }  # fmt: skip
    run = run_of(**row)
    assert isinstance(run, ServedRun)
    assert (run.plan.tp, run.plan.dp, run.plan.ep, run.plan.kv) == (4, 1, 4, "fp8")
    other = run_of(**row | {"model_path": "MiniMaxAI/MiniMax-M2.5", "moe_quant_mode": "fp8_block"})
    assert isinstance(other, ServedRun) and (other.plan.tp, other.plan.dp) == (1, 4)
    wide = run_of(**row | {"moe_quant_mode": "int4_wo", "attention_dp_size": "1", "moe_ep_size": "1"})
    assert isinstance(wide, ServedRun) and wide.plan.kv == "", "no four-bit checkpoint of NVIDIA's"


def test_a_rack_s_row_that_states_no_workers_has_those_of_its_recipe() -> None:
    """srt-slurm, recipes/gb200-fp4/1k1k/max-tpt.yaml and gb200-fp8/8k1k/max_tpt.yaml; InferenceX's GB300 keys."""
    unstated = {"prefill_num_workers": "", "decode_num_workers": "", "silicon_data_source": "silicon_concurrency=2048"}
    row = WORKERS | unstated | {
        "backend": "sglang", "backend_version": "0.5.8", "model_path": "deepseek-ai/DeepSeek-R1", "decode_tp_size": "48"
    }  # fmt: skip
    run = run_of(**row)
    assert isinstance(run, ServedRun) and run.prefill is not None
    assert (run.prefill[1], run.prefill[0].gpus, run.replicas, run.plan.dp, run.plan.ep) == (4, 4, 1, 48, 48)
    assert (run.plan.dispatch, run.plan.slots, dict(run.plan.weights)["attention"]) == ("low_latency", 288, "fp8_block")
    long = run_of(**row | {"system": "gb300", "precision": "fp8", "isl": "8192", "decode_tp_size": "24"})
    assert isinstance(long, ServedRun) and long.prefill is not None
    assert (long.prefill[1], long.prefill[0].gpus, long.prefill[0].dispatch, long.gpus) == (6, 8, "ranks_fp8", 72)
    narrow = run_of(**row | {"decode_tp_size": "4"})
    assert isinstance(narrow, ServedRun) and (narrow.plan.tp, narrow.plan.ep, narrow.replicas) == (4, 1, 2)
    assert "workers are not stated" in str(run_of(**row | {"backend_version": "0.5.5.post2"}))
    stated = run_of(**row | {"prefill_num_workers": "5", "decode_num_workers": "1"})
    assert isinstance(stated, ServedRun) and stated.prefill is not None and stated.prefill[1] == 5


def test_workers_of_vllm_have_attention_of_their_own_whatever_labels_say() -> None:
    run = run_of(**WORKERS | {"backend": "vllm", "decode_num_workers": "1", "decode_tp_size": "16"})
    assert isinstance(run, ServedRun) and run.prefill is not None
    assert (run.prefill[0].tp, run.prefill[0].dp, run.plan.tp, run.plan.dp) == (1, 4, 1, 16)
    narrow = run_of(**WORKERS | {"backend": "vllm", "decode_tp_size": "4", "isl": "8192"})
    assert isinstance(narrow, ServedRun)
    assert (narrow.plan.tp, narrow.plan.dp, dict(narrow.options)["max_num_seqs"]) == (4, 1, 16)


def test_workers_that_fill_no_whole_nodes_stand_on_nodes_of_their_own() -> None:
    """A decode worker of eight GPUs never stands on two nodes because prefill takes four."""
    run = run_of(**WORKERS | {"system": "b200_sxm", "decode_num_workers": "2"})
    assert isinstance(run, ServedRun)
    told = disaggregated.scenario(run, 8)
    pools = told["plans"][0]["pools"]
    assert (told["cluster"]["nodes"], pools["prefill"]["cluster"]["nodes"]) == (2, 1)
    assert pools["decode"].get("cluster") is None and pools["fabric"]
    rack = run_of(**WORKERS)
    assert isinstance(rack, ServedRun)
    whole = disaggregated.scenario(rack, 8)  # a rack is one node
    assert whole["cluster"]["nodes"] == 1 and "fabric" not in whole["plans"][0]["pools"]


def test_published_runs_have_drafts_and_attention_replicas_in_words() -> None:
    run = published_run()
    assert isinstance(run, ServedRun)
    assert (run.plan.drafts, run.plan.kv, run.policy, run.least, run.requests) == (3, "fp8", "atom", 0.8, 640)
    replicas = published_run(
        model="DeepSeek-R1-0528-MXFP4", engine="SGLang + ATOM plugin", dp="attention DP = tp", ep="4"
    )
    assert isinstance(replicas, ServedRun)
    assert (replicas.plan.tp, replicas.plan.dp, replicas.plan.ep, replicas.replicas) == (1, 4, 4, 1)
    assert (replicas.policy, replicas.plan.stack) == ("sglang", "atom")


def test_offline_rows_send_all_requests_at_once() -> None:
    run = published_run(
        model="Llama-3.3-70B", gpu="H100", n_gpus="2", tp="2", engine="TensorRT-LLM 1.0", isl="1000", osl="2000",
        concurrency="max (all requests queued; offline throughput)", metric="output tok/s (total)", notes="",
    )  # fmt: skip
    assert isinstance(run, ServedRun)
    assert (run.concurrency, run.requests, run.least, group_of(run)) == (None, 1500, 1.0, "offline")


def test_requests_of_one_length_are_asked_where_the_plug_ins_case_sends_them() -> None:
    spread = "lengths uniform in [0.8,1.0]x nominal"
    drawn, alike = (published_run(notes=f"{spread}; ATOM-vLLM::gpt-oss-120b{case}") for case in ("", "-aw-tp8"))
    assert isinstance(drawn, ServedRun) and isinstance(alike, ServedRun)
    assert (drawn.least, alike.least) == (0.8, 1.0)


def test_four_bit_experts_of_llama_4_are_not_left_in_bf16() -> None:
    """Its dense layers alone were narrow, and 400 billion parameters had no room on four GB200."""
    run = published_run(
        model="Llama-4-Maverick-17B-128E", gpu="GB200", n_gpus="4", tp="1", ep="4", dp="4", precision="NVFP4",
        engine="TensorRT-LLM 1.2", isl="1000", osl="1000", concurrency="max (offline throughput)",
        metric="output tok/s/gpu", notes="",
    )  # fmt: skip
    assert isinstance(run, ServedRun)
    assert dict(run.plan.weights)["experts"] == dict(run.plan.weights)["shared"] == "nvfp4"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"usable": "0"}, "not usable"),
        ({"model": "MiniMax-M3"}, "no such model"),
        ({"isl": "OpenOrca, max 1024"}, "lengths are not numbers"),
        ({"gpu": "H200-NVL"}, "PCIe board"),
        ({"metric": "energy"}, "not predicted"),
        ({"engine": "Mango LLMBoost"}, "not modelled"),
        ({"n_gpus": "16"}, "other GPUs"),
    ],
)
def test_published_rows_that_are_not_predicted_say_why(row: dict[str, str], reason: str) -> None:
    assert reason in str(published_run(**row))


@needs_silicon
def test_repairs_of_served_runs_have_the_counts_of_the_source() -> None:
    """1,610 rows of engines are 1,334 measurements to the second decimal, 998 of workers 707; of 205 with other labels
    200 need no row's own name to be recognised (the twelve more are of one configuration of B300), and 60 of workers
    are complete."""
    found = silicon.mend(read(SILICON))
    notes = found.notes
    assert (notes["agg rows"], notes["agg measurements of their own"]) == (1610, 1334)
    assert (notes["disagg rows"], notes["disagg measurements of their own"]) == (998, 707)
    assert notes["agg rows with labels of another parallelism, mended"] == 217
    assert notes["rows of measurements that stand under two labels"] == 96
    runs = [run for run in found.runs if isinstance(run, ServedRun)]
    assert sum(run.prefill is not None for run in runs) == 100
    reasons = Counter(run for run in found.runs if isinstance(run, str))
    assert reasons["a measurement met before"] == (1610 - 1334) + (998 - 707)
    assert all(run.plan.gpus <= silicon.NODE for run in runs if run.prefill is None)


@needs_silicon
@pytest.mark.in_turn(2, group="published")
def test_measurements_under_two_labels_are_one_run() -> None:
    rows = read(SILICON)
    rows = rows[rows["mode"] == "agg"]
    for _, same in rows.groupby(list(silicon.MEASURED)):
        assert len({silicon.degrees(row) for row in same.to_dict("records") if complete(row)}) <= 1


def complete(row: dict[str, str]) -> bool:
    try:
        silicon.degrees(row)
    except InputError:
        return False
    return True


def test_versions_told_apart_later_move_no_run_between_those_fitted_on_and_the_others() -> None:
    run = run_of(backend_version="0.16.0")
    assert isinstance(run, ServedRun) and run.plan.stack == "vllm@0.16"
    before, other = (replace(run, plan=replace(run.plan, stack=name)) for name in ("vllm@0.17", "vllm@0.19"))
    assert key_of(run) == key_of(before) != key_of(other)


@needs_silicon
def test_a_third_of_the_configurations_is_fitted_on() -> None:
    runs = {run for run in silicon.mend(read(SILICON)).runs if isinstance(run, ServedRun)}
    assert 0.29 < sum(map(fitted, runs)) / len(runs) <= 1 / 3


@needs_published
def test_nearly_all_usable_rows_with_lengths_are_runs() -> None:
    table = read(PUBLISHED)
    runs = published.mend(table).runs
    of_ci = table["id"].str.startswith("atom-ci") & (table["usable"] == "1")
    reasons = Counter(run for run, ours in zip(runs, of_ci, strict=True) if ours and isinstance(run, str))
    assert sum(reasons.values()) / of_ci.sum() < 0.05, reasons
