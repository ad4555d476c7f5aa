"""A published training run as a scenario: its plan in, step time and memory out.

A step's time is linear in its micro-batches once the pipeline is full, so that long steps are simulated with pp and
2·pp micro-batches (at least one and two) and extended: t(m) = t(2·pp) + (m − 2·pp)·(t(2·pp) − t(pp))/pp.
"""

from __future__ import annotations

import bisect
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tspsim.base import catalog, dialect
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.model import Architecture
from tspsim.network.load import usual_node
from tspsim.operators import element_bytes
from tspsim.parallel import peak_bytes
from tspsim.parallel.pipeline import Pipeline, order_of
from tspsim.parallel.plan import recomputation_keys
from tspsim.parallel.recomputed import ATTENTION, CHEAP, FULL, KEPT, PartialRecompute
from tspsim.parallel.state.memory import stage_memory
from tspsim.scenario import load
from tspsim.step.description import range_of
from tspsim.step.simulation import Question, admitted, look_up, scheduled, step_of

from ..base.memo import remembered
from ..parallel import scheme_of
from .devices import LOOKUPS

#: Fabric between the nodes of a GPU's usual training machine, for sources that name none (data sheets of DGX and HGX
#: systems: 200 Gb/s per GPU with A100, 800 with B300, 400 with the others).
FABRICS = {"a100-40gb": "rails-200g", "a100-80gb": "rails-200g", "b300": "rails-800g"}
USUAL_FABRIC = "rail-optimised-400g"
#: Transport on these fabrics, where it differs from the fabric's own (DGX A100: InfiniBand HDR).
TRANSPORTS = {"a100-40gb": "infiniband", "a100-80gb": "infiniband"}
#: Activation storage to try for sources in eight bits that do not state their recomputation (Megatron-Core's
#: ``activation_func_fp8_input_store``).
STORE = "fp8"


@dataclass(frozen=True)
class Run:
    """A run and its plan, in the field's words; ``recomputation`` None means not stated: the least that fits.

    ``global_batch`` and ``micro_batch`` are sequences; ``cp`` shards the sequence; the other GPUs are replicas. Ranks
    are in the order of Megatron, nanotron and torchtitan, so replicas share a node before stages do: tp, cp, dp, pp.
    """

    model: Architecture
    device: str
    gpus: int
    sequence: int
    micro_batch: int
    global_batch: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    schedule: str = "1f1b"
    stage_layers: tuple[int, ...] = ()
    accumulation: int = 1
    ep: int = 1
    expert_dispatch: str = "ranks"
    expert_overlap: str = "none"
    zero: int = 0
    recomputation: str | None = None
    recomputed: PartialRecompute | None = None
    activation_store: str | None = None
    sequence_regions: bool = False
    exchange: str = "ring"
    precision: str = "bf16"
    multi_token: bool = False
    stack: str = "ideal"
    shard_group: int | None = None
    adapter_rank: int = 0
    adapter_targets: tuple[str, ...] = ()
    adapter_experts: str = "each"
    pass_: str = "training"
    fabric: str = ""
    optimizer: tuple[tuple[str, float], ...] = ()

    @property
    def dp(self) -> int:
        return self.gpus // (self.tp * self.cp * self.pp)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch * self.sequence


@dataclass(frozen=True)
class Predicted:
    """A simulated run: the seconds of a step with their range, peak memory, and its part that is state.

    A run with ``fits`` False has no seconds. Allocated memory is what a framework's allocator counts: the peak less the
    reserve. State (weights, gradients, optimizer state) stays between steps. It is that of the first stage, and only
    :func:`memory_of` gives it.
    """

    seconds: float
    low: float
    high: float
    memory_bytes: float
    fits: bool
    recomputation: str
    state_bytes: float = math.nan
    allocated_bytes: float = math.nan


#: Reason for a run that does not fit and therefore has no time.
TOO_LARGE = "does not fit by the memory model"
#: Parts of memory that stay from step to step.
STATE = ("weights", "adapters", "gradients", "optimizer_state", "optimizer_temporaries", "optimizer_buffers")


@remembered(4096)
def simulate_run(run: Run) -> Predicted:
    """Simulate the step of a run.

    Raises
    ------
    InputError
        The simulator does not cover the run, or its plan is wrong; the message says why.
    """
    step = Predicted(math.nan, math.nan, math.nan, math.inf, False, "full")
    for tried in _policies(run):
        step = _step(tried)
        if step.fits:
            break
    return step


def memory_of(run: Run) -> Predicted:
    """Peak memory of a run and whether it fits, without its time. Raises the errors of :func:`simulate_run`."""
    step = Predicted(math.nan, math.nan, math.nan, math.inf, False, "full")
    for tried in _policies(run):
        question = _question_of_run(tried)
        plan = question.plans[0]
        job = question.job(plan)
        peak, first = peak_bytes(job), stage_memory(job, scheme_of(job.plan).residency, 0)
        state = sum(first.get(part, 0.0) for part in STATE)
        fits = peak <= question.device.visible_memory_bytes
        step = Predicted(math.nan, math.nan, math.nan, peak, fits, _recomputation_in_words(tried), state)
        if fits:
            break
    return step


def _policies(run: Run) -> Iterator[Run]:
    """Recomputation policies to try in turn: the stated one, or all from the least on. A recomputed part of the layers
    is the smallest part that fits, which needs no simulation."""
    if run.recomputation is not None:
        yield run
        return
    yield replace(run, recomputation=KEPT)
    if element_bytes(run.precision) < 2.0:
        yield replace(run, recomputation=KEPT, activation_store=STORE)
    yield from (replace(run, recomputation=again) for again in (ATTENTION, CHEAP))
    question = _question_of_run(replace(run, recomputation=FULL))
    job, visible = question.job(question.plans[0]), question.device.visible_memory_bytes

    def fits(layers: int) -> bool:
        return peak_bytes(replace(job, plan=replace(job.plan, recomputed=PartialRecompute(layers)))) <= visible

    fewest = 1 + bisect.bisect_left(range(1, max(job.chunk_sizes)), True, key=fits)
    if fewest < max(job.chunk_sizes):
        yield replace(run, recomputation=FULL, recomputed=PartialRecompute(fewest))
    yield replace(run, recomputation=FULL)


def _question_of_run(run: Run) -> Question:
    """The question of a run with as many micro-batches as its memory depends on."""
    return question_of(run, min(_micro_batches(run), 2 * run.pp) if run.accumulation == 1 else _micro_batches(run))


def _recomputation_in_words(run: Run) -> str:
    """The recomputation in words; ``full`` is full recomputation."""
    assert run.recomputation is not None
    return f"{run.recomputation} of {run.recomputed.layers} layers a chunk" if run.recomputed else run.recomputation


def _step(run: Run) -> Predicted:
    micro_batches = _micro_batches(run)
    few = _filling(run)
    more = few + run.pp
    if run.accumulation > 1 or micro_batches <= more or (run.vpp > 1 and micro_batches % run.pp):
        return _simulated(run, micro_batches)
    first = _simulated(run, few)
    if not first.fits:
        return first
    second = _simulated(run, more)
    if not second.fits:
        return second
    times = (micro_batches - more) / (more - few)
    seconds = second.seconds + times * (second.seconds - first.seconds)
    scale = seconds / second.seconds
    return replace(second, seconds=seconds, low=second.low * scale, high=second.high * scale)


def _filling(run: Run) -> int:
    """The fewest rounds of micro-batches with which the run's schedule fills its pipeline."""
    order = order_of(run.schedule, run.vpp)
    rounds = (Pipeline(run.pp, run.vpp, number * run.pp, splits=True) for number in (1, 2))
    return next((pipeline.micro_batches for pipeline in rounds if order.check(pipeline) is None), run.pp)


def _simulated(run: Run, micro_batches: int) -> Predicted:
    """The step alone, without the costs of a training run that no source measures."""
    return first_plan_of(question_of(run, micro_batches), _recomputation_in_words(run))


def first_plan_of(question: Question, recomputation: str) -> Predicted:
    """The step of a question's first plan; ``recomputation`` is reported with it."""
    job = scheduled(question, question.plans[0])
    admission = admitted(question, job)
    peak = admission.memory.peak_bytes
    allocated = peak - admission.memory.parts["runtime_reserve"]
    step = Predicted(math.nan, math.nan, math.nan, peak, False, recomputation, allocated_bytes=allocated)
    if admission.error is not None:
        return step
    costs = Costs(question.device)
    ran = step_of(question, job, costs)
    tokens = job.work.counted_tokens * job.plan.dp
    estimate = range_of(costs, tokens, ran.makespan_s, ran.parts, question.work.stack)
    return replace(step, seconds=ran.makespan_s, low=tokens / estimate.high, high=tokens / estimate.low, fits=True)


def _micro_batches(run: Run) -> int:
    """Micro-batches of a replica's step. Raises InputError if batches and degrees do not divide."""
    replica = run.tp * run.cp * run.pp
    if run.gpus % replica:
        raise InputError("tp·cp·pp does not divide the GPUs")
    if run.global_batch % (run.dp * run.micro_batch):
        raise InputError("replicas and micro-batches do not divide the global batch")
    return run.global_batch // (run.dp * run.micro_batch)


@remembered(4)
def question_of(run: Run, micro_batches: int) -> Question:
    """The question of a run with a number of micro-batches per replica."""
    return look_up(load(scenario(run, micro_batches)), LOOKUPS)


def served(model: Architecture, device: str, pass_: str, **amount: Any) -> Question:
    """A step of an inference engine on one GPU, in bf16; ``amount`` holds the workload keys that give its size."""
    node, _ = machine(device, 1)
    workload = {"model": str(file_of(model)), "pass": pass_, "precision": "bf16", **amount}
    cluster = {"device": device, "node": node, "nodes": 1}
    data = {"name": "validation", "cluster": cluster, "workload": workload, "plans": [{"name": "run", "tp": 1}]}
    return look_up(load(data), LOOKUPS)


def scenario(run: Run, micro_batches: int) -> dict[str, Any]:
    """The scenario of a run with a number of micro-batches per replica."""
    node, nodes = machine(run.device, run.gpus)
    shares_nodes = run.gpus // nodes > run.tp * run.cp
    cluster: dict[str, Any] = {"device": run.device, "node": node, "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = run.fabric or fabric_of(run.device)
        if not run.fabric and run.device in TRANSPORTS:
            cluster["transport"] = TRANSPORTS[run.device]
    workload: dict[str, Any] = {
        "model": str(file_of(run.model)),
        "pass": run.pass_,
        "sequence": run.sequence,
        "sequences_per_replica": run.micro_batch * micro_batches,
        "multi_token": run.multi_token,
        "precision": run.precision,
        "stack": run.stack,
    }
    if run.optimizer:
        workload["optimizer"] = dict(run.optimizer)
    if run.adapter_rank:
        adapters = {"rank": run.adapter_rank, "targets": list(run.adapter_targets), "experts": run.adapter_experts}
        workload["adapters"] = adapters
    return {
        "name": "validation",
        "cluster": cluster,
        "workload": workload,
        "plans": [
            {
                "name": "run",
                "tp": run.tp, "sp": run.cp, "pp": run.pp, "vpp": run.vpp, "zero": run.zero,
                **({} if run.shard_group is None else {"shard_group": run.shard_group}),
                **({"stage_layers": list(run.stage_layers)} if run.stage_layers else {}),
                **({"accumulation": run.accumulation} if run.accumulation > 1 else {}),
                **({"schedule": run.schedule} if run.schedule != "1f1b" else {}),
                **({"placement": {"node": ["tp", "sp", "dp"]}} if shares_nodes else {}),
                "ep": run.ep, "expert_dispatch": run.expert_dispatch, "expert_overlap": run.expert_overlap,
                "micro_batch": run.micro_batch,
                "recomputation": run.recomputation and recomputation_keys(run.recomputation, run.recomputed),
                **({} if run.activation_store is None else {"activation_store": run.activation_store}),
                "sequence_regions": run.sequence_regions and run.tp > 1, "exchange": run.exchange,
            }
        ],
    }  # fmt: skip


def fabric_of(device: str) -> str:
    """The usual fabric between nodes of a device."""
    return FABRICS.get(device, USUAL_FABRIC)


def node_of(device: str) -> int:
    """GPUs of a whole node of a device."""
    return int(dialect.read_yaml(catalog.locate("nodes", usual_node(device)))["gpus"])


@remembered(64)
def machine(device: str, gpus: int) -> tuple[str, int]:
    """The node of a run (a catalog name, or a file with a part of its GPUs) and the number of nodes.

    A run on fewer GPUs than a node has, or on a number that is no multiple of a node (64 of a rack's 72), uses the
    same part of each node.
    """
    name = usual_node(device)
    facts = dialect.read_yaml(catalog.locate("nodes", name))
    whole = int(facts["gpus"])
    if gpus % whole == 0:
        return name, gpus // whole
    used = max(part for part in range(1, whole + 1) if gpus % part == 0 and (part % 4 == 0 or part == gpus or part < 4))
    import yaml

    rails = max(rail for rail in range(1, used + 1) if used % rail == 0 and rail <= int(facts.get("rails", used)))
    part = {**facts, "name": f"{name}-{used}", "gpus": used, "nics": used, "rails": rails}
    file = _folder() / f"{name}-{used}.yaml"
    file.write_text(yaml.safe_dump(part), encoding="utf-8")
    return str(file), gpus // used


@remembered(256)
def file_of(model: Architecture) -> Path:
    """The file of a model, which a scenario can name."""
    import yaml

    from tspsim.model.spec import describe

    file = _folder() / f"model-{len(_written)}.yaml"
    _written.append(file)
    file.write_text(yaml.safe_dump(describe(model)), encoding="utf-8")
    return file


_written: list[Path] = []
_folders: list[tempfile.TemporaryDirectory[str]] = []


def _folder() -> Path:
    """A folder that lasts as long as the process."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="tspsim-validation-"))
    return Path(_folders[0].name)


def nearest_gating(model: Architecture, parameters: float) -> Architecture:
    """The model with or without a gate, whichever is closer to the stated number of parameters."""
    candidates: Sequence[Architecture] = (replace(model, gated=True), replace(model, gated=False))
    return min(candidates, key=lambda candidate: abs(math.log(candidate.parameters / parameters)))
