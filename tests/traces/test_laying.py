"""A measured step over the simulated one: made-up machines that do what is simulated, faster, slower, or otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.profiles import hash_of, kineto, of_lane, written
from plotly.offline import get_plotlyjs

import tspsim
from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.operators import Computes
from tspsim.step.question import Question, look_up
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.learned import factors_of
from tspsim.traces.match import align
from tspsim.traces.product_sizes import fits, gradient_of
from tspsim.traces.scenario_text import lines
from tspsim.traces.simulated import Simulated, replay

SHARED = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "traces_measured"
DECODE = {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 32, "context": 1025}


def scenario(**workload: Any) -> dict[str, Any]:
    plans = [{"name": "TP1", "tp": 1}, {"name": "TP2", "tp": 2}]
    return {
        "name": "laid", "cluster": {"device": "mi300x", "nodes": 1}, "workload": DECODE | workload, "plans": plans,
    }  # fmt: skip


@pytest.fixture(scope="module")
def question() -> Question:
    return look_up(tspsim.load(scenario()))


@pytest.fixture(scope="module")
def simulated(question: Question) -> Simulated:
    return Simulated(question, question.plans[1])


def trace_of(path: Path, events: list[dict[str, Any]]) -> traces.RequestTrace:
    document = kineto([], device="mi300x")
    document["traceEvents"] = events
    return traces.read([written(path, document)])


def test_a_machine_that_does_what_is_simulated_differs_nowhere(
    question: Question, simulated: Simulated, tmp_path: Path
) -> None:
    lane = simulated.lane(0)
    laid = lay(trace_of(tmp_path / "t.json", of_lane(lane.operations)), question, "TP2")
    assert laid.matched_share == 1.0 and not laid.left_over
    assert [laid.lane.operations[index].kind for index in laid.operation] == laid.trace.word("kind").tolist()
    assert laid.measured_s == pytest.approx(lane.makespan_s, rel=1e-3)
    for row in laid.kinds:
        assert row.measured_s == pytest.approx(row.simulated_s, rel=1e-3, abs=1e-9)
    assert laid.causes.kernels_s == pytest.approx(0.0, abs=1e-6)
    assert laid.causes.collectives_s == pytest.approx(0.0, abs=1e-6)
    assert laid.layer_s is not None and laid.layer_s[0] == pytest.approx(laid.layer_s[1], rel=1e-3)


def test_the_fault_is_found_where_it_was_put(question: Question, simulated: Simulated, tmp_path: Path) -> None:
    lane = simulated.lane(0)
    products = sum(each.seconds for each in lane.operations if each.kind == "gemm")
    moved = sum(each.seconds for each in lane.operations if each.is_transfer)
    slow = lay(
        trace_of(tmp_path / "a.json", of_lane(lane.operations, lambda each: 1.5 if each.kind == "gemm" else 1.0)),
        question, "TP2",
    )  # fmt: skip
    assert slow.causes.kernels_s == pytest.approx(0.5 * products, rel=1e-3)
    assert abs(slow.causes.collectives_s) < 1e-6
    assert factors_of(slow)["gemm"] == pytest.approx(1.5, rel=1e-3)
    assert slow.worst[0].kind == "gemm" and "gate and up" in slow.in_a_sentence
    links = lay(
        trace_of(tmp_path / "b.json", of_lane(lane.operations, lambda each: 3.0 if each.is_transfer else 1.0)),
        question, "TP2",
    )  # fmt: skip
    assert links.causes.collectives_s == pytest.approx(2.0 * moved, rel=1e-2)
    for laid in (slow, links):
        assert laid.causes.total_s == pytest.approx(laid.measured_s - laid.simulated_s, rel=1e-9)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("seed", range(4))
def test_times_never_decide_which_operator_a_kernel_is_of(
    seed: int, question: Question, simulated: Simulated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = np.random.default_rng(seed)
    lane = simulated.lane(0)
    kinds = [each.kind for each in sorted(lane.operations, key=lambda each: each.start_s) if not each.is_transfer]
    operations = sorted((o for o in lane.operations if not o.is_transfer), key=lambda each: each.start_s)
    dropped = set(draw.choice(len(kinds), 12, replace=False).tolist())
    kept = [place for place in range(len(kinds)) if place not in dropped or kinds[place] in HEAVY]
    given_to = align([kinds[place] for place in kept], [""] * len(kept), operations)
    wrong = [
        place for place, index in zip(kept, given_to.tolist(), strict=True) if kinds[place] in HEAVY and index != place
    ]
    assert not wrong
    factors = draw.uniform(0.2, 5.0, 1 << 12)
    path = tmp_path_factory.mktemp("random") / "t.json"
    laid = lay(
        trace_of(path, of_lane(lane.operations, lambda each: float(factors[hash_of(each.name) % 4096]))),
        question,
        "TP2",
    )
    assert laid.matched_share == 1.0
    assert laid.causes.total_s == pytest.approx(laid.measured_s - laid.simulated_s, rel=1e-9)


def test_shapes_that_are_stated_are_hard() -> None:
    assert fits((32, 4096, 1024), (32, 6144, 1024)) and not fits((32, 8192, 1024), (32, 6144, 1024))
    assert not fits((32, 4096, 512), (32, 6144, 1024))
    assert not fits((1024, 32, 6144), (32, 6144, 1024))


def test_the_gradients_of_a_product_are_told_apart_by_their_shapes() -> None:
    """Y = X·W of 2,048 tokens, 640 inputs, 1,536 outputs: dX is (2048, 640, 1536); dW (1536, 640, 2048) as PyTorch
    keeps weights, and half of it is a slice of the outputs."""
    dx, dw = (2048, 640, 1536), (640, 1536, 2048)
    back, weights = Computes.INPUT_GRADIENT, Computes.WEIGHT_GRADIENT
    for operator, computes in ((dx, back), (dw, weights)):
        assert gradient_of((2048, 640, 1536), operator, computes) is back
        assert gradient_of((1536, 640, 2048), operator, computes) is weights
        assert gradient_of((768, 640, 2048), operator, computes) is weights
        assert gradient_of((640, 1536, 2048), operator, computes) is None
        assert gradient_of((640, 1536, 2048), operator, computes, outputs_first=False) is weights
        assert gradient_of((2048, 960, 1536), operator, computes) is None


def test_a_replay_of_nothing_new_takes_what_was_simulated(simulated: Simulated) -> None:
    lane = simulated.lane(0)
    assert replay(lane, {})[0] == pytest.approx(lane.makespan_s, rel=1e-9)
    whole = replay(lane, dict.fromkeys(range(len(lane.steps)), 0.0))[0]
    assert whole <= 1e-3 * lane.makespan_s


def test_another_plan_model_batch_or_rank_is_told_before_any_number(
    question: Question, simulated: Simulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = trace_of(tmp_path / "t.json", of_lane(simulated.lane(0).operations))
    with pytest.raises(InputError, match=r"expected 0 all-reduces, found 7\d"):
        lay(found, question, "TP1")
    with pytest.raises(InputError, match="has no rank 3"):
        lay(found, question, "TP2", rank=3)
    with pytest.raises(InputError, match="attention of 24 layers, found 36"):
        lay(found, look_up(tspsim.load(scenario(model="gpt-oss-20b"))), "TP1")
    document = kineto([], device="mi300x")
    document["traceEvents"] = of_lane(simulated.lane(0).operations)
    note = "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk64sqsq64sqsk64)"
    document["traceEvents"].append(
        {"ph": "X", "cat": "user_annotation", "name": note, "pid": 1, "tid": 1, "ts": 1e6 - 5, "dur": 1e6, "args": {}}
    )
    file, yaml = written(tmp_path / "batch.json", document), tmp_path / "s.yaml"
    yaml.write_text(json.dumps(scenario()))
    out = tmp_path / "out.json"
    assert main(["trace", "lay", str(file), str(yaml), "--plan", "TP2", "--json", str(out)]) == 2
    assert "its step has 64 tokens" in capsys.readouterr().err and not out.exists()
    log = tmp_path / "a.log"
    log.write_text(" iteration 1/ 2 | elapsed time per iteration (ms): 5.0 |\n")
    assert main(["trace", "lay", str(log), str(yaml)]) == 2
    assert "has no kernels to lay beside" in capsys.readouterr().err


def test_a_step_of_other_layers_or_with_transfers_of_no_kind_is_refused(
    question: Question, simulated: Simulated, tmp_path: Path
) -> None:
    lane = simulated.lane(0)
    few = [each for each in lane.operations if each.layer < 12 and not each.is_transfer]
    with pytest.raises(InputError, match="attention of 36 layers, found 12"):
        lay(trace_of(tmp_path / "few.json", of_lane(few)), question, "TP1")
    events = of_lane(lane.operations)
    for event in events:
        if "nccl" in event["name"]:
            event["name"] = "ncclDevKernel_Generic_4"
    with pytest.raises(InputError, match="expected no transfers between ranks, found 7"):
        lay(trace_of(tmp_path / "generic.json", events), question, "TP1")
    strange = of_lane(lane.operations, lambda each: 1.0 if each.kind == "attention" else 0.01)
    strange += [{**event, "name": "triton_unheard_of", "ts": event["ts"] + 1.0, "dur": 9e3} for event in strange[:40]]
    with pytest.raises(InputError, match="of its kernels' time is of operators that TP2 has"):
        lay(trace_of(tmp_path / "strange.json", strange), question, "TP2")


def beside_plotly(page: str) -> int:
    """Bytes of a page without the library of its figures, which it holds once and whole."""
    library = get_plotlyjs().replace("</script", "<\\/script")
    assert page.count(library) == 1
    return len(page.encode()) - len(library.encode())


def test_the_command_writes_page_numbers_and_both_lanes(simulated: Simulated, tmp_path: Path) -> None:
    document = kineto([], device="mi300x")
    document["traceEvents"] = of_lane(simulated.lane(0).operations, lambda each: 1.2)
    file, yaml = written(tmp_path / "t.json.gz", document), tmp_path / "s.yaml"
    yaml.write_text(json.dumps(scenario()))
    names = {name: tmp_path / f"out.{name}" for name in ("html", "json", "trace")}
    options = [word for name, path in names.items() for word in (f"--{name}", str(path))]
    assert main(["trace", "lay", str(file), str(yaml), "--plan", "TP2", *options]) == 0
    numbers = json.loads(names["json"].read_text())
    assert {"matched_share", "step", "layer", "kinds", "causes", "left_over"} <= set(numbers)
    assert set(numbers["causes"]) == {"kernels_s", "collectives_s", "host_s", "schedule_s"}
    page = names["html"].read_text()
    assert "Causes" in page and "Your plans with this correction" in page
    assert beside_plotly(page) <= 2_000_000
    both = json.loads(names["trace"].read_text())["traceEvents"]
    assert {event["pid"] for event in both} == {1, 2}


QWEN = SHARED / "sglang-qwen3-8b-mi300x"


@pytest.mark.skipif(not QWEN.is_dir(), reason="the measured traces are not here (TSPSIM_SHARED_DATA)")
@pytest.mark.parametrize(
    ("file", "workload"),
    [
        (QWEN / "sglang_Qwen3-8B_decode.json.gz", {}),
        (QWEN / "sglang_Qwen3-8B_prefilldecode.json.gz", {"pass": "prefill", "batch": 15, "context": 1024}),
        (
            SHARED / "vllm-gpt-oss-20b-mi300x-mixed" / "graph_execution.json.gz",
            {"model": "gpt-oss-20b", "stack": "vllm", "pass": "mixed", "batch": 37, "context": 931}
            | {"chunk": 906, "sequences_per_replica": 9},
        ),
    ],
)
def test_measured_serving_steps_are_matched_whole(file: Path, workload: dict[str, Any]) -> None:
    laid = lay(traces.read([file]), look_up(tspsim.load(scenario(**workload))), "TP1")
    assert laid.matched_share >= 0.95
    assert not [each for each in laid.left_over if each.heavy]
    assert 0.7 <= laid.simulated_s / laid.measured_s <= 1.3  # an engine's paces are of kernels, not of a row


DEEPSEEK = SHARED / "deepseek-v3-h800-train" / "train.json.gz"


@pytest.mark.slow
@pytest.mark.skipif(not DEEPSEEK.is_file(), reason="the measured traces are not here (TSPSIM_SHARED_DATA)")
def test_deepseek_s_profile_is_met_kind_by_kind() -> None:
    """Four layers of DeepSeek-V3 forward and backward, of whose times none is in a file: a layer within 5 %, every kind
    of kernel that takes a millisecond within 15."""
    laid = lay(traces.read([DEEPSEEK]), look_up(tspsim.load("deepseek-v3-2048-h800")))
    assert laid.matched_share >= 0.98 and laid.layer_s is not None
    measured_s, simulated_s = laid.layer_s
    assert simulated_s == pytest.approx(measured_s, rel=0.05)
    ratios = {row.kind: row.simulated_s / row.measured_s for row in laid.kinds if row.measured_s >= 1e-3}
    assert ratios.pop("wait") == 0.0 and len(ratios) == 11
    assert {kind: ratio for kind, ratio in ratios.items() if not 0.85 <= ratio <= 1.15} == {}


@pytest.mark.slow
@pytest.mark.skipif(not DEEPSEEK.is_file(), reason="the measured traces are not here (TSPSIM_SHARED_DATA)")
def test_deepseek_s_profile_writes_a_scenario_of_its_own_step() -> None:
    """What is written from the profile alone, with nothing filled in: the step within 5 % and a plan that fits."""
    trace = traces.read([DEEPSEEK])
    scenario = yaml.safe_load("\n".join(lines(trace)))
    plan = scenario["plans"][0]
    assert (plan["ep"], plan["pp"], plan["schedule"]) == (64, 16, "dualpipe")
    assert (plan["expert_overlap"], plan["expert_dispatch"], plan["recomputation"]) == (
        "micro_batches", "ranks_fp8", "cheap",
    )  # fmt: skip
    laid = lay(trace, look_up(tspsim.load(scenario)))
    assert laid.matched_share >= 0.98 and laid.simulated_s == pytest.approx(laid.measured_s, rel=0.05)
    assert not any("it is laid all the same" in note for note in laid.notes)
