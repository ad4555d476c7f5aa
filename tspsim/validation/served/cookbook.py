"""Rows of published/serving_cookbook.csv: SGLang's cookbook, NIM, ROCm's vLLM, MLPerf and others; none was used for
fits.

Some rows have columns for model, engine, lengths and plan; the others state everything in ``note``. Values that the
table leaves out are given here, from the pages (sgl-project/sgl-cookbook, docs/autoregressive). SGLang's
``bench_serving`` draws lengths from one token to the nominal length (:class:`.clients.Bench`). Pages send 10, 80, 320
and 500 requests to 1, 16, 64 and 100 clients, one run after the other; :data:`PAGES` has the exceptions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import InputError
from tspsim.model.load import load_model

from ..cells import Row, count_of, number_of
from ..devices import named_device
from .clients import Bench
from .published import Metric, metric_by_metric, weights_of
from .run import Options, ServedPlan, ServedRun
from .scripts import BESIDE
from .silicon import Mended, activations_of, vllm_of

if TYPE_CHECKING:
    import pandas as pd

#: Start of a page's name → the catalog's model. The cookbook's pages are about families: the member is that of the
#: page's launch command.
MODELS = {
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3_1": "deepseek-v3",
    "deepseek-v3_2": "deepseek-v3.2",
    "deepseek-v3": "deepseek-v3",
    "glm-4.5": "glm-4.5",
    "glm-4.6": "glm-4.7",  # the same architecture
    "glm-4.7": "glm-4.7",
    "glm-5": "glm-5",
    "glm-5.1": "glm-5.1",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss": "gpt-oss-120b",
    "kimi-k2.5": "kimi-k2.5",
    "kimi-k2.6": "kimi-k2.6",
    "kimi-k2": "kimi-k2",
    "kimi-linear": "kimi-linear-48b",
    "llama-3.1-405b": "llama-3.1-405b",
    "llama-3.1-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.3-70b",
    "llama-4-maverick": "llama-4-maverick",
    "llama-4-scout": "llama-4-scout",
    "llama3.1": "llama-3.1-70b",
    "minimax-m2": "minimax-m2.5",  # the same architecture
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-coder": "qwen3-coder-480b-a35b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",  # the same architecture
    "qwen3-next": "qwen3-next-80b-a3b",
    "qwen3.5": "qwen3.5-397b-a17b",
    "qwen3": "qwen3-235b-a22b",
}
#: Models whose pages launch the checkpoint in fp8 (GLM-5 fits on eight GPUs no other way), although the catalog's is
#: wider.
NARROW = ("glm-5", "glm-5.1", "qwen3-coder-480b-a35b")
#: Clients → requests on the cookbook's pages; other numbers of clients send five requests each.
REQUESTS = {1: 10, 16: 80, 64: 320, 100: 500}
EACH = 5
#: Clients of a page's runs with the same lengths, in their order.
LADDER = (1, 16, 64, 100)
#: Tokens, for pages that do not state them.
USUAL_LENGTH = 1000


@dataclass(frozen=True)
class Page:
    """Values in a page's commands that no column has.

    Attributes
    ----------
    requests
        By clients; empty: the usual numbers.
    conversations
        ``--dataset-name`` is left out, so ``--random-input-len`` has no effect.
    drafts
        By clients: drafts per step, and tokens per step as the client prints them (``Accept length``).
    lengths
        By clients: lengths of prompts and outputs in the first, second, … run, for pages whose rows have none.
    """

    requests: Mapping[int, int] = field(default_factory=dict)
    conversations: bool = False
    drafts: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    lengths: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)


#: Requests for ShareGPT prompts: on pages with a server for one client, and on those with one for all.
_FEW, _MANY = {1: 10, 100: 1000}, {1: 100, 100: 1000}
#: Tokens of prompts and outputs of two of the pages' scenarios.
CHAT, SUMMARY = (1000, 1000), (8000, 1000)
#: By the page's name.
PAGES = {
    "DeepSeek-V3": Page(_FEW, conversations=True),
    "DeepSeek-V3_2": Page(_FEW, conversations=True, drafts={1: (3, 2.46)}),
    "GPT-OSS": Page(_MANY, conversations=True),
    "Qwen3-Next": Page(_MANY, conversations=True),
    "GLM-5": Page({1: 10, 100: 1000}, drafts={1: (3, 3.48), 100: (3, 3.50)}),
    "GLM-5.1": Page({1: 10, 100: 1000}, drafts={1: (3, 3.48), 100: (3, 3.50)}),
    "Kimi-K2": Page(_FEW, conversations=True),
    "Qwen3.5": Page({1: 10, 100: 1000}, drafts={1: (3, 3.12), 100: (3, 3.31)}),
    "Llama3.1": Page(lengths={1: (CHAT, SUMMARY), 16: (CHAT, SUMMARY), 64: (SUMMARY,), 100: (CHAT,)}),
}
#: Requests at once when drafts are verified and the page does not state them (server_args.py of 0.5.6:
#: ``max_running_requests`` "is reset to 48 for speculative decoding").
DRAFTED = 48
#: Drafts of a chain when the page does not state them (server_args.py of 0.5.6, ``auto_choose_speculative_params``:
#: three steps and four tokens to verify for DeepSeek, GLM and others with modules of their own).
CHAIN = 3
#: Metrics by the table's names. A request's time is its first token and the time of the others.
METRICS: dict[str, Metric] = {
    "tpot_ms": Metric(lambda run, gpus: 1e3 * run.tpot_s, kind="TPOT"),
    "ttft_ms": Metric(lambda run, gpus: 1e3 * run.ttft_s, kind="TTFT"),
    "out_tps": Metric(lambda run, gpus: run.output_tokens_per_s, True, "output tokens/s"),
    "e2e_s": Metric(lambda run, gpus: run.e2e_s, kind="TPOT"),
}
#: MLPerf's offline runs by model: mean prompt and output of the data set.
OFFLINE = {"llama-3.1-405b": (9428, 684), "llama-3.1-70b": (294, 294), "llama-3.1-8b": (778, 73)}
#: Requests sent in an offline run.
SAMPLES = 2000


#: What a row is read by, empty where the table does not have it.
READ = ("source", "gpu", "model", "engine", "version", "input", "output", "concurrency", "plan")


def mend(frame: pd.DataFrame) -> Mended:
    """Every row of the table as a run, or a reason."""
    whole = frame.assign(**{column: "" for column in READ if column not in frame})
    return metric_by_metric(with_lengths(whole), METRICS, cookbook_run)


def with_lengths(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with the lengths that pages state for their runs. Rows without lengths are in their page's order."""
    out, runs = frame.copy(), Counter[tuple[str, ...]]()
    for place, row in zip(frame.index, frame.to_dict("records"), strict=True):
        lengths = page_of(row).lengths.get(count_of(row, "concurrency"), ())
        if not lengths or count_of(row, "input"):
            continue
        key = tuple(str(row[column]) for column in ("source", "concurrency", "metric"))
        out.loc[place, ["input", "output"]] = list(map(str, lengths[min(runs[key], len(lengths) - 1)]))
        runs[key] += 1
    return out


def page_of(row: Row) -> Page:
    """The page of a row."""
    return PAGES.get(PurePosixPath(str(row.get("source", ""))).stem, Page())


def cookbook_run(row: Row) -> ServedRun:
    """The run of a row. Raises InputError with the reason for a row that is not predicted."""
    if not number_of(row["published"]) > 0.0:
        raise InputError("nothing was published")
    group = str(row["group"]).lower()
    reader = next((reads for words, reads in READERS.items() if words in group), None)
    if reader is None and not str(row.get("model", "")).strip():
        raise InputError("what was run stands in no column, and the note's form is not known")
    return (reader or stated)(row)


def stated(row: Row) -> ServedRun:
    """The run of a row whose columns state it, by SGLang's client."""
    engine = str(row["engine"]).strip().lower()
    if engine not in STACKS:
        raise InputError(f"the engine '{engine}' is not modelled")
    device, model = named_device(row["gpu"]), model_of(str(row["model"]))
    degrees = keys(row)
    concurrency = count_of(row, "concurrency")
    if not concurrency:
        raise InputError("incomplete: how many requests at once is not stated")
    prompt, output = (count_of(row, column, USUAL_LENGTH) for column in ("input", "output"))
    stack = STACKS[engine](str(row["version"]).strip())
    page = page_of(row)
    drafts, accepted = page.drafts.get(concurrency, (0, 0.0))
    tp, dp, ep = (int(degrees.get(axis, 1)) for axis in ("tp", "dp", "ep"))
    if engine == "sglang" and dp > 1 and load_model(model).experts is not None:
        ep = tp * dp  # of all GPUs of the server, whatever --ep divides beside them (layers/dp_attention.py)
    plan = ServedPlan(
        model, device, tp, dp, ep, stack,
        weights=narrow(model, device), activations=activations_of(model, device), drafts=drafts, accepted=accepted,
    )  # fmt: skip
    numbers = REQUESTS | dict(page.requests)
    before = [numbers[clients] for clients in page.requests or LADDER if clients < concurrency]
    client = Bench(met=max(before, default=1), conversations=page.conversations)
    return ServedRun(
        plan=plan, policy=engine, prompt=prompt, output=output, concurrency=concurrency,
        requests=numbers.get(concurrency, EACH * concurrency), client=client,
        options=(("max_running_requests", DRAFTED),) if drafts else (),
    )  # fmt: skip


def sglang_of(version: str) -> str:
    """The stack of a version as the pages launch it: SGLang's own server with default flags.

    >>> sglang_of("0.5.6.post1"), sglang_of("0.5.7"), sglang_of("main")
    ('sglang@0.5.6-plain', 'sglang@0.5.8-plain', 'sglang@0.5.8-plain')
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version.strip())
    return "sglang@0.5.6-plain" if match and tuple(map(int, match.groups())) <= (0, 5, 6) else "sglang@0.5.8-plain"


#: Engine → the stack of a version.
STACKS: dict[str, Callable[[str], str]] = {
    "sglang": sglang_of,
    "vllm": vllm_of,
    "trtllm": lambda version: "trtllm@1.0" if version.startswith("1.0") else "trtllm",
}


def model_of(written: str) -> str:
    """The catalog's model. Raises InputError if there is none."""
    word = written.strip().lower()
    name = next((MODELS[name] for name in sorted(MODELS, key=len, reverse=True) if word.startswith(name)), None)
    if name is None:
        raise InputError(f"no model '{written}' in the catalog")
    return name


def narrow(model: str, device: str) -> Options:
    """Weight types that fit the GPUs; empty: the checkpoint's own."""
    return weights_of("fp8", model, device, model) if model in NARROW else ()


def keys(row: Row) -> dict[str, Any]:
    """The plan of a row. Raises InputError if it is not a JSON object."""
    try:
        degrees = json.loads(str(row.get("plan", "")).strip() or "{}")
    except ValueError:
        raise InputError("plan is not JSON") from None
    if not isinstance(degrees, dict):
        raise InputError("plan is not a JSON object")
    return degrees


def _noted(row: Row, pattern: str) -> re.Match[str]:
    match = re.search(pattern, str(row["note"]).lower())
    if match is None:
        raise InputError("what was run stands in no column, and the note's form is not known")
    return match


def rocm(row: Row) -> ServedRun:
    """A run of ROCm's tables of vLLM: a batch sent at once, or requests at an infinite rate."""
    match = _noted(row, r"(\S+) (fp8|bf16|fp16) tp(\d+) (?:batch (\d+)|(\d+) x) ?(\d+)/(\d+)")
    model, device = model_of(match.group(1)), named_device(row["gpu"])
    batch, samples, prompt, output = (int(text or 0) for text in match.groups()[3:])
    plan = ServedPlan(
        model, device, int(match.group(3)), stack=vllm_of("0.10"),
        weights=weights_of(match.group(2), model, device, model), kv="fp8" if match.group(2) == "fp8" else "",
    )  # fmt: skip
    options = (("max_num_seqs", max(batch, samples)),)
    return ServedRun(
        plan=plan, policy="vllm", prompt=prompt, output=output, concurrency=batch or None,
        requests=batch or samples, options=options,
    )  # fmt: skip


def nim(row: Row) -> ServedRun:
    """NVIDIA NIM 1.8 with Llama-3.3-70B in fp8 on two H100."""
    match = _noted(row, r"c(\d+) (\d+)/(\d+)")
    clients, prompt, output = map(int, match.groups())
    plan = ServedPlan(
        "llama-3.3-70b", named_device(row["gpu"]), 2, stack="trtllm",
        weights=weights_of("fp8", "llama-3.3-70b", "h100", ""), kv="fp8",
    )  # fmt: skip
    return ServedRun(
        plan=plan, policy="trtllm", prompt=prompt, output=output, concurrency=clients, requests=10 * clients
    )


def offline(row: Row) -> ServedRun:
    """A run of MLPerf's offline scenario, in the type of the closed division's submissions."""
    match = _noted(row, r"(\S+) ([a-z]+\d+\w*) \{'name': 'p', 'tp': (\d+)\}")
    model, device = model_of(match.group(1)), named_device(match.group(2))
    if model not in OFFLINE:
        raise InputError("the mean lengths of its data set are not known")
    words = "nvfp4" if device.startswith(("b", "gb")) else "fp8"
    prompt, output = OFFLINE[model]
    plan = ServedPlan(
        model, device, int(match.group(3)), stack="trtllm", weights=weights_of(words, model, device, model), kv="fp8"
    )
    return ServedRun(
        plan=plan, policy="trtllm", prompt=prompt, output=output, concurrency=None, requests=SAMPLES,
        options=(("max_num_tokens", max(8192, prompt + BESIDE)),),
    )  # fmt: skip


def vultr(row: Row) -> ServedRun:
    """A run from a cloud provider's post: vLLM 0.16 on eight B200."""
    match = _noted(row, r"(\S+) tp(\d+) (\d+)/(\d+) c(\d+)")
    model, device = model_of(match.group(1)), named_device(row["gpu"])
    degree, prompt, output, clients = map(int, match.groups()[1:])
    plan = ServedPlan(
        model, device, degree, stack=vllm_of("0.16"), weights=narrow(model, device),
        activations=activations_of(model, device),
    )  # fmt: skip
    return ServedRun(
        plan=plan, policy="vllm", prompt=prompt, output=output, concurrency=clients, requests=EACH * clients
    )


def gist(row: Row) -> ServedRun:
    """A run from a public gist: SGLang 0.5.8 with one client. Runs with drafts state only the accepted length."""
    match = _noted(row, r"(\S+) tp(\d+) acc (\S+)")
    model, device = model_of(match.group(1)), named_device(row["gpu"])
    accepted = number_of(match.group(3))
    drafts = CHAIN if accepted > 0.0 else 0
    plan = ServedPlan(
        model, device, int(match.group(2)), stack="sglang@0.5.9", weights=narrow(model, device),
        activations=activations_of(model, device), drafts=drafts, accepted=accepted if drafts else 0.0,
    )  # fmt: skip
    return ServedRun(
        plan=plan, policy="sglang", prompt=USUAL_LENGTH, output=USUAL_LENGTH, concurrency=1, requests=REQUESTS[1],
        options=(("max_running_requests", DRAFTED),) if drafts else (),
    )  # fmt: skip


#: Words of a group whose rows state the run in their note.
READERS = {"rocm vllm": rocm, "nim ": nim, "mlperf": offline, "vultr": vultr, "gist ": gist}
