"""A plan on a workload on a cluster as one question, and the key of its content.

Two questions with the same content have the same :attr:`Query.key`, wherever they come from. The key is a hash of
everything that the answer depends on: workload, plan and prices with all defaults filled in; the *contents* of
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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


QuestionType = TypeVar("QuestionType")


@dataclass(frozen=True)
class Query(Generic[QuestionType]):
    """What is asked, such as a scenario with a single plan, and the key that stands for its content."""

    key: str
    question: QuestionType


@dataclass(frozen=True)
class Entry:
    """A future row of the table: its point, its plan's name, and its question's key, or the error of the question."""

    point: int
    plan: str
    key: str = ""
    error: str = ""


@dataclass
class Library:
    """Cached look-ups of one process; catalog files are read once.

    Devices and clusters have caches that grow with the number of different questions; :meth:`tidy` clears them now and
    then.
    """

    #: Number of whole answers, with their timelines, that are kept, the latest ones.
    keep: int = 0
    _answers: dict[str, PlanResult] = field(default_factory=dict)
    _objects: dict[Hashable, Any] = field(default_factory=dict)
    _digests: dict[int, tuple[object, str]] = field(default_factory=dict)
    _questions: int = 0

    #: Questions after which the caches are cleared.
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
        if key not in self._objects:
            self._objects[key] = find()
        value: Found = self._objects[key]
        return value

    def tidy(self) -> None:
        """Count one question; clear the caches after :attr:`TIDY_AFTER` of them."""
        self._questions += 1
        if self._questions % self.TIDY_AFTER == 0:
            self._objects.clear()
            self._digests.clear()

    def take(self, key: str, answer: PlanResult) -> None:
        """Keep the answer of a question."""
        if self.keep:
            self._answers[key] = answer
            while len(self._answers) > self.keep:
                del self._answers[next(iter(self._answers))]

    def answer(self, key: str) -> PlanResult | None:
        """The kept answer to a question of this content; None where there is none."""
        return self._answers.get(key)

    def look_up(self, scenario: Scenario) -> simulation.Question:
        """:func:`tspsim.step.simulation.look_up` with these caches; raises InputError."""
        return simulation.look_up(scenario, self.lookups)

    def key(self, resolved: simulation.Question) -> str:
        """The hash of a resolved question's content, as 64 hexadecimal digits."""
        document = resolved.scenario.to_dict()
        for label in ("name", "description", "source"):
            del document[label]
        document["cluster"] = self._digest(resolved.cluster, cluster_content)  # includes slow links, but not slow GPUs
        if resolved.scenario.faults.slow_gpus:
            document["slow_gpus"] = [slow.model_dump() for slow in resolved.scenario.faults.slow_gpus]
        if resolved.scenario.variation is not None:
            document["variation"] = resolved.scenario.variation.model_dump()
        if resolved.others:
            document["others"] = [
                (other.first, other.gpus, self._digest(other.device, device_content)) for other in resolved.others
            ]
        document["device"] = self._digest(resolved.device, device_content)
        document["workload"]["model"] = self._digest(resolved.model, asdict)
        document["workload"]["stack"] = repr(resolved.work.stack)
        if resolved.scenario.traffic is not None:
            document["traces"] = [content_of(_trace_content(name)) for name in resolved.scenario.traffic.files]
        document["version"] = __version__
        return content_of(document)

    def _digest(self, thing: Found, content: Callable[[Found], Any]) -> str:
        entry = self._digests.get(id(thing))
        if entry is None:  # the thing is kept beside its digest, so that its id stays its own
            entry = self._digests[id(thing)] = (thing, content_of(content(thing)))
        return entry[1]


def ask(library: Library, point: int, scenario: Scenario) -> list[tuple[Entry, Query[Scenario] | None]]:
    """One entry for every plan of a point's scenario; a plan with an error does not stop the others."""
    pairs: list[tuple[Entry, Query[Scenario] | None]] = []
    for plan in scenario.plans:
        single = scenario.model_copy(update={"plans": (plan,)})
        try:
            key = library.key(library.look_up(single))
        except InputError as error:
            pairs.append((Entry(point, plan.name, error=str(error)), None))
        else:
            pairs.append((Entry(point, plan.name, key), Query(key, single)))
        library.tidy()
    return pairs


def cluster_content(cluster: Cluster) -> dict[str, Any]:
    """A cluster as plain data, without slow GPUs."""
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
    """A device and its relatives as plain data."""
    return [spec.model_dump(mode="json") for spec in (device.spec, *device.relatives)]


def _trace_content(name: str) -> list[Any]:
    trace = read_trace(name)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    return [*(hashlib.sha256(column.tobytes()).hexdigest() for column in columns), trace.hashes]


def content_of(document: Any) -> str:
    """A hash of plain data."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
