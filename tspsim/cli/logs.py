"""Options that name logs of nccl-tests, for every command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..base.errors import InputError

if TYPE_CHECKING:
    from ..calibration import NcclLog

Stated = TypeVar("Stated", int, str)
Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--nccl-tests",
        "log_files",
        multiple=True,
        metavar="FILE",
        help="A log of nccl-tests or rccl-tests as printed; repeatable, with the next four once for all or once each.",
    ),
    click.option("--op", "ops", multiple=True, metavar="NAME", help="Collective of a log: all_reduce, all_gather, …."),
    click.option("--gpus", multiple=True, type=click.IntRange(1), help="Its GPUs, if it does not list its ranks."),
    click.option("--nodes", multiple=True, type=click.IntRange(1), help="Its machines, if it does not list its ranks."),
    click.option("--library", "libraries", multiple=True, metavar="NAME", help="Its library, such as 'NCCL 2.29.2'."),
    click.option("--node", metavar="NAME", help="The catalog's node that ran them; the GPU's usual one if left out."),
)


def log_options(command: Command) -> Command:
    """The options, in their order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def logs_of(
    files: Sequence[str],
    ops: Sequence[str],
    gpus: Sequence[int],
    nodes: Sequence[int],
    libraries: Sequence[str],
    node: str | None,
) -> list[NcclLog]:
    """One log per file; an option stands once for all logs or once for each, in their order; raises InputError."""
    from pathlib import Path

    from ..calibration import NcclLog

    def of_files(option: str, stated: Sequence[Stated]) -> Sequence[Stated | None]:
        if stated and not files:
            raise InputError("describes logs; name them with --nccl-tests", file=option)
        if len(stated) > 1 and len(stated) != len(files):
            problem = f"stands {len(stated)} times for {len(files)} logs; give it once for all or once for each"
            raise InputError(problem, file=option)
        if len(stated) == len(files):
            return stated
        return [stated[0] if stated else None] * len(files)

    parts = (
        of_files("--op", ops), of_files("--gpus", gpus), of_files("--nodes", nodes), of_files("--library", libraries)
    )  # fmt: skip
    if files and not ops:
        raise InputError("is needed for a log: all_reduce, all_gather, …", file="--op")
    return [
        NcclLog(Path(file), op or "", its_gpus, its_nodes, library or "", node or "")
        for file, op, its_gpus, its_nodes, library in zip(files, *parts, strict=True)
    ]
