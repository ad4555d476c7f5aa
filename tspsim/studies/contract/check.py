"""The laws of each kind of object, and their findings."""

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
        return tuple(finding for finding in self.findings if finding.outcome == "broken")

    @property
    def held(self) -> int:
        """Number of laws that were checked."""
        return sum(finding.outcome != "left out" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        findings = [finding.to_json() for finding in self.findings]
        return {"schema": 1, "name": self.name, "group": self.group, "broken": len(self.broken), "findings": findings}


def check(name: str, keys: Mapping[str, Any] | None = None, scenario: Mapping[str, Any] | None = None) -> Checked:
    """Check a registered object against its contract.

    Parameters
    ----------
    name
        Its name in scenarios, or ``GROUP/NAME``.
    keys
        Keys beside the name in the plan, or in the traffic.
    scenario
        A question whose first plan names the object, in place of the probes of its kind; for an attention kind its
        model names it, for a topology its cluster.

    Raises
    ------
    UnknownNameError
        Nothing is registered under the name.
    InputError
        Several kinds have the name, or the scenario is wrong.
    """
    group, thing = kinds.group_and_object(name)
    findings = [*described(thing), *_held(group, thing, keys or {}, scenario)]
    return Checked(thing.name, group, tuple(findings))


def described(thing: Any) -> Iterator[Finding]:
    """The law that an object describes itself, for catalogs and reports."""
    parts = (thing, getattr(thing, "scheduler", None))
    summarized = any(getattr(part, name, None) for part in parts for name in ("summary", "title", "__doc__"))
    yield judged("it says what it is", "its summary", summarized, "it has no summary")


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
    """The findings; an exception of the object's own becomes one, with the line of the package that raised it."""
    try:
        yield from findings
    except Exception as error:
        reason = f"{type(error).__name__}: {shorten(error, 160)} {whose(error)}".rstrip()
        yield Finding("it runs", where, "broken", reason)
