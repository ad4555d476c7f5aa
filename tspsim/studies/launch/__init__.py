"""Launch commands: a serving plan as an engine's command, a training plan as a framework's. Third parties register
theirs as ``tspsim.launchers`` and ``tspsim.trainers``."""

from __future__ import annotations

from . import megatron, sglang, torchtitan, trtllm, vllm  # noqa: F401  (each registers)
from .command import Command
from .server import LAUNCHERS, LaunchedServer, Launcher, launch
from .training import TRAINERS, Trainer, TrainingRun, train

__all__ = [
    "LAUNCHERS",
    "TRAINERS",
    "Command",
    "LaunchedServer",
    "Launcher",
    "Trainer",
    "TrainingRun",
    "launch",
    "train",
]
