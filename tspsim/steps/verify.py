"""Drafts are verified: several queries a sequence in one pass, and the passes that made the drafts."""

from __future__ import annotations

from typing import ClassVar

from .decode import DecodeStep
from .step import STEPS


class VerifyStep(DecodeStep):
    """A decode step with ``speculation.tokens`` + 1 queries a sequence, behind which the next drafts are made; it
    advances every sequence by the tokens accepted."""

    name = "verify"
    title = "verify step"
    needs: ClassVar[tuple[str, ...]] = ("batch", "context", "speculation")
    takes: ClassVar[tuple[str, ...]] = ()


VERIFY_STEP = STEPS.register(VerifyStep())
