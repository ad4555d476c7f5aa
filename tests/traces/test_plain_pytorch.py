"""A profile of plain PyTorch: nobody annotated a step, an optimizer ends it, and norms are made of small kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.profiles import Kernel, kineto, written

from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.scenario import load
from tspsim.step.question import look_up
from tspsim.traces.lay import lay
from tspsim.traces.scenario_text import lines

#: Llama 3.2 1B: 16 layers, 2,048 wide, 32 heads of 64, 8 of keys, MLP 8,192.
LAYERS, WIDTH, HEADS, MLP, VOCABULARY = 16, 2048, 32, 8192, 128256
TOKENS = 2 * 1024
SMALL = "void at::native::elementwise_kernel<128, 4>(int)"
SUM = "void at::native::reduce_kernel<512, 1>(float)"


def mm(rows: int, inner: int, columns: int) -> Kernel:
    return Kernel("nvjet_sm90_tst_256x128", 90.0, "aten::mm", [[rows, inner], [inner, columns]])


def norm() -> list[Kernel]:
    return [Kernel(SMALL, 4.0, "aten::pow"), Kernel(SUM, 4.0, "aten::mean"), Kernel(SMALL, 4.0, "aten::mul")]


def forward() -> list[Kernel]:
    heads = [[2, HEADS, 1024, 64], [2, 8, 1024, 64], [2, 8, 1024, 64]]
    layer = [
        *norm(), mm(TOKENS, WIDTH, WIDTH), mm(TOKENS, WIDTH, 512), mm(TOKENS, WIDTH, 512),
        Kernel(SMALL, 5.0, "aten::mul"), Kernel(SMALL, 5.0, "aten::add"),
        Kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 80.0, "aten::_cudnn_attention_forward", heads),
        mm(TOKENS, WIDTH, WIDTH), *norm(), mm(TOKENS, WIDTH, MLP),
        Kernel("void at::native::vectorized_elementwise_kernel<silu_kernel>", 9.0, "aten::silu"),
        mm(TOKENS, WIDTH, MLP), Kernel(SMALL, 9.0, "aten::mul"), mm(TOKENS, MLP, WIDTH),
    ]  # fmt: skip
    ends = [
        *norm(),
        mm(TOKENS, WIDTH, VOCABULARY),
        Kernel("cunn_SoftMaxForward<LogSoftMax>", 30.0, "aten::_log_softmax"),
    ]
    return [*layer * LAYERS, *ends]


def backward() -> list[Kernel]:
    def both(inputs: int, outputs: int) -> list[Kernel]:
        return [mm(outputs, TOKENS, inputs), mm(TOKENS, outputs, inputs)]

    layer = [
        *both(MLP, WIDTH), *both(WIDTH, MLP), Kernel("silu_backward_kernel", 9.0), *both(WIDTH, MLP), *norm(),
        *both(WIDTH, WIDTH),
        Kernel("cudnn::fusion::compute_dot_do_o_specialized<true, 64>", 3.0),
        Kernel("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", 200.0),
        *both(WIDTH, 512), *both(WIDTH, 512), *both(WIDTH, WIDTH), *norm(),
    ]  # fmt: skip
    return [*both(WIDTH, VOCABULARY), *layer * LAYERS]


def profile(path: Path, steps: int = 2) -> Path:
    one = [
        ("", forward()), ("in autograd", backward()), ("", [Kernel("multi_tensor_apply_kernel<LpNorm>", 40.0)] * 3),
        ("Optimizer.step#AdamW.step", [Kernel("multi_tensor_apply_kernel<FusedAdam>", 400.0)]),
    ]  # fmt: skip
    document: dict[str, Any] = kineto(one * steps, device="h100", rank=None)
    for event in document["traceEvents"]:
        if event["name"] == "in autograd":
            event |= {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0"}
    return written(path, document)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> traces.RequestTrace:
    return traces.read([profile(tmp_path_factory.mktemp("plain") / "step.json.gz")])


def test_a_step_ends_with_its_optimizer(trace: traces.RequestTrace) -> None:
    assert np.unique(trace.columns["step"]).tolist() == [0, 1]
    assert trace.facts["steps_by"] == "annotation"
    phases = trace.word("phase")
    assert set(phases[trace.word("name") == "multi_tensor_apply_kernel<LpNorm>"]) == {"optimizer"}


def test_layers_are_counted_forward_and_back(trace: traces.RequestTrace) -> None:
    for phase in ("forward", "backward"):
        mine = (trace.word("phase") == phase) & (trace.word("kind") == "attention") & (trace.columns["step"] == 0)
        layers = trace.columns["layer"][mine]
        assert len(set(layers.tolist())) == LAYERS
        assert np.all(np.diff(layers) >= 0) if phase == "forward" else np.all(np.diff(layers) <= 0)


def test_shapes_of_attention_are_the_scenario_s_batch(trace: traces.RequestTrace) -> None:
    text = "\n".join(lines(trace))
    assert "gpus_per_node: 1" in text and "model: llama-3.2-1b" in text and "pass: training" in text
    assert "sequence: 1024" in text and "sequences_per_replica: 2" in text
    assert "micro_batch: 2, recomputation: none" in text


def laid_with(trace: traces.RequestTrace, folder: Path, micro_batch: int) -> Any:
    text = "\n".join(lines(trace)).replace("micro_batch: 2", f"micro_batch: {micro_batch}")
    (folder / "mine.yaml").write_text(text)
    return lay(trace, look_up(load(str(folder / "mine.yaml"), ())))


def test_products_of_either_order_are_laid_over_their_own_operators(trace: traces.RequestTrace, tmp_path: Path) -> None:
    laid = laid_with(trace, tmp_path, 2)
    assert laid.matched_share > 0.97 and not any(each.heavy for each in laid.left_over)
    measured = {row.name: row.measured_s for row in laid.operators if row.kind == "gemm"}
    per_kernel = 90e-6 * LAYERS
    # Gate and up are two products here; helpers in front and behind are the rest.
    assert measured["gate and up, d weight"] == pytest.approx(2 * per_kernel, rel=0.2)
    assert measured["down projection, d weight"] == pytest.approx(per_kernel, rel=0.2)
    kinds = {row.kind: row for row in laid.kinds}
    assert kinds["norm"].measured_s > 0.0 and "reduction" not in kinds


def test_another_micro_batch_is_refused_before_any_number(trace: traces.RequestTrace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"products have 2,048 rows.*the plan's 1,024.*micro_batch"):
        laid_with(trace, tmp_path, 1)
