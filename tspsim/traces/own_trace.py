"""Timelines of ``tspsim run --trace``, laid over a simulation as measured ones are.

A process is a plan, a thread a stream of a rank (``rank 0 compute (…)``). A kernel's instruction may have several
operators: ``shape`` has their names and sizes, ``alone_us`` their times alone; each gets its part of the instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from ..engine.timeline import ON_HOST
from ..network import KINDS
from .kinds import UNKNOWN
from .names import KernelNames
from .pieces import Ending, events
from .reader import TRACE_READERS, FilePart, TraceReader
from .simulated import phase_of_part
from .table import Rows

_THREAD = re.compile(r"^rank (?P<rank>\d+) (?P<stream>\S+)")
#: An operator's sizes begin after its name.
_SIZES = re.compile(r"[ ,]+(?=\[|\d+(×|\.\d+ MB| MB| tokens))")
_PRODUCT = re.compile(r"^\[(\d+)×(\d+)\]·\[(\d+)×(\d+)\]")
_GROUP = re.compile(r"(?P<mb>[\d.]+) MB over (?P<ranks>\d+) ranks along (?P<axis>\w+)")
_WEIGHT_GRADIENT = ", d weight"
#: Rows of a host, and instructions that only order others.
_NO_KERNELS = ("idle", ON_HOST)
_COPIES = ("copy_in", "copy_out")
#: Kinds of transfers that have another name in the file.
_TRANSFERS = {"ring_shift": "send_recv"}
#: Exchanges with experts, by the first word of their names.
_EXCHANGES = ("dispatch", "combine")
#: Part of a program whose gathers serve both passes.
_WEIGHTS = "weights"

#: Kinds of operators by their names.
_KINDS = KernelNames(
    "tspsim",
    "operators of simulated steps",
    kinds={
        "grouped_gemm": (r"^tspsim::gemm::(experts'|fused experts)",),
        "gemm": (r"^tspsim::gemm::",),
        "linear_attention": (r"^tspsim::attention::delta rule",),
        "attention": (r"^tspsim::attention::", r"^tspsim::memory_bound::(merge |fold )"),
        "cache": (r"^tspsim::\w+::.* cache_write$",),
        "rope": (r"^tspsim::\w+::.*\brope\b", r"^tspsim::\w+::.* qk_norm_rope$"),
        "activation": (r"^tspsim::\w+::(experts' )?activation\b",),
        "optimizer": (r"^tspsim::\w+::.* adamw$",),
        "loss": (r"^tspsim::\w+::loss\b",),
        "router": (r"^tspsim::\w+::choose experts",),
        "permute": (r"^tspsim::\w+::(d )?rows to experts", r"^tspsim::\w+::(pack rows|sum of experts)"),
        "embedding": (r"^tspsim::\w+::embedding lookup",),
        "norm": (r"^tspsim::\w+::.*(\bnorm|rmsnorm$|compress |add blocks|into lanes)",),
        "sample": (r"^tspsim::\w+::.* softmax$",),
        "copy": (r"^tspsim::\w+::copy (weights out|gradients in)\b.* copy$",),
        "quantize": (r"^tspsim::\w+::.* copy$",),
        "elementwise": (r"^tspsim::",),
    },
)


class _OwnEvents:
    """The events that are kept, with the names of plans and streams."""

    def __init__(self) -> None:
        self.plans: dict[Any, str] = {}
        self.threads: dict[tuple[Any, Any], tuple[int, str]] = {}
        self.ran: list[dict[str, Any]] = []

    def one(self, event: dict[str, Any]) -> None:
        """Keep an event; raises ValueError where it has no time."""
        name, arguments = event.get("name"), event.get("args", {})
        if event.get("ph") == "M" and name == "process_name":
            self.plans[event["pid"]] = str(arguments["name"])
        elif event.get("ph") == "M" and name == "thread_name":
            match = _THREAD.match(str(arguments["name"]))
            if match is not None:
                self.threads[event["pid"], event["tid"]] = int(match["rank"]), match["stream"]
        elif event.get("ph") == "X":
            if not (abs(float(event["ts"])) < 1e18 and 0.0 <= float(event["dur"]) < 1e15):
                raise ValueError("no time")
            self.ran.append(event)


def _refused(text: bytes) -> list[None]:
    raise ValueError("events are kept one by one")


def read_own(path: Path) -> FilePart:
    """Read a file of one plan; raises InputError for a fleet's, and for several plans."""
    reading, ending = _OwnEvents(), Ending()
    for _ in events(path, _refused, reading.one, ending):
        pass
    if len(reading.plans) > 1:
        named = ", ".join(list(reading.plans.values())[:8])
        raise InputError(f"has {len(reading.plans)} plans ({named}); write a scenario's with one plan", file=str(path))
    if reading.ran and not reading.threads:
        raise InputError("is the timeline of a fleet's jobs, which have no kernels", file=str(path))
    rows, ranks = Rows(), set()
    for event in reading.ran:
        place = reading.threads.get((event["pid"], event["tid"]))
        if place is None or event["cat"] in _NO_KERNELS:
            continue
        ranks.add(place[0])
        for row in _kernels(event):
            rows.add(rank=place[0], device=place[0], stream=place[1], step=0, **row)
    missing = ["the device: the file is a simulated step's"]
    if not ending.whole:
        missing.append("the file's end: it is cut off, and whole events before the cut are kept")
    if len(ranks) > 1:
        missing.append(f"one file per rank: this file has {len(ranks)} ranks, one of each class")
    return FilePart(rows, world_size=max(ranks, default=0) + 1, missing=tuple(missing))


def _kernels(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of an instruction: one for each operator, one for a transfer."""
    arguments, family = event["args"], str(event["cat"])
    shape, part = str(arguments["shape"]), str(arguments["part"])
    start_s, length_s = float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6
    common = {"layer": int(arguments["layer"])}
    if "alone_us" not in arguments:
        kind = "memcpy" if family in _COPIES else _TRANSFERS.get(family, family)
        word = str(event["name"]).split()[0]
        if family == "all_to_all" and word in _EXCHANGES:
            kind = word
        group, size = _GROUP.search(shape), float(arguments["bytes"])
        if group is not None:
            received = KINDS.get(family).received_bytes(1.0, int(group["ranks"])) if family in KINDS else 1.0
            # The sender's row has no bytes of its own.
            size = size / received if size and received else float(group["mb"]) * 1e6
        yield {
            **common, "name": f"tspsim::{event['name']}", "kind": kind, "start_s": start_s, "duration_s": length_s,
            "collective": family, "size_bytes": size, "group": group["axis"] if group is not None else "",
            "phase": "" if part == _WEIGHTS else phase_of_part(part),
        }  # fmt: skip
        return
    alone = [(str(own), float(us)) for own, us in arguments["alone_us"]]
    texts = shape.split("; ") if len(alone) > 1 else [shape]
    if len(texts) != len(alone):
        texts = [str(event["name"])] * len(alone)
    total = sum(us for _, us in alone)
    for text, (own, us) in zip(texts, alone, strict=True):
        taken = length_s * (us / total if total else 1.0 / len(alone))
        cut = _SIZES.search(text)
        word, sizes = (text[: cut.start()], text[cut.end() :]) if cut is not None else (text, "")
        product = _PRODUCT.match(sizes)
        name = f"tspsim::{own}::{word}"
        yield {
            **common, "name": name, "kind": _KINDS.kind_of(name) or UNKNOWN, "start_s": start_s, "duration_s": taken,
            "shapes": "[[{}, {}], [{}, {}]]".format(*product.groups()) if product is not None else "",
            "phase": "weight gradient" if word.endswith(_WEIGHT_GRADIENT)
            else "" if part == _WEIGHTS else phase_of_part(part),
        }  # fmt: skip
        start_s += taken


def _takes(path: Path, start: bytes) -> bool:
    return re.match(rb'\{"displayTimeUnit":"ms","otherData":\{"scenario":', start) is not None


TRACE_READERS.register(TraceReader("tspsim", "timelines of tspsim run --trace", _takes, read_own))
