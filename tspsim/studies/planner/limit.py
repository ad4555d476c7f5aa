"""Limits on plans: on their steps, their memory, and their schemes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...base.errors import InputError, UnknownNameError
from ...base.units import parse
from ...parallel import Plan, scheme_axes
from ...step.result import PlanResult


@dataclass(frozen=True)
class LimitedQuantity:
    """A quantity that can be limited: its unit, its value in a result, and whether only serving steps have it."""

    unit: str
    value: Callable[[PlanResult], float]
    serves: bool = False


LIMITS: Mapping[str, LimitedQuantity] = {
    "tpot": LimitedQuantity("s", lambda result: result.inference.get("time_per_output_token_s", 0.0), serves=True),
    "ttft": LimitedQuantity("s", lambda result: result.inference.get("time_to_first_token_s", 0.0), serves=True),
    "step": LimitedQuantity("s", lambda result: result.step_time_s),
    "memory_free": LimitedQuantity("bytes", lambda result: result.memory.capacity_bytes - result.memory.peak_bytes),
}
_COMPARES: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}
#: The limit that names axes.
SCHEMES_KEY = "schemes"


@dataclass(frozen=True)
class Limit:
    """``name<=value`` or ``name>=value``."""

    name: str
    compare: str
    value: float

    @classmethod
    def of(cls, text: str) -> Limit:
        """Raises InputError.

        >>> Limit.of("tpot<=50ms")
        Limit(name='tpot', compare='<=', value=0.05)
        """
        match = re.fullmatch(r"\s*([a-z_]+)\s*(<=|>=)\s*(.+?)\s*", text)
        if match is None:
            raise InputError(
                f"'{text}' is no limit; write one as step<=20s, memory_free>=8GiB or schemes=tsp,tp", key="--limit"
            )
        name, compare, value = match.groups()
        if name not in LIMITS:
            raise UnknownNameError("limit", name, [*LIMITS, SCHEMES_KEY], key="--limit")
        try:
            return cls(name, compare, parse(value, LIMITS[name].unit))  # type: ignore[arg-type]
        except InputError as error:
            raise error.at(key="--limit") from None

    def holds(self, result: PlanResult) -> bool:
        return _COMPARES[self.compare](LIMITS[self.name].value(result), self.value)

    def __str__(self) -> str:
        return f"{self.name} {self.compare} {self.value:g} {LIMITS[self.name].unit}"


@dataclass(frozen=True)
class Limits:
    """All limits of a plan.

    ``schemes`` names the axes that a replica may be spread over: every axis of a plan with several ranks must be among
    them; ``dp`` admits plans without such an axis. Empty: any.
    """

    limits: tuple[Limit, ...] = ()
    schemes: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str], *, serves: bool) -> Limits:
        """Raises InputError.

        >>> Limits.of(["schemes=tsp, tp", "step<=20s"], serves=False).schemes
        ('tsp', 'tp')
        """
        limits, schemes = [], list[str]()
        for text in texts:
            name, _, rest = text.partition("=")
            if name.strip() == SCHEMES_KEY:
                schemes += [part.strip() for part in rest.split(",")]
                continue
            limit = Limit.of(text)
            if LIMITS[limit.name].serves and not serves:
                others = ", ".join(name for name, quantity in LIMITS.items() if not quantity.serves)
                raise InputError(
                    f"{limit.name} is of serving steps (prefill, decode, mixed, verify); use {others} or {SCHEMES_KEY}",
                    key="--limit",
                )
            limits.append(limit)
        names = (*scheme_axes(), "dp")
        strange = next((scheme for scheme in schemes if scheme not in names), None)
        if strange is not None:
            raise UnknownNameError("scheme", strange, names, key="--limit")
        return cls(tuple(limits), tuple(dict.fromkeys(schemes)))

    def admits(self, degrees: Mapping[str, int]) -> bool:
        """Whether a replica may be spread over these degrees."""
        if not self.schemes:
            return True
        spread = [axis for axis in scheme_axes() if degrees.get(axis, 1) > 1]
        return all(axis in self.schemes for axis in spread or ["dp"])

    def hold(self, plan: Plan, result: PlanResult) -> bool:
        """Whether a plan that ran keeps all limits."""
        return self.admits(plan.degrees) and all(limit.holds(result) for limit in self.limits)

    def ceiling(self, name: str) -> float:
        """The lowest upper limit of a quantity."""
        return min(
            [limit.value for limit in self.limits if (limit.name, limit.compare) == (name, "<=")], default=math.inf
        )

    def floor(self, name: str) -> float:
        """The highest lower limit of a quantity."""
        return max([limit.value for limit in self.limits if (limit.name, limit.compare) == (name, ">=")], default=0.0)

    @property
    def words(self) -> tuple[str, ...]:
        """Each limit as text."""
        schemes = (f"{SCHEMES_KEY} {', '.join(self.schemes)}",) if self.schemes else ()
        return *map(str, self.limits), *schemes


def limit_texts(limits: Iterable[Limit]) -> list[str]:
    """Limits as a user may write them."""
    return [f"{limit.name}{limit.compare}{limit.value:g}" for limit in limits]
