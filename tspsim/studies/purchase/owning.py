"""The price of an hour of a bought GPU: the purchase over its years, the place where it stands, its power.

    $ an hour of work = (capex·(1 − resale)/(years·8,766 h) + P·hosting/730.5 h)/utilisation + P·electricity

with P its power in kW; staff and interest are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...scenario.project import Owning

HOURS_A_YEAR = 365.25 * 24.0
HOURS_A_MONTH = HOURS_A_YEAR / 12.0


@dataclass(frozen=True)
class Owned:
    """USD of a GPU's hour of work, by purpose."""

    purchase: float
    hosting: float
    electricity: float

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.purchase + self.hosting + self.electricity


def owned(terms: Owning, capex: float, watts: float) -> Owned:
    """The price of an hour of a GPU bought for ``capex`` dollars that draws ``watts``.

    >>> from tspsim.scenario.project import Owning
    >>> terms = Owning(years=4, utilisation=0.8, electricity="0.08 USD/kWh", hosting="150 USD")
    >>> round(owned(terms, 40_000.0, 2_000.0).usd_per_gpu_hour, 3)
    2.099
    """
    kilowatts = watts / 1000.0
    purchase = capex * (1.0 - terms.resale) / (terms.years * HOURS_A_YEAR) / terms.utilisation
    hosting = kilowatts * terms.hosting / HOURS_A_MONTH / terms.utilisation
    return Owned(purchase, hosting, kilowatts * terms.electricity)
