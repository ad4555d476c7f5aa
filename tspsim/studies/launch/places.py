"""The GPUs and ports of several servers on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The first port of servers that share a node (the router in front has 8000), and the first of their second ports.
FIRST_PORT, SECOND_PORT = 8100, 8200
#: The variable with the GPUs that a process sees, by vendor.
VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


@dataclass(frozen=True)
class ServerPlace:
    """One server: its node, its GPUs there, and its ports."""

    node: int
    gpus: tuple[int, ...]
    port: int
    second_port: int

    @property
    def address(self) -> str:
        """Node and port for clients."""
        return f"NODE{self.node}:{self.port}"


def places_of(sizes: Sequence[tuple[int, int]], per_node: int) -> list[list[ServerPlace]] | None:
    """Places of several kinds of servers, each with (GPUs of one server, number of servers); larger servers come first,
    so that they fill nodes. None where no two servers share a node.


    >>> [[place.gpus for place in kind] for kind in places_of([(1, 2), (2, 1)], 4)]
    [[(2,), (3,)], [(0, 1)]]
    """
    if all(gpus >= per_node for gpus, _ in sizes) or sum(count for _, count in sizes) < 2:
        return None
    places: list[list[ServerPlace]] = [[] for _ in sizes]
    node, used, here = 0, 0, 0
    for kind in sorted(range(len(sizes)), key=lambda number: -sizes[number][0]):
        gpus, count = sizes[kind]
        for _ in range(count):
            if used and used + gpus > per_node:
                node, used, here = node + 1, 0, 0
            seen = tuple(range(used, used + min(gpus, per_node)))
            places[kind].append(ServerPlace(node, seen, FIRST_PORT + here, SECOND_PORT + here))
            used, here = used + gpus, here + 1
            if used >= per_node:
                node, used, here = node + used // per_node, used % per_node, 0
    return places if any(place.port > FIRST_PORT for kind in places for place in kind) else None


def started(name: str, lines: Sequence[str], places: Sequence[ServerPlace], vendor: str, second: str) -> list[str]:
    """A command as a shell function, and a call for every server, with its GPUs and ports.

    Parameters
    ----------
    lines
        Lines of the command.
    second
        A flag, or a variable of the environment, for a second port; empty where the engine needs none.
    """
    variable = VISIBLE.get(vendor, VISIBLE["nvidia"])
    begin = next(number for number, line in enumerate(lines) if not line.startswith(("#", "export ", "cat ")) and
                 number >= _after_files(lines))  # fmt: skip
    *before, first = lines[: begin + 1]
    head, more = (first.removesuffix(" \\"), " \\") if first.endswith("\\") else (first, "")
    script = [*before, f"{name}() (", f"export {variable}=$1; shift", f'{head} "$@"{more}', *lines[begin + 1 :], ")"]
    node = -1
    for place in places:
        if place.node != node:
            node = place.node
            script.append(f"# on node {node}:")
        call = f"{name} {','.join(map(str, place.gpus))} --port {place.port}"
        if second.startswith("--"):
            call += f" {second} {place.second_port}"
        elif second:
            call = f"{second}={place.second_port} {call}"
        script.append(f"{call} &")
    return script


def _after_files(lines: Sequence[str]) -> int:
    """The number of the first line after the last file."""
    return max((number + 1 for number, line in enumerate(lines) if line == "EOF"), default=0)
