"""Where a stretch of interleaved micro-batches begins."""

from __future__ import annotations

import numpy as np
import pytest

from tspsim.traces.alignment import _with_exchanges


@pytest.mark.parametrize(
    ("exchanged", "ahead", "begin"),
    [
        ([9.5, 13.0], 0, 10.0),  # the trace begins with attention
        ([9.5, 13.0], 1, 9.5),  # the backward's exchange began before the forward's layer
        ([10.5, 13.0], 1, 10.0),  # or inside it
        ([13.0], 1, 10.0),  # or there is none
        ([8.0, 9.0, 10.5], 2, 9.0),
    ],
)
def test_a_stretch_takes_the_exchanges_that_a_trace_has_before_its_first_attention(
    exchanged: list[float], ahead: int, begin: float
) -> None:
    """DeepSeek's profile begins with gradients on their way to experts, then attention of the forward."""
    assert _with_exchanges(10.0, 12.0, np.array(exchanged), ahead) == begin
