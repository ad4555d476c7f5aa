"""A question in a link: the part of the page's address after ``#``, which browsers do not send to servers.

The text is compressed and written in characters that addresses allow, so that the link alone restores the page, on
another machine too.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

#: Longest text that is unpacked, the limit of files.
LARGEST_BYTES = 2**20
#: Longest link that is made; some programs cut longer ones.
LONGEST = 30_000


@dataclass(frozen=True)
class State:
    """A question: its text, the name of its file, and the place that the form shows."""

    text: str
    file: str = "question.yaml"
    at: str = ""


def fragment(state: State) -> str:
    """The part of the address after the page's; empty where it would be too long.

    >>> read(fragment(State("name: a", "a.yaml", "plans/0"))) == State("name: a", "a.yaml", "plans/0")
    True
    """
    packed = base64.urlsafe_b64encode(zlib.compress(state.text.encode("utf-8", "replace"), 9)).decode("ascii")
    query = {"q": packed.rstrip("="), "f": state.file} | ({"at": state.at} if state.at else {})
    link = "#" + urlencode(query)
    return link if len(link) <= LONGEST else ""


def read(link: str | None) -> State | None:
    """The question of a link; None where it holds none.

    >>> read("#q=nonsense") is None
    True
    """
    query = parse_qs((link or "").removeprefix("#"))
    packed = query.get("q", [""])[0]
    if not packed:
        return None
    try:
        raw = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(raw, LARGEST_BYTES)
        if not unpacking.eof or unpacking.unconsumed_tail:
            return None
        return State(text.decode("utf-8"), query.get("f", ["question.yaml"])[0], query.get("at", [""])[0])
    except (binascii.Error, zlib.error, ValueError):
        return None
