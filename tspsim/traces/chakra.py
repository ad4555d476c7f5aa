"""Chakra execution traces: ``.et`` (protobuf messages one after the other) and their JSON form.

The messages are those of mlcommons/chakra ``schema/protobuf/et_def.proto``: first a ``GlobalMetadata``, then ``Node``
messages, each after its length. The reader decodes the wire format itself, because it needs few fields and no compiled
schema.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from .pieces import Ending, chunks, opened
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Rows

LARGEST = 1 << 30
#: ``NodeType``: computation, sent message, received message, collective.
_COMPUTES, _SENDS, _RECEIVES, _COLLECTIVE = 4, 5, 6, 7
#: ``CollectiveCommType``.
_COLLECTIVES = (
    "all_reduce", "all_reduce", "all_gather", "all_gather", "broadcast", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "exchange",
)  # fmt: skip


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of a protobuf message; raises ValueError where the message is damaged."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if not number:
            raise ValueError("field 0")
        value: int | bytes
        if wire == 0:
            value, place = _varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, place = message[place : place + size], place + size
        elif wire == 2:
            size, place = _varint(message, place)
            value, place = message[place : place + size], place + size
        else:
            raise ValueError(f"wire type {wire}")
        if place > len(message):
            raise ValueError("cut")
        yield number, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("cut")
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def messages(text: bytes) -> Iterator[bytes]:
    """Messages after their lengths; raises ValueError where one is cut off."""
    place = 0
    while place < len(text):
        size, place = _varint(text, place)
        if place + size > len(text):
            raise ValueError("cut")
        yield text[place : place + size]
        place += size


def _attribute(message: bytes) -> tuple[str, Any]:
    """Name and value of an ``AttributeProto``: an integer, a float or text."""
    name = ""
    value: Any = None
    for number, payload in fields(message):
        if number == 1 and isinstance(payload, bytes):
            name = payload.decode("utf-8", "replace")
        elif isinstance(payload, int):
            value = (payload >> 1) ^ -(payload & 1) if number in (15, 17) else payload
        elif number == 3:
            (value,) = struct.unpack("<d", payload)
        elif number in (29, 31):
            value = payload.decode("utf-8", "replace")
    return name, value


def _node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"attr": {}}
    names = {1: "id", 3: "type", 6: "start", 7: "duration"}
    for number, value in fields(message):
        if number in names and isinstance(value, int):
            node[names[number]] = value
        elif number == 2 and isinstance(value, bytes):
            node["name"] = value.decode("utf-8", "replace")
        elif number == 8 and isinstance(value, bytes):
            node["shapes"] = next(
                (v.decode("utf-8", "replace") for n, v in fields(value) if n == 2 and isinstance(v, bytes)), ""
            )
        elif number == 10 and isinstance(value, bytes):
            name, content = _attribute(value)
            node["attr"][name] = content
    return node


def _text(path: Path) -> bytes:
    text, ending = bytearray(), Ending()
    with opened(path) as file:
        for piece in chunks(file, ending):
            text += piece
            if len(text) > LARGEST:
                raise InputError("is over 1 GiB unpacked; cut it to a few steps", file=str(path))
    return bytes(text)


def read_binary(path: Path) -> FilePart:
    """Read ``.et``. Whole messages before a cut are kept, and the part's ``missing`` states the cut."""
    nodes: list[dict[str, Any]] = []
    whole, first = True, True
    try:
        for message in messages(_text(path)):
            if first:
                first = False
                continue
            nodes.append(_node(message))
    except (ValueError, struct.error):
        whole = False
    if not nodes:
        raise InputError("holds no node of a Chakra trace", file=str(path))
    return _part(
        path, nodes, [] if whole else ["the file's end: it is cut off, and whole nodes before the cut are kept"]
    )


def read_json(path: Path) -> FilePart:
    """Read the JSON form, ``{"workload_graph": [node, …]}``."""
    try:
        graph = json.loads(_text(path).decode("utf-8", "replace"), strict=False)["workload_graph"]
        nodes = [
            {
                "name": str(entry.get("Name", "")),
                "type": int(entry.get("NodeType", 0)),
                "start": entry.get("start"),
                "duration": float(entry.get("runtime", 0)),
                "attr": {key: entry[key] for key in ("is_cpu_op", "comm_size", "comm_type") if key in entry},
            }
            for entry in graph
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError("is cut off or no JSON of a Chakra trace", file=str(path)) from None
    return _part(path, nodes, [])


def _part(path: Path, nodes: list[dict[str, Any]], missing: list[str]) -> FilePart:
    match = re.search(r"\.(\d+)\.(?:et|json)", path.name)
    rank = int(match.group(1)) if match else 0
    if match is None:
        missing.append("the rank (NAME.RANK.et)")
    timed = any(node.get("start") for node in nodes)
    if not timed:
        missing.append("starts; operations are placed back to back in the order of the file")
    rows, clock = Rows(), 0.0
    first = min((node["start"] for node in nodes if node.get("start")), default=0)
    for node in nodes:
        kind, attributes = node.get("type", 0), node["attr"]
        if kind not in (_COMPUTES, _SENDS, _RECEIVES, _COLLECTIVE) or attributes.get("is_cpu_op"):
            continue
        length = float(node.get("duration") or 0) / 1e6
        if not 0.0 <= length < 1e6:
            continue
        start = ((node.get("start") or first) - first) / 1e6 if timed else clock
        clock += length
        collective = ""
        if kind == _COLLECTIVE and isinstance(attributes.get("comm_type"), int):
            number = attributes["comm_type"]
            collective = _COLLECTIVES[number] if 0 <= number < len(_COLLECTIVES) else "exchange"
        elif kind in (_SENDS, _RECEIVES):
            collective = "send_recv"
        size = attributes.get("comm_size", 0)
        rows.add(
            rank=rank, start_s=start, duration_s=length, name=node.get("name", ""), kind=collective,
            shapes=node.get("shapes", ""), collective=collective, stream=str(attributes.get("stream", "")),
            size_bytes=float(size) if isinstance(size, int | float) else 0.0,
            group=str(attributes.get("pg_name", "") or ""),
        )  # fmt: skip
    return FilePart(rows, missing=tuple(missing), rank_unknown=match is None)


def _takes_binary(path: Path, start: bytes) -> bool:
    if path.suffix != ".et" and path.suffixes[-2:] != [".et", ".gz"]:
        return False
    try:
        size, place = _varint(start, 0)
        return 0 < size <= len(start) - place and all(
            number in (1, 2) for number, _ in fields(start[place : place + size])
        )
    except ValueError:
        return False


TRACE_READERS.register(TraceReader("chakra", "Chakra's .et", _takes_binary, read_binary))
TRACE_READERS.register(
    TraceReader("chakra-json", "Chakra's JSON", lambda path, start: b'"workload_graph"' in start[:512], read_json)
)
