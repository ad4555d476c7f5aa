"""Reinforcement learning around a training step: rollouts, the models that judge them, updates, and moves of weights.

A scenario with ``loop`` asks for whole iterations (:class:`tspsim.scenario.loop.Loop`). Each part is a question of its
own to a lower room: :mod:`tspsim.serving` answers rollouts, :mod:`tspsim.step.simulation` answers forwards and updates,
:mod:`tspsim.loop.reshard` prices the transfer of weights.
"""

from __future__ import annotations
