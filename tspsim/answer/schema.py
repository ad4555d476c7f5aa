"""JSON Schema of every kind of YAML, generated from its type, for editors that complete and check.

``python -m tspsim.answer.schema FOLDER`` writes one file a kind. In an editor with the YAML language server::

    # yaml-language-server: $schema=docs/schema/scenario.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UnknownNameError

KINDS = ("scenario", "fleet", "device", "node", "fabric", "transport", "cluster", "model", "stack", "failures")


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of file.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.

    Raises
    ------
    UnknownNameError
        There is no such kind; the message offers the nearest.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS)
    from pydantic import TypeAdapter

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TypeAdapter(_type(kind)).json_schema(by_alias=True),
        "title": f"tspsim {kind}",
    }


def _type(kind: str) -> Any:
    """The pydantic type of a kind of file, or the union of its types. The imports are late: each loads a room of its
    own."""
    if kind == "scenario":
        from ..scenario import Scenario

        return Scenario
    if kind == "fleet":
        from ..fleet import FleetQuestion

        return FleetQuestion
    if kind == "failures":
        from ..fleet.failure_keys import FailureEntry

        return FailureEntry
    if kind == "device":
        from ..hardware.announced import AnnouncedDevice
        from ..hardware.specification import DeviceSpec

        return DeviceSpec | AnnouncedDevice
    if kind == "model":
        from ..model.spec import ModelSpec

        return ModelSpec
    if kind == "stack":
        from ..parallel.stack_spec import StackSpec

        return StackSpec
    from ..network import announced, specs

    types: dict[str, Any] = {
        "node": specs.NodeSpec | announced.AnnouncedNode,
        "fabric": specs.FabricSpec,
        "transport": specs.TransportSpec,
        "cluster": specs.ClusterSpec,
    }
    return types[kind]


def write(folder: Path) -> list[Path]:
    """Write ``KIND.json`` for every kind into ``folder``; returns the paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for kind in KINDS:
            path = folder / f"{kind}.json"
            path.write_text(json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(folder)) from None
    return paths


def main(arguments: list[str]) -> int:
    """Write all schemas to the folder named, ``docs/schema`` by default, and print the paths."""
    try:
        paths = write(Path(arguments[0] if arguments else "docs/schema"))
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(*paths, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
