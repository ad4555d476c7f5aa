"""Profiles of a graph's capture give replayed kernels their operators and shapes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import decode_step, kineto, written

import tspsim
from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.step.question import look_up
from tspsim.traces.lay import lay
from tspsim.traces.product_sizes import fits, stated_sizes

SHARED = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "traces_measured"
QWEN, OSS = SHARED / "sglang-qwen3-8b-mi300x", SHARED / "vllm-gpt-oss-20b-mi300x-mixed"
#: A step's annotation, as SGLang writes it.
STEP = "step[DECODE bs=32 toks=32]"


def capture_of(path: Path, kernels: list[str], *, named: bool = True, missing: int = 0) -> Path:
    """A profile of a capture: launches in operators, of which nothing runs; warm-up launches stand before it."""
    events: list[dict[str, Any]] = [call("hipLaunchKernel", 10.0, 1, {"kernel": "warm_up", "External id": 1})]
    events.append(call("hipStreamBeginCapture", 20.0, 2, {}))
    for place, kernel in enumerate(kernels[missing:]):
        start, number = 30.0 + 10.0 * place, 100 + place
        dims = [[32, 4096 + missing + place], [4096 + missing + place, 64]]
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": start - 1.0, "dur": 5.0,
             "args": {"External id": number, "Input Dims": dims}}
        )  # fmt: skip
        said = {
            "External id": number,
            **({"kernel": kernel.removeprefix("void ").removesuffix("(char*)")} if named else {}),
        }
        events.append(call("hipExtModuleLaunchKernel" if named else "cudaLaunchKernelExC", start, number, said))
    events.append(call("hipStreamEndCapture", 1e5, 3, {}))
    document = kineto([], device="mi300x")
    document["traceEvents"] = events
    return written(path, document)


def call(name: str, start: float, number: int, said: dict[str, Any]) -> dict[str, Any]:
    arguments = {"correlation": number, **said}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 1.0,
            "args": arguments}  # fmt: skip


@pytest.fixture
def replayed(tmp_path: Path) -> tuple[Path, list[str]]:
    """Two replayed steps of four layers, and the names of a step's kernels."""
    kernels = decode_step(4)
    file = written(tmp_path / "t.json", kineto([(STEP, kernels), (STEP, kernels)], graph=True))
    return file, [kernel.name for kernel in kernels]


@pytest.mark.parametrize("named", [True, False])
def test_every_replayed_kernel_has_the_shapes_of_its_launch(
    named: bool, replayed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    file, names = replayed
    assert not any(traces.read([file]).word("shapes").tolist())
    found = traces.read([file], [capture_of(tmp_path / "capture.json", names, named=named)])
    assert found.facts["captured"] == (2 * len(names), 2 * len(names))
    wanted = [f"[[32,{4096 + place}],[{4096 + place},64]]" for place in range(len(names))]
    assert found.word("shapes").tolist() == 2 * wanted and set(found.word("operator").tolist()) == {"aten::mm"}


def test_a_capture_that_lacks_launches_tells_the_rest(replayed: tuple[Path, list[str]], tmp_path: Path) -> None:
    file, names = replayed
    found = traces.read([file], [capture_of(tmp_path / "capture.json", names, missing=3)])
    told, of = found.facts["captured"]
    assert of == 2 * len(names) and told >= of - 2 * 3 - 4
    # Without names a launch may be any kernel's.
    with pytest.raises(InputError, match="is of other graphs"):
        traces.read([file], [capture_of(tmp_path / "b.json", names, named=False, missing=3)])


def test_of_several_captures_a_step_takes_its_own(replayed: tuple[Path, list[str]], tmp_path: Path) -> None:
    file, names = replayed
    other = capture_of(tmp_path / "other.json", [f"other_{place}" for place in range(len(names))])
    found = traces.read([file], [other, capture_of(tmp_path / "own.json", names)])
    assert found.facts["captured"][0] == 2 * len(names)


def test_what_is_no_capture_is_said(
    replayed: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, names = replayed
    eager = written(tmp_path / "eager.json", kineto([(STEP, decode_step(4))]))
    own = capture_of(tmp_path / "own.json", names)
    for trace, capture, said in (
        (file, eager, "captures no graph"),
        (eager, own, "replays no graph"),
        (file, capture_of(tmp_path / "o.json", ["other"]), "is of other graphs than o.json"),
    ):
        assert main(["trace", "read", str(trace), "--capture", str(capture)]) == 2
        assert said in capsys.readouterr().err
    assert main(["trace", "read", str(file), "--capture", str(own)]) == 0
    assert f"shapes of {2 * len(names)} of {2 * len(names)} replayed kernels" in capsys.readouterr().out


@pytest.mark.in_turn(5)
@pytest.mark.skipif(not QWEN.is_dir(), reason="the measured traces are not here (TSPSIM_SHARED_DATA)")
@pytest.mark.parametrize(
    ("file", "capture", "products", "workload"),
    [
        (QWEN / "sglang_Qwen3-8B_decode.json.gz", "bs_32_rank0.json.gz", 145,
         {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 32, "context": 1025}),
        (OSS / "graph_execution.json.gz", "graph_capture_rank_0.1773709679453551615.pt.trace.json.gz", 73,
         {"model": "gpt-oss-20b", "stack": "vllm", "pass": "mixed", "batch": 37, "context": 931, "chunk": 906,
          "sequences_per_replica": 9}),
    ],
)  # fmt: skip
def test_kernels_matched_without_shapes_are_those_that_the_capture_tells(
    file: Path, capture: str, products: int, workload: dict[str, Any]
) -> None:
    """Order and kind alone give each product of a measured step the operator whose shapes its capture states."""
    question = look_up(
        tspsim.load(
            {
                "name": "captured",
                "cluster": {"device": "mi300x", "nodes": 1},
                "workload": workload,
                "plans": [{"name": "TP1", "tp": 1}],
            }
        )
    )
    blind = lay(traces.read([file]), question)
    told = traces.read([file], [file.parent / "capture_traces" / capture])
    laid = lay(told, question)
    assert (blind.operation == laid.operation).all()
    right = 0
    for row in range(len(laid.trace)):
        sizes = stated_sizes(laid.trace.word("shapes")[row])
        if laid.trace.word("kind")[row] == "gemm" and sizes is not None:
            wanted = blind.lane.operations[blind.operation[row]].sizes
            right += wanted is not None and fits(sizes, wanted)
    assert right == products
