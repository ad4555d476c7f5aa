"""Traces and logs as files of their profilers: what is read, and what is said of files that are damaged."""

from __future__ import annotations

import cProfile
import gzip
import json
import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.draws import in_turn
from helpers.profiles import Kernel, decode_step, kineto, written
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim import traces
from tspsim.base.errors import InputError, TspsimError
from tspsim.cli import main
from tspsim.traces import pieces
from tspsim.traces.names import KERNEL_NAMES, KernelNames, kind_of, waits
from tspsim.traces.profile import Event
from tspsim.traces.reader import unknown_share
from tspsim.traces.steps import batch_of, repetitions
from tspsim.traces.table import COLUMNS, TracedDevice, busy_s

SHARED = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "traces_measured"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    steps = [(f"ProfilerStep#{number}", decode_step(6)) for number in range(3)]
    return written(tmp_path / "rank0.json.gz", kineto(steps))


def test_a_profile_is_read_into_one_table(trace: Path, tmp_path: Path) -> None:
    found = traces.read([trace])
    assert (found.format, found.device, found.ranks, found.world_size) == ("kineto", "mi300x", (0,), 1)
    assert tuple(found.frame().columns) == COLUMNS
    assert found.missing == ("shapes (record_shapes=True)",)
    assert found.facts["steps_by"] == "annotation"
    per_step = [len(np.flatnonzero(found.columns["step"] == number)) for number in range(3)]
    assert per_step == [len(decode_step(6))] * 3
    assert found.columns["layer"].max() + 1 == 6
    kinds = found.time_by("kind")
    assert set(kinds) == {"gemm", "attention", "norm", "activation", "rope", "cache", "embedding", "sample"}
    assert unknown_share(found) == 0.0
    assert sum(kinds.values()) == pytest.approx(3e-6 * sum(kernel.length for kernel in decode_step(6)))
    found.write(tmp_path / "t.parquet")
    import pandas

    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "t.parquet"), found.frame())


def test_it_is_the_same_event_by_event(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = traces.read([trace]).frame()

    def refused(text: bytes) -> list[Event]:
        raise ValueError("nothing at once")

    monkeypatch.setattr("tspsim.traces.kineto.parse", refused)
    assert traces.read([trace]).frame().equals(fast)


def test_a_long_event_is_looked_at_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = kineto([("ProfilerStep#0", decode_step(6))])
    whole = traces.read([written(tmp_path / "a.json", step)]).frame()
    step["traceEvents"].insert(3, {"ph": "X", "cat": "python_function", "name": "x" * (4 << 20), "ts": 0.0, "dur": 1.0})
    looks = 0

    def counted(*values: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return whole_events(*values, **more)

    whole_events = pieces._whole_events
    monkeypatch.setattr(pieces, "_whole_events", counted)
    monkeypatch.setattr(pieces, "PIECE", 4 << 10)
    assert traces.read([written(tmp_path / "b.json", step)]).frame().equals(whole)
    # Its 1,024 pieces are looked at when they are twice as many as before.
    assert looks < 100


def test_a_kernel_enters_few_functions_of_python(tmp_path: Path) -> None:
    calls, kernels = [], []
    for layers in (50, 400):
        path = written(tmp_path / f"{layers}.json", kineto([("ProfilerStep#0", decode_step(layers))]))
        traces.read([path])  # rules of names are compiled once
        profiler = cProfile.Profile(builtins=False)
        profiler.enable()
        found = traces.read([path])
        profiler.disable()
        calls.append(sum(entry.callcount for entry in profiler.getstats()))
        kernels.append(len(found))
    # Of a kernel, its operator and its launch together: event by event it were 59.
    assert calls[1] - calls[0] < 10 * (kernels[1] - kernels[0])


def test_pieces_do_not_show(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = traces.read([trace]).frame()
    for size in (300, 4_097):
        monkeypatch.setattr("tspsim.traces.pieces.PIECE", size)
        assert traces.read([trace]).frame().equals(whole)


def test_operators_shapes_collectives_and_phases_come_with_kernels(tmp_path: Path) -> None:
    reduce = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "BFloat16",
              "Process Group Description": "tp", "Group size": 8}  # fmt: skip
    kernels = [
        Kernel("ampere_bf16_gemm", 10.0, "aten::mm", [[32, 64], [64, 128]]),
        Kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20.0, "c10d::allreduce_", [[32]], 9, extra=reduce),
        Kernel("odd_name", 5.0, "aten::silu", [[32, 128]]),
    ]
    found = traces.read([written(tmp_path / "t.json", kineto([("train_step 1", kernels)]))])
    assert found.word("operator").tolist() == ["aten::mm", "c10d::allreduce_", "aten::silu"]
    assert sorted(found.word("kind")) == ["activation", "all_reduce", "gemm"]
    row = found.word("kind").tolist().index("all_reduce")
    assert found.columns["bytes"][row] == 2 << 20
    assert (found.word("group")[row], found.word("collective")[row]) == ("tp", "allreduce")
    assert found.word("shapes")[found.word("kind").tolist().index("gemm")] == "[[32,64],[64,128]]"


def test_ranks_are_read_side_by_side_and_a_missing_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        written(tmp_path / f"r{rank}.json", kineto([("ProfilerStep#1", decode_step(2))], rank=rank, world_size=10))
        for rank in range(10)
        if rank != 7
    ]
    found = traces.read(files)
    assert len(found.ranks) == 9 and "of 10 ranks 1 is missing: 7" in found.missing
    monkeypatch.setattr("tspsim.traces.reader._SIDE_BY_SIDE", 0)
    assert traces.read(files).frame().equals(found.frame())
    with pytest.raises(InputError, match=r"is rank 3, as r3\.json is"):
        traces.read([*files, written(tmp_path / "again.json", kineto([("", decode_step(2))], rank=3))])


def test_ranks_that_files_do_not_state_are_those_of_their_names(tmp_path: Path) -> None:
    files = [written(tmp_path / f"x_rank-{rank}.json", kineto([("", decode_step(2))], rank=None)) for rank in (4, 2)]
    assert traces.read(files).ranks == (2, 4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        ("a.json", b"<!DOCTYPE html><html></html>", "web page"),
        ("a.json", b'{"schemaVersion": 1, "distributedInfo": {}}', "no list 'traceEvents'"),
        ("a.json", b'{"schemaVersion": 1, "traceEvents": []}', "has no kernels"),
        ("a.json", b'{"name": "something"}', "of no format that is known"),
        ("a.json", b"\x1f\x8b\x08\x00junkjunk", "nothing that can be unpacked"),
        ("a.log", b"nothing of note\n", "holds no step line"),
        ("a.sqlite", b"SQLite format 3\x00" + bytes(200), "cannot be read as an export of Nsight"),
        ("a.json", b'{"rocprofiler-sdk-tool": [{"agents": ', "is cut off"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["trace", "read", str(file), "--out", str(tmp_path / "t.parquet")]) == 2
    said = capsys.readouterr().err
    assert message in said and str(file) in said and said.count("\n") == 1
    assert not (tmp_path / "t.parquet").exists()
    assert main(["trace", "read", str(tmp_path / "absent.json")]) == 2


def test_a_file_that_is_cut_keeps_its_whole_events(trace: Path, tmp_path: Path) -> None:
    text = gzip.decompress(trace.read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: len(text) * 2 // 3])
    found = traces.read([cut])
    whole = traces.read([trace])
    assert 0 < len(found) < len(whole)
    assert any("cut off" in word for word in found.missing)
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(trace.read_bytes()[:-200])
    assert any("cut off" in word for word in traces.read([packed]).missing)


def test_a_bare_list_nan_and_control_characters_are_read(trace: Path, tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(trace.read_bytes()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document["traceEvents"]))
    found = traces.read([bare])
    assert len(found) == len(traces.read([trace])) and found.device == ""
    text = json.dumps(document)
    strange = tmp_path / "strange.json"
    strange.write_text(text.replace('"dur": 66.0', '"dur": NaN', 1).replace("rotary_embedding", "rotary\x01embedding"))
    found = traces.read([strange])
    assert len(found) == len(traces.read([trace])) - 1
    assert any("1 events that are no valid JSON or have no time" in word for word in found.missing)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_is_damaged_is_read_or_refused_in_one_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(json.dumps(kineto([("ProfilerStep#1", decode_step(1))])).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(text) - 1))
        how = data.draw(st.sampled_from(["cut", "flip", "drop", "double"]))
        length = data.draw(st.integers(1, 60))
        if how == "cut" and place > 10:
            del text[place:]
        elif how == "flip":
            text[place] = data.draw(st.integers(0, 255))
        elif how == "drop":
            del text[place : place + length]
        else:
            text[place:place] = text[place : place + length]
        if not text:
            text = bytearray(b" ")
    file = tmp_path_factory.mktemp("damaged") / "t.json"
    file.write_bytes(text)
    try:
        found = traces.read([file])
    except TspsimError as error:
        assert "\n" not in str(error)
    else:
        assert len(found) and np.isfinite(found.columns["start_s"]).all() and (found.columns["duration_s"] >= 0).all()


def test_rocprof_nsight_and_chakra_are_read(tmp_path: Path) -> None:
    dispatch = [
        {"start_timestamp": 100 + 10 * n, "end_timestamp": 108 + 10 * n, "stream_id": {"handle": 1},
         "dispatch_info": {"agent_id": {"handle": 5}, "kernel_id": 3, "grid_size": {"x": 64, "y": 1, "z": 1}}}
        for n in range(4)
    ]  # fmt: skip
    process = {
        "agents": [{"id": {"handle": 5}, "product_name": "AMD Instinct MI355X", "cu_count": 256, "logical_node_id": 2}],
        "kernel_symbols": [{"kernel_id": 3, "demangled_kernel_name": "Cijk_Ailk"}],
        "buffer_records": {"kernel_dispatch": dispatch},
    }
    rocprof = tmp_path / "results.json"
    rocprof.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    found = traces.read([rocprof])
    assert (found.format, found.device, len(found)) == ("rocprofv3", "mi355x", 4)
    assert found.time_by("kind") == {"gemm": pytest.approx(32e-9)}

    nsight = tmp_path / "report.sqlite"
    with sqlite3.connect(nsight) as base:
        base.executescript(
            """create table StringIds (id, value); insert into StringIds values (1, 'ncclDevKernel_AllGather_RING_LL');
            create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, demangledName,
             gridX,
              gridY, gridZ, graphNodeId);
            insert into CUPTI_ACTIVITY_KIND_KERNEL values (1000, 3000, 1, 7, 11, 1, 1, 1, 1, null);
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId);
            insert into CUPTI_ACTIVITY_KIND_RUNTIME values (500, 600, 9, 11);
            create table NVTX_EVENTS (start, end, text, textId, globalTid);
            insert into NVTX_EVENTS values (400, 700, 'c10d::_allgather_base_, op_id = 5', null, 9);
            create table TARGET_INFO_GPU (name, smCount, totalMemory);
            insert into TARGET_INFO_GPU values ('NVIDIA H200', 132, 150000000000);"""
        )
    found = traces.read([nsight])
    assert (found.format, found.device, found.ranks) == ("nsight", "h200", (1,))
    assert (found.word("kind")[0], found.word("operator")[0]) == ("all_gather", "c10d::_allgather_base_")

    def varint(value: int) -> bytes:
        return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])

    def field(number: int, value: Any) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def node(name: bytes, kind: int, start: int, length: int, *attributes: bytes) -> bytes:
        fields = (field(2, name), field(3, kind), field(6, start), field(7, length))
        return b"".join((*fields, *(field(10, each) for each in attributes)))

    collective = node(b"all", 7, 20, 9, field(1, b"comm_type") + field(7, 7), field(1, b"comm_size") + field(9, 4096))
    messages = [field(1, b"0.0.4"), node(b"ampere_gemm", 4, 5, 12), collective]
    text = b"".join(varint(len(each)) + each for each in messages)
    for file, count in ((tmp_path / "job.3.et", 2), (tmp_path / "cut.3.et", 1)):
        file.write_bytes(text if count == 2 else text[:-3])
        found = traces.read([file])
        assert (found.format, found.ranks, len(found)) == ("chakra", (3,), count)
    assert traces.read([tmp_path / "job.3.et"]).word("kind").tolist() == ["gemm", "reduce_scatter"]
    assert traces.read([tmp_path / "job.3.et"]).columns["bytes"][1] == 4096
    assert struct.calcsize("<d") == 8


LOGS = {
    "megatron": (
        " [2025-08-01 07:19:37] iteration        1/    5000 | elapsed time per iteration"
        " (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | global batch size:   128 | lm loss: 1.04E+01 |\n",
        ("Megatron", 19.1388, "training"),
    ),
    "nemo": (
        "Training epoch 0, iteration 120/149 | lr: 3e-05 | global_batch_size: 1 | global_step: 120 |"
        " train_step_timing in s: 0.03146 | val_loss: 4.106\n",
        ("NeMo", 0.03146, "training"),
    ),
    "vllm": (
        "(EngineCore pid=1) Iteration(5): 2 context requests, 2048 context tokens, 3 generation"
        " requests, 3 generation tokens, iteration elapsed time: 41.84 ms\n",
        ("vLLM", 0.04184, "mixed"),
    ),
    "torchtitan": (
        "[titan] 2025-01-01 00:00:00,000 - root - INFO - \x1b[31mstep: 10  loss:  7.8  memory: 40.1GiB(50%)  tps: 5,000"
        "\n[titan] 2025-01-01 00:00:20,000 - root - INFO - step: 20  loss:  7.1  tps: 5,100  mfu: 29%\n",
        ("torchtitan", 2.0, "training"),
    ),
    "sglang": (
        "[2025-01-01 00:00:00] Decode batch. #running-req: 32, #token: 9, gen throughput (token/s): 3200.0\n",
        ("SGLang", 0.01, "decode"),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_say_what_steps_took(name: str, tmp_path: Path) -> None:
    text, (framework, seconds, phase) = LOGS[name]
    file = tmp_path / "output"
    file.write_text(text)
    found = traces.read([file])
    assert (found.format, found.facts["written_by"], found.word("phase")[0]) == ("log", framework, phase)
    assert found.columns["duration_s"][0] == pytest.approx(seconds)


def test_results_of_benchmarks_are_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps({"backend": "vllm", "completed": 64, "duration": 10.0, "mean_ttft_ms": 120.0}))
    found = traces.read([bench])
    assert found.columns["duration_s"][found.word("name").tolist().index("mean_ttft_ms")] == pytest.approx(0.12)
    aiperf = tmp_path / "profile_export_aiperf.json"
    aiperf.write_text(json.dumps({"time_to_first_token": {"unit": "ms", "avg": 80.0, "p99": 200.0}}))
    found = traces.read([aiperf])
    assert found.format == "aiperf" and found.columns["duration_s"].max() == pytest.approx(0.2)
    assert main(["trace", "read", str(bench)]) == 0
    assert "mean_ttft_ms" in capsys.readouterr().out


def test_a_blank_device_is_told_by_its_compute_units_and_memory() -> None:
    from tspsim.traces.machines import device_of

    assert device_of(TracedDevice("", 304, 206_141_652_992)) == "mi300x"
    assert device_of(TracedDevice("NVIDIA A100-SXM4-80GB", 108, 84_990_623_744)) == "a100-80gb"
    assert device_of(TracedDevice("Tesla K80", 26, 24_000_000_000)) == device_of(TracedDevice()) == ""


def test_annotations_of_engines_state_the_batch() -> None:
    mixed = batch_of(
        "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"
    )
    assert mixed is not None and (mixed.tokens, mixed.kind, mixed.row_context) == (8192, "mixed", 34489)
    plain = batch_of("execute_context_3(1024)_generation_32(32)")
    assert plain is not None and (plain.prompts, plain.prompt_tokens, plain.rows) == (3, 1024, 32)
    assert batch_of("ProfilerStep#3") is None


def test_kernels_of_libraries_are_known_by_name() -> None:
    expected = {
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu": "grouped_gemm",
        "void dpsk::ep::internode::cached_notify<false>(int)": "combine",
        "void dpsk::ep::internode::notify_dispatch<false, 8>": "dispatch",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT": "gemm",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_4": "norm",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>": "all_reduce",
        "Memcpy HtoD (Pinned -> Device)": "memcpy",
        "fused_moe_kernel": "grouped_gemm",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel": "attention",
    }
    assert {name: kind_of(name) for name in expected} == expected
    assert waits("void dpsk::ep::internode::cached_notify<false>(int)") and not waits("fused_moe_kernel")


def test_a_rule_of_ones_own_goes_before_those_that_ship() -> None:
    assert kind_of("zeta_gemm_attention_fused") == "gemm"
    KERNEL_NAMES.register(KernelNames("zeta", "kernels of a made-up library", {"attention": (r"^zeta_",)}))
    try:
        assert kind_of("zeta_gemm_attention_fused") == "attention"
    finally:
        KERNEL_NAMES.remove("zeta")
    assert kind_of("zeta_gemm_attention_fused") == "gemm"


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.integers(3, 9), st.lists(st.integers(6, 9), max_size=5))
def test_what_repeats_is_seen(block: list[int], count: int, before: list[int]) -> None:
    found = repetitions(np.array([*before, *block * count]))
    assert found and found[0].length >= len(block) * (count - 1)


def test_streams_that_overlap_count_once() -> None:
    assert busy_s(np.array([0.0, 1.0]), np.array([3.0, 2.0])) == 3.0


SHARED_TRACES = sorted(each for pattern in ("*/*.gz", "*/*/*.gz", "*/*.sqlite") for each in SHARED.glob(pattern))
#: Folders of files that may be refused.
REFUSED = ("damaged", "chakra")


@pytest.mark.parametrize("path", in_turn(SHARED_TRACES), ids=lambda path: path.name)
def test_every_measured_trace_is_read_or_refused_in_one_line(path: Path) -> None:
    try:
        found = traces.read([path])
    except InputError as error:
        assert "\n" not in str(error) and path.name in str(error)
        assert path.parent.name in REFUSED
        return
    assert unknown_share(found) <= 0.02


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured traces are not here (TSPSIM_SHARED_DATA)")
def test_ten_measured_traces_may_not_be_refused() -> None:
    assert len([path for path in SHARED_TRACES if path.parent.name not in REFUSED]) >= 10


def test_steps_without_annotations_are_those_that_repeat(tmp_path: Path) -> None:
    steps = [("", decode_step(6)) for _ in range(3)]
    found = traces.read([written(tmp_path / "t.json", kineto(steps))])
    assert found.facts["steps_by"] == "repetition"
    counts = np.unique(found.columns["step"][found.columns["step"] >= 0], return_counts=True)[1].tolist()
    assert len(counts) == 3 and counts[1] == len(decode_step(6))
