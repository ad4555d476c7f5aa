"""A first scenario as text: what a trace shows as keys, what it lacks as comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..base.errors import InputError
from ..base.units import several
from ..model import load_model
from ..network import build_cluster
from ..parallel.stack_spec import load_stack
from .scenario import Guess, guess
from .table import Trace


def model_lines(run: Guess, file: str) -> Iterator[str]:
    """The model as YAML, of the widths that a trace states; nothing where the catalog has it or a width is missing."""
    if run.widths is None:
        return
    widths = run.widths
    yield f"# From {file}: its products and attention; biases and norms are not in their shapes"
    yield f"name: {_slug(file)}"
    yield f"layers: {widths.layers}"
    yield f"hidden: {widths.hidden}"
    yield f"attention: {{heads: {widths.heads}, kv_heads: {widths.kv_heads}, head_dim: {widths.head_dim}}}"
    yield f"mlp: {{width: {widths.mlp}, gated: {str(widths.gated).lower()}}}"
    if not widths.vocabulary:
        yield "# no head is in the trace; the vocabulary is one of Llama's"
    yield f"embedding: {{vocab: {widths.vocabulary or 128256}}}"
    yield "max_context: 131072"
    yield f"source: widths of products and attention in {file}"


def lines(trace: Trace, run: Guess | None = None, model_file: str = "") -> Iterator[str]:
    """The scenario as YAML.

    Parameters
    ----------
    run
        The trace's facts, where they are known already.
    model_file
        The file with the model that no entry of the catalog is; without one its widths stand as a comment.
    """
    run = guess(trace) if run is None else run
    yield f"# From {', '.join(path.name for path in trace.files[:4])}; facts that the trace does not have are comments"
    yield f"name: {_slug(trace.files[0].name)}"
    gpus = max(run.world_size, 1)
    if not run.device:
        yield "# the device is not in the catalog; `tspsim init device` writes a file for it"
    fabric = ", fabric: rails-400g" if gpus > 8 else ""
    if fabric:
        yield "# the fabric between nodes is not in a trace"
    part = gpus < 8 and _is_divisible(run.device or "h100", gpus)
    if gpus < 8 and not part:
        yield f"# the trace has {several(gpus, 'GPU')}; a node of these has no equal parts"
    used = f", gpus_per_node: {gpus}" if part else ""
    yield f"cluster: {{device: {run.device or 'h100'}, nodes: {-(-gpus // 8)}{used}{fabric}}}"
    if gpus > 8 and gpus % 8:
        yield f"# ranks that the trace states: {gpus}; the last node's other GPUs take further replicas"
    yield "workload:"
    if len(run.models) == 1:
        yield f"  model: {run.models[0]}"
    else:
        sizes = f"{run.layers or 'an unknown number of'} layers, width {run.hidden or 'not stated'}"
        longer = bool(run.models) and load_model(run.models[0]).layers > run.layers
        have = "are as wide" if longer else "have them"
        some = f"; of the catalog {', '.join(run.models[:6])} {have}" if run.models else "; none of the catalog"
        yield f"  # {sizes}{some}"
        if run.widths is not None and not model_file:
            yield "  # a file with this model, to name here:"
            yield from (f"  #   {line}" for line in model_lines(run, trace.files[0].name) if not line.startswith("#"))
        placeholder = "deepseek-v3" if run.routed or "ep" in run.degrees else "llama-3.1-8b"
        named = model_file if run.widths is not None and model_file else placeholder
        yield f"  model: {run.models[0] if run.models else named}"
    work = list(_work(run))
    if run.stack and not _runs(run.stack, work):
        yield f"  # stack: the kernels are of {run.stack}, which has no steps that serve; state the one that ran"
    elif run.stack:
        if run.stack.startswith("torchtitan"):
            yield "  # no kernel has the name of a framework; this stack has PyTorch's own, as the trace"
        yield f"  stack: {run.stack}"
    elif run.exchanges and run.deep_gemm:
        yield "  # no kernel has the name of an engine; this one runs DeepSeek's libraries for experts, as the trace"
        yield "  stack: sglang"
    else:
        yield "  # stack: no kernel has the name of a known framework"
    if run.precision:
        yield "  # by the names of the products"
        yield f"  precision: {run.precision}"
    yield from work
    yield "plans:"
    if run.stages > 1:
        yield f"  # {run.layers} of {load_model(run.models[0]).layers} layers are in the trace: one stage of a pipeline"
        if run.zero == 1:
            yield "  # what replicas divide is not in the trace; the optimizer's state at least, as is usual"
    if run.interleaved:
        yield f"  # for {run.interleaved:.0%} of their time each direction's exchanges run beside the other's products:"
        yield "  # one micro-batch's forward beside another's backward pass; the pipeline's order is not in the trace"
    degrees = ", ".join(f"{key}: {value}" for key, value in run.degrees.items()) or "tp: 1"
    if run.exchanges:
        degrees = f"dp: {max(gpus // run.degrees.get('tp', 1), 1)}, {degrees}"
        dispatch = "low_latency" if run.few_tokens else run.dispatch
        degrees += f", expert_dispatch: {dispatch}" * bool(dispatch) + ", expert_overlap: two_batches" * run.halves
    if run.trains and run.sequences.batch > 1:
        degrees += f", micro_batch: {run.sequences.batch}"
    if run.trains:
        degrees += ", sequence_regions: true" * run.regions + f", zero: {run.zero}" * bool(run.zero)
        degrees += f", recomputation: {run.recomputes}"
        degrees += "".join(f", {key}: {value}" for key, value in _exchanges(run))
    if not run.degrees and not run.zero and gpus > 1:
        yield "  # groups are not named; state tp, pp, ep (the rest are replicas)"
    name = "-".join(f"{key.upper()}{value}" for key, value in run.degrees.items()) or (
        f"FSDP{gpus}" if run.zero == 3 else "TP1"
    )
    yield f"  - {{name: {name}, {degrees}}}"


def _exchanges(run: Guess) -> Iterator[tuple[str, str]]:
    """Keys of a plan that trains, for exchanges with experts and what is kept in eight bits."""
    if run.interleaved:
        if _from_both_ends(run):
            yield "schedule", "dualpipe"
        yield "expert_overlap", "micro_batches"
    if run.dispatch:
        yield "expert_dispatch", run.dispatch
    if run.keeps_narrow:
        yield "activation_store", "fp8_products"


def _from_both_ends(run: Guess) -> bool:
    """Whether the pipeline may be DualPipe: its authors' framework, and as many stages as it needs."""
    stages = run.degrees.get("pp", 1)
    return bool(run.interleaved) and run.stack == "hai-llm" and stages > 1 and not stages % 2


def _runs(stack: str, work: Sequence[str]) -> bool:
    """Whether a stack has steps of the pass that the lines state."""
    steps = load_stack(stack).steps
    alone = {"  pass: training", "  pass: forward"} & set(work)
    return bool(alone) or steps is None or "serving" in steps.value


def _is_divisible(device: str, gpus: int) -> bool:
    """Whether some of the GPUs of the device's node can be used alone."""
    try:
        build_cluster(device, gpus_per_node=gpus)
    except InputError:
        return False
    return True


def _work(run: Guess) -> Iterator[str]:
    batch, seen = run.batch, run.sequences
    if batch is None and not seen.queries and (run.exchanges or (run.decodes and not run.trains)):
        # Every half of a batch has blocks of its own.
        tokens = run.tokens * (1 + run.halves)
        if tokens:
            yield f"  # {tokens:,} tokens a pass, by its exchanges or blocks; contexts are not in the trace"
        else:
            yield "  # the batch of a replica and its contexts are not in the trace"
        yield f"  pass: {'decode' if run.decodes else 'prefill'}"
        yield f"  batch: {(tokens or 64) if run.decodes else max(tokens // 4096, 1) if tokens else 2}"
        yield f"  context: {min(tokens, 4096) if tokens and not run.decodes else 4096}"
    elif run.trains or (batch is None and not 0 < seen.queries < seen.keys):
        yield f"  pass: {'training' if run.trains else 'forward'}"
        if seen.queries:
            passes = f"{run.passes} forward passes a step" if run.passes > 1 else "one forward pass a step"
            yield f"  # from the shapes of attention; {passes}"
        elif run.tokens:
            yield f"  # {run.tokens:,} tokens a pass, by its exchanges or blocks; taken as one sequence a forward pass"
        else:
            yield "  # sequence is not in the trace; one sequence a forward pass"
        yield f"  sequence: {seen.queries or run.tokens or 4096}"
        # An order that is filled from both ends needs two micro-batches a stage.
        least = max(run.stages * (2 if _from_both_ends(run) else 1), run.passes)
        yield f"  sequences_per_replica: {(seen.batch or 1) * least}"
    elif batch is None:
        yield "  # from the shapes of attention, which may read more of a cache than is filled"
        yield f"  pass: {'decode' if seen.queries == 1 else 'verify'}"
        yield f"  batch: {seen.batch}"
        yield f"  context: {seen.keys}"
    elif batch.kind == "prefill":
        yield "  pass: prefill"
        yield f"  batch: {batch.prompts}"
        yield f"  context: {max(1, round(batch.prompt_tokens / max(batch.prompts, 1)))}"
    else:
        drafts = batch.row_tokens // max(batch.rows, 1) - 1
        yield f"  pass: {'verify' if drafts > 0 and not batch.prompts else batch.kind}"
        yield f"  batch: {batch.rows}"
        if drafts > 0 and not batch.prompts:
            yield "  # what drafts is not in the annotation: mtp, eagle, ngram"
            yield f"  speculation: {{tokens: {drafts}, draft: {_drafter(run)}}}"
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


def _drafter(run: Guess) -> str:
    """The model's own module where it has one."""
    return "mtp" if run.models and load_model(run.models[0]).multi_token else "eagle"


def _slug(name: str) -> str:
    return (
        re.sub(r"[^a-z0-9]+", "-", name.lower().split(".json")[0].split(".sqlite")[0]).strip("-")[:60] or "from-a-trace"
    )
