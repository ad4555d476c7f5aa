"""Fit the kernels of sparse attention to whole modules: the time left after projections and norms.

All modules of an engine on a device are fitted together, over both types of cache: one indexer, and one attention
kernel per cache type. The range of each covers the modules' residuals beside the ranges of everything around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..hardware import Device
from ..hardware.families import FAMILIES
from ..hardware.kernels import limits_of
from ..hardware.limits import Parameter
from ..hardware.sparse import attention_call, indexer_call
from ..hardware.specification import DeviceSpec, KernelFit, KernelSpread
from ..operators import Indexer, Operator, SparseAttention
from ..validation.sparse_modules import Module, captured, engine, total
from .least_squares import minimise, used_rows
from .residuals import kernel_error, kernel_spread

if TYPE_CHECKING:
    import pandas as pd

#: Path of the table in a measurements folder.
SPARSE_MODULES = "kernels/sparse_attention.csv"
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: From this time on, a module launched kernel by kernel shows the device's time, not the host's.
EAGER_US = 6000.0
#: Prompts that attend to every token run another kernel.
DENSE = "dense_mha"
#: Fewer rows cannot separate the kernels of a module.
FEWEST_ROWS = 40
#: The least share of a module's core that a range's factor counts: beside long projections the rest of a module is more
#: uncertain than itself.
LEAST_SHARE = 0.1


@dataclass(frozen=True)
class _Part:
    """One kernel of the modules: which rows have it, and their shapes."""

    family: str
    dtype: str
    second: str
    where: Bools
    shape: Mapping[str, Floats]

    @classmethod
    def of(cls, operators: Sequence[Operator | None], second: str) -> _Part:
        calls = [_call(op) for op in operators if op is not None]
        family = calls[0][0]
        shape = {name: np.array([shape[name] for _, shape in calls]) for name in FAMILIES[family].shape}
        dtype = next(op.dtype for op in operators if op is not None)
        return cls(family, dtype, second, np.array([op is not None for op in operators]), shape)

    @property
    def bounds(self) -> Mapping[str, Parameter]:
        return {f"{self.family} {self.second} {name}": p for name, p in FAMILIES[self.family].parameters.items()}

    def own(self, parameters: Mapping[str, float]) -> dict[str, float]:
        """This kernel's numbers among all parameters."""
        return {name.split()[-1]: parameters[name] for name in self.bounds}

    def seconds(self, spec: DeviceSpec, parameters: Mapping[str, float]) -> Floats:
        """Seconds of the kernel, shape (all rows,); zero where a module lacks it."""
        out = np.zeros(len(self.where))
        limits = limits_of(spec, self.dtype)
        out[self.where] = FAMILIES[self.family].seconds(
            limits, self.own(parameters), {}, self.shape, self.dtype, self.second
        )
        return out


def _call(operator: Operator) -> tuple[str, dict[str, float]]:
    if isinstance(operator, Indexer):
        return indexer_call(operator)
    assert isinstance(operator, SparseAttention)
    return attention_call(operator)


def fit_sparse_modules(
    spec: DeviceSpec, relatives: Sequence[DeviceSpec], frame: pd.DataFrame, *, date: str, source: str, starts: int = 2
) -> tuple[tuple[KernelFit, ...], tuple[str, ...]]:
    """Fits of all engines in a table's rows of this device, and the rows left out with the reason.

    Parameters
    ----------
    spec, relatives
        The device, with fits of the products that price the projections, and the devices it borrows from.
    frame
        Rows of ``sparse_attention.csv`` of this device as read, ``time_us`` a number.
    date, source
        Written into every fit.
    starts
        Starting points, the first at the defaults.
    """
    on, fits, skipped = Device(spec, tuple(relatives)), list[KernelFit](), list[str]()
    usable = (frame["launch"] == "graph") | (frame["time_us"] >= EAGER_US)
    usable &= ~frame["library"].str.contains(DENSE)
    rows = frame[usable & (frame["time_us"] > 0.0)]
    over_tokens = rows["kind"] == "dsa"
    groups = [rows["library"].map(engine), over_tokens.map({True: "tokens", False: "entries"})]
    for (library, what), group in rows.groupby(groups, sort=True):
        modules, times, graph = [], [], []
        for row in group.to_dict("records"):
            if row["launch"] == "graph" and not captured(on, row):
                continue
            try:
                modules.append(Module.of(row))
            except InputError as error:
                skipped.append(error.message)
                continue
            times.append(float(row["time_us"]) * 1e-6)
            graph.append(row["launch"] == "graph")
        if len(modules) < FEWEST_ROWS:
            if modules:
                skipped.append(f"{library} over {what}: {len(modules)} modules, {FEWEST_ROWS} are needed")
            continue
        fits += _fit(on, str(library), modules, np.array(times), np.array(graph), date, source, starts)
    return tuple(fits), tuple(dict.fromkeys(skipped))


def used(modules: Sequence[Module]) -> Bools:
    """Which modules a fit may use, by their shape."""
    return used_rows((float(m.batch), float(m.q_len), float(m.context), float(m.heads)) for m in modules)


def _fit(
    on: Device, library: str, modules: Sequence[Module], measured: Floats, graph: Bools, date: str, source: str,
    starts: int,
) -> list[KernelFit]:  # fmt: skip
    cores = [module.core() for module in modules]
    around = np.array([
        tuple(total(on, tuple(op for op in module.operators() if op not in core)))
        for module, core in zip(modules, cores, strict=True)
    ])  # fmt: skip
    parts = [
        _Part.of([a if a.kv_dtype == second else None for _, a in cores], second)
        for second in sorted({attention.kv_dtype for _, attention in cores})
    ]
    if any(indexer is not None for indexer, _ in cores):
        parts.append(_Part.of([indexer for indexer, _ in cores], "fp8"))
    may = used(modules)
    bounds = {name: parameter for part in parts for name, parameter in part.bounds.items()}

    def core_seconds(parameters: Mapping[str, float]) -> Floats:
        total_s: Floats = np.sum([part.seconds(on.spec, parameters) for part in parts], axis=0)
        return total_s

    def residual(parameters: Mapping[str, float]) -> Floats:
        off: Floats = np.log((around[:, 0] + core_seconds(parameters)) / measured)
        return off

    solution, _ = minimise(bounds, frozenset(), lambda parameters: residual(parameters)[may], starts=starts)
    solution = {name: float(f"{value:.4g}") for name, value in solution.items()}
    core, off = core_seconds(solution), -residual(solution)
    fits = []
    for part in parts:
        mine, judged = part.where & may & graph, part.where & ~may & graph
        seconds = part.seconds(on.spec, solution)[mine]
        # The kernel's possible error such that the module is as measured, with everything around it at either end of
        # its range.
        low, high = (
            kernel_spread(
                seconds, np.log(np.maximum((measured - around[:, end])[mine] / core[mine], LEAST_SHARE)), len(bounds)
            )
            for end in (1, 2)
        )
        fits.append(
            KernelFit(
                family=part.family,
                dtype=part.dtype,
                kv_dtype=part.second,
                library=library,
                parameters=part.own(solution),
                spread=KernelSpread(borders_us=low.borders_us, low=low.low, high=high.high, domain_us=low.domain_us),
                rows_used=int((part.where & may).sum()),
                held_out=kernel_error(off[judged]) if judged.any() else None,
                date=date,
                source=source,
            )
        )
    return fits
