"""Variation of GPUs: between each other, and between steps."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt

from .section import Section, refuse


def _share(value: Any) -> Any:
    """``2 %`` or 0.02."""
    if not isinstance(value, str):
        return value
    number, sign, rest = value.partition("%")
    try:
        if sign and not rest.strip():
            return float(number) / 100.0
        return float(value)
    except ValueError:
        raise refuse(f"'{value[:40]}' is not a share; write 2 % or 0.02") from None


Spread = Annotated[float, BeforeValidator(_share), Field(ge=0.0, le=0.3, allow_inf_nan=False)]


class Variation(Section):
    """Standard deviations of the time that kernels take, normal and independent: ``{gpu: 2 %, step: 1 %, seed: 0}``."""

    gpu: Spread = Field(0.0, description="between GPUs of a cluster: silicon, cooling, power")
    step: Spread = Field(0.0, description="of one GPU between steps: clock, host")
    seed: Annotated[StrictInt, Field(ge=0, le=2**32 - 1)] = Field(0, description="seed of the draws with --every-rank")

    def in_words(self) -> tuple[str, ...]:
        """A sentence on its effect on an answer."""
        return (
            f"GPUs differ by {100 * self.gpu:g} %, and one from step to step by {100 * self.step:g} % (standard "
            "deviations): a step is the expected one, in which those that wait for each other go at the pace of their "
            "slowest (`cluster.variation`).",
        )
