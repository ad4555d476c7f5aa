"""Requests and steps of the plain simulators that schedulers are compared with."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tspsim.serving import replay


class Plain:
    """A request as the plain loop keeps it."""

    def __init__(self, number, arrival_s, prompt, outputs):
        self.number, self.arrival_s, self.prompt, self.outputs = number, arrival_s, prompt, outputs
        self.computed = self.made = self.blocks = self.preemptions = 0
        self.first_s = self.end_s = None

    @property
    def known(self):
        """Tokens whose keys and values are needed before the next output."""
        return self.prompt + self.made


def step_s(rows):
    """Not linear in anything, and the same in any order of rows."""
    tokens = sum(q * n for q, _, n in rows)
    context = sum(c * n for _, c, n in rows)
    return 2.0**-7 * (1 + -(-tokens // 8)) + 2.0**-20 * context + 2.0**-24 * tokens * tokens


lengths = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 70), st.integers(1, 40)), min_size=1, max_size=25)


def assert_replayed_alike(asked, engine, **how):
    """The engine serves the requests as the plain loop did."""
    frame = pd.DataFrame(
        [(r.arrival_s, r.prompt, r.outputs) for r in asked], columns=["arrival_s", "prompt_tokens", "output_tokens"]
    )
    answer = replay(frame, lambda batch: step_s(batch.rows), engine, **how)
    np.testing.assert_allclose(answer.first_token_s, [r.first_s for r in asked], rtol=1e-12)
    np.testing.assert_allclose(answer.end_s, [r.end_s for r in asked], rtol=1e-12)
    assert answer.preemptions.tolist() == [r.preemptions for r in asked]
