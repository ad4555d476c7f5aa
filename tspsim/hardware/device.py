"""Time of an operator on a device.

:class:`Device` has two predictions. The methods of :class:`.isolated.IsolatedKernels` (``gemm``, ``attention`` and
others) predict *an isolated kernel* as a benchmark times it. ``time(operator)`` predicts an operator *inside a step*
with the pricer of its class (:mod:`.pricers`): matrix kernels at the clock of a step, memory-bound kernels at the rate
of a copy (:meth:`Device.streaming`). The clock is ``sustained`` by default, as in training and in serving under load,
where devices slow down to keep their power limit. ``burst`` is a short step on a cool device. The device file has both
rates by kernel family, against isolated kernels measured in a burst. Libraries in ``sustained.libraries`` were measured
at the sustained clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tspsim.base.errors import InputError, UnknownNameError
from tspsim.base.memo import BoundedCache, Itself, once
from tspsim.base.provenance import Provenance
from tspsim.operators import DTYPES, Operator, element_bytes

from . import pricers
from .facts import DeviceFacts, maker_of, version_of
from .families import FAMILIES, read_shape
from .isolated import IsolatedKernels
from .kernels import Kernel, find_kernel, limits_of, widening_weights
from .limits import DeviceLimits, Estimate, minimum
from .pricers import price

if TYPE_CHECKING:
    from .specification import DeviceSpec, KernelFit

#: Parameters that remove rope and cache write, which serving libraries time with attention.
NOT_IN_STEP = {"rope": 0.0, "token_ns": 0.0, "cache_write": 0.0}
#: Bytes that an op moves in bf16 (read plus written) for an element of a row; they give the row's length.
_BYTES_A_COLUMN = {"copy": 4.0, "add": 6.0, "rmsnorm": 4.0, "add_rmsnorm": 8.0, "swiglu": 6.0}
#: Key, in place of a library, of kernels without what tables time with them: casts, rope, cache writes.
ALONE = "alone"
#: Key, in place of a library, of kernels that stream as many bytes as a copy, without what the driver's copy loses.
STREAMING = "streaming"
#: Kernels whose function of segments a device keeps, by kernel, type of cache and widths.
MOST_FORMS = 256
#: Prefix of an override that names a type of cache instead of a library.
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
        ``sustained``: the rate of a long step (default); ``burst``: the rate of a short step on a cool device.
    engine
        First word of the names of the engine's libraries, whose kernels run where they were measured on this device;
        empty: the device's default libraries.
    overrides
        (words, library) pairs: kernels that the engine runs in place of its own, by family, types and vendor, as
        ``fused_moe bf16 mxfp4``, with ``divided`` for experts whose columns ranks divide, and ``contiguous`` or
        ``masked`` for those to which an exchange sends rows without or in places kept for every expert. ``grouped
        products`` of experts: the device's grouped products, and what moves their rows. A library ``as bf16`` of a
        family and a type of cache: the kernel for bf16 reads that cache, as fast a byte.
    """

    relatives: tuple[DeviceSpec, ...] = ()
    clocks: Literal["sustained", "burst"] = "sustained"
    engine: str = ""
    overrides: tuple[tuple[str, str], ...] = ()
    _kernels: dict[tuple[str, str, str | None, str | None], Kernel] = field(default_factory=dict, repr=False)
    _over_segments: BoundedCache = field(default_factory=lambda: BoundedCache(MOST_FORMS), repr=False)
    _rates: dict[tuple[str, str, bool], float] = field(default_factory=dict, repr=False)
    _measured: dict[str, DeviceLimits] = field(default_factory=dict, repr=False)
    _limits: dict[str, DeviceLimits] = field(default_factory=dict, repr=False)
    _times: dict[Operator, Estimate] = field(default_factory=dict, repr=False)
    _power_limited: dict[float, Device] = field(default_factory=dict, repr=False)
    _with_clocks: dict[str, Device] = field(default_factory=dict, repr=False)
    _under: dict[str, Device] = field(default_factory=dict, repr=False)
    _with_engine: dict[tuple[str, tuple[tuple[str, str], ...]], Device] = field(default_factory=dict, repr=False)

    def with_engine(self, engine: str, overrides: Mapping[str, str] = MappingProxyType({})) -> Device:
        """The device with the kernels of a serving engine, where they were measured on it; parameters as of
        :class:`Device`."""
        key = engine, tuple(sorted(overrides.items()))
        if key == (self.engine, self.overrides):
            return self
        if key not in self._with_engine:
            self._with_engine[key] = Device(self.spec, self.relatives, self.clocks, *key)
        return self._with_engine[key]

    def under(self, stack: str) -> Device:
        """The device with what profiles of steps told of a stack's own kernels, and without those of other stacks."""
        if all(entry.stack is None for entry in self.spec.in_steps):
            return self
        if stack not in self._under:
            own = [entry.model_copy(update={"stack": None}) for entry in self.spec.in_steps if entry.stack == stack]
            shared = [entry for entry in self.spec.in_steps if entry.stack is None]
            spec = self.spec.model_copy(update={"in_steps": (*own, *shared)})  # the first that fits counts
            self._under[stack] = Device(spec, self.relatives, self.clocks, self.engine, self.overrides)
        return self._under[stack]

    def with_clocks(self, clocks: Literal["sustained", "burst"]) -> Device:
        """The device at ``sustained`` or ``burst`` clocks."""
        if clocks == self.clocks:
            return self
        if clocks not in self._with_clocks:
            self._with_clocks[clocks] = Device(self.spec, self.relatives, clocks, self.engine, self.overrides)
        return self._with_clocks[clocks]

    def power_limited(self, watts: float) -> Device:
        """The device under a power limit; raises InputError for more watts than its TDP or at most its idle power."""
        if watts not in self._power_limited:
            # Imported late, so that importing this package does not load pydantic.
            from ..base.stated import Stated
            from .specification import IDLE_WATTS

            if not IDLE_WATTS < watts <= self.tdp_watts:
                problem = f"{watts:g} W is not between {IDLE_WATTS:g} W and the {self.tdp_watts:g} W of {self.name}"
                raise InputError(problem)
            limit = Stated[float](value=watts, source="the scenario's cluster.power_limit")
            spec = self.spec.model_copy(update={"power_limit": limit})
            self._power_limited[watts] = Device(spec, self.relatives, self.clocks, self.engine, self.overrides)
        return self._power_limited[watts]

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.visible_memory_bytes / 1e9:.0f} GB, {', '.join(self.peak_flops_per_s)}>"

    @property
    def parts(self) -> tuple[Hashable, ...]:
        """Key that is equal for devices with the same spec, relatives, clocks, engine and overrides."""
        return Itself(self.spec), *map(Itself, self.relatives), self.clocks, self.engine, self.overrides

    # --- isolated kernels -----------------------------------------------------------------------------------

    def estimate(
        self, family: str, dtype: str, library: str | None, second_dtype: str | None, **shape: Any
    ) -> Estimate:
        """Time of an isolated call of a kernel family, by its shape columns.

        Parameters
        ----------
        family
            One of :data:`tspsim.hardware.families.FAMILIES`.
        dtype, second_dtype
            Operand type; type of cached K and V, or of expert weights (None: the same).
        library
            Library of the kernels; None, or one that was not measured: the device's default.
        shape
            The family's shape columns: numbers, or arrays that broadcast to one shape.
        """
        return self.isolated(self.kernel(family, dtype, library, second_dtype), second_dtype, **shape)

    def isolated(self, kernel: Kernel, second_dtype: str | None = None, **shape: Any) -> Estimate:
        """Time of calls of a kernel model; ``q_len`` and ``kv_len`` of several segments are tuples."""
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

    def of_segments(
        self,
        kernel: Kernel,
        second_dtype: str | None,
        segments: Sequence[tuple[int, int]],
        widths: tuple[tuple[str, float], ...],
    ) -> Estimate:
        """Time of one call over ``(query tokens, context tokens)`` of every segment; ``widths``: its other columns. A
        serving step's segments differ from those of all others, so all that does not depend on them is kept."""
        key = kernel, second_dtype, widths
        call = self._over_segments.get(key)
        if call is None:
            call = self._over_segments[key] = self.over_segments(kernel, second_dtype, dict(widths))
        q_len = tuple([float(queries) for queries, _ in segments])
        kv_len = tuple([float(context) for _, context in segments])
        return kernel.estimate(float(call(q_len, kv_len)))

    def over_segments(self, kernel: Kernel, second_dtype: str | None, widths: Mapping[str, float]) -> Any:
        """Seconds of one call as a function of query and context tokens of every segment (two tuples)."""
        call = self._seconds(kernel, read_shape({"batch": 1.0, **widths}), second_dtype)
        assert callable(call)
        return call

    def _seconds(self, kernel: Kernel, shape: Mapping[str, Any], second_dtype: str | None) -> Any:
        return FAMILIES[kernel.family].seconds(
            self.limits(kernel.dtype), kernel.parameters, kernel.switches, shape, kernel.dtype,
            second_dtype or kernel.dtype,
        )  # fmt: skip

    def memory_bound(self, size_bytes: Any, op: str = "copy", rows: Any = 0) -> Estimate:
        """A kernel that moves ``size_bytes`` (read plus written) over ``rows`` rows, numbers or arrays; an ``op`` that
        was not measured is priced as a copy."""
        columns = columns_of(size_bytes, rows, _BYTES_A_COLUMN.get(op, 4.0))
        return self.estimate("memory_bound", "bf16", op, None, size_bytes=size_bytes, rows=rows, columns=columns)

    # --- inside a step --------------------------------------------------------------------------------------

    def time(self, operator: Operator) -> Estimate:
        """Time of ``operator`` inside a step at this device's ``clocks``; cached by operator."""
        estimate = self._times.get(operator)
        if estimate is None:
            estimate = price(self, operator)
            if self.spec.announced:
                estimate = self._within_peak(operator, estimate)
            self._times[operator] = estimate
        return estimate

    def _within_peak(self, operator: Operator, guessed: Estimate) -> Estimate:
        """The estimate with its lower end no faster than the peak allows, for unmeasured devices."""
        least = operator.flops / self.peak_of(operator.dtype) if operator.dtype and operator.flops else 0.0
        return guessed._replace(low=min(guessed.seconds, max(guessed.low, least)))

    def at_clock(self, isolated: Estimate, operator: Operator, kernel: Kernel) -> Estimate:
        """Time of an isolated kernel of ``operator`` with the matrix units at the clock of a step."""
        return self.shares_at_clock(isolated, self.matrix_share(operator), kernel)

    def shares_at_clock(self, isolated: Estimate, matrix_share: Any, kernel: Kernel) -> Estimate:
        """Times of isolated calls at the clock of a step, by their :meth:`matrix_share`; numbers or arrays (rows,)."""
        key = kernel.family, kernel.library, kernel.sustained
        rate = self._rates.get(key)
        if rate is None:
            rate = pricers.rate(self.spec.sustained, kernel.family, self.clocks, measured_sustained=kernel.sustained)
            rate *= self.spec.sustained.untuned_share(kernel.library, self.engine) * self.spec.clock_at_limit
            self._rates[key] = rate
        return pricers.at_clock(isolated, matrix_share, rate)

    def matrix_share(self, operator: Operator) -> float:
        """Share of an operator's time that depends on the matrix units' clock: 0 (only bytes) to 1 (FLOPs decide)."""
        if not operator.dtype:
            return 0.0
        return float(self.matrix_shares(operator.dtype, operator.flops, operator.hbm_bytes))

    def matrix_shares(self, dtype: str, flops: Any, hbm_bytes: Any) -> Any:
        """:meth:`matrix_share` of calls by their FLOPs and bytes; numbers or arrays (rows,)."""
        limits = self._measured_limits(dtype)
        return minimum(1.0, flops / limits.peak / (hbm_bytes / limits.hbm))

    def _measured_limits(self, dtype: str) -> DeviceLimits:
        """Limits of the device on which the kernels were measured (``measured_at``)."""
        limits = self._measured.get(dtype)
        if limits is None:
            limits = self._measured[dtype] = limits_of(self.spec.as_measured, dtype)
        return limits

    def includes_quantising(self, dtype: str) -> bool:
        """Whether tables time products of ``dtype`` together with quantising A, a separate kernel in steps."""
        return self.kernel("gemm", dtype).parameters["quantise_gb_per_s"] > 0.0

    def cool_gain(self, call_s: float) -> float:
        """Rate of the matrix units in a call of ``call_s`` seconds that a benchmark repeats, over a long step's.

        A power limiter averages over about 10 ms, and a benchmark leaves gaps: short calls keep the clock of a cool
        device, long ones settle. 1 if the device file has no ``settle``.
        """
        return pricers.cool_gain(call_s, self.spec.sustained)

    # --- what the models read -------------------------------------------------------------------------------

    def limits(self, dtype: str) -> DeviceLimits:
        """Limits that a kernel model of ``dtype`` reads; raises UnknownNameError for an unknown type."""
        limits = self._limits.get(dtype)
        if limits is None:
            if dtype not in DTYPES:
                raise UnknownNameError("type", dtype, DTYPES)
            limits = self._limits[dtype] = limits_of(self.spec, dtype)
        return limits

    def kernel(self, family: str, dtype: str, library: str | None = None, kv_dtype: str | None = None) -> Kernel:
        """The kernel model of a family for a type, a library and a type of cache.

        Raises
        ------
        UnknownNameError
            The type is unknown.
        InputError
            Neither the device nor a relative has a model.
        """
        key = (family, dtype, library, kv_dtype)
        kernel = self._kernels.get(key)
        if kernel is None:
            if dtype not in DTYPES:
                raise UnknownNameError("type", dtype, DTYPES)
            library = library or self._engine_library(family, dtype, kv_dtype)
            kernel = self._kernels[key] = find_kernel(self.spec, self.relatives, family, dtype, library, kv_dtype)
        return kernel

    def product_without_cast(self, family: str, dtype: str, weight_dtype: str | None = None) -> Kernel:
        """The kernel model of products of a type without the cast of A that some tables time with them.

        If the cast is part of the measured call, its bytes are removed, and the product's launch time is at most that
        of the same library in bf16, which casts nothing. The rest of the measured launch time belongs to the cast.
        ``weight_dtype``: type of weights that the kernel widens to ``dtype``; None: it widens none.
        """
        key = (family, dtype, ALONE, weight_dtype)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self.kernel(family, dtype)
            own = kernel.parameters
            if own["quantise_gb_per_s"] > 0.0:
                start_us = min(own["launch_us"], self.kernel(family, "bf16", kernel.library).parameters["launch_us"])
                kernel = replace(kernel, parameters={**own, "quantise_gb_per_s": 0.0, "launch_us": start_us})
            self._kernels[key] = kernel = kernel if weight_dtype is None else widening_weights(kernel)
        return kernel

    def streaming(self, size_bytes: Any, rows: Any = 0) -> Estimate:
        """A kernel of a step that moves ``size_bytes`` (read plus written) over ``rows`` rows, numbers or arrays.

        It runs at the rate of a copy. The row ``copy`` of the tables is the driver's (cudaMemcpy), which loses a third
        of its rate on large buffers; kernels do not (NVIDIA/cccl#1672), so ``large_cost`` is left out.
        """
        key = ("memory_bound", "bf16", STREAMING, None)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self.kernel("memory_bound", "bf16", "copy")
            kernel = self._kernels[key] = replace(kernel, parameters={**kernel.parameters, "large_cost": 0.0})
        columns = columns_of(size_bytes, rows, _BYTES_A_COLUMN["copy"])
        return self.isolated(kernel, size_bytes=size_bytes, rows=rows, columns=columns)

    def measured_alike(self, family: str, dtype: str) -> bool:
        """Whether a family was measured in a type on the device or on a relative of its generation."""
        return (family, dtype) in self._measured_types

    @once
    def _measured_types(self) -> frozenset[tuple[str, str]]:
        owners = (self.spec, *(other for other in self.relatives if other.family == self.spec.family))
        return frozenset((fit.family, fit.dtype) for owner in owners for fit in owner.kernels)

    def attention_alone(self, family: str, dtype: str, kv_dtype: str | None) -> Kernel:
        """The kernel model of attention without the rope and the cache write that tables time with it; a step has
        operators for them."""
        key = (family, dtype, ALONE, kv_dtype)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self.kernel(family, dtype, kv_dtype=kv_dtype)
            kernel = self._kernels[key] = replace(kernel, parameters={**kernel.parameters, **NOT_IN_STEP})
        return kernel

    @once
    def cast_start_s(self) -> float:
        """Seconds that a cast kernel's launch takes beyond a copy's; 0 if no table times a cast.

        It is the least that the device's tables time with products, that of block scales. Tables find tensor scales by
        further kernels, which engines and trainers avoid: their scales are static, delayed or from the kernel before.
        """
        narrow = [
            dtype
            for dtype in self.peak_flops_per_s
            if element_bytes(dtype) < element_bytes("bf16") and self.includes_quantising(dtype)
        ]
        both = [(self.kernel("gemm", dtype), self.product_without_cast("gemm", dtype)) for dtype in narrow]
        starts = [with_cast.parameters["launch_us"] - alone.parameters["launch_us"] for with_cast, alone in both]
        copy_us = self.kernel("memory_bound", "bf16", "copy").parameters["launch_us"]
        return 1e-6 * max(0.0, min(starts, default=0.0) - copy_us)

    def override_of(self, *words: str) -> str | None:
        """Library of the override for a family and types; of several that match ``words``, the one with most words.
        None: no override."""
        said = [(len(key.split()), library) for key, library in self.overrides if set(key.split()) <= set(words)]
        return max(said)[1] if said else None

    def read_as(self, family: str, kv_dtype: str | None) -> str | None:
        """Type of cache whose kernel reads caches of ``kv_dtype``: that of an override such as ``as bf16``, else the
        same."""
        stated = self.override_of(family, kv_dtype or "")
        return stated.removeprefix(READ_AS) if stated is not None and stated.startswith(READ_AS) else kv_dtype

    def _engine_library(self, family: str, dtype: str, kv_dtype: str | None) -> str | None:
        """The engine's library with a fit of these types on this device: of its newest version, the fit to most rows.
        None: no such fit, or the default library is the engine's."""
        stated = self.override_of(family, dtype, kv_dtype or dtype, self.spec.vendor)
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

    def untuned_fit(self, family: str, dtype: str, kv_dtype: str | None = None) -> KernelFit | None:
        """The engine's fit of these types if all of its fits are untuned and so not used; else None."""
        if not self.engine or self.override_of(family, dtype, kv_dtype or dtype, self.spec.vendor):
            return None
        own = [
            fit for fit in self.spec.kernels
            if (fit.family, fit.dtype) == (family, dtype) and fit.kv_dtype in (None, kv_dtype or dtype)
            and maker_of(fit.library) == maker_of(self.engine)
        ]  # fmt: skip
        return own[0] if own and all(fit.untuned for fit in own) else None

    def provenance(self) -> tuple[Provenance, ...]:
        """Source and basis of every fact of the device and of every kernel model used so far."""
        used = sorted(
            {
                Provenance(f"{self.name}: {k.family} {k.dtype}", k.library, k.source, k.basis)
                for k in self._kernels.values()
            }
        )
        return (*self.stated(), *used)


def columns_of(size_bytes: Any, rows: Any, column_bytes: float) -> Any:
    """Columns of rows that are read and written, numbers or arrays.

    >>> columns_of(4096, 2, 4.0), columns_of(4096, 0, 4.0), columns_of(4096, np.array([1, 2]), 4.0)
    (512.0, 1024.0, array([1024.,  512.]))
    """
    if isinstance(size_bytes, int | float) and isinstance(rows, int | float):  # ten times as fast as NumPy
        return float(size_bytes / max(rows, 1) / column_bytes)
    columns = np.asarray(size_bytes) / np.maximum(rows, 1) / column_bytes
    return columns if np.ndim(columns) else float(columns)


#: Rows priced at once: their arrays stay in the processor's cache.
_CHUNK = 2048


def load_device(name: str | Path, *, clocks: Literal["sustained", "burst"] = "sustained") -> Device:
    """A device by catalog name or path, with the relatives whose kernel models it borrows."""
    from .announced import DEVICES

    spec = DEVICES.load(name)
    return Device(spec, tuple(DEVICES.load(relative) for relative in spec.relatives), clocks)
