"""Rewrite the tables of these pages that the package itself can compute.

    python docs/generate.py

A table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. Everything outside is written by hand.
``tests/house/test_docs.py`` holds the committed tables against what the package says now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import generate_kernels
import pages

import tspsim
from tspsim.hardware import Costs
from tspsim.model import load_model
from tspsim.network import collective, load_cluster
from tspsim.operators import Attention, Gemm, Operator
from tspsim.parallel import (
    BATCH_ASSIGNMENTS,
    CHECKPOINTS,
    CONTEXT_METHODS,
    DECODE_EXCHANGES,
    DECODE_FORMS,
    INDEX_EXCHANGES,
    RESIDUALS,
    SCHEMES,
    WEIGHT_TRANSPORTS,
    Plan,
    Scheme,
    build_mesh,
    peak_memory,
    scheme_of,
)
from tspsim.parallel.feature import FEATURES
from tspsim.step.bound import bounds
from tspsim.step.result import Result
from tspsim.step.simulation import Question, look_up, run, run_plan, scheduled

DOCS = Path(__file__).parent
HEADLINE = "tsp-vs-tpsp-1024-mi300x"
PLANS = ("TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8", "TSP8-published")
TSP = ("TSP8", "TSP8-published")
TENSOR = ("TP8", "TP4-SP2", "TP2-SP4")
SEQUENCE = ("TP4-SP2", "TP2-SP4", "SP8")
KIB, MIB, GIB = 2**10, 2**20, 2**30


#: Columns of words; others hold numbers and stand to the right.
WORDS = ("algorithm", "basis", "source", "name", "what it is", "keys of its own", "layers")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first column is one of words."""
    sides = ["---", *("---" if name in WORDS else "---:" for name in header[1:])]
    lines = [header, sides, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{100.0 * share:.{digits}f} %"


def signed(share: float) -> str:
    return f"{100.0 * share:+.1f} %".replace("-", "−")


@cache
def headline(*overrides: str) -> Result:
    """The headline scenario with some keys changed."""
    return tspsim.simulate(tspsim.load(HEADLINE, overrides))


def switched(names: Iterable[str], *settings: str) -> tuple[str, ...]:
    return tuple(f"plans.{name}.{setting}" for name in names for setting in settings)


# --- published-tsp.md ---------------------------------------------------------------------------------------


def defaults() -> str:
    result = headline()
    first = result.plans[0]
    rows = []
    for plan in result.plans:
        exposed = sum(plan.breakdown_s["exposed_communication"].values())
        rows.append(
            [
                plan.name,
                f"{plan.tokens_per_s / 1e6:.2f} M",
                f"{plan.block_forward_tokens_per_s / 1e6:.0f} M",
                f"{first.tokens_per_s / plan.tokens_per_s:.2f}",
                percent(plan.mfu),
                percent(exposed / plan.step_time_s),
                f"{plan.communication_bytes_per_layer['total'] / MIB:,.0f}",
                f"{plan.memory.peak_bytes / GIB:.1f}",
            ]
        )
    header = ["plan", "whole model, tokens/s", "one block, tokens/s", "TSP8 ÷ plan", "MFU", "exposed", "MiB a layer"]
    return table([*header, "GiB per GPU"], rows)


#: What is switched, and the keys that switch it.
SWITCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the stated defaults", ()),
    ("TP hides its all-reduces", switched(TENSOR, "overlap=true")),
    ("TP hides them, with sequence regions", switched(TENSOR, "overlap=true", "sequence_regions=true")),
    ("sequence regions", switched(TENSOR, "sequence_regions=true")),
    ("ring exchange", switched(SEQUENCE, "exchange=ring")),
    ("overlapped gathers, by blocks", switched(SEQUENCE, "overlap=true", "overlap_by=blocks")),
    ("nothing is hidden", switched(PLANS, "overlap=false")),
    ("rivals: contiguous tokens", switched(SEQUENCE, "partition=contiguous")),
    ("all: contiguous tokens", switched(PLANS, "partition=contiguous")),
)


class EvenCosts(Costs):
    """Every attention call at the rate of one large call, every product at that of one large product.

    What is left between two plans is then their schedules: exchanges, overlap and the order of tokens.
    """

    LARGE = (Attention(((131072, 131072),), 32, 32, 128), Gemm(16384, 4096, 4096))

    def __call__(self, operator: Operator) -> float:
        for large in self.LARGE:
            if operator.kind == large.kind:
                return operator.flops / large.flops * super().__call__(large)
        return super().__call__(operator)


def of_every_plan(rate: Callable[[Question, Plan], float]) -> Callable[..., tuple[float, ...]]:
    """The rates of all plans of the headline with some keys changed; a plan that these leave alone is not run again."""
    known: dict[tuple[str, str], float] = {}

    @cache
    def rates(*overrides: str) -> tuple[float, ...]:
        scenario = tspsim.load(HEADLINE, overrides)
        question, work = look_up(scenario), scenario.workload.model_dump_json()
        keys = [(work, stated.model_dump_json()) for stated in scenario.plans]
        for key, plan in zip(keys, question.plans, strict=True):
            if key not in known:
                known[key] = rate(question, plan)
        return tuple(known[key] for key in keys)

    return rates


@of_every_plan
def even_rates(question: Question, plan: Plan) -> float:
    """Tokens/s with :class:`EvenCosts`."""
    job = scheduled(question, plan)
    mesh = build_mesh(plan, question.cluster.gpus, question.cluster.gpus_per_node)
    step = run(question, mesh, job, EvenCosts(question.device), every_rank=False)
    return question.work.tokens_per_replica * plan.dp / step.makespan_s


@of_every_plan
def kernel_rates(question: Question, plan: Plan) -> float:
    """Tokens/s with the device's kernel models."""
    return run_plan(question, plan).tokens_per_s


def switches(rates_of: Callable[..., tuple[float, ...]]) -> str:
    cases = [(what, rates_of(*keys)) for what, keys in SWITCHES]
    # Rivals that multiply the whole score matrix while TSP skips what the mask hides: two runs, one row.
    cases.append(("rivals: no block skipping", (rates_of()[0], *rates_of("workload.causal=false")[1:])))
    rows = [
        [what, *(f"{rate / 1e6:.2f}" for rate in rates), *(f"{rates[0] / rate:.2f}" for rate in rates[1:5])]
        for what, rates in cases
    ]
    return table(["switched", *PLANS, *(f"TSP8 ÷ {name}" for name in PLANS[1:5])], rows)


#: From the published schedule to the chosen one, a switch at a time.
STEPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("published", {}),
    ("hops over all links", {"weight_transport": "multi_ring"}),
    ("gathered in four pieces", {"weight_transport": "gather", "mlp_pieces": "4"}),
    ("four groups of heads", {"head_groups": "4"}),
    ("two groups", {"head_groups": "2"}),
    ("gathered in one piece", {"mlp_pieces": "1"}),
    ("one group, block by block", {"head_groups": "1", "overlap_by": "blocks"}),
)


def steps() -> str:
    """What each switch of TSP's schedule is worth, added to those before it: M tokens/s by length and device."""
    columns = []
    for device, fabric in (("mi300x", "rails-400g"), ("mi355x", "rails-400g"), ("b200", "rail-optimised-400g")):
        cluster = f"cluster={{device: {device}, nodes: 128, fabric: {fabric}}}"
        for sequence in ("32Ki", "128Ki"):
            keys: dict[str, str] = {}
            plans = []
            for number, (_, more) in enumerate(STEPS):
                keys |= more
                stated = "".join(f", {key}: {value}" for key, value in keys.items())
                plans.append(f"{{name: s{number}, tsp: 8, tsp_schedule: published{stated}}}")
            plans += ["{name: auto, tsp: 8}", "{name: SP8, sp: 8, overlap: true}"]
            asked = tspsim.load(HEADLINE, [cluster, f"workload.sequence={sequence}", f"plans=[{', '.join(plans)}]"])
            rates = [f"{plan.tokens_per_s / 1e6:.2f}" for plan in tspsim.simulate(asked).plans]
            columns.append((f"{device.upper()}, {sequence}", rates))
    names = [*(what for what, _ in STEPS), "chosen (`auto`)", "SP8, overlapped by blocks: holds all weights"]
    rows = [[what, *(rates[number] for _, rates in columns)] for number, what in enumerate(names)]
    return table(["TSP8", *(head for head, _ in columns)], rows)


def figure_throughput() -> str:
    """The paper's throughput figure: the rate of TSP and its ratio to the best rival of the same degree."""
    rows = []
    for sequence in ("32Ki", "64Ki", "128Ki"):
        for nodes in (1, 128):
            cluster = f"cluster={{device: mi300x, nodes: {nodes}, fabric: rails-400g}}"
            found = tspsim.simulate(tspsim.load("tsp-figures-throughput", [cluster, f"workload.sequence={sequence}"]))
            rate = {plan.name: plan.tokens_per_s for plan in found.plans}
            cells = [f"{sequence}, {8 * nodes}"]
            for degree, rivals in ((2, ("TP2", "SP2")), (4, ("TP2-SP2",)), (8, ("TP4-SP2", "TP2-SP4"))):
                best = max(rate[name] for name in rivals)
                tuned, published = rate[f"TSP{degree}"], rate[f"TSP{degree}-published"]
                cells += [f"{tuned / 8e3 / nodes:.2f}", f"{tuned / best:.2f}", f"{published / best:.2f}"]
            rows.append(cells)
    header = ["tokens, GPUs"]
    columns = ("TSP{}, k tokens/s per GPU", "÷ best TP+SP", "published ÷ it")
    header += [what.format(degree) for degree in (2, 4, 8) for what in columns]
    return table(header, rows)


def figure_micro_batch() -> str:
    """The paper's micro-batch figure: thousands of tokens/s by micro-batch, and what does not fit."""
    found = tspsim.simulate(tspsim.load("tsp-figures-micro-batch"))
    by_name: dict[str, list[str]] = {}
    for plan in found.plans:
        name = plan.name.rpartition(" ")[0]
        told = f"{plan.tokens_per_s / 1e3:.1f}" if plan.ran else "–"
        by_name.setdefault(name, []).append(f"{told} ({plan.memory.peak_bytes / GIB:.0f})")
    header = ["plan", *(f"B = {count}" for count in (1, 4, 8, 16))]
    return table(header, [[name, *cells] for name, cells in by_name.items()])


def switches_even() -> str:
    return switches(even_rates)


def switches_kernels() -> str:
    return switches(kernel_rates)


def attention_rates() -> str:
    """What each plan's attention calls of the forward reach, rank by rank, against one large call."""
    question = look_up(tspsim.load(HEADLINE))
    device = question.device
    large = EvenCosts.LARGE[0]
    rows = [["one large call", f"{large.flops / device.time(large).seconds / 1e12:.0f}", "1"]]
    for plan in headline().plans:
        frame = headline().timeline(plan.name)
        calls = frame[(frame.kind == "attention") & (frame.layer == 1)]
        seconds = (calls.end_s - calls.start_s).groupby(calls["rank"]).sum()
        rates = calls.flops.groupby(calls["rank"]).sum() / seconds / 1e12
        number = round(len(calls) / calls["rank"].nunique())
        low, high = f"{rates.min():.0f}", f"{rates.max():.0f}"
        rows.append([plan.name, low if low == high else f"{low} – {high}", str(number)])
    return table(["calls", "TFLOP/s a GPU", "calls a layer"], rows)


#: tokens/s on 1,024 GPUs at 128Ki tokens, as published.
PUBLISHED_RATES = (
    ("TSP", 173e6, (5, 0)),
    ("TP+SP, one source", 86e6, (2, 3)),
    ("TP+SP, another source", 66.3e6, (2, 3)),
)


def published_rates() -> str:
    """Published rates as FLOP/s a GPU, and beside simulated rates of one block."""
    plans = headline().plans
    layers = look_up(tspsim.load(HEADLINE)).model.layers
    ceiling = bounds(tspsim.load(HEADLINE))
    rows = []
    for what, rate, which in PUBLISHED_RATES:
        whole, block = ceiling.judge(rate)
        # The model is only its blocks: one block alone does as many times more tokens as there are layers.
        even = sorted(layers * even_rates()[i] for i in which)
        kernels = sorted(plans[i].block_forward_tokens_per_s for i in which)
        rows.append(
            [
                what,
                f"{rate / 1e6:g} M",
                f"{whole.flops_per_s_per_gpu / 1e15:.2f} PFLOP/s",
                f"{block.flops_per_s_per_gpu / 1e12:.0f} TFLOP/s",
                spread(even, lambda value: f"{value / 1e6:.0f} M"),
                spread([rate / value for value in reversed(even)], lambda value: f"{value:.2f}"),
                spread(kernels, lambda value: f"{value / 1e6:.0f} M"),
            ]
        )
    header = ["scheme", "published, tokens/s", "a GPU, as whole model", "a GPU, as one block"]
    return table([*header, "one block at even rates", "published ÷ that", "one block, kernel models"], rows)


def spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """One number, or the first and the last."""
    return " – ".join(text(value) for value in (values[0], *values[len(values) - 1 :][: len(values) > 1]))


# --- memory.md ----------------------------------------------------------------------------------------------

#: Published peak memory, GiB per GPU; False where it is interpolated on the line through the published points.
PUBLISHED_MEMORY: dict[str, dict[int, tuple[float, bool]]] = {
    "TSP8": {16: (31.0, True), 32: (32.1, False), 64: (34.3, False), 128: (38.8, True)},
    "TSP8-published": {16: (31.0, True), 32: (32.1, False), 64: (34.3, False), 128: (38.8, True)},
    "TP8": {16: (31.5, True), 32: (37.0, False), 64: (48.0, False), 128: (70.0, True)},
    "TP4-SP2": {16: (54.4, True), 32: (58.8, True), 64: (67.5, True), 128: (85.0, True)},
    "TP2-SP4": {16: (103.3, True), 32: (108.5, True), 64: (119.0, True), 128: (140.0, True)},
}


def memory_of(plan: str, sequence_ki: int) -> dict[str, float]:
    """Bytes by part of one plan of the memory scenario."""
    question = look_up(tspsim.load("tsp-memory-8x-mi300x", [f"workload.sequence={sequence_ki}Ki"]))
    job = scheduled(question, next(entry for entry in question.plans if entry.name == plan))
    return dict(peak_memory(job, scheme_of(job.plan).residency))


def memory_points() -> str:
    rows = []
    for plan, points in PUBLISHED_MEMORY.items():
        for sequence, (published, certain) in points.items():
            predicted = sum(memory_of(plan, sequence).values()) / GIB
            label = f"{'' if certain else '~'}{published:.1f}"
            rows.append([f"{plan}, {sequence}Ki", label, f"{predicted:.1f}", signed(predicted / published - 1.0)])
    return table(["plan, tokens", "published, GiB", "predicted, GiB", "error"], rows)


def memory_parts() -> str:
    plans = (*PUBLISHED_MEMORY, "SP8")
    held = {plan: memory_of(plan, 128) for plan in plans}
    names = dict.fromkeys(name for parts in held.values() for name in parts)
    rows = [[name.replace("_", " "), *(f"{held[plan].get(name, 0.0) / GIB:.2f}" for plan in plans)] for name in names]
    rows.append(["**peak**", *(f"**{sum(held[plan].values()) / GIB:.1f}**" for plan in plans)])
    return table(["part, GiB", *plans], rows)


# --- schedules.md -------------------------------------------------------------------------------------------


def volumes() -> str:
    """Read from simulated transfers, not from formulas."""
    rows = []
    for sequence in (16, 32, 64, 128):
        result = headline("cluster={device: mi300x}", f"workload.sequence={sequence}Ki")
        moved = [plan.communication_bytes_per_layer["total"] / MIB for plan in result.plans]
        rows.append([f"{sequence}Ki", *(f"{value:,.0f}" for value in moved)])
    return table(["tokens", *(plan.name for plan in headline().plans)], rows)


def registered() -> str:
    """Every scheme, context method, transport of weights and schedule of decoding, the project's and those of installed
    packages."""
    rooms: dict[str, Iterable[Any]] = {
        "scheme": SCHEMES.values(),
        "feature": [feature for feature in FEATURES.values() if feature.options],
        "`exchange`": CONTEXT_METHODS.values(),
        "`weight_transport`": WEIGHT_TRANSPORTS.values(),
        "`decode_exchange`": DECODE_EXCHANGES.values(),
        "`index_exchange`": INDEX_EXCHANGES.values(),
        "`decode_form`": DECODE_FORMS.values(),
        "`residual`": RESIDUALS.values(),
        "`deal`": BATCH_ASSIGNMENTS.values(),
        "`checkpoint`": CHECKPOINTS.values(),
    }
    rows = [
        [what, each.name, each.summary, ", ".join(f"`{key}`" for key in keys_of(each)) or "–"]
        for what, room in rooms.items()
        for each in room
    ]
    return table(["", "name", "what it is", "keys of its own"], rows)


def keys_of(each: Any) -> tuple[str, ...]:
    """Keys of a plan that an object brings: a scheme's axes, and options."""
    axes = each.axes if isinstance(each, Scheme) else ()
    return *axes, *(option.name for option in getattr(each, "options", ()))


# --- network-anchors.md -------------------------------------------------------------------------------------

#: Cluster, GPUs, collective, bytes, measured bus bandwidth in GB/s, where it was measured.
ANCHORS: tuple[tuple[str, int, str, int, float, str], ...] = (
    ("mi300x-8", 2, "all_reduce", 4 * GIB, 47.7, "stas00/ml-engineering"),
    ("mi300x-8", 8, "all_reduce", GIB, 315, "ROCm blog on xGMI, 2025-03-02"),
    ("mi300x-8", 8, "all_reduce", 16 * GIB, 319, "ROCm blog on xGMI, 2025-03-02"),
    ("mi355x-8", 2, "all_reduce", 64 * MIB, 55.6, "ROCm/rocm-systems #9049"),
    ("mi355x-8", 4, "all_reduce", 64 * MIB, 155.8, "ROCm/rocm-systems #9040"),
    ("mi355x-8", 8, "all_reduce", GIB, 382, "ROCm/rocm-systems PR 10072"),
    ("mi355x-8", 8, "all_reduce", 4 * GIB, 388, "ROCm/rocm-systems PR 10072"),
    ("hgx-h100-8", 2, "all_reduce", 512 * MIB, 318, "aiconfigurator 095f58a"),
    ("hgx-h100-8", 4, "all_reduce", 512 * MIB, 350, "aiconfigurator 095f58a"),
    ("hgx-h100-8", 8, "all_reduce", 512 * MIB, 445, "aiconfigurator 095f58a"),
    ("hgx-h100-8", 8, "all_reduce", 8 * GIB, 480, "NVIDIA DGX Cloud benchmarks"),
    ("hgx-h100-8", 8, "all_gather", 512 * MIB, 335, "aiconfigurator 095f58a"),
    ("hgx-h100-8", 8, "all_to_all", 512 * MIB, 320, "aiconfigurator 095f58a"),
    ("hgx-b200-8", 2, "all_reduce", 512 * MIB, 534, "aiconfigurator 095f58a"),
    ("hgx-b200-8", 4, "all_reduce", 512 * MIB, 634, "aiconfigurator 095f58a"),
    ("hgx-b200-8", 8, "all_reduce", 512 * MIB, 704, "aiconfigurator 095f58a"),
    ("hgx-b200-8", 8, "all_reduce", 16 * GIB, 846, "stas00/ml-engineering"),
    ("hgx-b200-8", 8, "all_gather", 512 * MIB, 617, "aiconfigurator 095f58a"),
    ("hgx-a100-80gb-8", 8, "all_reduce", 512 * MIB, 222, "aiconfigurator 095f58a"),
    ("h100-2x8", 16, "all_reduce", 256 * MIB, 385.5, "dstack documentation, Nebius"),
    ("h100-2x8", 16, "all_reduce", 8 * GIB, 468, "dstack documentation, Nebius"),
    ("b200-2x8", 16, "all_reduce", 512 * MIB, 619.2, "dstack documentation, Lambda"),
    ("b200-2x8", 16, "all_reduce", 2 * GIB, 659.2, "dstack documentation, GCP A4"),
    ("b200-2x8", 16, "all_reduce", 8 * GIB, 683.5, "dstack documentation, GCP A4"),
    ("mi300x-2x8", 16, "all_reduce", 16 * GIB, 350, "ROCm/cvs, expected"),
    ("mi300x-2x8", 16, "all_gather", 16 * GIB, 350, "ROCm/cvs, expected"),
    ("mi300x-2x8", 16, "reduce_scatter", 16 * GIB, 360, "ROCm/cvs, expected"),
    ("mi300x-2x8", 16, "broadcast", 16 * GIB, 312, "ROCm/cvs, expected"),
    ("mi300x-2x8", 16, "all_to_all", 16 * GIB, 50, "ROCm/cvs, least that passes"),
)


def bus_bandwidth(cluster: str, gpus: int, kind: str, size_bytes: int) -> tuple[float, str]:
    """GB/s as nccl-tests defines it, and the algorithm that was chosen."""
    traffic = collective(load_cluster(cluster), range(gpus), kind, size_bytes)
    factor = {"all_reduce": 2 * (gpus - 1) / gpus, "broadcast": 1.0}.get(kind, (gpus - 1) / gpus)
    return factor * size_bytes / (traffic.latency_s + traffic.fluid_s) / 1e9, traffic.algorithm


def anchors() -> str:
    rows = []
    for cluster, gpus, kind, size, measured, source in ANCHORS:
        predicted, algorithm = bus_bandwidth(cluster, gpus, kind, size)
        words = f"{cluster}, {gpus} GPUs, {kind.replace('_', '-')}, {size // MIB:,} MiB"
        error = signed(predicted / measured - 1.0)
        rows.append([words, algorithm.replace("_", " "), f"{measured:g}", f"{predicted:.0f}", error, source])
    return table(["cluster, group, collective, size", "algorithm", "measured", "predicted", "error", "source"], rows)


def efficiencies() -> str:
    rows = []
    for node in ("mi300x-8", "mi355x-8", "hgx-a100-80gb-8", "hgx-h100-8", "hgx-b200-8", "gb200-nvl72"):
        for family, number in load_cluster(node).node.collectives.efficiency.items():
            rows.append([f"{node}, {family.replace('_', ' ')}", f"{number.value:g}", number.basis, number.source])
    return table(["node, family", "share of link bandwidth", "basis", "source"], rows)


def catalog_of_models() -> str:
    """Models whose weights are published, with what serving keeps of a token by type of cache."""
    rows, types = [], ("bf16", "fp8", "fp8_ds_mla")
    for path in sorted((DOCS.parent / "workloads/models").glob("*.yaml"), key=lambda path: path.stem):
        model = load_model(path)
        if not model.vocab or model.linear_bias:
            continue
        kinds = Counter(block.attention for block in model.blocks)
        layers = " + ".join(f"{count} {kind}" for kind, count in kinds.items())
        known = model.attention_kind.cache_types
        bytes_of = [f"{model.cache_bytes_per_token(each):,.0f}" if each in known else "" for each in types]
        figures = f"{model.parameters / 1e9:,.1f}", f"{model.active_parameters / 1e9:,.1f}"
        fixed = f"{model.sequence_bytes() / 1e6:,.1f}"
        rows.append([path.stem, layers, *figures, f"{model.weight_bytes() / 1e9:,.0f}", *bytes_of, fixed])
    return table(["model", "layers", "parameters, B", "active, B", "checkpoint, GB", *types, "fixed, MB"], rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "published-tsp.md": {
        "defaults": defaults,
        "switches-even": switches_even,
        "switches-kernels": switches_kernels,
        "attention-rates": attention_rates,
        "published-rates": published_rates,
        "steps": steps,
        "figure-throughput": figure_throughput,
        "figure-micro-batch": figure_micro_batch,
    },
    "memory.md": {"points": memory_points, "parts": memory_parts},
    "schedules.md": {"volumes": volumes, "registered": registered},
    "network-anchors.md": {"anchors": anchors, "efficiencies": efficiencies},
    "models.md": {"catalog": catalog_of_models},
    "kernel-models.md": {"clocks": generate_kernels.clocks},
    "kernel-forms.md": {"parameters": generate_kernels.parameters},
    "borrowed-kernels.md": {"widths": generate_kernels.borrowed_widths},
}


def main() -> None:
    """Rewrite every table in place."""
    for page, tables in TABLES.items():
        pages.rewrite(DOCS / page, {name: build() for name, build in tables.items()})
        print(f"{page}: {', '.join(tables)}")


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
