"""No call of attention does more FLOPs a second than the calls that stand for its best."""

from __future__ import annotations

import itertools

import pytest

from tspsim.base import catalog
from tspsim.base.errors import TspsimError
from tspsim.hardware import load_device
from tspsim.operators import Attention
from tspsim.step.paths.kernels import BEST_RATE


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", catalog.names("devices"))
def test_no_attention_is_faster_than_at_its_best(name: str) -> None:
    device = load_device(name)
    tried = 0
    for direction, head_dim, (heads, kv_heads) in itertools.product(
        ("forward", "backward"), (64, 128), ((1, 1), (8, 1), (8, 8), (64, 8))
    ):
        one = Attention(((1, 1),), heads, kv_heads, head_dim, direction=direction)
        try:
            rates = [each.flops / float(device.time(each).seconds) for each in one.peak_calls]
        except TspsimError:
            pytest.skip(f"no attention was measured on {name}, nor on a relative")
        for queries, times, causal in itertools.product((128, 1000, 8192, 131072), (1, 4), (False, True)):
            call = Attention(((queries, times * queries),) * 2, heads, kv_heads, head_dim, causal, direction=direction)
            assert float(device.time(call).seconds) >= call.flops / (max(rates) * BEST_RATE), call.shape
            tried += 1
    assert tried
