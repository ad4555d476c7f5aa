"""A plan on a workload on a cluster as one question, and the name of its content.

Two questions with the same content have the same :attr:`Query.key`, wherever they come from: the key is a hash of
what the answer depends on. That is the workload, the plan and the prices with all defaults filled in; the *contents* of
the catalog entries they name (not their names or places); and the version of this package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from .._version import __version__
from ..base.errors import InputError
from ..network import SPREAD
from ..scenario import Scenario
from ..step import question, simulation
from ..traffic import read_trace

if TYPE_CHECKING:
    from ..hardware import Device
    from ..network import Cluster
    from ..network.islands import Islands
    from ..step.result import PlanResult

Found = TypeVar("Found")


@dataclass(frozen=True)
class Query:
    """A scenario with a single plan; ``key`` names its content."""

    key: str
    scenario: Scenario


@dataclass(frozen=True)
class Entry:
    """A row to come: a point, a plan's name, and its question's key, or why there is none."""

    point: int
    plan: str
    key: str = ""
    error: str = ""


@dataclass
class Library:
    """Look-ups that remember, for one process; catalog files are read once.

    Devices and clusters keep what they were asked, so that memory would grow with the number of different questions;
    :meth:`tidy` starts afresh now and then.
    """

    #: Whole answers, with their timelines, of how many questions answered last stay at hand.
    keep: int = 0
    _answers: dict[str, PlanResult] = field(default_factory=dict)
    _found: dict[Hashable, Any] = field(default_factory=dict)
    _digests: dict[int, tuple[object, str]] = field(default_factory=dict)
    _asked: int = 0

    #: Questions after which everything is forgotten.
    TIDY_AFTER = 2000

    @property
    def lookups(self) -> simulation.Lookups:
        fresh = question.FRESH
        return simulation.Lookups(
            build_cluster=lambda *parts: self._once(("cluster", *parts), lambda: fresh.build_cluster(*parts)),
            load_cluster=lambda name: self._once(("named", name), lambda: fresh.load_cluster(name)),
            load_device=lambda name: self._once(("device", name), lambda: fresh.load_device(name)),
            load_model=lambda name: self._once(("model", name), lambda: fresh.load_model(name)),
            load_stack=lambda name: self._once(("stack", name), lambda: fresh.load_stack(name)),
        )

    def _once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        if key not in self._found:
            self._found[key] = find()
        found: Found = self._found[key]
        return found

    def tidy(self) -> None:
        """Call it once a question."""
        self._asked += 1
        if self._asked % self.TIDY_AFTER == 0:
            self._found.clear()
            self._digests.clear()

    def take(self, key: str, answer: PlanResult) -> None:
        """A question was answered here."""
        if self.keep:
            self._answers[key] = answer
            while len(self._answers) > self.keep:
                del self._answers[next(iter(self._answers))]

    def answer(self, key: str) -> PlanResult | None:
        """What was answered here to a question of this content, if it is at hand."""
        return self._answers.get(key)

    def look_up(self, scenario: Scenario) -> simulation.Question:
        """:func:`tspsim.step.simulation.look_up`, remembering; raises InputError."""
        return simulation.look_up(scenario, self.lookups)

    def key(self, asked: simulation.Question) -> str:
        """The content of a question that was looked up, as 64 hexadecimal digits."""
        document = asked.scenario.to_dict()
        for label in ("name", "description", "source"):
            del document[label]
        document["cluster"] = self._digest(asked.cluster, cluster_content)  # slow links among it, but not slow GPUs
        if asked.scenario.faults.slow_gpus:
            document["slow_gpus"] = [slow.model_dump() for slow in asked.scenario.faults.slow_gpus]
        if asked.scenario.variation is not None:
            document["variation"] = asked.scenario.variation.model_dump()
        if asked.others:
            document["others"] = [
                (each.first, each.gpus, self._digest(each.device, device_content)) for each in asked.others
            ]
        document["device"] = self._digest(asked.device, device_content)
        document["workload"]["model"] = self._digest(asked.model, asdict)
        document["workload"]["stack"] = repr(asked.work.stack)
        if asked.scenario.traffic is not None:
            document["traces"] = [content_of(_trace_content(name)) for name in asked.scenario.traffic.files]
        document["version"] = __version__
        return content_of(document)

    def _digest(self, thing: Found, content: Callable[[Found], Any]) -> str:
        known = self._digests.get(id(thing))
        if known is None:  # the thing is kept beside its digest, so that its id stays its own
            known = self._digests[id(thing)] = (thing, content_of(content(thing)))
        return known[1]


def ask(library: Library, point: int, scenario: Scenario) -> list[tuple[Entry, Query | None]]:
    """One entry for every plan of a point's scenario; a plan that is wrong has an error and hinders no other."""
    asked: list[tuple[Entry, Query | None]] = []
    for plan in scenario.plans:
        single = scenario.model_copy(update={"plans": (plan,)})
        try:
            key = library.key(library.look_up(single))
        except InputError as error:
            asked.append((Entry(point, plan.name, error=str(error)), None))
        else:
            asked.append((Entry(point, plan.name, key), Query(key, single)))
        library.tidy()
    return asked


def cluster_content(cluster: Cluster) -> dict[str, Any]:
    """What a cluster is, as plain data, but for slow GPUs."""
    return {
        "node": cluster.node.model_dump(mode="json"),
        "nodes": cluster.nodes,
        "fabric": cluster.fabric.model_dump(mode="json") if cluster.fabric else None,
        "oversubscription": cluster.oversubscription,
        "factors": cluster.factors,
        **({"routing": asdict(cluster.routing)} if cluster.routing != SPREAD else {}),
        **({"islands": _islands_content(cluster.islands)} if cluster.islands is not None else {}),
    }


def _islands_content(islands: Islands) -> list[Any]:
    fabrics = (islands.common, *islands.fabrics)
    return [islands.nodes, *(fabric.model_dump(mode="json") for fabric in fabrics)]


def device_content(device: Device) -> list[Any]:
    """What a device and its relatives are, as plain data."""
    return [spec.model_dump(mode="json") for spec in (device.spec, *device.relatives)]


def _trace_content(name: str) -> list[Any]:
    trace = read_trace(name)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    return [*(hashlib.sha256(column.tobytes()).hexdigest() for column in columns), trace.hashes]


def content_of(document: Any) -> str:
    """A hash of plain data."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
