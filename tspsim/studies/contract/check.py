"""Which laws are of which kind of object, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...base.errors import shorten
from ...base.registry import whose
from . import collectives, fleets, kinds, probes, services, steps
from .findings import Finding, judged

#: Groups whose objects serve requests.
SERVES = ("tspsim.schedulers", "tspsim.routers", *services.KEYS)


@dataclass(frozen=True)
class Checked:
    """One object and all findings about it."""

    name: str
    group: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.outcome == "broken")

    @property
    def held(self) -> int:
        """Laws that could be held against it."""
        return sum(each.outcome != "left out" for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        findings = [each.to_json() for each in self.findings]
        return {"schema": 1, "name": self.name, "group": self.group, "broken": len(self.broken), "findings": findings}


def check(name: str, keys: Mapping[str, Any] | None = None, scenario: Mapping[str, Any] | None = None) -> Checked:
    """Hold an object that is registered against its contract.

    Parameters
    ----------
    name
        As scenarios write it, or ``GROUP/NAME``.
    keys
        What has to stand beside the name in a plan, or in the traffic.
    scenario
        A question whose first plan names the object, instead of the probes of its kind: of an attention kind its model,
        of a topology its cluster.

    Raises
    ------
    UnknownNameError
        Nothing is registered under the name.
    InputError
        Several kinds have one, or the scenario is wrong.
    """
    group, thing = kinds.found(name)
    found = [*described(thing), *_held(group, thing, keys or {}, scenario)]
    return Checked(thing.name, group, tuple(found))


def described(thing: Any) -> Iterator[Finding]:
    """It says what it is, for catalogues and reports."""
    parts = (thing, getattr(thing, "scheduler", None))
    told = any(getattr(part, name, None) for part in parts for name in ("summary", "title", "__doc__"))
    yield judged("it says what it is", "its summary", told, "it has no summary")


def _held(group: str, thing: Any, keys: Mapping[str, Any], scenario: Mapping[str, Any] | None) -> Iterator[Finding]:
    if scenario is not None:
        yield from _guarded(steps.hold(scenario, "the scenario"), "the scenario")
    elif group in probes.OF_STEPS:
        with TemporaryDirectory() as folder:
            for question, where in probes.OF_STEPS[group](probes.Models(Path(folder)), thing, keys):
                yield from _guarded(steps.hold(question, where), where)
    elif group == "tspsim.collective_algorithms":
        yield from _guarded(collectives.hold(thing), "a group")
    elif group in SERVES:
        yield from _guarded(services.hold(group, thing.name, keys), "a service")
    elif group in fleets.KEYS:
        yield from _guarded(fleets.hold(group, thing.name, keys), "a fleet")
    else:
        yield Finding("it runs", group, "left out", "no plan names it: give --scenario FILE that does")


def _guarded(findings: Iterator[Finding], where: str) -> Iterator[Finding]:
    """Findings; an exception of the object's own is one of them, with the line of the package that it came from."""
    try:
        yield from findings
    except Exception as error:
        told = f"{type(error).__name__}: {shorten(error, 160)} {whose(error)}".rstrip()
        yield Finding("it runs", where, "broken", told)
