"""A device as its YAML file states it: every number with its unit and its source.

:class:`DeviceSpec` is the border: what the file holds, validated. :class:`~tspsim.hardware.device.Device` is what the
rest of the package asks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ..base.stated import Stated
from ..base.strict import Strict
from ..base.units import BytesPerSecond, FlopsPerSecond, Hertz, PositiveBytes, PositiveCount, Seconds, UsdPerHour, Watts
from ..operators import DTYPES
from .families import FAMILIES

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
AtLeastOne = Annotated[float, Field(ge=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
PositiveSeconds = Annotated[Seconds, Field(gt=0.0)]
#: Watts of a GPU whose matrix units rest, and how its clock follows the others.
IDLE_WATTS, POWER_TO_CLOCK = 100.0, 1 / 2.5
#: How the name of a library ends whose rows are the best of a search over kernels, shape by shape.
TUNED = " tuned"
#: How the source of a number begins that an announced device takes from a measured one.
ASSUMED_AS = "assumed as "


class GpuHourPrices(Strict):
    """USD per GPU hour on three bases, at a date."""

    hyperscaler: UsdPerHour
    neocloud: UsdPerHour
    rental: UsdPerHour
    date: str
    source: str


class Achieved(Strict):
    """The best that was measured on a device, to anchor kernel models borrowed from a relative."""

    gemm: dict[str, Stated[FlopsPerSecond]] = Field({})
    attention_forward: Stated[FlopsPerSecond] | None = None
    attention_backward: Stated[FlopsPerSecond] | None = None
    hbm: Stated[BytesPerSecond] | None = None


class Sustained(Strict):
    """Rates of matrix kernels inside a step against the isolated kernels of the default library.

    ``gemm`` and ``attention`` are those of a long step; ``burst`` of a short one on a cool device, where the
    tables were measured on a warm one; ``settle`` is how long a call must be, repeated from a cool device as
    benchmarks do, to run halfway between. ``grouped`` is what every further product of a grouped call costs
    beside its work, where training libraries start them one by one. ``spread`` is how far products inside steps
    lie from ``gemm`` each way, at 90 %, where that was measured. ``libraries`` are those whose rows were measured at
    the clock of a long step already (eager repeats, thousands of warm-ups), so that it is not counted twice.
    ``tuned`` is the share of the rate of a tuned table, the best kernel a shape of a search, that is left where a
    library picks by itself: in every step but those of the engines that ship such tables.
    """

    gemm: Stated[Fraction]
    attention: Stated[Fraction]
    burst: Stated[AtLeastOne] | None = None
    settle: Stated[PositiveSeconds] | None = None
    grouped: Stated[PositiveSeconds] | None = None
    spread: Stated[AtLeastOne] | None = None
    libraries: Stated[tuple[str, ...]] | None = None
    tuned: Stated[Fraction] | None = None

    def picks(self, library: str, engine: str) -> float:
        """Share of a library's measured rate that is left where no engine chose its kernels by the table."""
        best = self.tuned is not None and not engine and library.endswith(TUNED)
        return self.tuned.value if best and self.tuned is not None else 1.0

    def includes(self, library: str) -> bool:
        """Whether a library's isolated kernels were measured at the clock of a long step."""
        return self.libraries is not None and library in self.libraries.value

    def rate_of(self, family: str) -> float:
        """Rate of a long step over a burst: of attention, or of all other matrix kernels."""
        return (self.attention if FAMILIES[family].attends else self.gemm).value


class OverlapSlowdown(Strict):
    """How much longer compute and communication take while the other runs beside them."""

    compute: Stated[AtLeastOne]
    communication: Stated[AtLeastOne]


class HeldOutError(Strict):
    """Absolute relative error on rows not used in the fit; ``bias`` is the mean log(predicted/measured)."""

    rows: PositiveCount
    median: NonNegative
    mape: NonNegative
    p90: NonNegative
    bias: float


class KernelSpread(Strict):
    """Where 90 % of measured over predicted lies, by predicted time: below, between and above two borders.

    ``domain_us`` spans the predictions of the rows used; outside it the range is wider.
    """

    borders_us: tuple[Factor, Factor]
    low: tuple[Factor, Factor, Factor]
    high: tuple[Factor, Factor, Factor]
    domain_us: tuple[Factor, Factor]


class KernelFit(Strict):
    """Parameters of one kernel family for an operand type and a library."""

    family: str
    dtype: str
    library: str
    kv_dtype: str | None = None
    parameters: dict[str, float]
    switches: dict[str, int | float | str | bool] = Field({})
    spread: KernelSpread
    rows_used: int = Field(ge=0)
    held_out: HeldOutError | None = None
    date: str
    source: str
    #: Why its rows are not what an engine runs: asked for by its whole name alone, and never lent. None: they are.
    untuned: str | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        family = FAMILIES.get(self.family)
        if family is None:
            raise ValueError(f"unknown kernel family '{self.family}'; known: {', '.join(FAMILIES)}")
        unknown = sorted(set(self.parameters) - set(family.parameters))
        missing = sorted(set(family.parameters) - set(self.parameters))
        if unknown or missing:
            raise ValueError(
                f"parameters of {self.family} are {', '.join(family.parameters)}; "
                f"unknown: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}"
            )
        for name, value in self.parameters.items():
            low, high = family.parameters[name].low, family.parameters[name].high
            if not low <= value <= high:
                raise ValueError(f"{name} = {value:g} is outside {low:g} to {high:g}")
        family.check_switches(self.switches)
        return self


class InSteps(Strict):
    """What operators of a family take in steps that were measured whole, beside what the kernel models say of them:
    ``start + factor`` times that. ``low`` and ``high`` are factors of the result that hold nine times of ten."""

    #: :attr:`tspsim.operators.Operator.family`.
    operator: str
    #: Of products alone: those that take as long as the bytes of their weights, of their rows, or as their arithmetic.
    #: Without it, all.
    bound: Literal["bytes", "rows", "arithmetic"] | None = None
    start_us: float = Field(0.0, ge=0.0, le=1000.0)
    factor: float = Field(gt=0.0, le=100.0)
    low: float = Field(gt=0.0, le=1.0)
    high: float = Field(ge=1.0)
    #: Different shapes that it rests on.
    rows: int = Field(ge=1)
    source: str


class MeasuredAt(Strict):
    """The facts of the device on which its kernels, and what it achieved, were measured; dense FLOP/s by type."""

    hbm_bandwidth: BytesPerSecond
    compute_units: PositiveCount
    l2: PositiveBytes
    peak: dict[str, FlopsPerSecond]


class ChannelConflict(Strict):
    """Rows of weights that all begin in the same channels of memory: products that stream them take ``value`` times as
    long as products whose rows are no multiple of ``stride`` bytes. Kernel tables have the former."""

    stride: PositiveBytes
    value: float = Field(ge=1.0, le=2.0)
    source: str

    def spares(self, row_bytes: float) -> bool:
        """Whether rows of so many bytes spread over the channels."""
        return row_bytes % self.stride != 0.0


class DeviceSpec(Strict):
    """One GPU (or one of its packages), as its file in ``topologies/devices`` states it.

    ``node`` is the catalog name of its usual node, which a cluster gets that names the device alone; it may be left out
    where one node has the device, and ``{like: NAME}`` is that node with this GPU in it. ``measured_at`` are the facts
    that its kernel models and ``achieved`` refer to, so that a file with another peak, bandwidth, cache or number of
    units tells how that device would do; left out, they are its own. ``announced`` is a device that nobody has measured
    yet, whose file may leave out what is then taken from the measured device ``like``
    (:mod:`tspsim.hardware.announced`).
    """

    name: str
    vendor: Literal["amd", "nvidia"]
    family: str
    description: str
    announced: bool = False
    sold: bool = False
    like: str | None = None
    node: str | dict[str, Any] | None = None
    peak: dict[str, Stated[FlopsPerSecond]]
    hbm_bandwidth: Stated[BytesPerSecond]
    memory: Stated[PositiveBytes]
    visible_memory: Stated[PositiveBytes]
    compute_units: Stated[PositiveCount]
    clock: Stated[Hertz]
    l2: Stated[PositiveBytes]
    tdp: Stated[Watts]
    power_limit: Stated[Watts] | None = None
    all_in_power: Stated[Watts] | None = None
    prices: GpuHourPrices | None = None
    channel_conflict: ChannelConflict | None = None
    measured_at: MeasuredAt | None = None
    achieved: Achieved = Achieved()
    sustained: Sustained
    overlap: OverlapSlowdown
    relatives: tuple[str, ...] = ()
    defaults: dict[str, str] = Field({})
    kernels: tuple[KernelFit, ...] = ()
    #: From profiles (``tspsim calibrate --trace``).
    in_steps: tuple[InSteps, ...] = ()

    @property
    def clock_at_limit(self) -> float:
        """Clock of the matrix units in a long step at ``power_limit`` over that at ``tdp``.

        Dynamic power goes with the clock and the square of the voltage, which falls with it: the clock goes with power
        to 1/2.5 of what 100 W of idle leave. Assumed (an exponent between 1/2 and 1/3 is as good); 700 to 500 W: 0.85.
        """
        if self.power_limit is None:
            return 1.0
        return float(((self.power_limit.value - IDLE_WATTS) / (self.tdp.value - IDLE_WATTS)) ** POWER_TO_CLOCK)

    @property
    def as_measured(self) -> DeviceSpec:
        """This device with the facts that its kernels were measured at."""
        at = self.measured_at
        if at is None:
            return self
        peak = {
            dtype: own.model_copy(update={"value": at.peak.get(dtype, own.value)}) for dtype, own in self.peak.items()
        }
        others = {
            name: getattr(self, name).model_copy(update={"value": getattr(at, name)})
            for name in ("hbm_bandwidth", "compute_units", "l2")
        }
        return self.model_copy(update={"peak": peak, **others})

    @property
    def assumed(self) -> tuple[str, ...]:
        """What an announced device takes from another, in words."""
        numbers: dict[str, Stated[Any]] = {
            "visible memory": self.visible_memory, "compute units": self.compute_units, "clock": self.clock,
            "cache": self.l2, "power": self.tdp, "clocks in a long step": self.sustained.gemm,
            "slowdown beside communication": self.overlap.compute,
        }  # fmt: skip
        return tuple(what for what, number in numbers.items() if self.basis_of(number) == "assumed")

    def basis_of(self, number: Stated[Any]) -> str:
        """Whether the file states a number, announces it, or takes it from another device."""
        if not self.announced:
            return "stated"
        return "assumed" if number.source.startswith(ASSUMED_AS) else "announced"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.power_limit is not None and not IDLE_WATTS < self.power_limit.value <= self.tdp.value:
            raise ValueError(f"power_limit is more than {IDLE_WATTS:g} W and at most tdp, {self.tdp.value:g} W")
        if self.like is not None and not self.announced:
            raise ValueError("like is a key of announced devices; add announced: true")
        unknown = sorted(set(self.peak) - set(DTYPES))
        if unknown:
            raise ValueError(f"unknown types in peak: {', '.join(unknown)}; known: {', '.join(DTYPES)}")
        if "bf16" not in self.peak:
            raise ValueError("peak.bf16 is needed")
        return self
