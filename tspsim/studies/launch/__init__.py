"""Launch commands: a plan that serves requests in the words of an engine; a third party's registers as
``tspsim.launchers``."""

from __future__ import annotations

from . import sglang, trtllm, vllm  # noqa: F401  (each registers)
from .server import LAUNCHERS, Command, Launcher, Server, launch

__all__ = ["LAUNCHERS", "Command", "Launcher", "Server", "launch"]
