"""A first scenario from a trace: facts in the trace become keys, the others comments.

The device comes from its name, or from compute units and memory; the degrees from ranks and groups; the model from
layers and widths, among those of the catalog; the batch from an engine's annotation; the engine from the names of its
own kernels.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..base import catalog
from ..base.errors import InputError
from ..model import load_model
from .alignment import attention_rows
from .groups import axis_of
from .kinds import MEASURE, STEP
from .named_facts import (
    exchanged_width,
    exchanging,
    forward_layers,
    is_checkpoints,
    local_experts,
    micro_batches,
    norm_width,
    precision,
    preferred,
    product_widths,
    reducing,
    regions,
    runs_again,
    runs_backward,
    sharding,
    tokens,
)
from .overlaps import gathers_for_experts, interleaved, keeps_narrow, sends_narrow, takes_turns
from .product_sizes import stated_sizes
from .steps import TracedBatch, batch_of, step_marks
from .table import Trace
from .widths import Widths, widths_of

#: Kernels and annotations of each engine, and of each stack that only trains.
_ENGINES = (
    (
        "sglang",
        re.compile(
            r"sgl_|sglang|resolve_future_token_ids|step\[(DECODE|EXTEND)|store_kvcache|set_(mla_)?kv_buffer|write_req_to_token"
        ),
    ),
    ("vllm", re.compile(r"vllm::|unified_attention|execute_(context|\d+_context)")),
    ("trtllm", re.compile(r"tensorrt_llm|xqa_kernel")),
)
_TRAINERS = (
    ("hai-llm", re.compile(r"\bdpsk::")),
    ("megatron-core", re.compile(r"transformer_engine|te_gemm|megatron")),
)
#: Without any: kernels of PyTorch's compiler, and operators of which eager PyTorch makes a norm.
_COMPILED, _EAGER = re.compile(r"^triton_(red|per|poi)_fused"), {"aten::pow", "aten::mean", "aten::rsqrt"}
#: Axes of process groups that are degrees of a plan.
_DEGREES = ("tp", "pp", "ep", "sp")


#: Operators whose first input is (batch, heads, tokens, width), and those with (batch, tokens, heads, width).
_HEADS_FIRST = re.compile(r"scaled_dot_product|_cudnn_attention_forward")
_TOKENS_FIRST = re.compile(r"_(flash|efficient)_attention_forward|flash_attn")


@dataclass(frozen=True)
class Sequences:
    """The sequences of one pass, from the shapes of attention's inputs. Where several sequences are concatenated, only
    heads are known (the others are 0)."""

    heads: int = 0
    batch: int = 0
    queries: int = 0
    keys: int = 0
    head_dim: int = 0


#: Exchanges of a few tokens, and attention of decoding sequences.
_FEW_TOKENS = re.compile(r"_ll::|low_latency")
_LATENT = re.compile(r"(\b|_)mla_|_mla_|[Ff]lashMLA|\bmla::|MLA[A-Z]|HQk576HV512")
_DECODES = re.compile(r"splitkv_mla|[Bb]atch_?[Dd]ecode|decode_att|mla_dec|flash_decod|paged_attention|mmha|xqa")


@dataclass(frozen=True)
class Guess:
    """Facts of a run that a trace shows."""

    device: str
    world_size: int
    degrees: dict[str, int]
    stack: str
    layers: int
    hidden: int
    models: tuple[str, ...]
    batch: TracedBatch | None
    trains: bool
    sequences: Sequences = Sequences()
    recomputes: str = "none"
    #: What replicas divide, as ZeRO counts it.
    zero: int = 0
    #: Whether tensor-parallel ranks divide tokens around norms, and forward passes of a step.
    regions: bool = False
    passes: int = 1
    #: The model's widths where the catalog has none with them, and the trace states all.
    widths: Widths | None = None
    #: Whether tokens travel to experts in a step that serves, by kernels for few tokens, and in two halves of a batch.
    exchanges: bool = False
    few_tokens: bool = False
    halves: bool = False
    #: Whether attention's kernels are those of decoding.
    decodes: bool = False
    #: The type of products by their names, where the model's checkpoint has another.
    precision: str = ""
    #: Whether the model has experts, and the stages of a pipeline of which the trace shows one.
    routed: bool = False
    stages: int = 1
    #: Tokens of a pass, by what tensor-parallel ranks exchange or kernels with a block for each; 0 where none tells.
    tokens: int = 0
    #: Share of a training step's exchanges beside products of the other direction; 0 where no micro-batches alternate.
    interleaved: float = 0.0
    #: The ``expert_dispatch`` where the trace shows another than the usual one, and whether activations are kept in
    #: eight bits.
    dispatch: str = ""
    keeps_narrow: bool = False
    #: Whether experts' products are DeepGEMM's.
    deep_gemm: bool = False


def guess(trace: Trace) -> Guess:
    """The facts of a trace; raises InputError for a log, which has no kernels."""
    if set(trace.time_by("kind")) <= {STEP, MEASURE}:
        raise InputError("has no kernels; a scenario needs a profile", file=str(trace.files[0]))
    texts = [*trace.words["name"], *(mark.name for mark in trace.marks), *trace.words["operator"]]
    phases, kinds = set(trace.word("phase").tolist()), set(trace.word("kind").tolist())
    few_tokens, decodes = (
        any(pattern.search(name) for name in trace.words["name"]) for pattern in (_FEW_TOKENS, _DECODES)
    )
    stacks = _ENGINES if few_tokens or decodes else (*_ENGINES, *_TRAINERS)
    stack = next((name for name, pattern in stacks if any(pattern.search(text) for text in texts)), "")
    backward = bool({"backward", "weight gradient"} & phases) or (
        stack in ("", *dict(_TRAINERS)) and runs_backward(trace)
    )
    exchanges = "dispatch" in kinds and not backward
    if exchanges and stack in dict(_TRAINERS):
        stack = ""  # a framework's kernels for experts, in a step that serves
    trains = backward or stack in dict(_TRAINERS)
    gathers = not trains and gathers_for_experts(trace)
    exchanges = exchanges or gathers
    stack = stack or ("" if exchanges else _plain_pytorch(trace))
    marks = step_marks(trace.marks, trace.ranks[0])
    batches = [batch for mark in marks if (batch := batch_of(mark.name)) is not None]
    usual = Counter(batches).most_common(1)[0][0] if batches else None
    layers, hidden = forward_layers(trace), _hidden(trace)
    degrees = {}
    for key in _DEGREES:
        sizes = [group.size for group in trace.groups if axis_of(group.name) == key and group.size > 1]
        if sizes:
            degrees[key] = Counter(sizes).most_common(1)[0][0]
    region = regions(trace, layers) if trains else 0
    if region > 1:
        degrees.setdefault("tp", region)
    if "tp" not in degrees and not trains and (ranks := reducing(trace.words["name"])) > 1:
        degrees["tp"] = ranks
    if "ep" not in degrees and (ranks := exchanging(trace.words["name"])) > 1:
        degrees["ep"] = ranks
    routed = bool(kinds & {"grouped_gemm", "dispatch", "combine"})
    sequences = _sequences(trace)
    if not degrees and not exchanges and usual is not None and _sums(trace) > 1.5 * layers > 0:
        degrees["tp"] = max(trace.world_size, len(trace.ranks))
    widths_seen = _widths(trace)
    latent = any(_LATENT.search(name) for name in trace.words["name"])
    # Layers without experts in front of the others are in no repetition, and attend all the same.
    visits = len(attention_rows(trace)) / max(len(np.unique(trace.columns["step"][trace.columns["step"] >= 0])), 1)
    whole = [round(visits)] if layers < visits <= 1.25 * layers and visits == round(visits) else []
    # A drafter's layer behind the model's, and halves of a batch, look like layers.
    drafts = usual is not None and usual.row_tokens > usual.rows > 0
    halved = [layers // 2, round(visits / 2)] if exchanges else []
    candidates = (*whole, layers, *([layers - 1] if drafts else []), *halved)
    models: tuple[str, ...] = ()
    for count in candidates:
        heads = sequences.heads * degrees.get("tp", 1)
        spread = degrees.get("tp", 1)
        models = models or tuple(_models(count, hidden, heads, widths_seen, spread, routed=routed, latent=latent))
    ranks = max(trace.world_size, len(trace.ranks), degrees.get("tp", 1))
    models = preferred(models, trace, ranks, widths_seen)
    kind = precision(trace)
    if exchanges and ranks == 1 and models and (own := local_experts(trace.words["name"])):
        experts = load_model(models[0]).experts
        ranks = experts.count // own if experts is not None else 1
    if exchanges:
        degrees.setdefault("ep", ranks)
        ranks = max(ranks, degrees["ep"])
    attends_twice = bool(models) and visits > 1.6 * load_model(models[0]).layers
    halves = exchanges and (attends_twice or (not gathers and takes_turns(trace)))
    stages = 1
    if models and trains and "pp" not in degrees and 0 < 2 * layers <= load_model(models[0]).layers:
        stages = -(-load_model(models[0]).layers // layers)
        degrees["pp"] = stages
        if ranks % math.prod(degrees.values()):
            ranks *= stages  # a profile that leaves the pipeline out has the ranks of one stage
    widths = None
    if not models and not routed:
        spread = degrees.get("tp", 1)
        widths = widths_of(trace, layers, hidden, sequences.heads, sequences.head_dim, spread)
    return Guess(
        trace.device,
        ranks,
        degrees,
        stack,
        layers,
        hidden,
        models,
        usual,
        backward,
        sequences,
        runs_again(trace),
        # Layers of a stage alone do not show an optimizer; its state seldom stands whole on every replica.
        (sharding(trace, layers, region) or int(stages > 1 and "optimizer" not in kinds)) if trains else 0,
        region > 1,
        micro_batches(trace) if trains else 1,
        widths,
        exchanges,
        exchanges and few_tokens,
        halves,
        decodes,
        "" if models and is_checkpoints(models[0], kind) and not trains else kind,
        routed,
        stages,
        tokens(trace, hidden),
        interleaved(trace) if trains else 0.0,
        "gather" if gathers else _dispatch(trace, kind) if trains and routed else "",
        trains and kind.startswith("fp8") and keeps_narrow(trace),
        any("deep_gemm" in name for name in set(trace.word("name")[trace.word("kind") == "grouped_gemm"].tolist())),
    )


def _dispatch(trace: Trace, precision: str) -> str:
    """How tokens travel to experts in training: a copy to each expert by plain all-to-alls, or in eight bits."""
    kinds = set(trace.word("kind").tolist())
    if "dispatch" not in kinds:
        return "experts" if "all_to_all" in kinds else ""
    return "ranks_fp8" if precision.startswith("fp8") and sends_narrow(trace) else ""


def _sums(trace: Trace) -> float:
    """All-reduces of a step, or kernels that may be one: two a layer where a layer's heads and columns are spread over
    the ranks."""
    sums = np.isin(trace.word("kind"), ["all_reduce", "exchange"])
    steps = trace.columns["step"][sums & (trace.columns["step"] >= 0)]
    return len(steps) / max(len(np.unique(steps)), 1)


def _plain_pytorch(trace: Trace) -> str:
    """The stack whose kernels PyTorch's own are, compiled or eager; empty for other ones."""
    if any(_COMPILED.match(name) for name in trace.words["name"]):
        return "torchtitan"
    return "torchtitan-eager" if set(trace.words["operator"]) >= _EAGER else ""


def _hidden(trace: Trace) -> int:
    """Width of the residual stream: of what travels to experts, else the most frequent input or output width of
    products and norms."""
    if exchanged := exchanged_width(trace.words["name"]):
        return exchanged
    widths: Counter[int] = Counter()
    inside = trace.columns["layer"] >= 0
    products = np.flatnonzero(np.isin(trace.word("kind"), ["gemm", "grouped_gemm"]) & inside)
    shapes, names, seconds = trace.word("shapes"), trace.word("name"), trace.columns["duration_s"]
    calls: Counter[str] = Counter(shapes[row] for row in products.tolist() if shapes[row])
    for text, count in calls.items():
        sizes = stated_sizes(text)
        if sizes is not None:
            for width in {sizes[1], sizes[2]}:
                widths[width] += count
    for name, count in Counter(names[row] for row in products.tolist() if not shapes[row]).items():
        for width in set(product_widths(name)):
            widths[width] += count
    for row in np.flatnonzero(np.isin(trace.word("kind"), ["norm"]) & inside).tolist():
        match = re.match(r"\[\[(?:\d+,)*?(\d+)\]", shapes[row]) if shapes[row] else None
        width = int(match.group(1)) if match is not None else norm_width(names[row])
        if width and seconds[row] > 0.0:
            widths[width] += 1
    return widths.most_common(1)[0][0] if widths else 0


def _sequences(trace: Trace) -> Sequences:
    """Sequences from the most frequent shapes of forward attention."""
    rows = np.flatnonzero((trace.word("kind") == "attention") & np.isin(trace.word("phase"), ["forward", ""]))
    calls = Counter(zip(trace.word("operator")[rows].tolist(), trace.word("shapes")[rows].tolist(), strict=True))
    for (operator, text), _ in calls.most_common():
        try:
            inputs = [shape for shape in json.loads(text or "[]") if isinstance(shape, list)]
        except ValueError:
            continue
        whole = [shape for shape in inputs if shape and all(isinstance(size, int) for size in shape)]
        if whole and len(whole[0]) == 3:
            return Sequences(whole[0][1], head_dim=whole[0][2])
        if len(whole) < 2 or len(whole[0]) != 4 or len(whole[1]) != 4:
            continue
        (batch, *query), (_, *key) = whole[:2]
        if _HEADS_FIRST.search(operator):
            return Sequences(query[0], batch, query[1], key[1], query[2])
        if _TOKENS_FIRST.search(operator):
            return Sequences(query[1], batch, query[0], key[0], query[2])
    return Sequences()


def _widths(trace: Trace) -> frozenset[int]:
    """All widths of products with stated shapes."""
    products = np.isin(trace.word("kind"), ["gemm", "grouped_gemm"])
    shapes = trace.words["shapes"]
    stated = (stated_sizes(shapes[code]) for code in np.unique(trace.columns["shapes"][products]).tolist() if code >= 0)
    named = (product_widths(trace.words["name"][code]) for code in np.unique(trace.columns["name"][products]).tolist())
    return frozenset(width for sizes in (*stated, *named) if sizes is not None for width in sizes)


def _models(
    layers: int, hidden: int, heads: int, widths: frozenset[int], spread: int, *, routed: bool, latent: bool
) -> Iterator[str]:
    """Models of the catalog with these layers, widths and heads. Models whose vocabulary, or the part of it that one of
    ``spread`` ranks has, is the width of a product are returned alone. ``latent``: kernels are named after latent
    attention."""
    if not layers:
        return
    alike: dict[str, int] = {}
    longer: list[str] = []
    for name in catalog.names("models"):
        try:
            model = load_model(name)
        except InputError:
            continue  # a file in the current folder that describes no model
        fits = hidden in (0, model.hidden) and heads in (0, model.heads) and routed == (model.experts is not None)
        fits = fits and (not latent or model.latent is not None)
        if model.layers == layers and fits:
            alike[name] = model.vocab
        elif hidden and fits and model.layers > layers:
            longer.append(name)
    same_vocabulary = [name for name, vocabulary in alike.items() if {vocabulary, -(-vocabulary // spread)} & widths]
    # The stage of a pipeline has only some of the model's layers.
    yield from same_vocabulary or alike or longer
