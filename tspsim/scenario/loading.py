"""Reading scenarios: overrides, defaults, and the check that every name is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base import catalog, dialect
from ..base.errors import InputError, UnknownNameError, describe, shorten
from ..base.units import parse
from .cluster import ClusterInline, Island
from .loop import Loop
from .plan import PlanSpec
from .question import Scenario, origin_of


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
    return _checked(*read(source, overrides))


def _checked(file: str | None, folder: Path | None, data: dict[str, Any], paths: list[str]) -> Scenario:
    """The scenario, with defaults filled in and names checked."""
    if asks_for_jobs(data):
        problem = "asks for a fleet of jobs, which tspsim.simulate and `tspsim run` answer and tspsim.fleet.load reads"
        raise InputError(problem, file=file, key=JOBS)
    try:
        scenario = _with_known_names(catalog.validate(data, Scenario), folder)
    except InputError as error:
        raise error.at(file=origin_of(error.key or "", paths, file)) from None
    return scenario.read_from(file, paths, _remarks(data))


def read(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()
) -> tuple[str | None, Path | None, dict[str, Any], list[str]]:
    """A question of any kind: its file and folder (None for a mapping), its data with ``overrides`` set, and the keys
    that they set.

    Raises
    ------
    InputError
        The file does not exist, is no question, or an override does not fit it.
    """
    if isinstance(source, Mapping):
        file, folder, data = None, None, dict(source)
    else:
        path = catalog.locate("scenarios", source)
        file, folder, data = str(path), path.parent, dialect.read_yaml(path)
        _refuse_other_kinds(path, data)
    return file, folder, *_overridden(data, overrides)


def load_text(text: str, file: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and check the text of a scenario as if it stood in ``file``, which need not exist.

    Raises
    ------
    InputError
        As :func:`load` does for the file.

    >>> load_text("name: first", "first.yaml")
    Traceback (most recent call last):
        ...
    tspsim.base.errors.InputError: first.yaml: cluster, workload and plans are required
    """
    return _checked(*read_text(text, file, overrides))


def read_text(
    text: str, file: str | Path, overrides: Sequence[str] = ()
) -> tuple[str, Path, dict[str, Any], list[str]]:
    """:func:`read` for a text, as if it stood in ``file``."""
    path = Path(file)
    data = dialect.mapping_of(text, path)
    _refuse_other_kinds(path, data)
    return str(path), path.parent, *_overridden(data, overrides)


def _overridden(data: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The data with ``overrides`` set, and the keys that they set."""
    data = _on_the_first_offer(data)
    paths = []
    for override in overrides:
        path_, data = _override(data, override)
        paths.append(path_)
    return data, paths


#: The key that makes a question one about a fleet.
JOBS = "jobs"


def asks_for_jobs(data: Mapping[str, Any]) -> bool:
    """Whether a question is about a fleet of jobs (:mod:`tspsim.fleet`)."""
    return JOBS in data


#: Catalog → the key of a scenario that names its entries.
_NAMED_BY = {
    "devices": "names a device: cluster: {device: …}",
    "nodes": "names a node: cluster: {node: …}",
    "fabrics": "names a fabric: cluster: {fabric: …}",
    "transports": "names a transport: cluster: {transport: …}",
    "clusters": "names a cluster: cluster: …",
    "models": "names a model: workload: {model: …}",
    "stacks": "names a stack: workload: {stack: …}",
    "failures": "names failures: failures: {like: …}",
}


def _refuse_other_kinds(path: Path, data: Mapping[str, Any]) -> None:
    """Raise InputError if the file is a model's config.json or another catalog's entry instead of a question."""
    kind = catalog.kind_of(path, data)
    if kind is not None and kind != "scenarios" and not {"workload", "plans", JOBS} & data.keys():
        what = f"describes a {kind.removesuffix('s')}, not a scenario"
        problem = f"{what}; a scenario {_NAMED_BY[kind]} (tspsim init writes a first scenario)"
        raise InputError(problem, file=str(path))


_DECIMAL_THOUSANDS = re.compile(r"\s*([0-9][0-9_.]*)\s*([kKM])\s*")


def _remarks(data: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence if the sequence length has a decimal prefix, though lengths are usually powers of two (32k, 32Ki)."""
    workload = data.get("workload")
    text = workload.get("sequence") if isinstance(workload, Mapping) else None
    if not isinstance(text, str) or (match := _DECIMAL_THOUSANDS.fullmatch(text)) is None:
        return ()
    number, prefix = match[1], match[2].upper()
    other = f"{number}{prefix}i"
    tokens, binary = parse(text, "count"), parse(other, "count")
    return (f"A sequence of {text.strip()} is {tokens:,} tokens; {other} is {binary:,} (`workload.sequence`).",)


def _on_the_first_offer(data: dict[str, Any]) -> dict[str, Any]:
    """A purchase without a cluster takes its first offer's; before overrides, which may change it."""
    offers = data.get("offers")
    first = offers[0] if isinstance(offers, list | tuple) and offers else None
    if "cluster" in data or not isinstance(first, Mapping) or "cluster" not in first:
        return data
    return {**data, "cluster": first["cluster"]}


def assignment(text: str, option: str, form: str) -> tuple[str, str, str]:
    """Split an option's ``path=value`` into key path, value, and the place that messages name.

    Raises
    ------
    InputError
        The text is not of the form ``form``.
    """
    path, equals, rest = text.partition("=")
    path = path.strip()
    place = f"{option} {shorten(text)}"
    if not equals or not all(path.split(".")):
        raise InputError(f"is not of the form {form}", file=place)
    return path, rest, place


def _override(data: dict[str, Any], override: str) -> tuple[str, dict[str, Any]]:
    """The key path that ``path=value`` sets, and a copy of ``data`` with the value set."""
    path, text, place = assignment(override, "--set", "path=value, such as workload.sequence=64Ki")
    try:
        value = dialect.parse_yaml(text)
        return path, _on_every_offer(dict(_assign(data, path, value)), path, value)
    except InputError as error:
        raise error.at(file=place) from None


#: Keys that identify the machine of a cluster.
_MACHINE = ("device", "node")


def _on_every_offer(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A key of the cluster, set in the cluster of every offer too.

    Raises InputError if the key identifies the machine, or an offer names its cluster.
    """
    first, _, key = path.partition(".")
    offers = data.get("offers")
    if first != "cluster" or not isinstance(offers, list | tuple) or not offers:
        return data
    if key.partition(".")[0] in ("", *_MACHINE):
        raise InputError(f"offers have machines of their own; set one's: offers.NAME.{path}", key=path)
    changed = []
    for offer in offers:
        own = offer.get("cluster") if isinstance(offer, Mapping) else None
        if isinstance(own, str):
            problem = f"is the cluster '{shorten(own)}' by name, in which no key can be set; write its keys there"
            raise InputError(problem, key=f"offers.{offer.get('name')}.cluster")
        changed.append({**offer, "cluster": _assign(own, key, value)} if isinstance(own, Mapping) else offer)
    return {**data, "offers": changed}


def _assign(data: Any, path: str, value: object) -> Any:
    """A copy of ``data`` with ``value`` at ``path``. Nothing changes in place, since YAML aliases share objects."""
    if not path:
        return value
    if isinstance(data, list | tuple):
        index, rest = _entry(data, path)
        return [_assign(entry, rest, value) if i == index else entry for i, entry in enumerate(data)]
    if isinstance(data, Mapping) or data is None:
        key, _, rest = path.partition(".")
        present = dict(data or {})
        return {**present, key: _assign(present.get(key), rest, value)}
    raise InputError(f"{describe(data)} has no keys; '{shorten(path)}' cannot be set in it")


def _entry(entries: Sequence[Any], path: str) -> tuple[int, str]:
    """Position of the list entry that ``path`` starts with, and the rest of the path; names may contain dots."""
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
    named = [name for name in names if isinstance(name, str) and f"{path}.".startswith(f"{name}.")]
    if named:
        name = max(named, key=len)
        return names.index(name), path[len(name) + 1 :]
    first, _, rest = path.partition(".")
    if first.isdecimal() and len(first) < 6 and int(first) < len(entries):
        return int(first), rest
    raise UnknownNameError("plan", first, [name for name in names if isinstance(name, str)])


def located(kind: catalog.Kind, name: str | None, folder: Path | None, key: str) -> str | None:
    """A catalog name unchanged, or the resolved path of a file; raises InputError at ``key`` if there is none."""
    if name is None:
        return None
    try:
        path = catalog.locate(kind, catalog.versioned(name)[0], beside=folder)
    except InputError as error:
        raise error.at(key=key) from None
    return str(path) if catalog.is_path(name) else name


def with_known_parts(cluster: str | ClusterInline, folder: Path | None, key: str) -> str | ClusterInline:
    """The cluster with every name checked and paths beside the scenario's file resolved.

    Raises
    ------
    InputError
        A name is unknown; the message offers the nearest.
    """
    if isinstance(cluster, ClusterInline):
        kinds: dict[str, catalog.Kind] = {
            "device": "devices", "fabric": "fabrics", "transport": "transports", "node": "nodes",
        }  # fmt: skip
        names = {part: located(kind, getattr(cluster, part), folder, f"{key}.{part}") for part, kind in kinds.items()}
        if cluster.topology is not None:
            names["topology"] = _known_file(cluster.topology, folder, f"{key}.topology")
        islands = tuple(_known_island(island, folder, f"{key}.islands.{i}") for i, island in enumerate(cluster.islands))
        return cluster.model_copy(update={**names, "islands": islands})
    if catalog.is_path(cluster):
        return located("clusters", cluster, folder, key) or cluster
    clusters = sorted({*catalog.names("clusters"), *catalog.names("nodes")})
    if cluster not in clusters:
        raise UnknownNameError("cluster", cluster, clusters, key=key)
    return cluster


def _known_file(path: str, folder: Path | None, key: str) -> str:
    try:
        return str(catalog.locate_file(path, beside=folder))
    except InputError as error:
        raise error.at(key=key) from None


def _known_island(island: Island, folder: Path | None, key: str) -> Island:
    kinds: dict[str, catalog.Kind] = {"fabric": "fabrics", "device": "devices"}
    names = {part: located(kind, getattr(island, part), folder, f"{key}.{part}") for part, kind in kinds.items()}
    return island.model_copy(update=names)


def _with_known_names(scenario: Scenario, folder: Path | None) -> Scenario:
    """The scenario with every catalog name checked and paths beside its file resolved."""

    def known_cluster(cluster: str | ClusterInline, key: str) -> str | ClusterInline:
        return with_known_parts(cluster, folder, key)

    def known_pools(plan: PlanSpec) -> PlanSpec:
        if plan.pools is None:
            return plan
        update: dict[str, Any] = {
            "fabric": located("fabrics", plan.pools.fabric, folder, f"plans.{plan.name}.pools.fabric")
        }
        for name, pool in plan.pools.members().items():
            if pool.cluster is not None:
                own = known_cluster(pool.cluster, f"plans.{plan.name}.pools.{name}.cluster")
                update[name] = pool.model_copy(update={"cluster": own})
        return plan.model_copy(update={"pools": plan.pools.model_copy(update=update)})

    workload = {
        "model": located("models", scenario.workload.model, folder, "workload.model"),
        "stack": located("stacks", scenario.workload.stack, folder, "workload.stack"),
    }
    update: dict[str, Any] = {
        "workload": scenario.workload.model_copy(update=workload),
        "offers": tuple(
            offer.model_copy(update={"cluster": known_cluster(offer.cluster, f"offers.{offer.name}.cluster")})
            for offer in scenario.offers
        ),
        "cluster": known_cluster(scenario.cluster, "cluster"),
        "plans": tuple(known_pools(plan) for plan in scenario.plans),
    }
    if scenario.traffic is not None:
        update["traffic"] = scenario.traffic.with_files(folder)
    if scenario.loop is not None:
        update["loop"] = _known_loop(scenario.loop, folder)
    return scenario.model_copy(update=update)


def _known_loop(loop: Loop, folder: Path | None) -> Loop:
    """The iteration with every model's name and its stack's checked."""
    update: dict[str, Any] = {
        part: {role: located("models", name, folder, f"loop.{part}.{role}") for role, name in models.items()}
        for part, models in (("forwards", loop.forwards), ("updates", loop.updates))
    }
    return loop.model_copy(update=update | {"stack": located("stacks", loop.stack, folder, "loop.stack")})
