"""All registries with entry points, and the object that a name means."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ...base.errors import InputError, UnknownNameError
from ...base.memo import remembered
from ...base.registry import Registry

#: Rooms whose modules hold registries.
ROOMS = (
    "operators",
    "model",
    "network",
    "parallel",
    "steps",
    "traffic",
    "serving",
    "fleet",
    "traces",
    "studies.launch",
)


@remembered(1)
def registries() -> dict[str, Registry[Any]]:
    """All registries of the package, by their groups of entry points."""
    by_group: dict[str, Registry[Any]] = {}
    for room in ROOMS:
        package = importlib.import_module(f"tspsim.{room}")
        names = [package.__name__]
        names += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for name in names:
            for thing in vars(importlib.import_module(name)).values():
                if isinstance(thing, Registry):
                    by_group[thing.group] = thing
    return by_group


def group_and_object(name: str) -> tuple[str, Any]:
    """The group and the object of a name, or of ``GROUP/NAME`` where several kinds have the name.

    Raises
    ------
    UnknownNameError
        No object has the name.
    InputError
        Objects of several kinds have it.
    """
    group, slash, rest = name.rpartition("/")
    every = registries()
    if slash:
        full = group if group.startswith("tspsim.") else f"tspsim.{group}"
        if full not in every:
            raise UnknownNameError("kind of plug-in", group, [other.removeprefix("tspsim.") for other in every])
        return full, every[full].get(rest)
    holding = [group for group, registry in every.items() if name in registry]
    if not holding:
        raise UnknownNameError("plug-in", name, {plugin for registry in every.values() for plugin in registry})
    if len(holding) > 1:
        forms = " or ".join(f"{group.removeprefix('tspsim.')}/{name}" for group in holding)
        raise InputError(f"'{name}' is the name of {len(holding)} objects; write {forms}")
    return holding[0], every[holding[0]].get(name)
