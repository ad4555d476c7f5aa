"""What sections of files are made of: frozen, without keys that nobody reads."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError

from .errors import is_ctrl_c


class Strict(BaseModel):
    """Frozen, and no key that nobody reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's; Ctrl-C while a part writes itself, which pydantic calls an error of serialization, stays
        Ctrl-C."""
        try:
            return super().model_dump(**how)
        except PydanticSerializationError as error:
            if is_ctrl_c(error):
                raise KeyboardInterrupt from None
            raise
