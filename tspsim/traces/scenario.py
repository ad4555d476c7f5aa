"""A first scenario from a trace: what can be told stands as keys, what cannot as comments.

Device by name or by compute units and memory; ranks and groups as degrees; the model by its layers and widths among
those of the catalog; the batch by an engine's annotation; the engine by the names of its own kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .. import catalog
from ..errors import InputError
from ..model import load_model
from .kinds import MEASURE, STEP
from .match import stated_sizes
from .steps import Batch, batch_of, step_marks
from .table import Trace

#: An engine's own kernels and annotations.
_STACKS = (
    ("sglang", re.compile(r"sgl_|sglang|resolve_future_token_ids|step\[(DECODE|EXTEND)|store_kvcache")),
    ("vllm", re.compile(r"vllm::|unified_attention|execute_(context|\d+_context)")),
    ("trtllm", re.compile(r"tensorrt_llm|xqa_kernel")),
    ("megatron-core", re.compile(r"transformer_engine|te_gemm|megatron")),
)
#: Words in a process group's description, and the degree that it is.
_DEGREES = (
    ("tp", re.compile(r"\btp\b|tensor[_ ]?(model[_ ])?parallel", re.IGNORECASE)),
    ("pp", re.compile(r"\bpp\b|pipeline", re.IGNORECASE)),
    ("ep", re.compile(r"\bep\b|expert", re.IGNORECASE)),
    ("sp", re.compile(r"\bcp\b|context[_ ]?parallel|ulysses", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Guess:
    """What a trace tells of the run."""

    device: str
    world_size: int
    degrees: dict[str, int]
    stack: str
    layers: int
    hidden: int
    models: tuple[str, ...]
    batch: Batch | None
    trains: bool


def guess(trace: Trace) -> Guess:
    """What can be told; raises InputError of a log, which has no kernels."""
    if set(trace.time_by("kind")) <= {STEP, MEASURE}:
        raise InputError("has no kernels; a scenario is told from a profile", file=str(trace.files[0]))
    texts = [*trace.words["name"], *(mark.name for mark in trace.marks), *trace.words["operator"]]
    stack = next((name for name, pattern in _STACKS if any(pattern.search(text) for text in texts)), "")
    phases, kinds = set(trace.word("phase").tolist()), set(trace.word("kind").tolist())
    marks = step_marks(trace.marks, trace.ranks[0])
    batches = [batch for mark in marks if (batch := batch_of(mark.name)) is not None]
    usual = Counter(batches).most_common(1)[0][0] if batches else None
    layers, hidden = int(trace.columns["layer"].max()) + 1, _hidden(trace)
    degrees = {}
    for key, pattern in _DEGREES:
        sizes = [group.size for group in trace.groups if pattern.search(group.name) and group.size > 1]
        if sizes:
            degrees[key] = Counter(sizes).most_common(1)[0][0]
    routed = bool(kinds & {"grouped_gemm", "dispatch", "combine"})
    models = tuple(_models(layers, hidden, _heads(trace), routed=routed))
    ranks = max(trace.world_size, len(trace.ranks))
    return Guess(trace.device, ranks, degrees, stack, layers, hidden, models, usual, "backward" in phases)


def _hidden(trace: Trace) -> int:
    """Width of the residual stream: what most products of the trace enter with or leave with, by their time."""
    widths: Counter[int] = Counter()
    inside = trace.columns["layer"] >= 0
    products = np.flatnonzero(np.isin(trace.word("kind"), ["gemm", "grouped_gemm"]) & inside)
    shapes, seconds = trace.word("shapes"), trace.columns["duration_s"]
    calls: Counter[str] = Counter(shapes[row] for row in products.tolist() if shapes[row])
    for text, count in calls.items():
        sizes = stated_sizes(text)
        if sizes is not None:
            for width in {sizes[1], sizes[2]}:
                widths[width] += count
    for row in np.flatnonzero(np.isin(trace.word("kind"), ["norm"]) & inside).tolist():
        match = re.match(r"\[\[(?:\d+,)*?(\d+)\]", shapes[row]) if shapes[row] else None
        if match is not None and seconds[row] > 0.0:
            widths[int(match.group(1))] += 1
    return widths.most_common(1)[0][0] if widths else 0


def _heads(trace: Trace) -> int:
    """Heads of queries, from the shapes of attention: (tokens, heads, width of one); 0 where they are not stated."""
    rows = np.flatnonzero(trace.word("kind") == "attention")
    for text in dict.fromkeys(trace.word("shapes")[rows].tolist()):
        match = re.match(r"\[\[\d+,(\d+),\d+\]", text)
        if match is not None:
            return int(match.group(1))
    return 0


def _models(layers: int, hidden: int, heads: int, *, routed: bool) -> Iterator[str]:
    """Models of the catalog that have these; all that are told must agree."""
    if not layers:
        return
    for name in catalog.names("models"):
        try:
            model = load_model(name)
        except InputError:
            continue  # a file in the current folder that is none
        alike = hidden in (0, model.hidden) and heads in (0, model.heads) and routed == (model.experts is not None)
        if model.layers == layers and alike:
            yield name


def lines(trace: Trace) -> Iterator[str]:
    """The scenario as YAML."""
    found = guess(trace)
    yield f"# From {', '.join(path.name for path in trace.files[:4])}; what the trace does not tell is a comment"
    yield f"name: {_slug(trace.files[0].name)}"
    gpus = max(found.world_size, 1)
    if not found.device:
        yield "# the device is not in the catalog; `tspsim init device` writes a file for it"
    fabric = ", fabric: rails-400g" if gpus > 8 else ""
    if fabric:
        yield "# the fabric between nodes is not in a trace"
    yield f"cluster: {{device: {found.device or 'h100'}, nodes: {-(-gpus // 8)}{fabric}}}"
    if gpus % 8:
        yield f"# ranks that the trace states: {gpus}; a node's other GPUs take further replicas"
    yield "workload:"
    if len(found.models) == 1:
        yield f"  model: {found.models[0]}"
    else:
        told = f"{found.layers or 'an unknown number of'} layers, width {found.hidden or 'not stated'}"
        some = f"; of the catalog {', '.join(found.models[:6])} have them" if found.models else "; none of the catalog"
        yield f"  # {told}{some}"
        yield f"  model: {found.models[0] if found.models else 'llama-3.1-8b'}"
    if found.stack:
        yield f"  stack: {found.stack}"
    else:
        yield "  # stack: the framework is not told by kernels' names"
    yield from _work(found)
    yield "plans:"
    degrees = ", ".join(f"{key}: {value}" for key, value in found.degrees.items()) or "tp: 1"
    if not found.degrees and gpus > 1:
        yield "  # groups are not named; state tp, pp, ep (the rest are replicas)"
    name = "-".join(f"{key.upper()}{value}" for key, value in found.degrees.items()) or "TP1"
    yield f"  - {{name: {name}, {degrees}}}"


def _work(found: Guess) -> Iterator[str]:
    batch = found.batch
    if found.trains:
        yield "  pass: training"
        yield "  # sequence and sequences_per_replica are not in a profile"
        yield "  sequence: 4096"
        yield "  sequences_per_replica: 1"
    elif batch is None:
        yield "  # the batch is not annotated"
        yield "  pass: forward"
        yield "  sequence: 4096"
        yield "  sequences_per_replica: 1"
    elif batch.kind == "prefill":
        yield "  pass: prefill"
        yield f"  batch: {batch.prompts}"
        yield f"  context: {max(1, round(batch.prompt_tokens / max(batch.prompts, 1)))}"
    else:
        yield f"  pass: {batch.kind}"
        yield f"  batch: {batch.rows}"
        if batch.row_context > 0:
            yield f"  context: {max(1, round(batch.row_context / max(batch.rows, 1)))}"
        else:
            yield "  # the lengths of contexts are not annotated"
            yield "  context: 1024"
        if batch.prompts > 1:
            yield "  # prompts, and tokens of one: the annotation has their sum"
            yield f"  sequences_per_replica: {batch.prompts}"
        if batch.prompts:
            yield f"  chunk: {max(1, round(batch.prompt_tokens / batch.prompts))}"


def _slug(name: str) -> str:
    return (
        re.sub(r"[^a-z0-9]+", "-", name.lower().split(".json")[0].split(".sqlite")[0]).strip("-")[:60] or "from-a-trace"
    )
