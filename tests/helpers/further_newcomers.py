"""One of every kind that a package may bring besides those of ``newcomers`` and ``serving_newcomers``, each as small as
the documents let it be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np

from tspsim.fleet import Autoscaler, Durations, JobScheduler, Logged, Placement
from tspsim.hardware import Device, Estimate, pricer
from tspsim.model import Architecture
from tspsim.model.attention.base import Rows, tokens_of
from tspsim.model.attention.grouped import Grouped
from tspsim.model.attention.sections import AttentionSection, GroupedSection
from tspsim.model.layer import ServingLayer
from tspsim.network import CollectiveAlgorithm, Group, RoutingPolicy, Schedule, Topology, scheduled
from tspsim.network.graphs import joined
from tspsim.network.kinds import CollectiveKind
from tspsim.network.wiring import Cable
from tspsim.operators import DataType, Operator, Role
from tspsim.parallel import Plan
from tspsim.parallel.activation_store import ActivationStore
from tspsim.parallel.balance import Balanced, BalanceOption, ExpertBalance, Visits
from tspsim.parallel.column_inputs import ColumnInputs
from tspsim.parallel.decode import tree
from tspsim.parallel.decode.exchange import DecodeExchange
from tspsim.parallel.decode.index_exchange import IndexExchange
from tspsim.parallel.dispatch import ExpertDispatch, ExpertOverlap
from tspsim.parallel.draft import Draft
from tspsim.parallel.eager_kernels import LAYER_NORM, EagerKernels
from tspsim.parallel.feature import Feature
from tspsim.parallel.interleave import Interleaving
from tspsim.parallel.interleavings import alternating
from tspsim.parallel.ledger import Buffer, Lifetime
from tspsim.parallel.lengths import BatchAssignment
from tspsim.parallel.mixed_precision import MixedPrecision
from tspsim.parallel.pipeline import PipelineOrder
from tspsim.parallel.recomputed import RecomputeMethod
from tspsim.parallel.registries import Option
from tspsim.parallel.residual import Residual
from tspsim.parallel.schemes.folded_decode import TREE
from tspsim.parallel.schemes.transport import Ring
from tspsim.parallel.search_rule import SearchRule
from tspsim.parallel.state.checkpoint import Checkpoint
from tspsim.parallel.state.reshard import ReshardMethod
from tspsim.parallel.tensor_scales import TensorScales
from tspsim.steps import BACKWARD, FORWARD, Task
from tspsim.steps.forward import ForwardStep
from tspsim.studies.launch.command import Command
from tspsim.traces import FilePart, KernelNames, TraceReader
from tspsim.traces import Rows as Table
from tspsim.traffic import TraceForm

# --- an operator, what it costs, and a kind of attention that runs it --------------------------------------------


@dataclass(frozen=True)
class Smooth(Operator):
    """Reads and writes a state once a token."""

    tokens: int
    state_bytes: float
    name: str = "smooth"
    role: Role = Role.ATTENTION
    kind = "smooth"
    flops = 0.0

    @property
    def hbm_bytes(self) -> float:
        return 2.0 * self.tokens * self.state_bytes

    @property
    def shape(self) -> str:
        return f"{self.tokens} tokens"


@pricer(Smooth)
def price(device: Device, smooth: Smooth) -> Estimate:
    return device.memory_bound(smooth.hbm_bytes)


@dataclass(frozen=True)
class Smoothing:
    """A fact that no field of a model is for."""

    state_bytes: float


class SmoothedSection(GroupedSection):
    """Grouped attention behind a smoothing of every head."""

    kind: Literal["smoothed"] = "smoothed"  # type: ignore[assignment]
    state_bytes: float = 4096.0

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"own": Smoothing(self.state_bytes)}


class Smoothed(Grouped):
    """Every head is smoothed before it attends."""

    name = "smoothed"

    @property
    def section(self) -> type[AttentionSection]:
        return SmoothedSection

    def describe(self, model: Architecture) -> dict[str, Any]:
        return super().describe(model) | {"state_bytes": smoothing_of(model).state_bytes}

    def enter(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        return (Smooth(tokens_of(rows), smoothing_of(layer.model).state_bytes),)


def smoothing_of(model: Architecture) -> Smoothing:
    assert isinstance(model.own, Smoothing)
    return model.own


# --- a type of numbers --------------------------------------------------------------------------------------------

#: Five bits an element and a scale of one byte a block of 32, for everything that a type can be for.
FP5 = DataType("fp5", 0.65625, multiplies=True, cache_bytes=0.65625, wire_bytes=0.625, similar=("fp8", "bf16"))


# --- the network --------------------------------------------------------------------------------------------------


def in_a_line(group: Group, kind: CollectiveKind) -> list[Schedule]:
    ends = list(group.ranks[:-1]), list(group.ranks[1:])
    return [scheduled(group, "ring", *ends, 1.0, node_steps=group.size - 1)] if len(group.members) == 1 else []


def chain(endpoints: int, argument: Any, cable: Cable) -> nx.DiGraph[Any]:
    ends = [(near, near + 1, cable.together, cable.latency_s) for near in range(endpoints - 1)]
    return joined([*ends, *((far, near, *rate) for near, far, *rate in ends)], endpoints)  # type: ignore[misc]


# --- plans --------------------------------------------------------------------------------------------------------


def all_then_back(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    forwards = [Task(FORWARD, index, 0) for index in range(micro_batches)]
    return forwards + [Task(BACKWARD, index, 0) for index in reversed(range(micro_batches))]


def nearer(visits: Visits, strength: float) -> Balanced:
    """Loads that come nearer to their mean."""
    mean = sum(visits.loads) / visits.ranks
    return Balanced(tuple(mean + (1.0 - strength) * (load - mean) for load in visits.loads), moved_experts=1.0)


class Relay(Ring):
    def word(self, plan: Plan) -> str:
        return "rl"

    def sentence(self, plan: Plan) -> str:
        return "the MLP's weights by relay"


class Rehearsal(ForwardStep):
    """A forward by another name."""

    name = "rehearsal"
    title = "rehearsal"


class Trainer:
    name, vendors, beside = "mytrain", ("nvidia", "amd"), "nothing"

    def command(self, run: Any) -> Command:
        return Command(["mytrain", "--tp", str(run.plan.tp)], [], exports={})


class Launcher:
    name, vendors = "shortest", ("nvidia", "amd")

    def command(self, server: Any) -> Command:
        return Command(["myserve", "--tp", str(server.axis("tp"))], [], exports={})

    def router(self, servers: Iterable[Any]) -> list[str]:
        return []


# --- a format of traces ----------------------------------------------------------------------------------------


def is_punched(path: Path, start: bytes) -> bool:
    """A card a kernel: ``# punched``, then name and microseconds."""
    return start.startswith(b"# punched")


def read_punched(path: Path) -> FilePart:
    """One behind the other, on one stream."""
    rows, clock = Table(), 0.0
    for line in path.read_text().splitlines()[1:]:
        name, length = line.split()
        rows.add(rank=0, start_s=clock, duration_s=float(length) / 1e6, name=name)
        clock += float(length) / 1e6
    return FilePart(rows)


class ShortestFirst(JobScheduler):
    """The shortest of the jobs that wait goes first."""

    name = "shortest_first"

    def rank(self, job: Any) -> tuple[Any, ...]:
        return (job.limit_s,)

    def open(self) -> Any:
        def dispatch(dispatcher: Any) -> None:
            while dispatcher.queue and dispatcher.fits(dispatcher.queue[0]):
                dispatcher.start(dispatcher.queue[0])

        return dispatch

    def in_words(self) -> str:
        return "the shortest first"


class FromTheEnd(Placement):
    """The last empty nodes."""

    name = "from_the_end"

    def choose(self, nodes: Any, count: int, random: Any) -> Any:
        return sorted(node for leaf in nodes.empty for node in leaf)[-count:]

    def in_words(self) -> str:
        return "on the last empty nodes"


class Diary:
    """A line a job: ``diary SUBMIT GPUS SECONDS``."""

    name, summary = "diary", "a diary"

    def reads(self, head: Any) -> bool:
        return bool(head[0].startswith("diary "))

    def rows(self, lines: Any, log: Any) -> Any:
        for row, line in enumerate(lines, 1):
            _, submit, gpus, seconds = line.split()
            yield Logged(row, f"d{row}", "me", "", float(submit), float(seconds), int(gpus), 0)


class Ordered(Durations):
    """One hour more for every job."""

    name = "ordered"

    def draw(self, random: Any, count: int) -> Any:
        return np.arange(1, count + 1) * 3600.0

    def in_words(self) -> str:
        return "an hour more for every job"


class Timid(Autoscaler):
    """One replica more for every doubling of the load."""

    name = "timid"

    def wanted(self, rate: float, replicas: int) -> int:
        return round(rate).bit_length()

    def in_words(self) -> str:
        return "one more for every doubling"


#: Jobs that the feature below was asked about.
ASKED_ABOUT: list[Any] = []


def too_many_notebooks(job: Any) -> Any:
    ASKED_ABOUT.append(job)
    notebooks = job.plan.options["notebooks"]
    return ("notebooks", f"{notebooks} are more than the ranks of tp") if notebooks > job.plan.tp else None


NOTEBOOKS = Feature(
    "notebooks",
    "ranks that take notes",
    options=(Option("notebooks", int, None, "how many"),),
    check=too_many_notebooks,
    notes=lambda job: [f"{job.plan.options['notebooks']} ranks take notes"],
    buffers=lambda job, chunks: [Buffer("notebooks", 1e6, Lifetime.STEP)],
)

#: Group of entry points → what it brings.
BROUGHT: dict[str, tuple[Any, ...]] = {
    "tspsim.activation_stores": (ActivationStore("half", "four bits enter the MLP's activation", columns_bytes=0.5),),
    "tspsim.attention_kinds": (Smoothed(),),
    "tspsim.autoscalers": (Timid,),
    "tspsim.checkpoints": (Checkpoint("lazy", "the step begins when the state is in hosts", True, False),),
    "tspsim.collective_algorithms": (CollectiveAlgorithm("line", ("scan", "broadcast"), "in a line", in_a_line),),
    "tspsim.collective_kinds": (CollectiveKind("scan", "the vector", reduces=True),),
    "tspsim.column_inputs": (ColumnInputs("carried", "the tokens of all ranks, carried on", whole=True),),
    "tspsim.deals": (BatchAssignment("root", "square roots of lengths", lambda model, tokens, causal: tokens**0.5),),
    "tspsim.decode_exchanges": (
        DecodeExchange("shout", "as a tree", tree.attend, tree.received_bytes, tree.buffer_bytes),
    ),
    "tspsim.decode_forms": (replace(TREE, name="bush", summary="a small tree"),),
    "tspsim.dtypes": (FP5,),
    "tspsim.durations": (Ordered,),
    "tspsim.job_logs": (Diary(),),
    "tspsim.job_schedulers": (ShortestFirst,),
    "tspsim.placements": (FromTheEnd,),
    "tspsim.drafts": (Draft("oracle", 2),),
    "tspsim.expert_balance": (
        ExpertBalance("nearer", nearer, "", (BalanceOption("strength", float, 0.5, "share of the way"),)),
    ),
    "tspsim.expert_dispatch": (ExpertDispatch("flood", lambda ranks, experts: float(ranks), word="fl"),),
    "tspsim.expert_overlap": (ExpertOverlap("veil", shared_beside=True, word="ve"),),
    "tspsim.index_exchanges": (IndexExchange("murmur", "halves of scores", candidate_bytes=2.0),),
    "tspsim.interleavings": (Interleaving("zipped", "piece by piece", alternating.merge),),
    "tspsim.kernel_names": (KernelNames("loom", "kernels of a loom", {"gemm": (r"^weave_",)}),),
    "tspsim.launchers": (Launcher(),),
    "tspsim.plan_features": (NOTEBOOKS,),
    "tspsim.eager_kernels": (EagerKernels("scripts", "norms in one kernel", norm=LAYER_NORM),),
    "tspsim.mixed_precisions": (MixedPrecision("loose", "weights alone are cast", casts=(6.0, 6.0)),),
    "tspsim.pipeline_orders": (PipelineOrder("gpipe", all_then_back, word="gpipe"),),
    "tspsim.recompute_methods": (RecomputeMethod("tail", "all but the first", lambda index, count: index >= count),),
    "tspsim.reshard_ways": (
        ReshardMethod("twofold", "", ("joined shards",), lambda at: 1.0 / at.generating, lambda at: 0.0),
    ),
    "tspsim.residuals": (Residual("mute", "no sum behind attention", sums_attention=False, note="another model"),),
    "tspsim.routing_policies": (RoutingPolicy("striped", "by the sender", lambda plane, flows, seed: flows.leaving),),
    "tspsim.searched_keys": (SearchRule("announced_parts", why_not="chosen for the machine"),),
    "tspsim.steps": (Rehearsal(),),
    "tspsim.tensor_scales": (TensorScales("guessed", "read twice, and agreed on", reads_first=True, agreed=True),),
    "tspsim.topologies": (Topology("chain", "every GPU to the next", chain),),
    "tspsim.trace_forms": (TraceForm("diary", "when", "asked", "answered"),),
    "tspsim.trace_readers": (TraceReader("punched", "a card a kernel", is_punched, read_punched),),
    "tspsim.trainers": (Trainer(),),
    "tspsim.weight_transports": (Relay("relay", "round one ring, by relay"),),
}
