"""Types of a device's YAML file: every number has its unit and its source.

:class:`DeviceSpec` is the validated file. The rest of the package reads :class:`~tspsim.hardware.device.Device`.
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
#: Watts of a GPU with idle matrix units; exponent by which the clock follows the remaining power.
IDLE_WATTS, POWER_TO_CLOCK = 100.0, 1 / 2.5
#: Suffix of libraries whose rows are the best of a search over kernels, shape by shape.
TUNED = " tuned"
#: Prefix of the source of a number that an announced device takes from a measured one.
ASSUMED_AS = "assumed as "


class GpuHourPrices(Strict):
    """USD per GPU hour on three bases on a date."""

    hyperscaler: UsdPerHour
    neocloud: UsdPerHour
    rental: UsdPerHour
    date: str
    source: str


class Achieved(Strict):
    """Best rates measured on a device; they anchor kernel models borrowed from a relative."""

    gemm: dict[str, Stated[FlopsPerSecond]] = Field({})
    attention_forward: Stated[FlopsPerSecond] | None = None
    attention_backward: Stated[FlopsPerSecond] | None = None
    hbm: Stated[BytesPerSecond] | None = None


class Sustained(Strict):
    """Rates of matrix kernels inside a step over those of the default library's isolated kernels.

    ``gemm``, ``attention``: in a long step. ``burst``: in a short step on a cool device, where tables were measured on
    a warm one. ``settle``: length of a call that runs halfway between both rates, repeated from a cool device as
    benchmarks do. ``grouped``: time that each further product of a grouped call adds, where training libraries launch
    them one by one. ``spread``: factor each way around ``gemm`` that holds 90 % of products inside steps, if it was
    measured. ``libraries``: those whose rows were measured at the clock of a long step (eager repeats, thousands of
    warm-ups), so that it is not counted twice. ``tuned``: share of a tuned table's rate (the best kernel of a search,
    shape by shape) that a library reaches when it selects kernels itself, as in every step but those of engines that
    ship such tables.
    """

    gemm: Stated[Fraction]
    attention: Stated[Fraction]
    burst: Stated[AtLeastOne] | None = None
    settle: Stated[PositiveSeconds] | None = None
    grouped: Stated[PositiveSeconds] | None = None
    spread: Stated[AtLeastOne] | None = None
    libraries: Stated[tuple[str, ...]] | None = None
    tuned: Stated[Fraction] | None = None
    gradients: Stated[Fraction] | None = None

    def untuned_share(self, library: str, engine: str) -> float:
        """Share of a library's measured rate that remains when no engine selects kernels by its tuned table."""
        best = self.tuned is not None and not engine and library.endswith(TUNED)
        return self.tuned.value if best and self.tuned is not None else 1.0

    def includes(self, library: str) -> bool:
        """Whether a library's isolated kernels were measured at the clock of a long step."""
        return self.libraries is not None and library in self.libraries.value

    def rate_of(self, family: str) -> float:
        """Rate of a long step over a burst: of attention, or of all other matrix kernels."""
        return (self.attention if FAMILIES[family].is_attention else self.gemm).value


class OverlapSlowdown(Strict):
    """Factors by which compute and communication take longer while both run."""

    compute: Stated[AtLeastOne]
    communication: Stated[AtLeastOne]


class HeldOutError(Strict):
    """Absolute relative errors on rows that were not used in the fit; ``bias`` is the mean log(predicted/measured)."""

    rows: PositiveCount
    median: NonNegative
    mape: NonNegative
    p90: NonNegative
    bias: float


class KernelSpread(Strict):
    """Range of measured over predicted time that holds 90 % of the rows, by predicted time: below, between and above
    ``borders_us``.

    ``domain_us`` spans the predicted times of the fitted rows; outside it the range is wider.
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
    #: Reason why an engine does not run the kernels of these rows: the fit is used only by its full name, and never
    #: lent. None: engines run them.
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
    """Correction of a family of operators by profiles of whole steps: ``start`` + ``factor`` · the kernel model's time.

    ``low`` and ``high`` are factors of the result that hold 90 % of the rows.
    """

    #: :attr:`tspsim.operators.Operator.family`.
    operator: str
    #: What bounds the operators that this applies to: bytes of weights (``bytes``), bytes of activation rows
    #: (``rows``), or arithmetic. None: all operators of the family.
    bound: Literal["bytes", "rows", "arithmetic"] | None = None
    #: Operand type on the matrix units that this applies to; None: any.
    dtype: str | None = None
    #: The stack whose own kernels these are; None: a library's, which all stacks call.
    stack: str | None = None
    start_us: float = Field(0.0, ge=0.0, le=1000.0)
    #: None: only kernels were seen that take their start, whatever they move; the model's time and the stack's pace
    #: hold.
    factor: float | None = Field(None, gt=0.0, le=100.0)
    low: float = Field(gt=0.0, le=1.0)
    high: float = Field(ge=1.0)
    #: Distinct shapes that it was fitted to.
    rows: int = Field(ge=1)
    source: str

    @property
    def start_s(self) -> float:
        """Seconds of the start."""
        return 1e-6 * self.start_us

    def of(self, seconds: float) -> float:
        """Seconds of a kernel in a step, from those of its model."""
        return self.start_s + (1.0 if self.factor is None else self.factor) * seconds


class MeasuredAt(Strict):
    """Facts of the device on which kernels and achieved rates were measured; ``peak`` is dense FLOP/s by type."""

    hbm_bandwidth: BytesPerSecond
    compute_units: PositiveCount
    l2: PositiveBytes
    peak: dict[str, FlopsPerSecond]


class ChannelConflict(Strict):
    """Conflict of weight rows that all begin in the same memory channels.

    Products that stream rows of a multiple of ``stride`` bytes take ``value`` times as long as others. Kernel tables
    hold the former.
    """

    stride: PositiveBytes
    value: float = Field(ge=1.0, le=2.0)
    source: str

    def spreads(self, row_bytes: float) -> bool:
        """Whether rows of ``row_bytes`` spread over the channels."""
        return row_bytes % self.stride != 0.0


class DeviceSpec(Strict):
    """One GPU (or one of its packages), as its file in ``topologies/devices`` states it.

    ``node`` is the catalog name of its usual node, for clusters that name only the device. It may be left out if one
    node has the device; ``{like: NAME}`` is that node with this GPU in it. ``measured_at`` are the facts to which its
    kernel models and ``achieved`` refer, so that a file can change peak, bandwidth, cache or number of units; left out,
    they are the device's own. ``announced`` marks an unmeasured device: what its file leaves out is taken from the
    measured device ``like`` (:mod:`tspsim.hardware.announced`).
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
    #: Type of experts' weights that no matrix unit reads → rows of a tile whose arithmetic takes as long as widening
    #: the weights that they meet.
    widening: dict[str, Stated[NonNegative]] = Field({})
    measured_at: MeasuredAt | None = None
    achieved: Achieved = Achieved()
    sustained: Sustained
    overlap: OverlapSlowdown
    relatives: tuple[str, ...] = ()
    defaults: dict[str, str] = Field({})
    kernels: tuple[KernelFit, ...] = ()
    #: Corrections from profiles (``tspsim calibrate --trace``).
    in_steps: tuple[InSteps, ...] = ()

    @property
    def clock_at_limit(self) -> float:
        """Clock of the matrix units in a long step at ``power_limit`` over that at ``tdp``, at most 1.

        Dynamic power is proportional to the clock and the square of the voltage, and the voltage falls with the clock.
        So the clock is proportional to (power − 100 W idle)^(1/2.5). The exponent is assumed; 1/2 to 1/3 is as
        plausible. From 700 to 500 W the factor is 0.85.
        """
        if self.power_limit is None:
            return 1.0
        return float(((self.power_limit.value - IDLE_WATTS) / (self.tdp.value - IDLE_WATTS)) ** POWER_TO_CLOCK)

    @property
    def as_measured(self) -> DeviceSpec:
        """This device with the facts of ``measured_at``."""
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
        """Names of the facts that an announced device takes from another."""
        numbers: dict[str, Stated[Any]] = {
            "visible memory": self.visible_memory, "compute units": self.compute_units, "clock": self.clock,
            "cache": self.l2, "power": self.tdp, "clocks in a long step": self.sustained.gemm,
            "slowdown beside communication": self.overlap.compute,
        }  # fmt: skip
        return tuple(what for what, number in numbers.items() if self.basis_of(number) == "assumed")

    def basis_of(self, number: Stated[Any]) -> str:
        """``stated`` on a measured device; on an announced one ``announced``, or ``assumed`` from another device."""
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
