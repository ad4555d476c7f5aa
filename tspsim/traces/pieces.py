"""Events of a JSON file in pieces: neither the file nor its events are in memory as a whole.

A piece ends between two events. A ``}, {`` may be such a border or stand inside an event; parsing decides, because only
a run of whole events is valid JSON. A lenient parser reads events one by one where the strict one refuses them (control
characters, NaN).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..base.errors import InputError
from .packing import BrokenError, unpacked

#: Byte order mark that some editors and shells write before UTF-8.
BOM = b"\xef\xbb\xbf"
#: Bytes per read: data in a core's own cache is parsed three times as fast as megabytes are.
PIECE = 128 << 10
#: The largest event, head or tail that is read, in bytes.
LARGEST = 64 << 20
_BORDER = re.compile(rb"\}\s*,\s*\{")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')

E = TypeVar("E")


@dataclass
class Ending:
    """The end of a file: the entries beside its events, and whether the file is whole."""

    beside: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    #: Number of events that are no valid JSON, or no event.
    refused: int = 0


def opened(path: Path) -> BinaryIO:
    """The packed bytes of the file; :func:`chunks` unpacks them."""
    return path.open("rb")


def first_bytes(path: Path, count: int = 1 << 16) -> bytes:
    """The beginning of a file, unpacked and without byte order mark; empty where unpacking fails."""
    with opened(path) as file:
        return next(chunks(file, Ending(), count), b"").removeprefix(BOM)


def chunks(file: BinaryIO, ending: Ending, size: int | None = None) -> Iterator[bytes]:
    """The file in pieces of at most ``size`` bytes, unpacked (:mod:`.packing`). Where it breaks off, the pieces before
    the break are returned and ``ending.whole`` is False; raises InputError where it cannot be unpacked."""
    try:
        yield from unpacked(file, size or PIECE)
    except BrokenError:
        ending.whole = False
    except InputError as error:
        raise error.at(file=str(file.name)) from None


def events(
    path: Path, parse: Callable[[bytes], list[E]], one: Callable[[dict[str, Any]], E], ending: Ending
) -> Iterator[list[E]]:
    """Events of a Kineto file, as lists.

    Parameters
    ----------
    parse
        Reads a JSON list of events at once; raises ValueError where the text is not one.
    one
        Turns a leniently read dictionary into an event.
    ending
        Receives the entries before and after the events.

    Raises
    ------
    InputError
        The file holds no list of events.
    """
    with opened(path) as file:
        source = chunks(file, ending)
        buffer, head = _beginning(path, source)
        if head:
            ending.beside |= _loose(head.rstrip().rstrip(b",") + b"}")
        done, parts, size, enough = False, [buffer], len(buffer), 0
        for piece in source:
            parts.append(piece)
            size += len(piece)
            if size > LARGEST:
                what = "the text behind the events is" if done else "an event is"
                hint = "" if done else "; this is no trace"
                raise InputError(f"{what} over {LARGEST >> 20} MiB{hint}", file=str(path))
            if done or size < enough:
                continue
            whole_events, buffer, done = _whole_events(b"".join(parts), parse, one, ending, last=False)
            if whole_events:
                yield whole_events
            # An event longer than the buffer is parsed again after the buffer has doubled.
            enough = 2 * size if 2 * len(buffer) > size else 0
            parts, size = [buffer], len(buffer)
        buffer = b"".join(parts)
        while not done:
            before = len(buffer)
            whole_events, buffer, done = _whole_events(buffer, parse, one, ending, last=True)
            if whole_events:
                yield whole_events
            if not done and len(buffer) == before:
                ending.whole = False
                return
        tail = buffer.lstrip().lstrip(b",").strip()
        if tail and tail != b"}":
            rest = _loose(b"{" + tail)
            ending.beside |= rest
            ending.whole = ending.whole and bool(rest)
        elif head is not None and not tail:
            ending.whole = False


def _beginning(path: Path, source: Iterator[bytes]) -> tuple[bytes, bytes | None]:
    """The text after the opening of the list of events, and the text before it (None: the file is the list)."""
    parts: list[bytes] = []
    enough, piece = 0, b""
    while True:
        piece = next(source, b"")
        parts.append(piece)
        if piece and sum(map(len, parts)) < enough:
            continue
        buffer = b"".join(parts).removeprefix(BOM)
        start = buffer.lstrip()
        if start[:1] == b"[":
            return start[1:], None
        match = _ARRAY.search(buffer)
        if match is not None:
            return buffer[match.end() :], buffer[: match.start()]
        if not piece or len(buffer) > LARGEST:
            break
        parts, enough = [buffer], 2 * len(buffer)
    raise InputError("has no list 'traceEvents'", file=str(path))


def _whole_events(
    buffer: bytes, parse: Callable[[bytes], list[E]], one: Callable[[dict[str, Any]], E], ending: Ending, *, last: bool
) -> tuple[list[E], bytes, bool]:
    """The whole events in ``buffer``, the rest of it, and whether the list ended."""
    for border in _last_borders(buffer):
        try:
            return parse(b"[" + buffer[: border + 1] + b"]"), buffer[border + 1 :].lstrip().removeprefix(b","), False
        except ValueError:
            continue
    return _one_by_one(buffer, one, ending, last=last)


def _last_borders(buffer: bytes, most: int = 3) -> list[int]:
    """Places of ``}`` that may be borders, the last first."""
    places: list[int] = []
    end = len(buffer)
    while end > 0 and len(places) < most:
        start = max(0, end - (1 << 12))
        borders = [start + match.start() for match in _BORDER.finditer(buffer[start : end + 64])]
        places += [place for place in reversed(borders) if place < end]
        end = start
        if len(buffer) - end > 1 << 18:
            break
    return places[:most]


def _one_by_one(
    buffer: bytes, one: Callable[[dict[str, Any]], E], ending: Ending, *, last: bool
) -> tuple[list[E], bytes, bool]:
    """The whole events of ``buffer`` from the lenient parser, one by one."""
    decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
    # A character that is cut at a piece's end becomes a surrogate, and its event is read again with the next piece.
    text = buffer.decode("utf-8", errors="surrogateescape")
    whole_events: list[E] = []
    place = 0
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if place >= len(text):
            return whole_events, b"", False
        if text[place] == "]":
            return whole_events, text[place + 1 :].encode("utf-8", errors="surrogateescape"), True
        try:
            event, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            ends = (match.start() + 1 for match in islice(_BEHIND.finditer(text, place), _NESTED))
            end = next((candidate for candidate in ends if _balanced(text[place:candidate])), 0)
            if not end:
                return whole_events, text[place:].encode("utf-8", errors="surrogateescape"), False
            # C++ writes nan and inf, which JSON does not have.
            event = _loose(_NO_NUMBER.sub("null", text[place:end]).encode("utf-8", "replace"))
            if not event:
                ending.refused += 1
                place = end
                continue
        place = end
        try:
            whole_events.append(one(event))
        except (TypeError, ValueError, AttributeError):
            ending.refused += 1


#: The ends that are tried for one event: their largest number, and their pattern.
_NESTED = 32
_BEHIND = re.compile(r"\}\s*,\s*\{|\}\s*\]")
_NO_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:nan|inf(?:inity)?)(?=[,\s}\]])", re.IGNORECASE)


def _balanced(text: str) -> bool:
    """Whether the braces outside of strings are balanced: the text is a whole event, but not a valid one."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
    return bare.count("{") == bare.count("}") > 0


def _loose(text: bytes) -> dict[str, Any]:
    """A JSON object, read leniently; empty where that fails."""
    try:
        document = json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
