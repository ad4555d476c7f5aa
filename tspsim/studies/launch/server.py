"""A serving plan as servers to launch, and the engines that can launch them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ...base import catalog, dialect
from ...base.errors import InputError
from ...base.registry import Registry
from ...base.units import gib
from ...model.parts import WeightClass
from ...parallel import Plan
from ...parallel.balance import BUSIEST, Balance
from ...parallel.dispatch import ExpertDispatch, ExpertOverlap
from ...scenario import Scenario
from ...scenario.tiers import Tiers
from ...scenario.workload import SpeculationSpec
from ...serving.deployment import BLOCKS, POLICY, TOKENS, Deployment
from ...serving.pooled import PooledDeployment
from ...step.question import Question
from .command import Command
from .places import ServerPlace, places_of, started

#: A checkpoint's repository, in the source of a model's file.
REPOSITORY = re.compile(r"config\.json of ([\w.-]+/[\w.-]+)")


@dataclass(frozen=True)
class LaunchedServer:
    """One engine's server, and how many alike are started."""

    #: Repository of the checkpoint, or ``MODEL``.
    model: str
    #: Equal servers behind a router.
    count: int
    #: Attention replicas (attention DP ranks) in one server.
    dp_size: int
    #: Degrees of one: ``tp``, ``pp``, ``ep``, and others above one by name.
    axes: Mapping[str, int]
    scheduler: str
    #: Options under their real names in the simulated engine, which is ``scheduler``'s.
    options: Mapping[str, Any]
    #: Limits of a step's tokens and of running sequences: of one attention replica, and as stated in the engine's own
    #: options, which may mean all replicas together; None: the engine has none, or derives them.
    tokens: int | None
    sequences: int | None
    stated: tuple[int | None, int | None]
    #: Type of the KV cache; None: the type of the weights' GEMMs.
    cache: str | None
    dispatch: ExpertDispatch | None
    #: Overlap of exchanges with experts, and the balance of uneven loads, where experts are spread.
    overlap: ExpertOverlap
    balance: Balance
    #: Routed experts of the model; 0: it has none.
    experts: int
    drafts: SpeculationSpec | None
    #: Name of the router.
    router: str
    #: Tiers of memory for evicted blocks.
    tiers: Tiers | None
    #: GPUs of a node.
    per_node: int
    #: Vendor of the GPUs.
    vendor: str = "nvidia"
    #: ``prefill`` or ``decode`` of two pools; empty: both.
    part: str = ""
    #: With two pools: caches are sent layer by layer.
    pushes: bool = False
    #: Further keys of the plan without a counterpart in engines, in words.
    further: Sequence[str] = ()
    #: Addresses of the servers where some share a node; else empty.
    addresses: Sequence[str] = ()

    @property
    def urls(self) -> list[str]:
        """Addresses of its servers; placeholders where every server has nodes of its own."""
        return list(self.addresses) or ["HOST:PORT"] * self.count

    @property
    def gpus(self) -> int:
        """GPUs of one server."""
        size = self.dp_size
        for axis, degree in self.axes.items():
            size *= 1 if axis in ("ep", "dcp", "kvp") else degree
        return size

    def axis(self, name: str) -> int:
        return self.axes.get(name, 1)

    @property
    def strange(self) -> list[str]:
        """Axes beyond tp, pp, ep and dcp, in words."""
        usual = ("tp", "pp", "ep", "dcp")
        return [f"{axis} {degree}" for axis, degree in self.axes.items() if axis not in usual and degree > 1]

    def unsaid(self, *, overlaps: bool, copies: bool, pushes: str) -> list[str]:
        """Parts of the plan that the command cannot express. ``overlaps``: the engine can let two halves of a batch
        take turns. ``copies``: it can copy experts. ``pushes``: how its pools send caches instead of layer by layer."""
        parts = [f"ranks along {axis}" for axis in self.strange] + list(self.further)
        if self.overlap.name != ExpertOverlap("none").name and not (overlaps and self.overlap.halves):
            parts.append(f"expert_overlap {self.overlap.name}: the engine hides exchanges as it sees fit")
        if self.balance != BUSIEST and not copies:
            parts.append(f"expert_balance {self.balance.policy}")
        if self.pushes and self.part:
            parts.append(f"caches pushed layer by layer: {pushes}")
        return parts

    def copies(self, option: str) -> int:
        """Redundant experts of a balance policy whose ``option`` counts all experts with their copies; one per rank
        where it is not stated."""
        stated = self.balance.options[option]
        return self.axis("ep") if stated is None else int(stated) - self.experts

    def lower(self, what: str) -> list[str]:
        """A note on the tiers behind the cache; ``what`` says which option of the engine states the host's size."""
        if self.tiers is None:
            return []
        sizes = [(name, getattr(self.tiers, name)) for name in ("host", "remote")]
        sizes_in_words = " and ".join(f"{name} {gib(tier.size)}" for name, tier in sizes if tier is not None)
        return [f"tiers ({sizes_in_words}): {what}"]


class Launcher(Protocol):
    """An engine with a launch command."""

    @property
    def name(self) -> str:
        """Its name for ``--emit``: that of its scheduler."""

    @property
    def vendors(self) -> tuple[str, ...]:
        """Vendors of the GPUs that it runs on."""

    def command(self, server: LaunchedServer) -> Command:
        """The command of one server."""

    def router(self, servers: Sequence[LaunchedServer]) -> list[str]:
        """The router in front of several servers, as comments or commands."""


LAUNCHERS: Registry[Launcher] = Registry("engine to launch", "tspsim.launchers", Launcher)


def servers_of(scenario: Scenario, deployment: Deployment) -> list[LaunchedServer]:
    """The servers of a plan that serves requests."""
    return [_server(scenario, part, count, name, pushes) for name, part, count, pushes in deployment.engines()]


def _server(scenario: Scenario, part: Deployment, count: int, name: str, pushes: bool) -> LaunchedServer:
    plan, engine = part.plan, part.engine
    degrees = {axis: size for axis, size in part.degrees.items() if axis not in ("dp", "ep") and size > 1}
    policy = engine.policy
    named = policy.token_option, policy.sequence_option
    stated = [getattr(engine.options, key, None) if key else None for key in named]
    pairs = zip(named, stated, strict=True)
    dp_size = plan.attention_replicas
    tokens, sequences = (None if value is None else policy.of_replica(key, value, dp_size) for key, value in pairs)
    return LaunchedServer(
        model=repository_of(scenario.workload.model),
        count=count * part.verifying,
        dp_size=dp_size,
        axes={**degrees, **({"ep": plan.ep} if plan.ep > 1 else {}), **groups_of(plan.options)},
        scheduler=engine.scheduler,
        options={key: value for key, value in part.options.items() if key not in (POLICY, *named)},
        tokens=tokens,
        sequences=sequences,
        stated=(stated[0], stated[1]),
        cache=part.question.work.formats.cache,
        dispatch=plan.dispatch if plan.ep > 1 and dp_size > 1 else None,
        overlap=plan.hiding,
        balance=plan.expert_balance,
        experts=model.experts.count if (model := part.question.model).experts is not None else 0,
        drafts=part.speculation if part.drafts is not None else None,
        router=part.router,
        tiers=part.tiers,
        per_node=part.question.cluster.gpus_per_node,
        vendor=part.question.device.spec.vendor,
        part=name,
        pushes=pushes,
        further=further(plan),
    )


#: Fields of a plan that launchers express, or that have no meaning for a server.
SAID = {"name", "degrees", "expert_dispatch", "expert_overlap", "expert_balance", "recomputation", "recomputed",
        "micro_batch", "routing", "open", "chosen", "together", "expert_owners", "kv_copies", "options"}  # fmt: skip


def further(plan: Plan) -> list[str]:
    """Keys of a plan that differ from the defaults, with their values; of the options of its scheme and exchange those
    that are no groups of ranks."""
    plain = Plan("plain", {})
    own = {part.name: getattr(plan, part.name) for part in fields(Plan) if part.name not in SAID}
    own = {key: value for key, value in own.items() if value != getattr(plain, key)}
    own |= {key: value for key, value in plan.options.items() if key not in groups_of(plan.options)}
    return [f"{key} {_stated(value)}" for key, value in own.items()]


def _stated(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {option}" for key, option in value.items())
    return str(getattr(value, "name", value)).lower() if isinstance(value, bool) else str(getattr(value, "name", value))


def groups_of(options: Mapping[str, Any]) -> dict[str, int]:
    """Groups of ranks that share contexts, by name."""
    return {name: value for name, value in options.items() if isinstance(value, int) and value > 1}


def repository_of(model: str) -> str:
    """The repository of a catalog model's checkpoint; ``MODEL`` where its file has none."""
    try:
        text = str(dialect.read_yaml(catalog.locate("models", model)).get("source", ""))
    except InputError:
        return "MODEL"
    match = REPOSITORY.search(text)
    return match[1] if match else "MODEL"


def launch(engine: str, scenario: Scenario, deployment: Deployment) -> str:
    """The launch of a plan: comments, files and commands for a shell.

    Raises
    ------
    UnknownNameError
        No launcher has this name.
    """
    launcher = LAUNCHERS.get(engine)
    servers = servers_of(scenario, deployment)
    shared = _places(servers, deployment)
    servers = [
        replace(server, addresses=tuple(place.address for place in places))
        for server, places in zip(servers, shared or [[] for _ in servers], strict=True)
    ]
    gpus = f"{deployment.gpus} GPU{'s' * (deployment.gpus != 1)} ({deployment.question.device.name})"
    lines = [f"# {scenario.name}: {deployment.plan.name}, {gpus}"]
    lines += _remarks(launcher, deployment.question, servers)
    for number, server in enumerate(servers):
        command = launcher.command(server)
        lines.append("")
        if server.part:
            lines.append(f"# {server.part}: {server.count} of")
        elif server.count > 1:
            lines.append(f"# {server.count} of it, behind a router")
        if shared is None:
            lines += command.lines()
        else:
            second = getattr(launcher, "second_port", lambda server: "")(server)
            lines += started(server.part or "server", command.lines(), shared[number], server.vendor, second)
    if len(servers) > 1 or servers[0].count > 1:
        lines += ["", *launcher.router(servers)]
    return "\n".join(lines) + "\n"


def _places(servers: Sequence[LaunchedServer], deployment: Deployment) -> list[list[ServerPlace]] | None:
    """Places of the servers where several share a node of one cluster; None where none do, or there are several
    clusters."""
    clusters = deployment.clusters if isinstance(deployment, PooledDeployment) else (deployment.question.cluster,)
    if len(clusters) > 1:
        return None
    return places_of([(server.gpus, server.count) for server in servers], clusters[0].gpus_per_node)


def _remarks(launcher: Launcher, question: Question, servers: Sequence[LaunchedServer]) -> Iterator[str]:
    first = servers[0]
    if first.scheduler != launcher.name:
        yield f"# found for {first.scheduler}: {launcher.name} schedules and computes otherwise"
    yield from _other_checkpoint(question)
    for vendor in dict.fromkeys(server.vendor for server in servers):
        if vendor not in launcher.vendors:
            yield f"# {launcher.name} does not run on GPUs of {vendor}"
    for server in servers:
        if server.gpus > server.per_node:
            yield f"# {server.gpus} GPUs a server are {server.gpus // server.per_node} nodes: start it on each of them"


def _other_checkpoint(question: Question) -> Iterator[str]:
    """A note where the plan's weights have another type than the published checkpoint; scales of fp8 may differ."""

    def alike(dtype: str) -> str:
        return dtype.removesuffix("_block")

    formats, published = question.work.formats, question.model.checkpoint
    pairs = [(formats.kept(part), published.kept(part)) for part in WeightClass]
    other = [(mine, theirs) for mine, theirs in pairs if alike(mine) != alike(theirs)]
    if other:
        mine, theirs = (", ".join(dict.fromkeys(dtypes)) for dtypes in zip(*other, strict=True))
        yield f"# weights in {mine}, the published checkpoint in {theirs}: name a checkpoint in {mine}"


def flags(options: Mapping[str, Any], *, negated: str | None = "no-") -> list[str]:
    """Options as flags under their own names; ``negated`` is the prefix of false ones, None: they are left out."""
    words: list[str] = []
    for name, value in options.items():
        if name in (BLOCKS, TOKENS):
            continue
        flag = name.replace("_", "-")
        if value is True:
            words.append(f"--{flag}")
        elif value is False:
            words += [f"--{negated}{flag}"] if negated is not None else []
        else:
            words += [f"--{flag}", str(value)]
    return words
