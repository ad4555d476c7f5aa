"""Rows of published/serving_silicon.csv: the errors in them, and the run of each.

Rows of one configuration come from several exports of the same measurement. Some have labels of another parallelism
than was run. Repairs are counted; rows that stay incomplete or doubtful get a reason.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tspsim.base.errors import InputError

from ..cells import Row, count_of
from ..devices import named_device
from . import clients
from .clients import concurrency_of
from .doubts import DOUBTFUL, refuse_doubtful
from .racks import EVEN_FROM, RackRecipe, RackWorkers, rack_of
from .recipes import RECIPES, DecodeWorkers, Recipe
from .run import Options, ServedPlan, ServedRun
from .scripts import MeasuredRun, Script, defaults, inferencex, trtllm_degrees

if TYPE_CHECKING:
    import pandas as pd

#: Columns whose equality makes two rows one measurement, exported twice; some exports keep two decimals.
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
DECIMALS = 2
#: A row's model → the model that was launched by default, even if the row states a precision.
MODELS = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",  # exports of InferenceX's runs of R1: the same weights
    "meta-llama/Llama-3.1-70B": "llama-3.3-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-r1",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "zhipuai/GLM-5": "glm-5",
}
#: Degrees too large for a machine of eight GPUs: wide groups of GB200 racks, whose attention is not stated.
WIDE = (12, 20, 24, 36, 72)
#: Engines whose outputs all have one length in aiconfigurator's own runs, because its generator's client requests it
#: (BenchConfig.osl_stddev, deployment_config.yaml, 0586a33; min_tokens and max_tokens alike, ignore_eos, ten requests a
#: client: eval/benchmarks/genai_perf_runner.py, 5e16187). Runs of vLLM, which reads many prompts per pass, contradict
#: it.
ONE_LENGTH = ("sglang", "trtllm")
#: Version of SGLang for which aiconfigurator's generator misspells the option of mixed passes (--enable-mix-chunk,
#: cli_args.0.5.1.post1.j2, 5dc6d4f), so no run used it.
NOT_MIXED = "0.5.1."
#: Versions of SGLang before 0.5.8, which is faster.
OLD_SGLANG = ("0.5.1.", "0.5.5", "0.5.6")
#: Versions of SGLang, and the day of nightlies, before the change that made a token of Qwen3.5 a seventh faster in
#: 0.5.10: since then the gate of shared experts takes no time of its own.
GATED, GATED_TO = ("0.5.7", "0.5.8", "0.5.9"), "20260401"
#: Stack → the same behind Dynamo's front end.
DYNAMO = {"sglang@0.5.9": "sglang@0.5.9-dynamo"}
#: Last minor version of vLLM that a stack is of, ascending: 0.11 samples with FlashInfer and parses templates for every
#: request, 0.17 samples with Triton's kernels, 0.18 begins to run column-divided experts on Triton on Hopper.
VLLM = ((10, "vllm@0.10"), (11, "vllm@0.11"), (16, "vllm@0.16"), (17, "vllm@0.17"), (19, "vllm@0.19"))
#: Models whose script for vLLM has no attention replicas (kimik2.5_fp4_b200.sh, 04107b3: tp alone). Two exports of
#: their measurements say tp 4, ep 4, a third attention dp 4, for which there is no room.
UNREPLICATED = ("kimi-k2.5",)
#: The most GPUs of one engine.
NODE = 8


@dataclass
class Mended:
    """The table's rows as runs or reasons for none, and the number of each repair."""

    runs: list[ServedRun | str]
    notes: Counter[str] = field(default_factory=Counter)


def mend(frame: pd.DataFrame) -> Mended:
    """Every row of the table as a run, or a reason."""
    rows = frame.to_dict("records")
    mended = Mended([])
    notes = mended.notes
    labels = [_labels(row) for row in rows]
    under: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for row in rows:
        if row.get("mode") == "agg":
            under.setdefault(_measurement(row), set()).add(tuple(str(row.get(column, "")) for column in DEGREES))
    seen: set[tuple[str, ...]] = set()
    for row, (stated, true) in zip(rows, labels, strict=True):
        notes["agg rows with labels of another parallelism, mended"] += stated != true and true is not None
        notes["rows of measurements that stand under two labels"] += len(under.get(_measurement(row), ())) > 1
        key = _measurement(row)
        if key in seen:
            mended.runs.append("a measurement met before")
            continue
        if all(key):
            seen.add(key)
        try:
            mended.runs.append(_run(row))
        except InputError as error:
            mended.runs.append(error.message)
    for mode in ("agg", "disagg"):
        count = sum(row.get("mode") == mode for row in rows)
        notes[f"{mode} rows"] = count
        notes[f"{mode} measurements of their own"] = sum(key[0] == mode for key in seen)
    notes["runs that are scored"] = sum(not isinstance(run, str) for run in mended.runs)
    notes["of them cold, their times to the first token not scored"] = sum(
        not isinstance(run, str) and run.cold for run in mended.runs
    )
    return mended


def _measurement(row: Row) -> tuple[str, ...]:
    """Values of the columns that identify a measurement; empty if they are missing, and as written if not numbers."""
    times = (str(row.get(column, "")).strip() for column in MEASURED)
    return (str(row.get("mode", "")), *map(_rounded, times))


def _rounded(text: str) -> str:
    try:
        return f"{float(text):.{DECIMALS}f}"
    except ValueError:
        return text


def _labels(row: Row) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
    """Stated and repaired degrees of an agg row; None if unknown."""
    if row.get("mode") != "agg":
        return None, None
    try:
        true = degrees(row)
    except InputError:
        return None, None
    tp, dp, _, ep = (count_of(row, column, 1) for column in DEGREES)
    return (tp, dp, ep), true


def _run(row: Row) -> ServedRun:
    """The run of a row. Raises InputError with the reason if it is not scored."""
    if row.get("mode") == "disagg":
        return disaggregated(row)
    name = named_device(row["system"])
    model = MODELS.get(str(row["model_path"]))
    if model is None:
        raise InputError("no such model in the catalog")
    refuse_doubtful(row, name, DOUBTFUL)
    prompt, output = count_of(row, "isl"), count_of(row, "osl")
    tp, dp, ep = degrees(row)
    concurrency = concurrency_of(row, dp)
    if not (prompt and output and concurrency):
        raise InputError("incomplete: lengths or concurrency not stated")
    engine = str(row["backend"])
    if engine == "trtllm" and model == "deepseek-r1" and name != "h200":
        raise InputError("incomplete: drafts are not recorded, and equal rows differ up to 1.98 times")
    drafts = _drafts(row, model, name, tp, dp, ep)
    run = MeasuredRun(model, name, tp * dp, prompt, output, concurrency)
    if model.startswith("minimax") and name == "b200" and str(row.get("backend_version")).startswith("0.17"):
        ep = tp * dp  # that script divides whole experts whatever is asked (minimaxm2.5_fp8_b200.sh, 07e171a)
    if engine == "trtllm" and model == "deepseek-r1":
        tp, dp, ep = trtllm_degrees(run)  # November's labels say parts of experts: the same script and times (2 %)
    gap = "gap-analysis" in str(row["silicon_data_source"]) and "/" in str(row["silicon_data_source"])
    script = _script(engine, row, run, gap, drafts)
    plan = ServedPlan(
        model, name, tp, dp, ep, _stack(engine, row), _weights(row, model), activations_of(model, name),
        script.kv or _kept(engine, model, _weights(row, model)), drafts, "chat" if drafts else "",
    )  # fmt: skip
    return ServedRun(
        plan=plan,
        policy=engine,
        prompt=clients.read(row, engine, model, prompt),
        output=output,
        concurrency=concurrency,
        requests=10 * concurrency,
        least=1.0 if gap else 0.8,
        least_output=1.0 if gap and engine in ONE_LENGTH else 0.8,
        options=tuple(sorted(script.options.items())),
        memory=script.memory,
        cold=clients.cold(row, engine),
    )


def _drafts(row: Row, model: str, device: str, tp: int, dp: int, ep: int) -> int:
    """Drafted tokens a step, which no row states: InferenceX ran two models in fp8 on B200 under SGLang 0.5.9 with and
    without drafts, Qwen3.5 on other GPUs (perf-changelog.yaml 000de6d, pull requests 898, 918, 626 and 943).

    Raises InputError where both scripts ran on as many.
    """
    words = (row["backend"], row["precision"], str(row.get("backend_version")), device, dp, ep)
    if words != ("sglang", "fp8", "0.5.9", "b200", 1, 1):
        return 0
    if model == "deepseek-r1" and tp == NODE:
        raise InputError("incomplete: drafts are not recorded, and equal rows differ up to 1.4 times")
    return 3 if model == "qwen3.5-397b-a17b" and tp < NODE else 0


def _stack(engine: str, row: Row) -> str:
    """The software stack of a row: vLLM is 0.12 to 0.19, TensorRT-LLM rows state 1.0, and SGLang rows without a version
    are from 2025."""
    version = str(row.get("backend_version", "")).strip()
    if engine == "trtllm":
        return "trtllm@1.0" if version.startswith("1.0") else engine
    return sglang_of(version) if engine == "sglang" else vllm_of(version)


def vllm_of(version: str) -> str:
    """vLLM's stack for a version; without a version, that of the newest in the tables.

    >>> vllm_of("0.10.2"), vllm_of("0.12.0"), vllm_of("0.19.0"), vllm_of("")
    ('vllm@0.10', 'vllm@0.16', 'vllm@0.19', 'vllm@0.19')
    """
    minor = re.match(r"0\.(\d+)", version)
    newest = VLLM[-1][1]
    return newest if minor is None else next((stack for last, stack in VLLM if int(minor.group(1)) <= last), newest)


def sglang_of(version: str) -> str:
    """SGLang's stack for a version; nightlies by their day.

    >>> [sglang_of(each) for each in ("", "0.5.9", "0.5.10.post1", "nightly-dev", "nightly-dev-20260402-d7256eb6")]
    ['sglang@0.5.6', 'sglang@0.5.9', 'sglang', 'sglang@0.5.9', 'sglang']
    """
    if not version or version.startswith(OLD_SGLANG):
        return "sglang@0.5.6"
    day = re.search(r"-(\d{8})", version)
    older = version.startswith(GATED) or (version.startswith("nightly") and (day is None or day.group(1) < GATED_TO))
    return "sglang@0.5.9" if older else "sglang"


def _script(engine: str, row: Row, run: MeasuredRun, gap: bool, drafts: int = 0) -> Script:
    if drafts:
        return inferencex(f"{engine} drafts", run)
    if gap:
        mixed = engine == "sglang" and not str(row.get("backend_version")).startswith(NOT_MIXED)
        return defaults("sglang mixed" if mixed else engine, run)
    if engine == "sglang" and row["precision"] == "fp4" and run.model.startswith("qwen") and run.device == "b200":
        return inferencex("sglang fp4", run)
    if engine == "sglang" and run.model == "deepseek-r1" and row["precision"] == "fp8" and run.device != "h200":
        return inferencex("sglang fp8", run)
    return inferencex(engine, run)


# --- parallelism -------------------------------------------------------------------------------------------------

DEGREES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


def degrees(row: Row) -> tuple[int, int, int]:
    """(tensor-parallel ranks of attention, attention replicas, expert-parallel ranks) of a row, mended.

    >>> degrees({"tp_size": "64.0", "attention_dp_size": "1.0", "moe_tp_size": "8.0", "moe_ep_size": "8.0"})
    (8, 1, 8)
    >>> degrees({"tp_size": "1.0", "attention_dp_size": "16.0", "moe_tp_size": "4.0", "moe_ep_size": "4.0"})
    (1, 4, 4)
    >>> degrees({"tp_size": "4.0", "attention_dp_size": "4.0", "moe_tp_size": "1.0", "moe_ep_size": "16.0"})
    (1, 4, 4)
    """
    tp, dp, experts_tp, ep = (count_of(row, column, 1) for column in DEGREES)
    if tp in WIDE:
        raise InputError("incomplete: a wide group of a rack, whose attention replicas are not stated")
    if 1 < experts_tp == ep == tp**0.5 and count_of(row, "attention_dp_size") == 1:
        tp = ep
    elif 1 < experts_tp == ep == dp**0.5 and tp == 1:
        dp = ep
    elif tp == dp > 1 and ep == tp * dp:
        one = str(row.get("backend")) == "vllm" and MODELS.get(str(row.get("model_path"))) in UNREPLICATED
        tp, dp, ep = (tp, 1, ep // dp) if one else (1, dp, dp)
    if tp * dp > NODE:
        raise InputError(f"incomplete: more than {NODE} GPUs of one engine")
    return tp, dp, ep


# --- types -------------------------------------------------------------------------------------------------------

#: Narrow classes in NVIDIA's four-bit checkpoints; the others keep their type.
NVFP4: dict[str, Options] = {
    "deepseek-r1": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "llama-3.3-70b": (("attention", "nvfp4"), ("dense", "nvfp4")),
    # As ModelOpt's checkpoints of other models with shared experts, which leave out self_attn, routers and lm_head
    # (hf_quant_config.json of nvidia/GLM-4.7-NVFP4 and MiniMax-M2.5-NVFP4).
    "llama-4-maverick": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "llama-4-scout": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "qwen3-32b": (("attention", "nvfp4"), ("dense", "nvfp4")),
}
#: All other models have narrow routed experts only.
USUAL_NVFP4: Options = (
    ("attention", "bf16"), ("dense", "bf16"), ("experts", "nvfp4"), ("shared", "bf16"),
)  # fmt: skip
CLASSES = ("attention", "dense", "experts", "shared")


def _weights(row: Row, model: str) -> Options:
    """Types by class, from the row's words for products and experts."""
    if model in ("gpt-oss-120b",):
        return ()  # called nvfp4, but the checkpoint keeps experts in mxfp4
    word = str(row.get("moe_quant_mode") or row.get("gemm_quant_mode") or "")
    if word == "nvfp4":
        return NVFP4.get(model, USUAL_NVFP4)
    if word == "int4_wo":
        return ()  # the checkpoint's own
    if word in ("fp8", "fp8_block"):
        dense = model.startswith(("llama", "qwen3-32b"))
        return tuple((part, "fp8" if dense else "fp8_block") for part in CLASSES)
    return tuple((part, "bf16") for part in CLASSES)


#: Models whose four-bit checkpoint asks for a cache in fp8 (``kv_cache_quant_algo``), which vLLM's ``auto`` follows
#: (utils/torch_utils.py, resolve_kv_cache_dtype_string). The file itself was not read: in bf16 four B200 have room for
#: 33 of the 64 sequences of 8 Ki that rows have at once without waiting, in fp8 for all.
NARROW_CACHES = ("kimi-k2.5",)


def _kept(engine: str, model: str, weights: Options) -> str:
    """The type of a cache that the checkpoint states and no script; empty: none."""
    return "fp8" if engine == "vllm" and model in NARROW_CACHES and ("experts", "nvfp4") in weights else ""


def activations_of(model: str, device: str) -> Options:
    """Types of activations of mxfp4 experts on Blackwell: engines use mxfp8 (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8,
    w4a8)."""
    if model.startswith("gpt-oss") and device.startswith(("b", "gb")):
        return (("attention", "bf16"), ("experts", "mxfp8"))
    return ()


# --- disaggregated rows ------------------------------------------------------------------------------------------


def disaggregated(row: Row) -> ServedRun:
    """A run with prefill and decode workers. Raises InputError if neither the row nor a recipe states them."""
    prefill, decode = (count_of(row, f"{phase}_num_workers") for phase in ("prefill", "decode"))
    name = named_device(row["system"])
    rack = _rack(row, name)
    if rack is not None:
        return _of_rack(row, name, rack)
    if not (prefill and decode):
        raise InputError("incomplete: disaggregated, and its workers are not stated")
    model, engine = MODELS.get(str(row["model_path"])), str(row["backend"])
    if model is None:
        raise InputError("no such model in the catalog")
    source = re.search(r"silicon_concurrency=(\d+)", str(row.get("silicon_data_source", "")))
    prompt, output, concurrency = count_of(row, "isl"), count_of(row, "osl"), int(source.group(1)) if source else 0
    if not concurrency:
        raise InputError("incomplete: disaggregated, and how many requests at once is not stated")
    if not (prompt and output):
        raise InputError("incomplete: lengths not stated")
    degrees_of = {phase: _worker(row, phase) for phase in ("prefill", "decode")}
    weights = _weights(row, model)
    run = MeasuredRun(model, name, degrees_of["decode"][0] * degrees_of["decode"][1], prompt, output, concurrency)
    as_they_come = defaults(engine, run).options
    recipe, least = Recipe(as_they_come, as_they_come), 1.0
    if "gap-analysis" not in str(row["silicon_data_source"]):
        narrow = ("experts", "nvfp4") in weights
        recipe, least = RECIPES[engine](DecodeWorkers(run, narrow, decode, run.tp)), 0.8
    replicates = {"prefill": recipe.replicates_prefill, "decode": recipe.replicates_decode}
    plans = {}
    for phase, (tp, dp, ep) in degrees_of.items():
        if replicates[phase]:
            tp, dp = 1, tp * dp
        kv = _script(engine, row, run, False).kv or _kept(engine, model, weights)
        plans[phase] = ServedPlan(
            model, name, tp, dp, ep, _behind_dynamo(_stack(engine, row)), weights, activations_of(model, name), kv
        )
    return ServedRun(
        plan=plans["decode"],
        policy=engine,
        prompt=prompt,
        output=output,
        concurrency=concurrency,
        requests=10 * concurrency,
        least=least,
        options=tuple(sorted(recipe.decode.items())),
        replicas=decode,
        prefill=(plans["prefill"], prefill),
        reading=tuple(sorted(recipe.prefill.items())),
    )


def _behind_dynamo(stack: str) -> str:
    """The stack of workers behind Dynamo's front end, which recipes of prefill and decode workers launch; earlier
    versions of SGLang and other engines have its time already.

    >>> _behind_dynamo("sglang@0.5.9"), _behind_dynamo("sglang@0.5.6"), _behind_dynamo("trtllm")
    ('sglang@0.5.9-dynamo', 'sglang@0.5.6', 'trtllm')
    """
    return DYNAMO.get(stack, stack)


def _rack(row: Row, device: str) -> RackRecipe | None:
    """The workers that a row's recipe launches; None where no recipe is known."""
    if (row["backend"], MODELS.get(str(row["model_path"]))) != ("sglang", "deepseek-r1") or not concurrency_of(row):
        return None
    narrow = str(row.get("precision")) == "fp4"
    version = str(row.get("backend_version", ""))
    return rack_of(device, version, narrow, count_of(row, "isl"), count_of(row, "decode_tp_size"))


def _of_rack(row: Row, device: str, rack: RackRecipe) -> ServedRun:
    """The run of a row on a rack; the row's own numbers of workers, where it states them, come first."""
    model, engine, concurrency = MODELS[str(row["model_path"])], str(row["backend"]), concurrency_of(row)
    stack, types = _behind_dynamo(_stack(engine, row)), _weights(row, model)
    prefill_workers, decode_workers = (count_of(row, f"{phase}_num_workers") for phase in ("prefill", "decode"))

    def plan_of(workers: RackWorkers) -> ServedPlan:
        tp, dp = (1, workers.gpus) if workers.replicates else (workers.gpus, 1)
        return ServedPlan(
            model, device, tp, dp, dp, stack, workers.weights or types, activations_of(model, device), "fp8",
            dispatch=workers.dispatch, slots=workers.slots, even=workers.gpus >= EVEN_FROM,
        )  # fmt: skip

    return ServedRun(
        plan=plan_of(rack.decode),
        policy=engine,
        prompt=count_of(row, "isl"),
        output=count_of(row, "osl"),
        concurrency=concurrency,
        requests=10 * concurrency,
        least=0.8,
        options=tuple(sorted(rack.decode.options.items())),
        replicas=decode_workers or rack.decode.number,
        prefill=(plan_of(rack.prefill), prefill_workers or rack.prefill.number),
        reading=tuple(sorted(rack.prefill.options.items())),
    )


def _worker(row: Row, phase: str) -> tuple[int, int, int]:
    """The (attention tensor-parallel, attention data-parallel, expert-parallel) degrees of a worker, from its row."""
    tp, dp, ep = (count_of(row, f"{phase}_{part}_size", 1) for part in ("tp", "attention_dp", "moe_ep"))
    if tp == dp > 1 or (tp > 1 and ep == tp * dp and dp > 1):
        tp = 1
    return tp, dp, ep
