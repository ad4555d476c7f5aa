"""The question a user asks: a cluster, a workload, and the plans to compare.

A scenario is YAML (or a dict of the same shape)::

    name: tsp-vs-tp
    cluster: {device: mi300x, nodes: 128, fabric: rails-400g}      # or a name from the catalog
    workload: {model: tsp-8b, pass: forward, sequence: 128Ki}
    plans:
      - {name: TSP8, tsp: 8}
      - {name: TP8, tp: 8}

:func:`load` reads and checks one. What a scenario leaves out has the default written here, and
:meth:`Scenario.to_dict` gives them all, so that a report can state them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from . import catalog
from .errors import InputError, UnknownNameError, did_you_mean, shorten
from .purchase.terms import Parts, Project
from .units import Bytes, PositiveCount, UsdPerHour, UsdPerKilowattHour

MOST_PLANS = 100
MOST_NODES = 2**16
#: Products of degrees beyond this are no cluster anybody asks about; the bound keeps work finite.
MOST_RANKS = 2**20

Axis = Literal["tsp", "tp", "sp", "pp", "dp"]
CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"]
Recomputation = Literal["none", "selective", "cheap", "full"]
Precision = Literal["bf16", "fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4"]
AdapterTarget = Literal["qkv", "output", "gate_up", "down"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]
Degree = Annotated[PositiveCount, Field(le=MOST_RANKS)]
#: A switch or NIC.
Named = Annotated[StrictStr, Field(min_length=1, max_length=60)]
#: A GPU by its number, or a switch or NIC by its name.
Vertex = StrictInt | Named
BytesPerParameter = Annotated[float, Field(ge=0, le=1000)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _refuse(sentence: str) -> PydanticCustomError:
    """An error whose text is already what the user reads."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


class SlowLink(_Section):
    """A link that has lost bandwidth or is dead, in both directions: an xGMI pair, a GPU's NVLink, a NIC's rail."""

    between: tuple[Vertex, Vertex] = Field(description="GPU numbers, or names such as node0/switch and node0/nic3")
    factor: Annotated[float, Field(ge=0, le=1)] = Field(description="share of its bandwidth that is left; 0 is dead")

    def in_words(self) -> str:
        ends = f"The link between {end(self.between[0])} and {end(self.between[1])}"
        if not self.factor:
            return f"{ends} is dead; messages go round it (`cluster.faults.links`)."
        return (
            f"{ends} has {100 * self.factor:g} % of its bandwidth left; nothing is routed around it, but libraries "
            "choose their algorithm with it in view (`cluster.faults.links`)."
        )


class SlowGpu(_Section):
    """A GPU whose kernels take longer than those of the others."""

    gpu: Annotated[StrictInt, Field(ge=0)] = Field(description="number in the cluster, node by node from 0")
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(description="its kernels' time over the others'")


class Faults(_Section):
    """What is not as specified: slower and dead links, dead switches and NICs, slower GPUs."""

    links: Annotated[tuple[SlowLink, ...], Field(max_length=1000)] = ()
    dead: Annotated[tuple[Named, ...], Field(max_length=1000)] = Field(
        (), description="switches and NICs that are down, such as node0/nic3 or rail3/leaf0: all their links are dead"
    )
    slow_gpus: Annotated[tuple[SlowGpu, ...], Field(max_length=1000)] = ()

    @model_validator(mode="after")
    def _once(self) -> Faults:
        gpus = [slow.gpu for slow in self.slow_gpus]
        pairs = [frozenset(map(str, link.between)) for link in self.links]
        twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
        if twice is not None:
            raise _refuse(f"GPU {twice} is slow twice; state one factor")
        again = next((link for link, pair in zip(self.links, pairs, strict=True) if pairs.count(pair) > 1), None)
        if again is not None:
            ends = " and ".join(map(str, again.between))
            raise _refuse(f"the link between {ends} is named twice; state one factor")
        return self

    def in_words(self) -> tuple[str, ...]:
        """A sentence a fault."""
        return (
            *(link.in_words() for link in self.links),
            *(f"{shorten(name)} is down; messages go round it (`cluster.faults.dead`)." for name in self.dead),
            *(
                f"Kernels of GPU {slow.gpu} take {slow.factor:g} times as long as those of the others "
                "(`cluster.faults.slow_gpus`)."
                for slow in self.slow_gpus
            ),
        )


def end(vertex: Vertex) -> str:
    """One end of a link, as people call it."""
    return f"GPU {vertex}" if isinstance(vertex, int) else shorten(vertex)


class ClusterInline(_Section):
    """A cluster in the scenario's own words; :mod:`tspsim.network` builds it."""

    device: Name | None = Field(None, description="GPU, from the catalog of devices")
    nodes: Annotated[PositiveCount, Field(le=MOST_NODES)] = 1
    fabric: Name | None = Field(None, description="between nodes, from the catalog of fabrics")
    node: Name | None = Field(None, description="node type; the device's usual eight-GPU node when left out")
    oversubscription: Annotated[float, Field(ge=1, le=64)] | None = Field(
        None, description="leaf downlinks over uplinks; the fabric's own when left out"
    )
    faults: Faults | None = Field(None, description="links and GPUs that are slower than specified, or dead")

    @model_validator(mode="after")
    def _connected(self) -> ClusterInline:
        if self.device is None and self.node is None:
            raise _refuse("needs a device, such as device: mi300x, or a node, such as node: mi300x-8")
        if self.nodes > 1 and self.fabric is None:
            raise _refuse(f"{self.nodes} nodes need a fabric between them, such as fabric: rails-400g")
        return self


class OptimizerSpec(_Section):
    """Bytes a parameter while training: a name from :data:`OPTIMIZERS`, or the four parts.

    ``state`` holds the fp32 master weights and both moments of Adam; ``temporaries`` what an unfused step
    makes.
    """

    name: Name = "stated"
    weights: BytesPerParameter
    gradients: BytesPerParameter
    state: BytesPerParameter
    temporaries: BytesPerParameter = 0.0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in OPTIMIZERS:
            raise _refuse(f"unknown optimizer '{shorten(value)}'{did_you_mean(value, OPTIMIZERS)}")
        return {"name": value, **OPTIMIZERS[value]}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": sorted(OPTIMIZERS)}, handler(schema)]}

    @property
    def bytes_per_parameter(self) -> float:
        return self.weights + self.gradients + self.state + self.temporaries


#: Mixed-precision Adam keeps bf16 weights and gradients, fp32 master weights and two fp32 moments
#: (Rajbhandari et al. 2020, ZeRO, §3.1: 2 + 2 + 12). An unfused step also holds an fp32 copy of the gradients
#: and the fp32 update.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adamw": {"weights": 2.0, "gradients": 2.0, "state": 12.0, "temporaries": 0.0},
    "adamw-unfused": {"weights": 2.0, "gradients": 2.0, "state": 12.0, "temporaries": 8.0},
}


class RoutingSpec(_Section):
    """How evenly tokens fall on experts; all wait for the busiest rank (:mod:`tspsim.parallel.routing`)."""

    load: Literal["balanced", "zipf", "dirichlet", "measured"] = "balanced"
    skew: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="Zipf exponent, or 1 / concentration; 0 is even"
    )
    seed: Annotated[StrictInt, Field(ge=0)] = 0
    shares: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=4096)] = Field(
        (), description="measured: tokens an expert, in any unit"
    )
    capacity_factor: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="an expert takes at most this many times the mean, the rest is dropped; default: no limit"
    )

    @model_validator(mode="after")
    def _complete(self) -> RoutingSpec:
        if (self.load == "measured") != bool(sum(self.shares)):
            raise _refuse("load: measured needs shares, one number an expert, not all zero; other loads take none")
        return self


class AdaptersSpec(_Section):
    """Low-rank adapters beside frozen weights (LoRA)."""

    rank: Annotated[PositiveCount, Field(le=65536)]
    targets: Annotated[tuple[AdapterTarget, ...], Field(min_length=1)] = ("qkv", "output", "gate_up", "down")

    @field_validator("targets")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((target for target in value if value.count(target) > 1), None)
        if twice is not None:
            raise _refuse(f"'{twice}' is named twice; name each product once")
        return value


class Workload(_Section):
    """What every replica computes in one step."""

    model: Name = Field(description="catalog name, YAML file, or a Hugging Face config.json")
    pass_: Literal["forward", "training", "prefill", "decode"] = Field(alias="pass")
    sequence: PositiveCount = Field(description="tokens a sequence")
    sequences_per_replica: PositiveCount = 1
    precision: Precision = Field("bf16", description="of the layers' products; attention and tables stay in bf16")
    document: PositiveCount | None = Field(
        None, description="tokens of the documents packed into a sequence; default: one document"
    )
    adapters: AdaptersSpec | None = Field(None, description="low-rank adapters; the model itself is frozen")
    stack: Name = Field("ideal", description="the software, from the catalog of stacks, or a YAML file")
    optimizer: OptimizerSpec = OptimizerSpec(name="adamw", **OPTIMIZERS["adamw"])
    runtime_reserve: Bytes = Field(
        float(2 * 2**30), description="a GPU's context, collective buffers and fragmentation; default 2 GiB"
    )
    causal: StrictBool = True
    routing: RoutingSpec = Field(RoutingSpec(), description="how evenly tokens fall on experts")
    multi_token: StrictBool = Field(False, description="train the model's modules for further tokens (MTP)")

    @field_validator("pass_")
    @classmethod
    def _supported(cls, value: str) -> str:
        if value in ("prefill", "decode"):
            raise _refuse(f"'{value}' comes with serving; use forward or training")
        return value


class Placement(_Section):
    """Which axes run along the node, and which along rails across nodes; the first named is innermost."""

    node: tuple[Axis, ...] = ()
    rails: tuple[Axis, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Placement:
        axes = (*self.node, *self.rails)
        twice = next((axis for axis in axes if axes.count(axis) > 1), None)
        if twice:
            raise _refuse(f"axis '{twice}' is placed twice; name each axis once, in node or in rails")
        return self


class Plan(_Section):
    """One way to spread the model over the cluster. Degrees left out are one, dp the GPUs that are left."""

    name: str = Field(description="1 to 60 printable characters, unique in the scenario")
    tsp: Degree = Field(1, description="folded tensor and sequence parallelism")
    tp: Degree = Field(1, description="tensor parallelism")
    sp: Degree = Field(1, description="sequence (context) parallelism")
    pp: Degree = Field(1, description="pipeline stages")
    vpp: Degree = Field(1, description="virtual stages a pipeline rank")
    ep: Degree = Field(1, description="ranks that experts are spread over, taken from tp, tsp, sp and dp in this order")
    dp: Degree | None = Field(None, description="replicas; the GPUs that are left when not stated")
    partition: Literal["zigzag", "contiguous"] = "zigzag"
    exchange: Literal["all_gather", "ring", "ulysses"] = "all_gather"
    sequence_regions: StrictBool = Field(False, description="reduce-scatter and all-gather around the norms")
    overlap: StrictBool | None = Field(None, description="exchanges beside compute; default: the scheme's")
    overlap_chunks: Annotated[PositiveCount, Field(le=1024)] = 4
    recomputation: Recomputation | None = Field(None, description="default: full in training, else none")
    micro_batch: PositiveCount | None = Field(None, description="sequences; default: 1 in training, else all")
    schedule: Literal["1f1b", "zb-h1"] = Field("1f1b", description="of a pipeline; interleaved with vpp > 1")
    stage_layers: tuple[PositiveCount, ...] = Field((), description="layers of every chunk; default: even")
    zero: Annotated[int, Field(ge=0, le=3)] = Field(0, description="what replicas divide: 3 is FSDP")
    shard_group: Degree | None = Field(None, description="ranks that divide it (hybrid sharding); default: all")
    expert_dispatch: Literal["ranks", "links", "experts"] = Field(
        "ranks", description="a token travels once to each rank of its experts by a library or at the links' rate, or "
        "once to each expert"
    )  # fmt: skip
    expert_overlap: Literal["none", "shared_experts", "micro_batches"] = Field(
        "none", description="what hides dispatch and combine: shared experts, and a backward behind another's forward"
    )
    algorithms: dict[CollectiveKind, Name] = {}
    placement: Placement | None = None

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not (1 <= len(value) <= 60 and value.isprintable() and value.strip()):
            raise _refuse(f"'{shorten(value)}' is not allowed; a name has 1 to 60 printable characters")
        return value

    @model_validator(mode="after")
    def _folded_alone(self) -> Plan:
        if self.tsp > 1 and (self.tp > 1 or self.sp > 1):
            raise _refuse(f"tsp: {self.tsp} folds tp and sp onto one axis; leave tp and sp out beside it")
        return self

    @property
    def ranks_per_replica(self) -> int:
        """GPUs one copy of the model takes."""
        return math.prod((self.tsp, self.tp, self.sp, self.pp))

    def degrees(self, gpus: int) -> dict[str, int]:
        """The size of every axis on ``gpus`` GPUs, dp filled in; the product of all but ``ep`` is ``gpus``.

        Raises
        ------
        InputError
            The replica does not divide the GPUs, or a stated dp does not use them all.
        """
        replica, remainder = self.ranks_per_replica, gpus % self.ranks_per_replica
        degrees = {axis: int(getattr(self, axis)) for axis in ("tsp", "tp", "sp", "pp")}
        stated = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "1"
        if remainder:
            raise InputError(
                f"{stated} = {replica} GPUs a replica do not divide the cluster's {gpus}"
                + (f"; {remainder} would be left over" if replica <= gpus else ""),
                key=f"plans.{self.name}",
            )
        if self.dp is not None and self.dp * replica != gpus:
            raise InputError(
                f"{self.dp} replicas of {replica} GPUs are {self.dp * replica}, but the cluster has {gpus}; "
                f"use {gpus // replica} or leave dp out",
                key=f"plans.{self.name}.dp",
            )
        return {**degrees, "ep": self.ep, "dp": gpus // replica}


class Prices(_Section):
    """Prices that replace the device's own in the cost of a run."""

    gpu_hour: UsdPerHour | None = Field(None, description="rent of one GPU")
    electricity: UsdPerKilowattHour | None = Field(None, description="added to rent only when stated")


def _form_of_cluster(value: Any) -> str:
    return "inline" if isinstance(value, Mapping | ClusterInline) else "name"


ClusterChoice = Annotated[
    Annotated[Name, Tag("name")] | Annotated[ClusterInline, Tag("inline")],
    Discriminator(_form_of_cluster),
]


class Offer(_Section):
    """Hardware that could be bought for the scenario's work; ``tspsim compare`` asks the scenario on each."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    cluster: ClusterChoice
    plans: Annotated[tuple[Name, ...], Field(max_length=MOST_PLANS)] = Field(
        (), description="names of the scenario's plans that are tried on it; all when left out"
    )
    prices: Prices | None = Field(None, description="instead of the scenario's")
    fabric: Parts | None = Field(None, description="price and power of its fabric's pieces, instead of the project's")


class Scenario(_Section):
    """A typed and checked question; see :func:`load`."""

    name: Name
    description: Prose = ""
    cluster: ClusterChoice = Field(description="the first offer's when left out")
    workload: Workload
    plans: Annotated[tuple[Plan, ...], Field(min_length=1, max_length=MOST_PLANS)]
    prices: Prices = Prices()
    offers: Annotated[tuple[Offer, ...], Field(max_length=MOST_PLANS)] = Field((), description="what could be bought")
    project: Project | None = Field(None, description="the whole job: tokens, failures, power, price of the fabric")
    source: Prose = Field("", description="where the question comes from")

    @model_validator(mode="after")
    def _offers_name_plans(self) -> Scenario:
        names = [offer.name for offer in self.offers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _refuse(f"two offers are named '{twice}'; give each its own name")
        known = [plan.name for plan in self.plans]
        for offer in self.offers:
            unknown = next((name for name in offer.plans if name not in known), None)
            if unknown is not None:
                raise _refuse(f"offer '{offer.name}': unknown plan '{shorten(unknown)}'{did_you_mean(unknown, known)}")
        return self

    @field_validator("plans")
    @classmethod
    def _complete(cls, plans: tuple[Plan, ...], info: ValidationInfo) -> tuple[Plan, ...]:
        """Names are unique; recomputation that is left out follows the pass."""
        names = [plan.name for plan in plans]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _refuse(f"two plans are named '{twice}'; give each its own name")
        workload = info.data.get("workload")  # absent when it is wrong itself, which is then the error
        default: Recomputation = "full" if workload and workload.pass_ == "training" else "none"
        update = {"recomputation": default}
        return tuple(plan if plan.recomputation else plan.model_copy(update=update) for plan in plans)

    @property
    def faults(self) -> Faults:
        """What is slower than specified, or dead; mostly nothing."""
        stated = self.cluster.faults if isinstance(self.cluster, ClusterInline) else None
        return stated or Faults()

    def plan(self, name: str) -> Plan:
        """The plan of this name; raises UnknownNameError with the nearest."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        raise UnknownNameError("plan", name, [plan.name for plan in self.plans])

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the order of the fields, all defaults filled in, quantities as numbers in SI.

        A scenario that is no purchase has neither ``offers`` nor ``project``.
        """
        data = self.model_dump(mode="json", by_alias=True)
        return {key: value for key, value in data.items() if value or key not in ("offers", "project")}

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
        """See :func:`load`."""
        return load(source, overrides)


def load(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    source
        Catalog name, path of a YAML file, or a mapping of the same shape.
    overrides
        ``path=value``, as ``--set`` takes them: ``workload.sequence=64Ki``, ``plans.TSP8.overlap=false``. A
        plan is addressed by its name (or its position from 0), values are YAML.

    Raises
    ------
    InputError
        One line: file, key path, value, what is allowed, and the nearest valid name.
    """
    if isinstance(source, Mapping):
        file, folder, data = None, None, dict(source)
    else:
        path = catalog.locate("scenarios", source)
        file, folder, data = str(path), path.parent, catalog.read_yaml(path)
    data = _on_the_first_offer(data)
    paths = []
    for override in overrides:
        path_, data = _override(data, override)
        paths.append(path_)
    try:
        return _with_known_names(catalog.validate(data, Scenario), folder)
    except InputError as error:
        raise error.at(file=_origin(error.key or "", paths, file)) from None


def _on_the_first_offer(data: dict[str, Any]) -> dict[str, Any]:
    """A purchase that names no cluster is asked on its first offer's; before overrides, which may change that."""
    offers = data.get("offers")
    first = offers[0] if isinstance(offers, list | tuple) and offers else None
    if "cluster" in data or not isinstance(first, Mapping) or "cluster" not in first:
        return data
    return {**data, "cluster": first["cluster"]}


def _override(data: dict[str, Any], override: str) -> tuple[str, dict[str, Any]]:
    """The key path that one ``path=value`` sets, and a copy of ``data`` with the value there."""
    path, equals, text = override.partition("=")
    path = path.strip()
    place = f"--set {shorten(override)}"
    if not equals or not all(path.split(".")):
        raise InputError("is not of the form path=value, such as workload.sequence=64Ki", file=place)
    try:
        value = catalog.parse_yaml(text)
        return path, dict(_assign(data, path, value))
    except InputError as error:
        raise error.at(file=place) from None


def _assign(data: Any, path: str, value: object) -> Any:
    """A copy of ``data`` with ``value`` at ``path``; nothing changes in place: YAML aliases share."""
    if not path:
        return value
    if isinstance(data, list | tuple):
        index, rest = _entry(data, path)
        return [_assign(entry, rest, value) if i == index else entry for i, entry in enumerate(data)]
    if isinstance(data, Mapping) or data is None:
        key, _, rest = path.partition(".")
        present = dict(data or {})
        return {**present, key: _assign(present.get(key), rest, value)}
    raise InputError(f"{catalog.describe(data)} has no keys; '{shorten(path)}' cannot be set in it")


def _entry(entries: Sequence[Any], path: str) -> tuple[int, str]:
    """Position of the list entry that ``path`` begins with, and the rest; names may contain dots."""
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
    named = [name for name in names if isinstance(name, str) and f"{path}.".startswith(f"{name}.")]
    if named:
        name = max(named, key=len)
        return names.index(name), path[len(name) + 1 :]
    first, _, rest = path.partition(".")
    if first.isdecimal() and len(first) < 6 and int(first) < len(entries):
        return int(first), rest
    raise UnknownNameError("plan", first, [name for name in names if isinstance(name, str)])


def _origin(key: str, overridden: Iterable[str], file: str | None) -> str | None:
    """Where the value at ``key`` came from: the override that set it, the file, or both (a plan, say)."""
    for path in reversed(list(overridden)):
        if f"{key}.".startswith(f"{path}."):
            return "--set"
        if path.split(".")[0] == key.split(".")[0]:
            return f"{file} with --set {shorten(path)}" if file else f"--set {shorten(path)}"
    return file


def _with_known_names(scenario: Scenario, folder: Path | None) -> Scenario:
    """The scenario with every catalog name checked, and paths beside its file made reachable from here."""

    def located(kind: catalog.Kind, name: str | None, key: str) -> str | None:
        if name is None:
            return None
        try:
            path = catalog.locate(kind, name, beside=folder)
        except InputError as error:
            raise error.at(key=key) from None
        return str(path) if catalog.is_path(name) else name

    def known_cluster(cluster: str | ClusterInline, key: str) -> str | ClusterInline:
        if isinstance(cluster, ClusterInline):
            kinds: dict[str, catalog.Kind] = {"device": "devices", "fabric": "fabrics", "node": "nodes"}
            names = {part: located(kind, getattr(cluster, part), f"{key}.{part}") for part, kind in kinds.items()}
            return cluster.model_copy(update=names)
        if catalog.is_path(cluster):
            return located("clusters", cluster, key) or cluster
        known = sorted({*catalog.names("clusters"), *catalog.names("nodes")})
        if cluster not in known:
            raise UnknownNameError("cluster", cluster, known, key=key)
        return cluster

    workload = {
        "model": located("models", scenario.workload.model, "workload.model"),
        "stack": located("stacks", scenario.workload.stack, "workload.stack"),
    }
    update: dict[str, Any] = {
        "workload": scenario.workload.model_copy(update=workload),
        "offers": tuple(
            offer.model_copy(update={"cluster": known_cluster(offer.cluster, f"offers.{offer.name}.cluster")})
            for offer in scenario.offers
        ),
        "cluster": known_cluster(scenario.cluster, "cluster"),
    }
    return scenario.model_copy(update=update)
