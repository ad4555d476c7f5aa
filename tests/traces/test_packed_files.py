"""Traces however they are packed, in whatever text, and as begins and ends: read in pieces, or one line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import decode_step, kineto
from hypothesis import given
from hypothesis import strategies as st

from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.traces.pieces import Ending, chunks

TRACE = kineto([("ProfilerStep#1", decode_step(6))], device="h100")
TEXT = json.dumps(TRACE).encode()
KERNELS = len(decode_step(6))


def zipped(**files: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._t.json", b"beside")
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda text: zipped(t=text),
    "gzip in zip": lambda text: zipped(t=gzip.compress(text)),
    "joined bz2": lambda text: bz2.compress(text[:999]) + bz2.compress(text[999:]),
    "joined xz": lambda text: lzma.compress(text[:999]) + lzma.compress(text[999:]),
    "utf-16": lambda text: text.decode().encode("utf-16"),
    "utf-16 without a mark": lambda text: text.decode().encode("utf-16-be"),
    "utf-16 in xz": lambda text: lzma.compress(text.decode().encode("utf-16")),
    "utf-32": lambda text: text.decode().encode("utf-32"),
}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_kernel_is_read(packing: str, tmp_path: Path) -> None:
    file, plain = tmp_path / "trace", tmp_path / "plain.json"
    file.write_bytes(PACKINGS[packing](TEXT))
    plain.write_bytes(TEXT)
    trace, wanted = traces.read([file]), traces.read([plain])
    assert len(trace) == KERNELS
    assert trace.word("name").tolist() == wanted.word("name").tolist()
    assert trace.missing == wanted.missing


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("packing", ["gzip", "bz2", "xz", "utf-16"])
def test_whole_events_before_a_cut_are_kept_and_said(packing: str, tmp_path: Path) -> None:
    # Text that does not pack: a cut of the packed file is one of the text.
    long = json.dumps(kineto([("ProfilerStep#1", decode_step(200))], device="h100")).encode()
    packed = PACKINGS[packing](long)
    file = tmp_path / "trace"
    file.write_bytes(packed[: len(packed) * 3 // 4])
    if packing == "bz2" and len(packed) < 900_000:  # one block, which is unpacked whole or not at all
        with pytest.raises(InputError):
            traces.read([file])
        return
    trace = traces.read([file])
    assert 0 < len(trace) < len(decode_step(200))
    assert "cut off" in " ".join(trace.missing)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            zipped(**{"rank0.json": TEXT, "rank1.json": TEXT}),
            "archive of rank0.json and rank1.json; unpack it",
        ),
        (zipped(**{f"r{n}.json": b"{}" for n in range(9)}), "archive of r0.json, r1.json, r2.json and 6 more"),
        (zipped(), "archive of no file"),
        (zipped(t=zipped(t=zipped(t=gzip.compress(TEXT)))), "packed over 3 times"),
        (b"PK\x03\x04" + bytes(60), "nothing that can be unpacked"),
        (b"BZh91AY&SY" + bytes(40), "nothing that can be unpacked"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "t.zip"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        traces.read([file])
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
    assert main(["trace", "read", str(file)]) == 2


def test_zstd_is_read_with_its_package_and_named_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.json.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(InputError, match="install the package zstandard"):
            traces.read([file])
    zstandard = pytest.importorskip("zstandard")
    file.write_bytes(zstandard.ZstdCompressor().compress(TEXT))
    assert len(traces.read([file])) == KERNELS


def test_a_packed_export_of_nsight_is_named(tmp_path: Path) -> None:
    base = tmp_path / "t.sqlite"
    with sqlite3.connect(base) as opened:
        opened.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int)")
    packed = tmp_path / "t.sqlite.xz"
    packed.write_bytes(lzma.compress(base.read_bytes()))
    with pytest.raises(InputError, match="is a packed export of Nsight Systems"):
        traces.read([packed])


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("packing", ["gzip", "bz2", "xz", "zip"])
def test_files_are_unpacked_in_pieces(packing: str, tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(PACKINGS[packing](b" " * (24 << 20)))
    tracemalloc.start()
    with file.open("rb") as opened:
        assert sum(map(len, chunks(opened, Ending()))) == 24 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # xz keeps a dictionary of 8 MiB.
    assert peak < (12 << 20 if packing == "xz" else 4 << 20)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\xff\xfe"])
)
def test_any_bytes_are_unpacked_or_told(tmp_path_factory: pytest.TempPathFactory, content: bytes, start: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "t"
    file.write_bytes(start + content)
    with pytest.raises(InputError):
        traces.read([file])


# --- begins and ends ----------------------------------------------------------------------------------------------


def in_pairs(trace: dict[str, Any]) -> dict[str, Any]:
    """The same with every complete event as a begin and an end; frames of Python, which nobody keeps, around them."""
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X":
            events.append(event)
            continue
        thread = {"pid": event["pid"], "tid": event["tid"]}
        frame = {"ph": "B", "cat": "python_function", "name": "frame", "ts": event["ts"], **thread}
        begin = {**event, "ph": "B"}
        length = begin.pop("dur")
        end = {"ph": "E", "ts": event["ts"] + length, **thread}
        events += [frame, begin, end, {**end, "name": "frame"}]
    return {**trace, "traceEvents": events}


def test_pairs_are_the_complete_events_they_stand_for(tmp_path: Path) -> None:
    file, plain = tmp_path / "pairs.json", tmp_path / "plain.json"
    file.write_text(json.dumps(in_pairs(TRACE)))
    plain.write_bytes(TEXT)
    trace, wanted = traces.read([file]), traces.read([plain])
    assert len(trace) == KERNELS
    for column in ("name", "stream", "operator", "shapes", "grid"):
        assert trace.word(column).tolist() == wanted.word(column).tolist()
    assert trace.columns["duration_s"].tolist() == pytest.approx(wanted.columns["duration_s"].tolist())
    assert trace.missing == wanted.missing


def test_a_begin_without_an_end_is_left_out_and_said(tmp_path: Path) -> None:
    pairs = in_pairs(TRACE)
    events = pairs["traceEvents"]
    last = max(place for place, event in enumerate(events) if event["ph"] == "B" and event.get("cat") == "kernel")
    del events[last + 1 :]
    events.append({"ph": "E", "ts": 1.0, "pid": "nobody", "tid": 1})
    file = tmp_path / "t.json"
    file.write_text(json.dumps(pairs))
    trace = traces.read([file])
    assert 0 < len(trace) < KERNELS
    assert "1 begins without an end, 1 ends without a begin" in " ".join(trace.missing)
