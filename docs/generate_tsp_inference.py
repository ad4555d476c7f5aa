"""Rewrite the tables of tsp-inference.md and tsp-prefill.md: TSP in prefill and in decode, beside its rivals.

    python docs/generate_tsp_inference.py [TABLE ...]

A table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; with names only those are rewritten. About a
minute of one core. ``tests/house/test_tsp_inference_page.py`` holds rows of them against what the package says now.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pages
import yaml

import tspsim
from tspsim.model import load_model
from tspsim.model.spec import describe
from tspsim.step.result import PlanResult

PAGE, PREFILL_PAGE = (Path(__file__).parent / f"{name}.md" for name in ("tsp-inference", "tsp-prefill"))
KI, MI = 2**10, 2**20
DEVICES = ("mi300x", "mi355x", "b200")
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "tsp-8b")
#: (tokens a prompt, prompts).
PROMPTS = ((8 * KI, 1), (32 * KI, 1), (128 * KI, 1), (MI, 1), (8 * KI, 4), (128 * KI, 4), (MI, 4))
PREFILL: Mapping[str, dict[str, Any]] = {
    "TSP8": {"tsp": 8},
    "TP8": {"tp": 8},
    "SP8": {"sp": 8},
    "TP4-SP2": {"tp": 4, "sp": 2},
    "TSP8-published": {"tsp": 8, "tsp_schedule": "published"},
}


@cache
def lengthened(model: str) -> str:
    """The model with positions for a million tokens: the same shapes, so the same costs."""
    written = describe(load_model(model)) | {"max_context": MI + KI}
    path = Path(tempfile.mkdtemp()) / f"{model}.yaml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    return str(path)


def asked(device: str, plans: Mapping[str, dict[str, Any]], **workload: Any) -> dict[str, PlanResult]:
    """Each plan's answer on one node."""
    scenario = {
        "name": "a question of this page",
        "cluster": {"device": device, "nodes": 1},
        "workload": workload,
        "plans": [{"name": name, **keys} for name, keys in plans.items()],
    }
    return {plan.name: plan for plan in tspsim.simulate(scenario).plans}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first column is one of words."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def length(tokens: int) -> str:
    return f"{tokens // MI}Mi" if tokens % MI == 0 else f"{tokens // KI}Ki"


def seconds(value: float) -> str:
    """Three digits, in milliseconds below one second."""
    value, unit = (1e3 * value, "ms") if value < 1.0 else (value, "s")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def sessions(plan: PlanResult) -> str:
    found = plan.inference["capacity"]["sessions"]
    return f"{found:,.0f}" if found >= 100 else f"{found:.1f}"


def exposed(plan: PlanResult) -> float:
    return sum(plan.breakdown_s["exposed_communication"].values())


# --- prefill ------------------------------------------------------------------------------------------------


def prefill_row(model: str, device: str, tokens: int, prompts: int) -> list[str]:
    """Time to the first token and resident sessions of the prompt's length, plan by plan."""
    work = {"pass": "prefill", "sequence": tokens, "sequences_per_replica": prompts}
    found = asked(device, PREFILL, model=lengthened(model), **work)
    told = [f"{seconds(plan.step_time_s)} ({sessions(plan)})" if plan.ran else "–" for plan in found.values()]
    return [f"{device.upper()}, {f'{prompts} × ' if prompts > 1 else ''}{length(tokens)}", *told]


def prefill(model: str) -> str:
    rows = [prefill_row(model, device, *prompt) for device in DEVICES for prompt in PROMPTS]
    return table(["GPU, tokens", *PREFILL], rows)


def longest_row(device: str) -> list[str]:
    """Tokens of the longest prompt that one node reads at once: peak memory is a straight line in tokens."""
    work = {"model": lengthened("llama-3.1-70b"), "pass": "prefill"}
    short, long = 128 * KI, 512 * KI
    ends = [asked(device, PREFILL, **work, sequence=tokens) for tokens in (short, long)]
    told = []
    for name in PREFILL:
        memory = [found[name].memory for found in ends]
        token = (memory[1].peak_bytes - memory[0].peak_bytes) / (long - short)
        most = short + (memory[0].capacity_bytes - memory[0].peak_bytes) / token
        told.append(f"{most / MI:.2f}Mi ({token / KI:.1f})")
    return [device.upper(), *told]


def longest() -> str:
    return table(["GPU", *PREFILL], [longest_row(device) for device in DEVICES])


#: Rivals with what they can hide.
HIDDEN: Mapping[str, dict[str, Any]] = {
    "TSP8": {"tsp": 8},
    "SP8, exposed": {"sp": 8},
    "SP8 by blocks": {"sp": 8, "overlap": True, "overlap_by": "blocks"},
    "SP8 Ulysses": {"sp": 8, "exchange": "ulysses"},
    "TP8, exposed": {"tp": 8},
}


def hidden() -> str:
    """TSP against rivals that hide their exchanges; tensor parallelism's by the forward pass, which can."""
    rows = []
    for device in DEVICES:
        for tokens in (8 * KI, 32 * KI, 128 * KI):
            work = {"model": "llama-3.1-70b", "sequence": tokens}
            found = asked(device, HIDDEN, **work, **{"pass": "prefill"})
            forward = asked(device, {"TP8": {"tp": 8, "overlap": True}}, **work, **{"pass": "forward"})
            told = [seconds(plan.step_time_s) if plan.ran else "–" for plan in (*found.values(), *forward.values())]
            rows.append([f"{device.upper()}, {length(tokens)}", *told])
    return table(["GPU, tokens", *HIDDEN, "TP8, hidden"], rows)


def where() -> str:
    """Where the milliseconds of the shipped scenario go."""
    rows = []
    for plan in tspsim.simulate("tsp-inference-128k").plans:
        kinds, volume = plan.compute_by_kind_s, plan.communication_bytes_per_layer["total"]
        parts = plan.memory.parts
        beside = plan.memory.peak_bytes - parts["weights"] - parts["kv_cache"] - parts["runtime_reserve"]
        told = [plan.step_time_s, kinds["gemm"], kinds["attention"], kinds["memory_bound"], exposed(plan)]
        sizes = [volume / MI, parts["weights"] / 2**30, beside / 2**30]
        rows.append([plan.name, *(f"{1e3 * each:,.0f}" for each in told)])
        rows[-1] += [f"{sizes[0]:,.0f}", *(f"{each:.1f}" for each in sizes[1:]), sessions(plan)]
    header = ["plan", "ms", "products", "attention", "other kernels", "exposed", "MiB a layer", "GiB of weights"]
    return table([*header, "GiB while it runs", "sessions of 128Ki"], rows)


# --- decode -------------------------------------------------------------------------------------------------

DENSE: Mapping[str, dict[str, Any]] = {
    "TP8": {"tp": 8},
    "TSP8 tree": {"tsp": 8, "decode_form": "tree"},
    "TSP8 sequences": {"tsp": 8, "decode_form": "sequences"},
    "TSP8 travel": {"tsp": 8, "decode_form": "travel"},
    "Helix, 2 × TP4": {"tp": 8, "kvp": 2},
    "Helix, 8 × TP1": {"tp": 8, "kvp": 8},
}
EXPERTS: Mapping[str, dict[str, Any]] = {
    **{name: {**keys, "ep": 8} for name, keys in DENSE.items() if name != "Helix, 2 × TP4"},
    "DP8": {"dp": 8, "ep": 8, "expert_dispatch": "low_latency"},
}


def decoded(plans: Mapping[str, dict[str, Any]], device: str, batch: int, **work: Any) -> dict[str, PlanResult]:
    """Answers for so many sequences on the node, dealt to replicas where a plan has several."""
    found: dict[str, PlanResult] = {}
    for replicas in sorted({keys.get("dp", 1) for keys in plans.values()}):
        if batch % replicas == 0:
            mine = {name: keys for name, keys in plans.items() if keys.get("dp", 1) == replicas}
            found |= asked(device, mine, **work, **{"pass": "decode", "batch": batch // replicas})
    return found


def decode_row(plans: Mapping[str, dict[str, Any]], device: str, batch: int, **work: Any) -> list[str]:
    """Milliseconds a step."""
    found = decoded(plans, device, batch, **work)
    told = [
        "" if name not in found else f"{1e3 * found[name].step_time_s:.1f}" if found[name].ran else "–"
        for name in plans
    ]
    return [f"{device.upper()}, {batch}", *told]


def room_row(plans: Mapping[str, dict[str, Any]], device: str, **work: Any) -> list[str]:
    """Resident sessions of the context on the node."""
    found = decoded(plans, device, 8, **work)
    told = [
        f"{int(keys.get('dp', 1) * found[name].inference['capacity']['sessions']):,}" if found[name].ran else "–"
        for name, keys in plans.items()
    ]
    return [f"{device.upper()}, sessions that fit", *told]


def decode_dense() -> str:
    work = {"model": "llama-3.1-70b", "context": 8 * KI}
    rows = [decode_row(DENSE, device, batch, **work) for device in DEVICES for batch in (1, 8, 64, 512)]
    rows += [room_row(DENSE, device, **work) for device in DEVICES]
    return table(["GPU, batch", *DENSE], rows)


def decode_experts() -> str:
    work = {"model": "kimi-k2.6", "context": 8 * KI, "precision": {"kv": "fp8"}}
    rows = [decode_row(EXPERTS, device, batch, **work) for device in DEVICES[1:] for batch in (1, 8, 64, 512)]
    rows += [room_row(EXPERTS, device, **work) for device in DEVICES[1:]]
    return table(["GPU, batch", *EXPERTS], rows)


# --- by hand ------------------------------------------------------------------------------------------------

LATENT: dict[str, Any] = {"model": "kimi-k2", "context": 256 * KI, "batch": 8, "precision": {"kv": "fp8"}}


def attention_parts(plan: PlanResult, layer: int = 30) -> tuple[float, float]:
    """Seconds of a layer between its projections: kernels, and exchanges with the merging of what they bring."""
    assert plan.timeline is not None
    rows = plan.timeline.frame()
    rows = rows[(rows["layer"] == layer) & (rows["rank"] == rows["rank"].min())]
    start = rows[rows["name"].str.startswith("norm, QKV")]["end_s"].max()
    end = float(rows[rows["name"].str.startswith("output projection")]["start_s"].min())
    kernel = rows[(rows["kind"] == "attention") & (rows["start_s"] >= start) & (rows["end_s"] <= end)]
    kernels_s = float((kernel["end_s"] - kernel["start_s"]).sum())
    return kernels_s, end - float(start) - kernels_s


def kimi() -> str:
    """The shipped tree-attention-decode and its variants, beside what was reckoned by hand."""
    variants = {
        "TP8": {"tp": 8},
        "Tree8": {"tp": 8, "dcp": 8, "decode_exchange": "tree"},
        "two all-reduces": {"tp": 8, "dcp": 8, "decode_exchange": "tree_fused"},
        "gather and scatter": {"tp": 8, "dcp": 8, "decode_exchange": "gather_scatter"},
        "all-to-all": {"tp": 8, "dcp": 8, "decode_exchange": "all_to_all"},
        "Helix, 8 × TP1": {"tp": 8, "kvp": 8},
        "Ring8": {"tp": 8, "dcp": 8, "decode_exchange": "ring"},
    }
    by_hand = {"TP8": "0.32", "Tree8": "0.15"}
    rows = []
    for plan in asked("mi300x", variants, **LATENT, **{"pass": "decode"}).values():
        kernel, exchange = (1e3 * each for each in attention_parts(plan))
        if plan.name == "Ring8":  # every block is a kernel of its own beside a hop
            kernel, exchange = 0.0, kernel + exchange
        told = [f"{kernel:.3f}" if kernel else "", f"{exchange:.3f}", f"{kernel + exchange:.3f}"]
        told += [by_hand.get(plan.name, ""), f"{1e3 * plan.step_time_s:.1f}"]
        rows.append([plan.name, *told, f"{plan.memory.parts['kv_cache'] / 61e6:,.0f}", sessions(plan)])
    header = ["plan", "attention kernel, ms a layer", "exchanges", "together", "by hand", "step, ms"]
    return table([*header, "cache, MB a rank and layer", "sessions of 256Ki"], rows)


def shared_gain(device: str, exchange: str, stack: str, resident: int) -> tuple[float, float]:
    """Seconds a step with copies of the latents and with shared contexts, at so many resident tokens of 8 sequences."""
    plans = {"TP8": {"tp": 8}, "shared": {"tp": 8, "dcp": 8, "decode_exchange": exchange}}
    work = {"model": "kimi-k2.6", "context": resident // 8, "batch": 8, "precision": {"kv": "fp8"}, "stack": stack}
    found = asked(device, plans, **work, **{"pass": "decode"})
    return found["TP8"].step_time_s, found["shared"].step_time_s


def break_even(device: str, exchange: str, stack: str) -> tuple[float, float, float, float]:
    """Resident tokens from which sharing takes less time, by regula falsi to 1 %; seconds a layer that it costs more at
    8Ki resident tokens, and seconds a million resident tokens and layer of each."""

    def behind(resident: int) -> float:
        copies, shared = shared_gain(device, exchange, stack, resident)
        return shared - copies

    short, long = 8 * KI, 2 * MI - 8
    first, last = shared_gain(device, exchange, stack, short), shared_gain(device, exchange, stack, long)
    low, high, at_low, at_high = short, long, first[1] - first[0], last[1] - last[0]
    while high - low > 0.01 * high:
        middle = round(low + (high - low) * at_low / (at_low - at_high))
        # A step from both ends keeps the bracket shrinking where the difference is nearly a straight line.
        middle = min(max(middle, low + (high - low) // 16), high - (high - low) // 16) // 8 * 8
        found = behind(middle)
        low, high, at_low, at_high = (low, middle, at_low, found) if found < 0 else (middle, high, found, at_high)
    slopes = [(last[side] - first[side]) / 61 / (long - short) for side in (0, 1)]
    return high, (first[1] - first[0]) / 61, slopes[0], slopes[1]


#: Resident tokens from which sharing pays as serving tables have it: two latencies, or one, over seven eighths of the
#: latents at the achieved bandwidth.
STATED = {("mi355x", "tree"): "245 k", ("mi355x", "all_to_all"): "122 k"}
STATED |= {("b200", "tree"): "150 k", ("b200", "all_to_all"): "75 k"}
EVEN = (
    ("mi355x", "tree", "ideal"),
    ("mi355x", "all_to_all", "ideal"),
    ("b200", "tree", "ideal"),
    ("b200", "all_to_all", "ideal"),
    ("b200", "tree", "vllm"),
)


def even_row(device: str, exchange: str, stack: str) -> list[str]:
    tokens, extra, copies, shared = break_even(device, exchange, stack)
    name = f"{device.upper()}, {exchange.replace('_', '-')}{f', {stack}' if stack != 'ideal' else ''}"
    rates = [f"{1e6 * extra:.0f}", f"{1e12 * copies:.0f}", f"{1e12 * shared:.0f}"]
    return [name, STATED[device, exchange], f"{tokens / 1e3:,.0f} k", *rates]


def even() -> str:
    rows = [even_row(*case) for case in EVEN]
    header = ["GPU, exchange", "stated", "simulated", "more at 8Ki resident, µs a layer"]
    return table([*header, "copies, µs a million tokens and layer", "shared, the same"], rows)


#: Milliseconds a step as derived from latencies and bandwidths: TP8, tree, Helix, weights travel.
DERIVED: Mapping[str, tuple[dict[str, Any], dict[str, tuple[float, float, float, float]]]] = {
    "Llama-70B, 1 × 128Ki": (
        {"model": "llama-3.1-70b", "batch": 1},
        {"mi355x": (3.8, 5.6, 4.7, 161), "b200": (2.7, 3.7, 3.2, 100)},
    ),
    "Llama-70B, 64 × 128Ki": (
        {"model": "llama-3.1-70b", "batch": 64},
        {"mi355x": (34.7, 37.0, 35.6, 192), "b200": (29.6, 30.9, 30.1, 126)},
    ),
    "Qwen3-235B, 32 × 128Ki": (
        {"model": "qwen3-235b-a22b", "batch": 32},
        {"mi355x": (20.8, 14.2, 12.8, 58), "b200": (17.4, 10.9, 10.1, 38)},
    ),
    "Kimi K2, 8 × 128Ki": (
        {"model": "kimi-k2", "batch": 8},
        {"mi355x": (8.7, 4.4, 3.6, 75), "b200": (7.1, 2.9, 2.5, 46)},
    ),
    "Kimi K2, 64 × 128Ki": (
        {"model": "kimi-k2", "batch": 64},
        {"mi355x": (55.2, 11.7, 9.9, 81), "b200": (47.7, 8.9, 7.8, 51)},
    ),
}


def derived_row(what: str, device: str) -> list[str]:
    """Derived → simulated, with fp8 weights and caches under vLLM."""
    work, stated = DERIVED[what]
    model = load_model(work["model"])
    spread = {} if model.experts is None else {"ep": 8}
    # Helix attends as many heads a rank as there are key/value heads to divide.
    contexts = max(2, 8 // (1 if model.latent else model.kv_heads))
    plans = {
        "TP8": {"tp": 8},
        "tree": {"tp": 8, "dcp": 8},
        "Helix": {"tp": 8, "kvp": contexts},
        "travel": {"tsp": 8, "decode_form": "travel"},
    }
    question = work | {"model": lengthened(work["model"]), "context": 128 * KI, "stack": "vllm"}
    question |= {"precision": {"weights": "fp8", "kv": "fp8"}, "pass": "decode"}
    found = asked(device, {name: keys | spread for name, keys in plans.items()}, **question)
    told = [
        f"{before:g} → {1e3 * plan.step_time_s:.1f}" if plan.ran else f"{before:g} → –"
        for plan, before in zip(found.values(), stated[device], strict=True)
    ]
    return [f"{what}, {device.upper()}", *told]


def derived() -> str:
    rows = [derived_row(what, device) for what in DERIVED for device in ("mi355x", "b200")]
    return table(["step", "TP8", "tree", "Helix", "weights travel"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "where": where,
    "longest": longest,
    "hidden": hidden,
    "decode-dense": decode_dense,
    "decode-experts": decode_experts,
    "kimi": kimi,
    "even": even,
    "derived": derived,
}
PREFILL_TABLES: dict[str, Callable[[], str]] = {
    f"prefill-{model}": lambda model=model: prefill(model)  # type: ignore[misc]
    for model in MODELS
}


def main(names: Sequence[str]) -> None:
    """Rewrite tables in place, all where none is named."""
    for page, tables in ((PAGE, TABLES), (PREFILL_PAGE, PREFILL_TABLES)):
        pages.rewrite(page, {name: write() for name, write in tables.items() if name in names or not names})


if __name__ == "__main__":
    main(pages.asked(__doc__, TABLES | PREFILL_TABLES))
