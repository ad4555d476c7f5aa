"""What an operator costs on a device.

:class:`Device` answers two questions. The methods that it has of :class:`.isolated.IsolatedKernels` (``gemm``,
``attention`` and others) predict *one isolated kernel* as a benchmark times it.
``time(operator)`` predicts that operator *inside a step*, as the pricer of its class says (:mod:`.pricers`): matrix
kernels at the clock of a step, and memory-bound kernels on the copy curve, as they run between other kernels.
The clock is ``sustained`` by default, as in training and in serving under load: both vendors' devices slow down under
power. ``burst`` is a short step on a cool device. Both factors stand in the device file, one a device and kernel
family, against isolated kernels measured in a burst; a library whose rows were measured at the clock of a step already
has the first in them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tspsim.base.errors import InputError, UnknownNameError
from tspsim.base.memo import Itself
from tspsim.base.provenance import Provenance
from tspsim.operators import DTYPES, Operator, element_bytes

from ..base.memo import once
from . import pricers
from .facts import DeviceFacts, maker_of, version_of
from .families import FAMILIES, read_shape
from .isolated import IsolatedKernels
from .kernels import Kernel, find, limits_of
from .limits import DeviceLimits, Estimate, minimum
from .pricers import price

if TYPE_CHECKING:
    from .specification import DeviceSpec, KernelFit

#: Parameters of attention's rope and cache write, which serving libraries time with it.
APART = {"rope": 0.0, "token_ns": 0.0, "cache_write": 0.0}
#: Bytes a column of one row that an op moves in bf16 (read plus written), to recover the row's length.
_BYTES_A_COLUMN = {"copy": 4.0, "add": 6.0, "rmsnorm": 4.0, "add_rmsnorm": 8.0, "swiglu": 6.0}
#: Instead of a library: products without the cast that its tables time with them.
ALONE = "alone"
#: What a library is told by that is the device's own for another type of cache.
READ_AS = "as "


@dataclass(frozen=True, eq=False)
class Device(IsolatedKernels, DeviceFacts):
    """One GPU: its facts, and the cost of operators on it.

    Parameters
    ----------
    spec
        The device file.
    relatives
        Specs of the devices whose kernel models are borrowed where this one has none, nearest first.
    clocks
        ``sustained``: operators inside a step run at the rate of a long step (the default for simulation);
        ``burst``: at that of a short step on a cool device.
    engine
        The word that names of libraries begin with whose kernels run where they were measured here; empty: the
        device's default libraries.
    instead
        (words, library) pairs: what the engine runs of a family and types instead of its own, as
        ``fused_moe bf16 mxfp4``; of experts that no rank has whole, with the word ``divided``. ``as bf16`` of a family
        and a type of cache: that cache is read by the kernel of another, as fast a byte.
    """

    relatives: tuple[DeviceSpec, ...] = ()
    clocks: Literal["sustained", "burst"] = "sustained"
    engine: str = ""
    instead: tuple[tuple[str, str], ...] = ()
    _kernels: dict[tuple[str, str, str | None, str | None], Kernel] = field(default_factory=dict, repr=False)
    _without: dict[tuple[str, str, str | None], Kernel] = field(default_factory=dict, repr=False)
    _rates: dict[tuple[str, str, bool], float] = field(default_factory=dict, repr=False)
    _measured: dict[str, DeviceLimits] = field(default_factory=dict, repr=False)
    _limits: dict[str, DeviceLimits] = field(default_factory=dict, repr=False)
    _times: dict[Operator, Estimate] = field(default_factory=dict, repr=False)
    _limited: dict[float, Device] = field(default_factory=dict, repr=False)
    _clocked: dict[str, Device] = field(default_factory=dict, repr=False)
    _preferring: dict[tuple[str, tuple[tuple[str, str], ...]], Device] = field(default_factory=dict, repr=False)

    def preferring(self, engine: str, instead: Mapping[str, str] = MappingProxyType({})) -> Device:
        """The same device where a serving engine's kernels run, as far as they were measured on it; ``instead``: by
        family and type, another's library that it runs."""
        key = engine, tuple(sorted(instead.items()))
        if key == (self.engine, self.instead):
            return self
        if key not in self._preferring:
            self._preferring[key] = Device(self.spec, self.relatives, self.clocks, *key)
        return self._preferring[key]

    def clocked(self, clocks: Literal["sustained", "burst"]) -> Device:
        """The same device at another of its two ``clocks``."""
        if clocks == self.clocks:
            return self
        if clocks not in self._clocked:
            self._clocked[clocks] = Device(self.spec, self.relatives, clocks, self.engine, self.instead)
        return self._clocked[clocks]

    def limited_to(self, watts: float) -> Device:
        """The same device where a GPU may draw so many watts; raises InputError for more than its own, or too few."""
        if watts not in self._limited:
            # Here, so that importing this room does not load pydantic.
            from ..base.stated import Stated
            from .specification import IDLE_WATTS

            if not IDLE_WATTS < watts <= self.tdp_watts:
                problem = f"{watts:g} W is not between {IDLE_WATTS:g} W and the {self.tdp_watts:g} W of {self.name}"
                raise InputError(problem)
            limit = Stated[float](value=watts, source="the scenario's cluster.power_limit")
            spec = self.spec.model_copy(update={"power_limit": limit})
            self._limited[watts] = Device(spec, self.relatives, self.clocks, self.engine, self.instead)
        return self._limited[watts]

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.visible_memory_bytes / 1e9:.0f} GB, {', '.join(self.peak_flops_per_s)}>"

    @property
    def parts(self) -> tuple[Hashable, ...]:
        """Equal for devices made of the same parts."""
        return Itself(self.spec), *map(Itself, self.relatives), self.clocks, self.engine, self.instead

    # --- isolated kernels -----------------------------------------------------------------------------------

    def estimate(
        self, family: str, dtype: str, library: str | None, second_dtype: str | None, **shape: Any
    ) -> Estimate:
        """What the methods of :class:`IsolatedKernels` ask: one family, its shape columns as numbers or arrays.

        Parameters
        ----------
        family
            One of :data:`tspsim.hardware.families.FAMILIES`.
        dtype, second_dtype
            Operand type, and the one K and V, or expert weights, are kept in (None: the same).
        library
            Whose kernels; None, or a library that was not measured: the device's default.
        shape
            The family's shape columns; arrays broadcast, and are worked on in pieces that stay in the cache.
        """
        return self.isolated(self.kernel(family, dtype, library, second_dtype), second_dtype, **shape)

    def isolated(self, kernel: Kernel, second_dtype: str | None = None, **shape: Any) -> Estimate:
        """What calls of one kernel model take; K and V of several segments are tuples."""
        numbers = read_shape(shape)
        first = next(iter(numbers.values()))
        if isinstance(first, float):
            return kernel.estimate(float(self._seconds(kernel, numbers, second_dtype)))
        flat = {name: np.ravel(column) for name, column in numbers.items()}
        pieces = [
            self._seconds(kernel, {name: c[i : i + _CHUNK] for name, c in flat.items()}, second_dtype)
            for i in range(0, first.size, _CHUNK)
        ]
        seconds = np.concatenate(pieces) if pieces else np.zeros(0)
        return kernel.estimates(seconds.reshape(first.shape))

    def _seconds(self, kernel: Kernel, shape: Mapping[str, Any], second_dtype: str | None) -> Any:
        return FAMILIES[kernel.family].seconds(
            self.limits(kernel.dtype), kernel.parameters, kernel.switches, shape, kernel.dtype,
            second_dtype or kernel.dtype,
        )  # fmt: skip

    def memory_bound(self, size_bytes: Any, op: str = "copy", rows: Any = 0) -> Estimate:
        """A kernel that moves ``size_bytes`` (read plus written) over ``rows`` rows, numbers or arrays; an unmeasured
        ``op`` costs as a copy."""
        columns = np.asarray(size_bytes) / np.maximum(rows, 1) / _BYTES_A_COLUMN.get(op, 4.0)
        if not np.ndim(columns):
            columns = float(columns)
        return self.estimate("memory_bound", "bf16", op, None, size_bytes=size_bytes, rows=rows, columns=columns)

    # --- inside a step --------------------------------------------------------------------------------------

    def time(self, operator: Operator) -> Estimate:
        """What ``operator`` costs inside a step at this device's ``clocks`` (remembered by shape)."""
        estimate = self._times.get(operator)
        if estimate is None:
            estimate = price(self, operator)
            if self.spec.announced:
                estimate = self._possible(operator, estimate)
            self._times[operator] = estimate
        return estimate

    def _possible(self, operator: Operator, guessed: Estimate) -> Estimate:
        """Of a device that was not measured, a range no faster than its peak allows."""
        least = operator.flops / self.peak_of(operator.dtype) if operator.dtype and operator.flops else 0.0
        return guessed._replace(low=min(guessed.seconds, max(guessed.low, least)))

    def at_clock(self, isolated: Estimate, operator: Operator, kernel: Kernel) -> Estimate:
        """An isolated kernel of ``operator`` where the matrix units run as in a step at this device's ``clocks``."""
        return self.shared_at_clock(isolated, self.matrix_share(operator), kernel)

    def shared_at_clock(self, isolated: Estimate, matrix_share: Any, kernel: Kernel) -> Estimate:
        """The same of calls of which the matrix units decide a share each; numbers or arrays (rows,)."""
        key = kernel.family, kernel.library, kernel.sustained
        rate = self._rates.get(key)
        if rate is None:
            rate = pricers.rate(self.spec.sustained, kernel.family, self.clocks, measured_sustained=kernel.sustained)
            rate *= self.spec.sustained.picks(kernel.library, self.engine) * self.spec.clock_at_limit
            self._rates[key] = rate
        return pricers.at_clock(isolated, matrix_share, rate)

    def matrix_share(self, operator: Operator) -> float:
        """How far the clock of the matrix units decides an operator's time: 0 (bytes alone) to 1 (FLOPs alone)."""
        if not operator.dtype:
            return 0.0
        return float(self.matrix_shares(operator.dtype, operator.flops, operator.hbm_bytes))

    def matrix_shares(self, dtype: str, flops: Any, hbm_bytes: Any) -> Any:
        """The same of calls by what they multiply and move; numbers or arrays (rows,)."""
        limits = self._measured_limits(dtype)  # what was waited for then, whatever a changed fact would hide
        return minimum(1.0, flops / limits.peak / (hbm_bytes / limits.hbm))

    def _measured_limits(self, dtype: str) -> DeviceLimits:
        """The numbers of the device as its kernels were measured."""
        limits = self._measured.get(dtype)
        if limits is None:
            limits = self._measured[dtype] = limits_of(self.spec.as_measured, dtype)
        return limits

    def includes_quantising(self, dtype: str) -> bool:
        """Whether tables time products of ``dtype`` with quantising A; in steps that is a kernel of its own."""
        return self.kernel("gemm", dtype).parameters["quantise_gb_per_s"] > 0.0

    def cool_gain(self, call_s: float) -> float:
        """Rate of the matrix units in a call of ``call_s`` seconds that a benchmark repeats, over a long step's.

        A limiter holds the power of some ten milliseconds, and a benchmark leaves gaps: short calls keep the
        clock of a cool device, long ones settle. 1 where the device file has no ``settle``.
        """
        return pricers.cool_gain(call_s, self.spec.sustained)

    # --- what the models read -------------------------------------------------------------------------------

    def limits(self, dtype: str) -> DeviceLimits:
        """The numbers that a kernel model of ``dtype`` reads; raises UnknownNameError for a type nobody knows."""
        limits = self._limits.get(dtype)
        if limits is None:
            if dtype not in DTYPES:
                raise UnknownNameError("type", dtype, DTYPES)
            limits = self._limits[dtype] = limits_of(self.spec, dtype)
        return limits

    def kernel(self, family: str, dtype: str, library: str | None = None, kv_dtype: str | None = None) -> Kernel:
        """The model of a ``family`` of kernels that applies to a type, a type of cache and a library, with where it is
        from; raises UnknownNameError for a library or type that there is not."""
        key = (family, dtype, library, kv_dtype)
        kernel = self._kernels.get(key)
        if kernel is None:
            if dtype not in DTYPES:
                raise UnknownNameError("type", dtype, DTYPES)
            library = library or self._engine_library(family, dtype, kv_dtype)
            kernel = self._kernels[key] = find(self.spec, self.relatives, family, dtype, library, kv_dtype)
        return kernel

    def product_alone(self, family: str, dtype: str) -> Kernel:
        """The model of products of a type without the quantising that some tables time with them.

        Where A's cast to the type is part of the measured call, its bytes are left out, and the product starts as the
        same library's in bf16 does, which casts nothing: what is left of the measured start is the cast's.
        """
        key = (family, dtype, ALONE, None)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self.kernel(family, dtype)
            own = kernel.parameters
            if own["quantise_gb_per_s"] > 0.0:
                start_us = min(own["launch_us"], self.kernel(family, "bf16", kernel.library).parameters["launch_us"])
                kernel = replace(kernel, parameters={**own, "quantise_gb_per_s": 0.0, "launch_us": start_us})
            self._kernels[key] = kernel
        return kernel

    def attention_alone(self, family: str, dtype: str, kv_dtype: str | None) -> Kernel:
        """The model of a family of attention without the rope and the cache write that its tables time with it: inside
        a step these are operators of their own."""
        key = (family, dtype, kv_dtype)
        kernel = self._without.get(key)
        if kernel is None:
            kernel = self.kernel(family, dtype, kv_dtype=kv_dtype)
            kernel = self._without[key] = replace(kernel, parameters={**kernel.parameters, **APART})
        return kernel

    @once
    def cast_start_s(self) -> float:
        """Seconds by which a kernel that casts products' inputs starts later than a copy: of what the device's tables
        time with products the least, that of scales a block. Scales a tensor are found by kernels of their own in the
        tables, which engines and trainers do without (scales are static, delayed, or found by the kernel before).
        0 where no table times a cast.
        """
        narrow = [
            dtype
            for dtype in self.peak_flops_per_s
            if element_bytes(dtype) < element_bytes("bf16") and self.includes_quantising(dtype)
        ]
        both = [(self.kernel("gemm", dtype), self.product_alone("gemm", dtype)) for dtype in narrow]
        starts = [with_cast.parameters["launch_us"] - alone.parameters["launch_us"] for with_cast, alone in both]
        copy_us = self.kernel("memory_bound", "bf16", "copy").parameters["launch_us"]
        return 1e-6 * max(0.0, min(starts, default=0.0) - copy_us)

    def instead_of(self, *words: str) -> str | None:
        """The library that the engine runs of a family and types instead of its own: where several entries say no
        other words, the one with most."""
        said = [(len(key.split()), library) for key, library in self.instead if set(key.split()) <= set(words)]
        return max(said)[1] if said else None

    def read_as(self, family: str, kv_dtype: str | None) -> str | None:
        """The type of cache whose kernel stands for the one that reads this type (``as bf16``)."""
        stated = self.instead_of(family, kv_dtype or "")
        return stated.removeprefix(READ_AS) if stated is not None and stated.startswith(READ_AS) else kv_dtype

    def _engine_library(self, family: str, dtype: str, kv_dtype: str | None) -> str | None:
        """The engine's library that this device has of these types: of its newest version the one with most rows; None
        where it has none, or where the default is the engine's."""
        stated = self.instead_of(family, dtype, kv_dtype or dtype)
        if stated is not None and not stated.startswith(READ_AS):
            return stated
        if not self.engine or maker_of(self.spec.defaults.get(family, "")) == maker_of(self.engine):
            return None
        own = [
            fit for fit in self.spec.kernels
            if (fit.family, fit.dtype) == (family, dtype) and fit.kv_dtype in (None, kv_dtype or dtype)
            and maker_of(fit.library) == maker_of(self.engine) and fit.untuned is None
        ]  # fmt: skip
        return max(own, key=lambda fit: (version_of(fit.library), fit.rows_used)).library if own else None

    def set_aside(self, family: str, dtype: str, kv_dtype: str | None = None) -> KernelFit | None:
        """What the engine was measured with of these types and does not run so, as its rows are untuned; None: nothing,
        or it has others."""
        if not self.engine or self.instead_of(family, dtype, kv_dtype or dtype):
            return None
        own = [
            fit for fit in self.spec.kernels
            if (fit.family, fit.dtype) == (family, dtype) and fit.kv_dtype in (None, kv_dtype or dtype)
            and maker_of(fit.library) == maker_of(self.engine)
        ]  # fmt: skip
        return own[0] if own and all(fit.untuned for fit in own) else None

    def provenance(self) -> tuple[Provenance, ...]:
        """Every fact of the device, and every kernel model asked so far, with its source and basis."""
        used = sorted(
            {
                Provenance(f"{self.name}: {k.family} {k.dtype}", k.library, k.source, k.basis)
                for k in self._kernels.values()
            }
        )
        return (*self.stated(), *used)


_CHUNK = 2048


def load_device(name: str | Path, *, clocks: Literal["sustained", "burst"] = "sustained") -> Device:
    """A device by catalog name or path, with the relatives it borrows kernel models from."""
    from .announced import DEVICES

    spec = DEVICES.load(name)
    return Device(spec, tuple(DEVICES.load(relative) for relative in spec.relatives), clocks)
