"""Seconds of kernels inside a step as functions of the rows that they read, made once for each kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..base.quick import replace
from ..hardware import Device
from ..hardware.over_caches import over_caches
from ..hardware.over_rows import Seconds, over_rows, over_sums
from ..model.layer import ServingLayer
from ..operators import BatchQuantity, CachedContext, Operator, Rows, RowSums
from ..parallel.serving_engine import Captured
from ..program.layout import Timed
from .cached_attention import CachedAttention, WindowedAttention
from .row_consumers import CONTEXTS, LastPrompts, over_caches_as, seconds_over, seconds_over_sums
from .row_consumers import over_rows as rows_replaced
from .tables import EPSILON


class RowPrices:
    """Kernels of one plan.

    Parameters
    ----------
    device
        What runs them.
    once_s
        Seconds of operators under a capture.
    """

    def __init__(self, device: Device, once_s: Callable[[Captured], Callable[[Operator], float]]) -> None:
        self._device, self._once_s = device, once_s
        self._over_prompts: dict[Hashable, Seconds] = {}
        self._over_all_rows: dict[Hashable, Callable[[RowSums], float]] = {}
        self._over_caches: dict[Hashable, CachedAttention | None] = {}
        #: Functions of contexts, and numbers of queries, that were compared with kernels.
        self._exact: set[tuple[Callable[[RowSums], float], int]] = set()

    def over_prompts(self, operator: Operator, captured: Captured) -> Seconds:
        """Seconds of a kernel that reads the rows of prompts, as a function of these."""
        field = operator.rows_field
        assert field is not None
        key = rows_replaced(operator, field)(()), captured
        if key not in self._over_prompts:
            quick = over_rows(self._device, operator)
            self._over_prompts[key] = LastPrompts(seconds_over(operator, self._once_s(captured), quick))
        return self._over_prompts[key]

    def over_all_rows(self, operator: Operator, captured: Captured) -> Callable[[RowSums], float]:
        """Seconds of a kernel that reads all rows, as a function of their sums."""
        field = operator.rows_field
        assert field is not None
        key = rows_replaced(operator, field)(()), captured
        if key not in self._over_all_rows:
            quick = over_sums(self._device, operator)
            self._over_all_rows[key] = seconds_over_sums(operator, self._once_s(captured), quick)
        return self._over_all_rows[key]

    def over_rows_of(
        self, operator: Timed, layer: ServingLayer, of: Callable[[Rows], Operator], own: int, captured: Captured
    ) -> Callable[[RowSums], float] | None:
        """Seconds of a kernel that reads the contexts of decoding sequences, of ``own`` queries each, as a function of
        the sums of rows; None where only the kernel itself is priced. ``of``: the kernel of other rows of its
        ``layer``."""
        over: Callable[[RowSums], float] | None
        if isinstance(operator, CachedContext):
            most = layer.attention_kind.most_cached(layer)
            over = self._over_caches_of(operator, captured, most, layer.context_shards)
        elif isinstance(operator, Operator) and operator.rows_field and operator.rows_field.reads is BatchQuantity.ROWS:
            over = self.over_all_rows(operator, captured)
        else:
            return None
        if over is None or (over, own) in self._exact:
            return over
        probed = RowSums((), (), own, CONTEXTS)
        exact_s = self._once_s(captured)(of(probed.rows))
        if abs(over(probed) - exact_s) > EPSILON * exact_s:
            return None
        self._exact.add((over, own))
        return over

    def _over_caches_of(
        self, operator: CachedContext, captured: Captured, most: int, shards: int
    ) -> CachedAttention | None:
        key = replace(operator, rows=()), captured, most, shards
        if key not in self._over_caches:
            self._over_caches[key] = None
            if most:
                whole = self._over_caches_of(operator, captured, 0, shards)
                self._over_caches[key] = None if whole is None else WindowedAttention(whole, most)
            else:
                assert isinstance(operator, Operator)
                over = over_caches_as(operator, self._once_s(captured), over_caches(self._device, operator))
                self._over_caches[key] = None if over is None else CachedAttention(over, shards)
        return self._over_caches[key]
