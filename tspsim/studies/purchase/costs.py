"""Money and energy of an offer: price and power of a GPU hour, with everything counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...base.errors import InputError, UnknownNameError
from ...hardware import Device
from ...network import Cluster
from ...scenario import Scenario
from ...scenario.project import Power, Project
from .fabric import FabricBill
from .owning import Owned, owned

STATED, OWNED = "stated", "owned"
STATED_WORDS = "stated in the scenario"

#: The price bases.
BASES = {
    "hyperscaler": "what a GPU hour costs a large cloud to own, all in",
    "neocloud": "what a GPU hour costs a smaller cloud to own, all in",
    "rental": "what a customer pays for a GPU hour",
    OWNED: "bought: the purchase over its years, hosting and power, without staff and interest",
    STATED: STATED_WORDS,
}


@dataclass(frozen=True)
class Rates:
    """Price and power of a GPU."""

    #: USD by price basis (``stated`` where the scenario names the price), with the fabric where the price lacks it.
    usd_per_gpu_hour: Mapping[str, float]
    #: The basis that ranks offers; None where the device has no price.
    basis: str | None
    bill: FabricBill
    #: The fabric's part, by the stated prices of its pieces; 0 where none are stated.
    fabric_usd_per_gpu_hour: float
    fabric_watts_per_gpu: float
    #: Whether this part is added to the price of a GPU hour, in ``usd_per_gpu_hour``.
    fabric_added: bool
    #: Source of the fabric's prices, and their range.
    fabric_source: str
    #: Power per GPU; None where the device file has none.
    watts_per_gpu: float | None
    watts_in_words: str
    #: Date of the prices, from the device file.
    date: str
    #: Publisher of the prices; or that they are stated.
    source: str
    #: Parts of the hour of a bought GPU; None where it is not needed, or no purchase price is stated.
    owned: Owned | None = None

    @property
    def usd(self) -> float | None:
        """USD per GPU hour on the basis that ranks."""
        return None if self.basis is None else self.usd_per_gpu_hour[self.basis]


def rates_of(scenario: Scenario, cluster: Cluster, device: Device) -> Rates:
    """Price and power of a GPU of this offer; raises UnknownNameError for a basis that the device lacks."""
    project = scenario.project or Project()
    bill = FabricBill.of(cluster)
    parts = project.fabric
    fabric_usd = bill.usd_per_gpu_hour(parts) if parts else 0.0
    fabric_watts = bill.watts_per_gpu(parts) if parts else 0.0
    stated = scenario.prices.gpu_hour
    prices = {STATED: stated} if stated is not None else dict(device.prices_usd_per_hour)
    watts, words = _watts(project.power, device, fabric_watts)
    bought = _owned(project, scenario, watts, device.name)
    prices |= {OWNED: bought.usd_per_gpu_hour} if bought is not None else {}
    added = parts is not None and not parts.in_price
    source = parts.source if parts else ""
    if parts and parts.range != (1.0, 1.0):
        source += f" (× {parts.range[0]:g} to {parts.range[1]:g}, nine times of ten)"
    if added:
        prices = {basis: usd + fabric_usd for basis, usd in prices.items()}
    basis = STATED if stated is not None and project.price != OWNED else project.price if prices else None
    if basis is not None and basis not in prices:
        raise UnknownNameError("price basis", basis, prices, key="project.price")
    dated = device.spec.prices
    date = str(dated.date) if dated is not None and stated is None else ""
    published = STATED_WORDS if stated is not None else dated.source if dated is not None else ""
    return Rates(prices, basis, bill, fabric_usd, fabric_watts, added, source, watts, words, date, published, bought)


def _owned(project: Project, scenario: Scenario, watts: float | None, device: str) -> Owned | None:
    """The hour of a bought GPU; raises InputError where ``owned`` ranks and a price or power is missing."""
    if project.own is None:
        return None
    capex = scenario.prices.capex
    if capex is not None and watts is not None:
        return owned(project.own, capex, watts)
    if project.price == OWNED:
        missing = "prices.capex, what a GPU is bought for"
        missing = missing if capex is None else f"the power of {device} (project.power)"
        raise InputError(f"owned: '{scenario.name}' does not state {missing}", key="project.price")
    return None


def _watts(power: Power, device: Device, fabric_watts: float) -> tuple[float | None, str]:
    if power.basis == "all_in":
        words = "all-in: server, fabric and cooling are in the device file's figure, nothing is added"
        return device.all_in_watts, words
    assumed = f" (as {device.spec.like}'s)" if "power" in device.spec.assumed else ""
    parts = f"{device.tdp_watts:.0f} W device{assumed} + {power.host:.0f} W host + {fabric_watts:.0f} W fabric"
    watts = (device.tdp_watts + power.host + fabric_watts) * power.cooling
    return watts, f"({parts}) × {power.cooling:g} cooling"
