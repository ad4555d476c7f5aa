"""Terms of a purchase in a scenario: the amount of work, failures, power and prices.

Plain data with units, imported from floor 1 alone since scenarios read it (floor 5). Every default names its source
and can be replaced in YAML.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..base.units import PositiveCount, Quantity, Seconds, Usd, UsdPerKilowattHour, Watts

#: Price bases of device files (dated there), and the cost of an owned machine.
Basis = Literal["hyperscaler", "neocloud", "rental", "owned"]
PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("30 days", "720 h"))]
PositiveUsd = Annotated[float, Quantity("USD", positive=True, examples=("500 kUSD", "20000 USD"))]
RequestsPerSecond = Annotated[float, Quantity("requests/s", positive=True)]
TokensPerSecond = Annotated[float, Quantity("tokens/s", positive=True)]

Share = Annotated[float, Field(gt=0, le=1)]
Confidence = Annotated[float, Field(ge=0.5, lt=1)]
Excess = Annotated[float, Field(ge=1, le=100)]

DAY_S = 86_400.0

#: 419 unexpected interruptions in 54 days on 16,384 H100, 2,048 nodes: one in 264 days a node.
NODE_MTBF_S = 54 * DAY_S * 2048 / 419
NODE_MTBF_SOURCE = "Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 H100 (arXiv:2407.21783, §3.3.4)"


class _Terms(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Failures(_Terms):
    """Failure rate of a node, and the cost of a failure. The whole job stops when one node fails."""

    node_mtbf: PositiveSeconds = Field(
        NODE_MTBF_S, description=f"mean time between failures of a node; {NODE_MTBF_SOURCE}"
    )
    restart: Seconds = Field(
        600.0, description="from a failure (with the keys below, from its diagnosis) to the first step; 10 min, assumed"
    )
    detection: Seconds = Field(
        0.0, description="time until a failure is noticed: a hang waits for a timeout; 0 if restart includes it"
    )
    diagnosis: Seconds = Field(0.0, description="time from detection until the failed node is found and removed")
    checkpoint: PositiveSeconds = Field(60.0, description="time that a checkpoint delays training; 1 min, assumed")
    source: Annotated[str, Field(max_length=1000)] = Field(NODE_MTBF_SOURCE, description="source of these numbers")

    @property
    def outage_s(self) -> float:
        """Seconds from a failure to the first step after it."""
        return self.detection + self.diagnosis + self.restart

    @model_serializer(mode="wrap")
    def _where_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All keys; detection and diagnosis if they take time."""
        data: dict[str, Any] = handler(self)
        return {key: value for key, value in data.items() if value or key not in ("detection", "diagnosis")}


class Power(_Terms):
    """Power of a GPU at work, in W.

    ``all_in`` takes the device file's power per GPU of the whole machine room (server, fabric and cooling; nothing is
    added, and ``cooling`` must stay 1). ``device`` adds up (device limit + ``host`` + fabric) · ``cooling``.
    """

    basis: Literal["all_in", "device"] = Field(
        "all_in", description="power of the device file with its machine room, or summed from the device's limit"
    )
    host: Watts = Field(0.0, description="CPUs, memory, fans and disks, per GPU; with basis: device")
    cooling: Annotated[float, Field(ge=1, le=3)] = Field(
        1.0, description="power of the building over that of the machines (PUE); with basis: device"
    )

    @model_validator(mode="after")
    def _once(self) -> Power:
        if self.basis == "all_in" and (self.cooling > 1.0 or self.host > 0.0):
            raise PydanticCustomError(
                "refused", "all-in power has the host and the cooling in it already; use basis: device to add them"
            )
        return self


class Parts(_Terms):
    """Price and power of the fabric's parts.

    No price list of NICs, switches and optics is public and dated, so there are no defaults: state your quote.
    ``range`` is the 90 % interval of a factor on all prices together; it is drawn when the fabric is added.
    """

    nic: Usd = Field(0.0, description="price of a NIC")
    switch: Usd = Field(0.0, description="price of a switch")
    optic: Usd = Field(0.0, description="price of a transceiver; a cable between switches has two")
    nic_power: Watts = Field(0.0, description="power of a NIC")
    switch_power: Watts = Field(0.0, description="power of a switch")
    optic_power: Watts = Field(0.0, description="power of a transceiver")
    years: Annotated[float, Field(gt=0, le=20)] = Field(4.0, description="years over which the parts are paid off")
    in_price: StrictBool = Field(True, description="the GPU's price includes the fabric: shown, not added")
    range: tuple[Share, Excess] = Field(
        (1.0, 1.0), description="90 % interval of a factor on these prices; [1, 1] for a quote"
    )
    source: Annotated[str, Field(max_length=1000)] = Field("stated", description="source of the prices")


class Owning(_Terms):
    """Cost of a GPU hour to the owner of the machine, without staff and interest.

    An hour of work bears power, and its share of the purchase (over the years, less resale) and of hosting; idle hours
    are shared among the hours of work.
    """

    years: Annotated[float, Field(gt=0, le=20)] = Field(4.0, description="years over which the purchase is written off")
    resale: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of the purchase that it then sells for")
    utilisation: Share = Field(1.0, description="share of all hours at work; who rents by the hour pays no idle hour")
    electricity: UsdPerKilowattHour = Field(description="price of power")
    hosting: Usd = Field(description="space and cooling per kW and month, without staff and power")


class Project(_Terms):
    """The job: how much work, by when, at which prices."""

    tokens: PositiveCount | None = Field(None, description="token budget, such as 1T")
    deadline: PositiveSeconds | None = Field(None, description="time in which the tokens must be done, such as 30 days")
    budget: PositiveUsd | None = Field(None, description="highest cost of the tokens, such as 500 kUSD")
    rate: TokensPerSecond | None = Field(None, description="lowest rate, such as 5 Mtokens/s")
    confidence: Confidence | None = Field(
        None,
        description="probability with which deadline and rate are kept, such as 0.95; default: the predicted values "
        "keep them",
    )
    users: PositiveCount | None = Field(None, description="with traffic: concurrent requests")
    requests: RequestsPerSecond | None = Field(None, description="with traffic: requests/s that must be served")
    rank: Literal["tokens_per_dollar", "tokens_per_joule", "tokens_per_s"] | None = Field(
        None,
        description="ranks the verdict; default: tokens per dollar if all have a price, else tokens/s",
    )
    price: Basis = Field("neocloud", description="price basis that ranks; all are shown")
    own: Owning | None = Field(None, description="buying beside renting: adds the basis `owned` where capex is stated")
    failures: Failures = Failures()
    power: Power = Power()
    fabric: Parts | None = Field(None, description="price and power of the fabric's parts")

    @model_validator(mode="after")
    def _dated(self) -> Project:
        if self.price == "owned" and self.own is None:
            raise PydanticCustomError("refused", "price: owned needs own: what power and hosting cost, and the years")
        if self.deadline is not None and self.tokens is None:
            raise PydanticCustomError("refused", "a deadline needs a token budget, such as tokens: 1T")
        if self.confidence is not None and self.deadline is None and self.rate is None:
            raise PydanticCustomError("refused", "a confidence needs what is to be kept: deadline or rate")
        if self.budget is not None and self.tokens is None:
            raise PydanticCustomError("refused", "a budget of money needs the work it pays for, such as tokens: 1T")
        return self
