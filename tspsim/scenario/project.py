"""The terms of a purchase as a scenario states them: the work to be done, what fails, what power and the fabric cost.

Plain data with units, read with the scenario (floor 5), so it imports from floor 1 alone. Every default says where it
comes from; all of them are replaced in YAML.
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

#: The price bases of device files, dated there, and what a machine costs that is bought.
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
    """How often a node fails, and what a failure and its remedy cost. All work stops when one node fails."""

    node_mtbf: PositiveSeconds = Field(
        NODE_MTBF_S, description=f"mean time between failures of a node; {NODE_MTBF_SOURCE}"
    )
    restart: Seconds = Field(
        600.0, description="from a failure (with the keys below, from its diagnosis) to the first step; 10 min, assumed"
    )
    detection: Seconds = Field(
        0.0, description="from a failure until it is noticed: a hang waits for a timeout; 0 where restart has it in it"
    )
    diagnosis: Seconds = Field(0.0, description="from there until the node at fault is known and taken out")
    checkpoint: PositiveSeconds = Field(60.0, description="a step is held up by one checkpoint; 1 min, assumed")
    source: Annotated[str, Field(max_length=1000)] = Field(NODE_MTBF_SOURCE, description="where these are from")

    @property
    def outage_s(self) -> float:
        """From a failure to the first step after it."""
        return self.detection + self.diagnosis + self.restart

    @model_serializer(mode="wrap")
    def _where_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All keys; detection and diagnosis where they take time."""
        data: dict[str, Any] = handler(self)
        return {key: value for key, value in data.items() if value or key not in ("detection", "diagnosis")}


class Power(_Terms):
    """Watts of a GPU at work.

    ``all_in`` takes the device file's power of the whole machine room a GPU (server, fabric, cooling: nothing is added,
    and ``cooling`` must stay 1). ``device`` builds it up: (device limit + ``host`` + fabric) · ``cooling``.
    """

    basis: Literal["all_in", "device"] = Field(
        "all_in", description="the device file's power with its machine room, or built up from the device's limit"
    )
    host: Watts = Field(0.0, description="CPUs, memory, fans and disks, a GPU; with basis: device")
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
    """What one piece of the fabric costs and draws.

    No price list of NICs, switches and optics is public and dated, so none is built in: state your quote. ``range``
    says how far the prices may be off, all together, nine times of ten; it is drawn where the fabric is added.
    """

    nic: Usd = Field(0.0, description="price of a NIC")
    switch: Usd = Field(0.0, description="price of a switch")
    optic: Usd = Field(0.0, description="price of a transceiver: two at a cable between switches")
    nic_power: Watts = Field(0.0, description="what a NIC draws")
    switch_power: Watts = Field(0.0, description="what a switch draws")
    optic_power: Watts = Field(0.0, description="what a transceiver draws")
    years: Annotated[float, Field(gt=0, le=20)] = Field(4.0, description="over which the parts are paid")
    in_price: StrictBool = Field(True, description="the GPU's price has the fabric in it: shown, not added")
    range: tuple[Share, Excess] = Field(
        (1.0, 1.0), description="low and high factor on these prices, nine times of ten; [1, 1] for a quote"
    )
    source: Annotated[str, Field(max_length=1000)] = Field("stated", description="where the prices are from")


class Owning(_Terms):
    """What an hour of a GPU costs whoever buys the machine, without staff and interest.

    An hour of work bears the purchase over the years less what it sells for then, and the place where it stands, both
    also of the hours in which it does not work; and its power.
    """

    years: Annotated[float, Field(gt=0, le=20)] = Field(4.0, description="over which the purchase is written off")
    resale: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of the purchase that is left then")
    utilisation: Share = Field(1.0, description="share of all hours in which it works; who rents by the hour pays none")
    electricity: UsdPerKilowattHour = Field(description="price of power")
    hosting: Usd = Field(description="of a kW of its power for a month: space and cooling, without staff and power")


class Project(_Terms):
    """The whole job: how much work, by when, at which prices."""

    tokens: PositiveCount | None = Field(None, description="token budget, such as 1T")
    deadline: PositiveSeconds | None = Field(None, description="the tokens must be done by then, such as 30 days")
    budget: PositiveUsd | None = Field(None, description="the tokens may cost so much, such as 500 kUSD")
    rate: TokensPerSecond | None = Field(None, description="rate that must be reached, such as 5 Mtokens/s")
    confidence: Confidence | None = Field(
        None,
        description="how likely deadline and rate must be kept by what counts as large enough, such as 0.95; left out, "
        "the values as predicted keep them",
    )
    users: PositiveCount | None = Field(None, description="with traffic: who have a request under way at once")
    requests: RequestsPerSecond | None = Field(None, description="with traffic: requests a second that must be served")
    rank: Literal["tokens_per_dollar", "tokens_per_joule", "tokens_per_s"] | None = Field(
        None,
        description="what the verdict is by; left out, tokens a dollar where all have a price, else tokens/s",
    )
    price: Basis = Field("neocloud", description="price basis that ranks; all are shown")
    own: Owning | None = Field(None, description="buying beside renting: adds the basis `owned` where capex is stated")
    failures: Failures = Failures()
    power: Power = Power()
    fabric: Parts | None = Field(None, description="price and power of the fabric's pieces")

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
