"""A verify step: several drafted tokens per sequence in one pass, then the passes that draft the next."""

from __future__ import annotations

from typing import ClassVar

from .decode import DecodeStep
from .step import STEPS


class VerifyStep(DecodeStep):
    """A decode step with ``speculation.tokens`` + 1 queries per sequence, followed by the passes of the drafter.

    It advances every sequence by the accepted tokens.
    """

    name = "verify"
    title = "verify step"
    needs: ClassVar[tuple[str, ...]] = ("batch", "context", "speculation")
    takes: ClassVar[tuple[str, ...]] = ()


VERIFY_STEP = STEPS.register(VerifyStep())
