"""Which GPUs of which node each of several servers has, and at which ports it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The first port of servers that share a node: what stands in front of them has 8000. And of a second port.
FIRST_PORT, SECOND_PORT = 8100, 8200
#: The variable that says which GPUs a process sees, by vendor.
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
        """Where it is reached."""
        return f"NODE{self.node}:{self.port}"


def places_of(sizes: Sequence[tuple[int, int]], per_node: int) -> list[list[ServerPlace]] | None:
    """Places of several kinds of servers, each (GPUs of one, how many), the larger first so that they fill nodes.

    None where no two of them share a node.

    >>> [[place.gpus for place in kind] for kind in places_of([(1, 2), (2, 1)], 4)]
    [[(2,), (3,)], [(0, 1)]]
    """
    if all(gpus >= per_node for gpus, _ in sizes) or sum(count for _, count in sizes) < 2:
        return None
    found: list[list[ServerPlace]] = [[] for _ in sizes]
    node, used, here = 0, 0, 0
    for kind in sorted(range(len(sizes)), key=lambda number: -sizes[number][0]):
        gpus, count = sizes[kind]
        for _ in range(count):
            if used and used + gpus > per_node:
                node, used, here = node + 1, 0, 0
            seen = tuple(range(used, used + min(gpus, per_node)))
            found[kind].append(ServerPlace(node, seen, FIRST_PORT + here, SECOND_PORT + here))
            used, here = used + gpus, here + 1
            if used >= per_node:
                node, used, here = node + used // per_node, used % per_node, 0
    return found if any(place.port > FIRST_PORT for kind in found for place in kind) else None


def started(name: str, lines: Sequence[str], places: Sequence[ServerPlace], vendor: str, second: str) -> list[str]:
    """A command as a function of the shell, and a call of it for every server, with GPUs and ports of its own.

    Parameters
    ----------
    lines
        Of the command.
    second
        A flag, or a variable of the environment, for a second port; empty: the engine needs none.
    """
    variable = VISIBLE.get(vendor, VISIBLE["nvidia"])
    begin = next(number for number, line in enumerate(lines) if not line.startswith(("#", "export ", "cat ")) and
                 number >= _after_files(lines))  # fmt: skip
    *before, first = lines[: begin + 1]
    head, more = (first.removesuffix(" \\"), " \\") if first.endswith("\\") else (first, "")
    told = [*before, f"{name}() (", f"export {variable}=$1; shift", f'{head} "$@"{more}', *lines[begin + 1 :], ")"]
    node = -1
    for place in places:
        if place.node != node:
            node = place.node
            told.append(f"# on node {node}:")
        call = f"{name} {','.join(map(str, place.gpus))} --port {place.port}"
        if second.startswith("--"):
            call += f" {second} {place.second_port}"
        elif second:
            call = f"{second}={place.second_port} {call}"
        told.append(f"{call} &")
    return told


def _after_files(lines: Sequence[str]) -> int:
    """Behind the last file that is written."""
    return max((number + 1 for number, line in enumerate(lines) if line == "EOF"), default=0)
