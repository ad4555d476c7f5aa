"""Rows of published/serving_silicon.csv: what is wrong with them, and what run each is.

Rows of one configuration come from several exports of the same measurement, some with labels of another parallelism
than was run. What is mended, and how often, is counted; rows that stay incomplete or doubtful say why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tspsim.base.errors import InputError

from ..cells import Row, count_of
from ..devices import named_device
from . import clients
from .recipes import RECIPES, DecodeWorkers, Recipe
from .run import Options, ServedPlan, ServedRun
from .scripts import MeasuredRun, Script, defaults, inferencex

if TYPE_CHECKING:
    import pandas as pd

#: Two rows with both of them equal are one measurement, exported twice; some exports keep two decimals.
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
DECIMALS = 2
#: What the rows were launched with by default, where their precision is stated or not.
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
#: Degrees that no machine of eight GPUs has: wide groups of GB200 racks, whose attention is not stated.
WIDE = (12, 20, 24, 36, 72)
#: Engines under which aiconfigurator's own runs have outputs of one length, as its generator's client asks
#: for (BenchConfig.osl_stddev, deployment_config.yaml, 0586a33; min_tokens and max_tokens alike, ignore_eos, ten
#: requests a client: eval/benchmarks/genai_perf_runner.py, 5e16187); runs of vLLM, which reads many prompts a pass,
#: contradict it.
ONE_LENGTH = ("sglang", "trtllm")
#: Version of SGLang for which aiconfigurator's generator spells the option of mixed passes as no SGLang knows it
#: (--enable-mix-chunk, cli_args.0.5.1.post1.j2, 5dc6d4f), so that none was run with it.
NOT_MIXED = "0.5.1."
#: Versions of SGLang before what made 0.5.8 faster.
OLD_SGLANG = ("0.5.1.", "0.5.5", "0.5.6")
#: Versions of SGLang, and the day of nightlies, before what made Qwen3.5 of 0.5.10 a seventh faster a token: the gate
#: of shared experts takes no time of its own since.
GATED, GATED_TO = ("0.5.7", "0.5.8", "0.5.9"), "20260401"
#: Minor version of vLLM since which experts whose columns are divided run on Triton on Hopper.
TRITON_SINCE = 18
#: At most so many GPUs of one engine.
NODE = 8


@dataclass
class Mended:
    """The table's rows as runs, or why not, and what was mended how often."""

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
    """Empty texts where it is not there; what is no number as it is written."""
    times = (str(row.get(column, "")).strip() for column in MEASURED)
    return (str(row.get("mode", "")), *map(_rounded, times))


def _rounded(text: str) -> str:
    try:
        return f"{float(text):.{DECIMALS}f}"
    except ValueError:
        return text


def _labels(row: Row) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
    """Degrees of an agg row as stated and as mended; None where they are not to be had."""
    if row.get("mode") != "agg":
        return None, None
    try:
        true = degrees(row)
    except InputError:
        return None, None
    tp, dp, _, ep = (count_of(row, column, 1) for column in DEGREES)
    return (tp, dp, ep), true


def _run(row: Row) -> ServedRun:
    """Raises InputError with why a row is not scored."""
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
    gap = "gap-analysis" in str(row["silicon_data_source"]) and "/" in str(row["silicon_data_source"])
    script = _script(engine, row, run, gap, drafts)
    plan = ServedPlan(
        model, name, tp, dp, ep, _stack(engine, row), _weights(row, model), activations_of(model, name), script.kv,
        drafts, "chat" if drafts else "",
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
    """The stack as it was: rows of vLLM are of 0.11 to 0.19, of TensorRT-LLM those of 1.0 say so, and of SGLang those
    that say no version are of 2025."""
    version = str(row.get("backend_version", "")).strip()
    if engine == "trtllm":
        return "trtllm@1.0" if version.startswith("1.0") else engine
    return sglang_of(version) if engine == "sglang" else vllm_of(version)


def vllm_of(version: str) -> str:
    """vLLM's stack of a version; without one, that of the tables' newest.

    >>> vllm_of("0.12.0"), vllm_of("0.19.0"), vllm_of("")
    ('vllm@0.17', 'vllm@0.19', 'vllm@0.19')
    """
    minor = re.match(r"0\.(\d+)", version)
    return "vllm@0.19" if minor is None or int(minor.group(1)) >= TRITON_SINCE else "vllm@0.17"


def sglang_of(version: str) -> str:
    """SGLang's stack of a version; nightlies by their day.

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
        tp, ep = 1, dp
    if tp * dp > NODE:
        raise InputError(f"incomplete: more than {NODE} GPUs of one engine")
    return tp, dp, ep


def concurrency_of(row: Row, replicas: int = 1) -> int:
    """Requests at once: what the source says, or the batch of every attention replica.

    >>> concurrency_of({"silicon_data_source": "x; silicon_concurrency=32; y", "batch_size": "8.0"}, 4)
    32
    """
    match = re.search(r"silicon_concurrency=(\d+)", str(row.get("silicon_data_source", "")))
    return int(match.group(1)) if match else count_of(row, "batch_size") * replicas


# --- types -------------------------------------------------------------------------------------------------------

#: Four-bit checkpoints of NVIDIA: which classes are narrow; the others stay as they were.
NVFP4: dict[str, Options] = {
    "deepseek-r1": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "llama-3.3-70b": (("attention", "nvfp4"), ("dense", "nvfp4")),
    # As ModelOpt's checkpoints of other models with shared experts, which leave out self_attn, routers and lm_head
    # (hf_quant_config.json of nvidia/GLM-4.7-NVFP4 and MiniMax-M2.5-NVFP4).
    "llama-4-maverick": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "llama-4-scout": (("attention", "bf16"), ("dense", "nvfp4"), ("experts", "nvfp4"), ("shared", "nvfp4")),
    "qwen3-32b": (("attention", "nvfp4"), ("dense", "nvfp4")),
}
#: Of all other models routed experts alone.
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


def activations_of(model: str, device: str) -> Options:
    """Of mxfp4 experts on Blackwell: engines multiply them by mxfp8 (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8, w4a8)."""
    if model.startswith("gpt-oss") and device.startswith(("b", "gb")):
        return (("attention", "bf16"), ("experts", "mxfp8"))
    return ()


# --- doubtful rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubt:
    """Rows that are not scored, by what they all have, and what is wrong with them.

    ``model``, ``name`` and ``source`` are parts of the row's own words; what is None is not looked at.
    """

    why: str
    model: str = ""
    device: str | None = None
    version: str | None = None
    lengths: tuple[int, int] | None = None
    output: int | None = None
    concurrency: int | None = None
    name: str = ""
    source: str = ""

    def of(self, row: Row, device: str) -> bool:
        """Whether a row is one of them."""
        stated = (
            (self.device, device),
            (self.version, row.get("backend_version")),
            (self.lengths, (count_of(row, "isl"), count_of(row, "osl"))),
            (self.output, count_of(row, "osl")),
            (self.concurrency, None if self.concurrency is None else concurrency_of(row)),
        )
        model, name, source = str(row.get("model_path")).lower(), str(row.get("id")), str(row.get("source_url"))
        within = self.model in model and self.name in name and self.source in source
        return within and all(wanted is None or wanted == value for wanted, value in stated)


def refuse_doubtful(row: Row, device: str, doubtful: Sequence[Doubt]) -> None:
    """Raises InputError with why a row is one of them."""
    for doubt in doubtful:
        if doubt.of(row, device):
            raise InputError(f"doubtful: {doubt.why}")


DOUBTFUL = (
    Doubt("Qwen3-32B on GB200 under TensorRT-LLM 1.3.0rc1: 21 to 169 ms a token", "qwen3-32b", "gb200", "1.3.0rc1"),
    Doubt(
        "DeepSeek-R1-NVFP4 on B200 under TensorRT-LLM, 4000/1000: 85 to 92 ms a token",
        "deepseek-r1-nvfp4", "b200", lengths=(4000, 1000),
    ),
    Doubt("Qwen3-235B on H200 under vLLM 0.12: two to three times too slow", "qwen3-235b", "h200", "0.12.0"),
    Doubt(
        "gpt-oss-120b on H100, 512 at once of 8k/1k: 4.4 ms a token behind 20 s of waiting",
        "gpt-oss-120b", "h100", lengths=(8192, 1024), concurrency=512,
    ),
    Doubt("Qwen3-32B-NVFP4, 15000/500: one row of its kind", "qwen3-32b-nvfp4", lengths=(15000, 500)),
    Doubt(
        "Llama-3.1-8B on H200 under vLLM 0.12, outputs of 100 tokens", "llama-3.1-8b", "h200", "0.12.0", output=100
    ),
)  # fmt: skip


# --- disaggregated rows ------------------------------------------------------------------------------------------


def disaggregated(row: Row) -> ServedRun:
    """A run of prefill and decode workers; raises InputError where they are not stated."""
    prefill, decode = (count_of(row, f"{phase}_num_workers") for phase in ("prefill", "decode"))
    if not (prefill and decode):
        raise InputError("incomplete: disaggregated, and its workers are not stated")
    name = named_device(row["system"])
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
        kv = _script(engine, row, run, False).kv
        plans[phase] = ServedPlan(
            model, name, tp, dp, ep, _stack(engine, row), weights, activations_of(model, name), kv
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


def _worker(row: Row, phase: str) -> tuple[int, int, int]:
    """(tensor-parallel ranks of attention, attention replicas, expert-parallel ranks) of a worker, as its row says."""
    tp, dp, ep = (count_of(row, f"{phase}_{part}_size", 1) for part in ("tp", "attention_dp", "moe_ep"))
    if tp == dp > 1 or (tp > 1 and ep == tp * dp and dp > 1):
        tp = 1
    return tp, dp, ep
