"""How files are packed and in what text: unpacked in pieces, whatever their names, and recoded to UTF-8."""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from ..base.errors import InputError, together

#: Window bits that make zlib expect a gzip header.
_GZIP = 31
#: Packed bytes that are read at once, at most.
_READ = 1 << 20
#: Packings within each other: a gzip in a zip, and no more of such.
DEEPEST = 3
#: What archivers of desktops put beside the files.
_BESIDE = ("__MACOSX/", ".DS_Store", "Thumbs.db", "desktop.ini")


class BrokenError(Exception):
    """A packed file ends, or is damaged, in the middle."""


@dataclass(frozen=True)
class Packing:
    """A way to pack a file."""

    name: str
    #: First bytes of such a file.
    magic: bytes
    #: (file, largest piece, packings around it) → its content in pieces; raises BrokenError behind the last whole one.
    unpack: Callable[[BinaryIO, int, int], Iterator[bytes]]


def unpacked(file: BinaryIO, size: int, depth: int = 0) -> Iterator[bytes]:
    """The content of a file in pieces of at most ``size`` bytes, in UTF-8.

    Raises
    ------
    BrokenError
        Behind the last piece of a file that ends, or is damaged, in the middle.
    InputError
        An archive of several files, or packed by what is not installed.
    """
    start = file.read(max(len(packing.magic) for packing in PACKINGS))
    file.seek(0)
    packing = next((packing for packing in PACKINGS if start.startswith(packing.magic)), None)
    if packing is None:
        yield from _in_utf8(_plain(file, size))
    elif depth >= DEEPEST:
        raise InputError(f"is packed over {DEEPEST} times; unpack it")
    else:
        yield from _in_utf8(packing.unpack(file, size, depth))


def _plain(file: BinaryIO, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _gzip(file: BinaryIO, size: int, _: int) -> Iterator[bytes]:
    unpacker, packed = zlib.decompressobj(_GZIP), b""
    try:
        while True:
            packed = packed or file.read(min(size, _READ))
            if not packed:
                break
            piece = unpacker.decompress(packed, size)
            packed = unpacker.unconsumed_tail
            if piece:
                yield piece
            if unpacker.eof:  # another member may follow, as in joined files
                packed = unpacker.unused_data or file.read(_READ)
                unpacker = zlib.decompressobj(_GZIP)
                if not packed.startswith(b"\x1f\x8b"):
                    return
    except zlib.error:
        pass
    raise BrokenError


def _by_streams(make: Callable[[], Any], magic: bytes, file: BinaryIO, size: int, _: int) -> Iterator[bytes]:
    """What bz2 and xz have in common: an unpacker a stream, which may want more input."""
    unpacker, packed = make(), b""
    try:
        while True:
            if unpacker.needs_input and not packed and not (packed := file.read(min(size, _READ))):
                break
            piece = unpacker.decompress(packed, size)
            packed = b""
            if piece:
                yield piece
            if unpacker.eof:
                packed = unpacker.unused_data or file.read(_READ)
                if not packed.startswith(magic):
                    return
                unpacker = make()
    except (OSError, lzma.LZMAError, ValueError, EOFError):
        pass
    raise BrokenError


def _zstandard(file: BinaryIO, size: int, _: int) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise InputError("is packed by zstd: install the package zstandard, or unpack it") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as reader:
            while piece := reader.read(size):
                yield piece
    except zstandard.ZstdError:
        raise BrokenError from None


def _zip(file: BinaryIO, size: int, depth: int) -> Iterator[bytes]:
    try:
        with ZipFile(file) as archive:
            held = [entry for entry in archive.infolist() if not entry.is_dir() and not _stands_beside(entry.filename)]
            if len(held) != 1:
                raise InputError(f"is an archive of {_in_words(held)}; unpack it and name its files, one a rank")
            if held[0].flag_bits & 1:
                raise InputError("is an archive with a password; unpack it")
            with archive.open(held[0]) as member:
                # One that is packed itself can be read again from its beginning, as a file can.
                yield from unpacked(member, size, depth + 1)  # type: ignore[arg-type]
    except (BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError):
        raise BrokenError from None


def _stands_beside(name: str) -> bool:
    return name.startswith(_BESIDE) or name.endswith(_BESIDE)


def _in_words(held: Sequence[ZipInfo]) -> str:
    names = [entry.filename for entry in held[:3]]
    if len(held) > len(names):
        names.append(f"{len(held) - len(names)} more")
    return together(names) if names else "no file"


PACKINGS = (
    Packing("gzip", b"\x1f\x8b", _gzip),
    Packing("bzip2", b"BZh", partial(_by_streams, bz2.BZ2Decompressor, b"BZh")),
    Packing("xz", b"\xfd7zXZ\x00", partial(_by_streams, lzma.LZMADecompressor, b"\xfd7zXZ\x00")),
    Packing("zstd", b"\x28\xb5\x2f\xfd", _zstandard),
    Packing("zip", b"PK\x03\x04", _zip),
)

#: First bytes of texts that are not in UTF-8 → their encoding; without a mark those that JSON can begin with.
_ENCODINGS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"{\x00": "utf-16-le",
    b"[\x00": "utf-16-le",
    b"\x00{": "utf-16-be",
    b"\x00[": "utf-16-be",
}


def _in_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of a text as UTF-8; other files as they are."""
    first = next(pieces, b"")
    encoding = next((name for start, name in _ENCODINGS.items() if first.startswith(start)), None)
    if encoding is None:
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    if rest := decoder.decode(b"", final=True):
        yield rest.encode("utf-8", "replace")
