"""Drafts are verified: several queries a sequence in one pass, and the passes that made the drafts."""

from __future__ import annotations

from typing import ClassVar

from .decode import DecodeStep
from .load import Load
from .step import STEPS


class VerifyStep(DecodeStep):
    """A decode step with ``speculation.tokens`` + 1 queries a sequence, behind which the next drafts are made; it
    advances every sequence by the tokens accepted."""

    name = "verify"
    title = "verify step"
    needs: ClassVar[tuple[str, ...]] = ("batch", "context", "speculation")

    def counted(self, load: Load) -> float:
        assert load.speculation is not None
        return load.batch * load.speculation.accepted


VERIFY_STEP = STEPS.register(VerifyStep())
