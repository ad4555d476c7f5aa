"""Rows of published/inference.csv: the run of each row, and its metric as a function of the run's measures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.serving.policies import POLICIES

from ..cells import Row, count_of
from ..devices import named_device
from .doubts import DoubtfulRows, refuse_doubtful
from .run import Options, ServedPlan, ServedRun
from .scripts import BESIDE, MeasuredRun, Script
from .silicon import CLASSES, NVFP4, USUAL_NVFP4, Mended, activations_of

if TYPE_CHECKING:
    import pandas as pd

    from .measures import Measures

#: First words of a published name → the catalog's model, longest first.
MODELS = {
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.2": "deepseek-v3.2",
    "deepseek-v4-pro": "deepseek-v4-pro",
    "glm-4.7": "glm-4.7",
    "glm-5.1": "glm-5.1",
    "glm-5.2": "glm-5.2",
    "glm-5": "glm-5",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "kimi-k2.5": "kimi-k2.5",
    "kimi-k2.7": "kimi-k2.5",  # the same architecture
    "kimi-k2.6": "kimi-k2.6",
    "llama-3.1-405b": "llama-3.1-405b",
    "llama-3.1-8b": "llama-3.1-8b",
    "llama-3.3-70b": "llama-3.3-70b",
    "llama-4-maverick": "llama-4-maverick",
    "llama-4-scout": "llama-4-scout",
    "llama2-70b": "llama-2-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3.1-8b": "llama-3.1-8b",
    "minimax-m2.5": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5",  # the same architecture
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
    "qwen3.5-397b-a17b": "qwen3.5-397b-a17b",
}


@dataclass(frozen=True)
class Metric:
    """A metric of the table: ``of`` computes it from a run's measures and number of GPUs; ``rate``: shorter steps
    increase it."""

    of: Callable[[Measures, int], float]
    rate: bool = False
    kind: str = ""


#: Metrics by the table's names.
METRICS: dict[str, Metric] = {
    "TPOT mean ms": Metric(lambda run, gpus: 1e3 * run.tpot_s, kind="TPOT"),
    "TPOT median ms": Metric(lambda run, gpus: 1e3 * run.median_tpot_s, kind="TPOT"),
    "TPOT ms": Metric(lambda run, gpus: 1e3 * run.tpot_s, kind="TPOT"),
    "TTFT mean ms": Metric(lambda run, gpus: 1e3 * run.ttft_s, kind="TTFT"),
    "TTFT median ms": Metric(lambda run, gpus: 1e3 * run.median_ttft_s, kind="TTFT"),
    "TTFT ms": Metric(lambda run, gpus: 1e3 * run.ttft_s, kind="TTFT"),
    "output tok/s (total)": Metric(lambda run, gpus: run.output_tokens_per_s, True, "output tokens/s"),
    "output tok/s/gpu": Metric(lambda run, gpus: run.output_tokens_per_s / gpus, True, "output tokens/s"),
    "total tok/s (in+out)": Metric(lambda run, gpus: run.tokens_per_s, True, "tokens/s"),
    "total tok/s/gpu": Metric(lambda run, gpus: run.tokens_per_s / gpus, True, "tokens/s"),
    "input tok/s (total)": Metric(
        lambda run, gpus: run.tokens_per_s - run.output_tokens_per_s, True, "input tokens/s"
    ),
}  # fmt: skip

#: Requests in a data set of trtllm-bench by (prompt, output), from TensorRT-LLM's performance overview.
BENCH_REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000,
    (1000, 2000): 1500, (1024, 2048): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500,
    (20000, 2000): 1000,
}  # fmt: skip
USUAL_REQUESTS = 1500
#: ATOM's recipe of DeepSeek-R1 heads 28.8
#: and 40.8 ms a token at 128 and 256 at once with "8xMI300X"; its own nightly of 21 June 2026 has 27.6 and 39.5 on
#: eight MI355X (ROCm/cvs, plans/inferencex-atom-cvs-automation-plan.md, 4.3), AMD's laboratory 42.5 and 54.1 on eight
#: MI300X four days later, where its limits had been the recipe's (ROCm/cvs 07c90a7, mi300x_..._perf_threshold.json;
#: pull request 238 has 2,842 and 4,419 output tokens/s of another run, the recipe 4,274 and 6,039).
DOUBTFUL = (
    DoubtfulRows(
        "ATOM's recipe of DeepSeek-R1 has of 8 MI300X what its nightly has of 8 MI355X, 1.3 to 1.5 times what was"
        " measured",
        device="mi300x",
        source="ATOM/blob/main/recipes/DeepSeek-R1.md",
    ),
)


def mend(frame: pd.DataFrame) -> Mended:
    """Every row of the table as a run, or a reason."""
    return metric_by_metric(frame, METRICS, published_run)


def metric_by_metric(frame: pd.DataFrame, metrics: Mapping[str, Metric], run_of: Callable[[Row], ServedRun]) -> Mended:
    """Rows that are metrics of runs: the run that ``run_of`` reads from each, or the reason for none."""
    mended = Mended([])
    for row in frame.to_dict("records"):
        try:
            if str(row["metric"]) not in metrics:
                raise InputError(f"metric '{row['metric']}' is not predicted")
            mended.runs.append(run_of(row))
        except InputError as error:
            mended.runs.append(error.message)
    runs = [run for run in mended.runs if not isinstance(run, str)]
    mended.notes = Counter({"rows that are scored": len(runs), "runs that they are metrics of": len(set(runs))})
    return mended


def published_run(row: Row) -> ServedRun:
    """The run of a row. Raises InputError with the reason for a row that is not predicted."""
    if str(row.get("usable", "1")).strip() == "0":
        raise InputError("marked as not usable")
    written, name = str(row["model"]), named_device(row["gpu"])
    model = model_of(written)
    if model is None:
        raise InputError("no such model in the catalog")
    software = next((stack for words, stack in SOFTWARE if words in str(row["engine"])), None)
    if software is None:
        raise InputError("the engine is not modelled, or not stated")
    prompt, output = count_of(row, "isl"), count_of(row, "osl")
    if not (prompt and output):
        raise InputError("incomplete: lengths are not numbers")
    if output < 2:
        raise InputError("prefill alone: no decoding to score")
    offline = str(row["concurrency"]).startswith("max")
    concurrency = count_of(row, "concurrency")
    if not (offline or concurrency):
        raise InputError("incomplete: how many requests at once is not stated")
    tp, dp, ep, replicas = degrees(row)
    if "TensorRT-LLM 1.0" in str(row["engine"]) and ep > 1 and dp == 1:
        tp, dp = 1, tp  # every model with experts: llm_options.yml, docs/source/performance/perf-overview.md of 1.0
    refuse_doubtful(row, name, DOUBTFUL)
    if "dspark" in written.lower():
        raise InputError("drafts by DSpark are not modelled")
    if "tbo" in f"{written} {row['notes']}".lower():
        raise InputError("two batches that take turns are not replayed")
    policy, stack, script = software
    if not policy:
        raise InputError("disaggregated, or software that is not published")
    settings = script(MeasuredRun(model, name, tp * dp, prompt, output, concurrency), dp)
    words = str(row["precision"])
    plan = ServedPlan(
        model, name, tp, dp, ep, stack, weights_of(words, model, name, written), activations_of(model, name),
        cache_of(words, policy, model), *drafting_of(row, written),
    )  # fmt: skip
    options = dict(settings.options)
    if ROCM_POST in str(row["source_url"]):
        options |= {"max_num_batched_tokens": 16384}
    run = ServedRun(
        plan=plan,
        policy=policy,
        prompt=prompt,
        output=output,
        concurrency=concurrency,
        requests=_requests(row, 10 * concurrency),
        least=_least(row),
        options=tuple(sorted(options.items())),
        memory=settings.memory,
        replicas=replicas,
    )
    if offline:
        requests = BENCH_REQUESTS.get((prompt, output), USUAL_REQUESTS) * replicas * dp
        return replace(run, concurrency=None, requests=requests, least=1.0)
    return run


def model_of(written: str) -> str | None:
    """The catalog's model for a published name.

    >>> model_of("DeepSeek-R1-0528-MXFP4-mtp3"), model_of("MiniMaxAI/MiniMax-M2.7"), model_of("Mixtral")
    ('deepseek-r1', 'minimax-m2.5', None)
    """
    word = written.lower().split("/")[-1]
    return next((MODELS[name] for name in sorted(MODELS, key=len, reverse=True) if word.startswith(name)), None)


def drafts_of(written: str) -> int:
    """Drafted tokens per step, from a model's published name.

    >>> [drafts_of(name) for name in ("GLM-5.2-FP8 MTP3", "DeepSeek-R1-0528-MXFP4-mtp1", "Qwen3-Next-80B-mtp")]
    [3, 1, 1]
    >>> drafts_of("DeepSeek-R1-0528-MXFP4-MTP-MoEFP4")
    0
    """
    match = re.search(r"[ +-]mtp(\d?)$", written.lower())
    return int(match.group(1) or 1) if match else 0


#: From this day on ATOM's nightly runs with drafts put random prompts behind the model's chat template (`bench_args`
#: of models.json, ROCm/ATOM pull request 1476; that of 30 May did not, SemiAnalysisAI/InferenceX pull request 1627),
#: except those of Qwen3.5.
TEMPLATES_SINCE = "2026-06"
#: Until this day ATOM's nightlies accepted none of Qwen3.5's drafts (ROCm/ATOM pull request 966, merged on it),
#: except those of April.
MENDED, BROKEN_SINCE = "2026-05-28", "2026-05"


def drafting_of(row: Row, written: str) -> tuple[int, Literal["", "chat", "random"], bool]:
    """Drafted tokens per step, the kind of prompts, and whether the engine's version accepts no draft.

    >>> drafting_of({"date": "2026-08-10", "engine": "ATOM"}, "GLM-5.2-FP8 MTP3")
    (3, 'chat', False)
    >>> drafting_of({"date": "2026-05-24", "engine": "ATOM (native) nightly"}, "Qwen3.5-397B-A17B-FP8 MTP3")
    (3, 'random', True)
    """
    drafts, date = drafts_of(written), str(row.get("date", ""))
    if not drafts:
        return 0, "", False
    hybrid = written.lower().startswith("qwen3.5")
    broken = hybrid and BROKEN_SINCE <= date < MENDED and str(row["engine"]).startswith("ATOM")
    return drafts, "chat" if date >= TEMPLATES_SINCE and not hybrid else "random", broken


def degrees(row: Row) -> tuple[int, int, int, int]:
    """(tensor-parallel ranks, attention replicas, expert-parallel ranks, replicas) of a row."""
    gpus, tp = count_of(row, "n_gpus"), count_of(row, "tp")
    if not (gpus and tp):
        raise InputError("incomplete: GPUs or tp not stated")
    if str(row.get("pp", "1")).strip() not in ("", "1"):
        raise InputError("pipeline stages of a serving run are not scored")
    experts, attention = str(row["ep"]).lower(), str(row["dp"]).lower()
    ep = tp if experts.startswith(("tp", "see notes")) else count_of(row, "ep", 1)
    if attention.startswith("attention dp"):
        return 1, tp, max(ep, 1), gpus // tp
    dp = count_of(row, "dp", 1)
    if tp * dp > gpus:  # attention replicas on the ranks of tp
        tp = max(1, tp // dp)
    if gpus % (tp * dp):
        raise InputError("incomplete: what the other GPUs do is not stated")
    replicas = gpus // (tp * dp)
    if replicas > 1 and dp == 1 and "dp attention" not in str(row["notes"]).lower():
        raise InputError("incomplete: what the other GPUs do is not stated")
    if replicas > 1:
        dp, replicas = replicas, 1
    return tp, dp, ep, replicas


# --- engines -----------------------------------------------------------------------------------------------------


def _atom(run: MeasuredRun, dp: int) -> Script:
    tokens = 32768 if run.model.startswith("kimi") else 16384
    return Script({"max_num_batched_tokens": tokens, "max_num_seqs": 512}, 0.9)


def _plugin(run: MeasuredRun, dp: int) -> Script:
    tokens = 32768 if run.model.startswith("qwen3-next") else 16384
    memory = 0.8 if run.model.startswith(("gpt-oss", "qwen3.5")) else 0.9
    return Script({"max_num_batched_tokens": tokens, "max_num_seqs": 1024}, memory)


def _sglang_plugin(run: MeasuredRun, dp: int) -> Script:
    if dp > 1:
        # Of all attention replicas together (.github/benchmark/sglang_benchmark_models.json, TP4 DP4 EP4, 05f7b8e).
        return Script({"chunked_prefill_size": 65536, "max_running_requests": 24}, 0.8)
    return Script({"chunked_prefill_size": 16384, "max_prefill_tokens": 16384}, 0.85)


def _vllm(run: MeasuredRun, dp: int) -> Script:
    return Script({"max_num_batched_tokens": 8192, "max_num_seqs": 1024}, 0.9)


def _bench(run: MeasuredRun, dp: int) -> Script:
    return Script({"max_num_tokens": max(8192, run.prompt + BESIDE), "max_batch_size": 2048}, 0.9)


Settings = Callable[[MeasuredRun, int], Script]
#: Words of the engine column → scheduler, stack, and script.
SOFTWARE: tuple[tuple[str, tuple[str, str, Settings]], ...] = (
    ("P/D", ("", "", _vllm)),
    ("1P1D", ("", "", _vllm)),
    ("fork", ("", "", _vllm)),
    ("vLLM + ATOM", ("vllm", "atom", _plugin)),
    ("SGLang + ATOM", ("sglang", "atom", _sglang_plugin)),
    ("ATOM", ("atom", "atom", _atom)),
    ("TensorRT-LLM 1.0", ("trtllm", "trtllm@1.0", _bench)),
    ("TensorRT-LLM", ("trtllm", "trtllm", _bench)),
    ("vLLM", ("vllm", "vllm@0.19", _vllm)),
)


#: vLLM's post about its attention backends on AMD: its commands take 16,384 tokens per pass. It does not state its
#: number of prompts; its mean times to the first token are those of two prompts per client (one or three would give 1.5
#: or 0.75 times as much).
ROCM_POST, ROCM_ROUNDS = "2026-02-27-rocm-attention-backend", 2


def _requests(row: Row, usual: int) -> int:
    """Number of requests, from the notes if they state it."""
    if ROCM_POST in str(row["source_url"]):
        return ROCM_ROUNDS * count_of(row, "concurrency")
    match = re.search(r"num prompts (\d+)|, (\d+) prompts", str(row["notes"]))
    if match:
        return int(match.group(1) or match.group(2))
    return count_of(row, "concurrency") if "num_prompts=conc=" in str(row["notes"]) else usual


#: Cases of ATOM's plug-in for vLLM with this mark on its dashboard send prompts and answers of one length each
#: (`--random-range-ratio 1`, which `vllm bench serve` calls 0: ROCm/ATOM pull requests 739 and 767), although the
#: table's notes assume otherwise. So requests end and begin together, and wait for each other's prompts.
ALIKE = "-aw-"


def _least(row: Row) -> float:
    """Least length over the nominal one, from the notes; 1 if they state none.

    >>> spread = "lengths uniform in [0.8,1.0]x nominal"
    >>> _least({"notes": spread}), _least({"notes": f"{spread}; ATOM-vLLM::gpt-oss-120b-aw-tp8"}), _least({"notes": ""})
    (0.8, 1.0, 1.0)
    """
    notes = str(row["notes"])
    return 0.8 if "uniform in [0.8,1.0]" in notes and ALIKE not in notes else 1.0


# --- types -------------------------------------------------------------------------------------------------------


#: Weight types of GLM-5.2 in fp8 under ATOM, which quantises its block-scaled checkpoint again at load
#: (`online_quant_config` of models.json: ptpc_fp8, a scale per row and column, but mxfp8 for routed experts; ROCm/ATOM
#: pull request 1607).
ONLINE: Options = (("attention", "fp8"), ("dense", "fp8"), ("experts", "mxfp8"), ("shared", "fp8"))


def weights_of(words: str, model: str, device: str, written: str) -> Options:
    """Types by class, from a row's words and its model's name; empty: the checkpoint's own."""
    word = words.lower()
    if "native" in word or "default" in word or model.startswith("gpt-oss"):
        return ()
    dense = load_model(model).experts is None
    if "nvfp4" in word or word.startswith("fp4"):
        every = tuple((part, "nvfp4") for part in ("attention", "dense"))
        return () if model == "deepseek-v4-pro" else every if dense else NVFP4.get(model, USUAL_NVFP4)
    if "mxfp4" in word:
        if dense:
            return tuple((part, "mxfp4") for part in ("attention", "dense"))
        wide = "bf16" if model.startswith(("qwen3.5", "minimax")) else "fp8"
        return (("attention", wide), ("dense", "mxfp4"), ("experts", "mxfp4"), ("shared", "mxfp4"))
    if "fp8" in word and model == "glm-5.2" and device.startswith("mi"):
        return ONLINE
    if "fp8" in word:
        return tuple((part, "fp8" if dense or model.startswith("llama-4") else "fp8_block") for part in CLASSES)
    return tuple((part, "bf16") for part in CLASSES) if not word else ()


#: Models with narrow checkpoints of their own that do not state the cache's type: TensorRT-LLM's `auto` keeps it in
#: bf16 (NVIDIA/TensorRT-LLM issue 8843: *Using checkpoint KV quantization*). NVIDIA's four-bit checkpoints state fp8.
SILENT = ("deepseek", "gpt-oss")


def cache_of(words: str, policy: str, model: str) -> str:
    """Type of the cache, as stated; else what the engine takes from NVIDIA's quantised checkpoints.

    >>> cache_of("FP8", "trtllm", "llama-3.3-70b"), cache_of("FP8", "trtllm", "deepseek-r1")
    ('fp8', 'bf16')
    """
    word = words.lower()
    if "fp8 kv" in word:
        return "fp8"
    if "fp16 kv" in word or "bf16 kv" in word:
        return "bf16"
    own = POLICIES.get(policy).checkpoint_cache if policy else ""
    if not own or not ("fp4" in word or "fp8" in word):
        return ""
    return "bf16" if model.startswith(SILENT) and "nvfp4" not in word else own
