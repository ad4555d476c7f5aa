"""A residual stream of several lanes: what hyper-connections take in a step, and that one lane takes none of it."""

from dataclasses import replace

from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.operators import Gemm, MemoryBound
from tspsim.parallel.hyper_connections import attach

MODEL = load_model("deepseek-v4-pro")
TOKENS, ELEMENT = 64, 2.0


def norm(tokens: int = TOKENS) -> MemoryBound:
    from tspsim.model.layer import LayerShard

    return LayerShard(MODEL, 1, "bf16", int(ELEMENT)).norm(tokens)


def test_lanes_move_eighteen_rows_where_one_lane_moves_four() -> None:
    rows = TOKENS * MODEL.hidden * ELEMENT
    weights, mixture, spread = attach(MODEL, ELEMENT, (norm(),))
    assert isinstance(weights, Gemm) and (weights.m, weights.n, weights.k) == (TOKENS, 24, 4 * MODEL.hidden)
    assert mixture.hbm_bytes == 5 * rows and spread.hbm_bytes == 9 * rows
    assert norm().hbm_bytes == 4 * rows


def test_lanes_leave_everything_but_norms_of_the_stream_alone() -> None:
    others = (Gemm(8, 8, 8, "bf16"), MemoryBound("rope", 1e6, 8), MemoryBound("rmsnorm", 1e6, 8))
    assert attach(MODEL, ELEMENT, others) == others


def test_more_lanes_take_longer() -> None:
    device = load_device("mi355x")
    seconds = [
        sum(device.time(each).seconds for each in attach(replace(MODEL, residual_lanes=lanes), ELEMENT, (norm(1024),)))
        for lanes in (2, 4, 8)
    ]
    assert device.time(norm(1024)).seconds < seconds[0] < seconds[1] < seconds[2]
