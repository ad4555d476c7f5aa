"""Reinforcement learning around a training step: rollouts, what judges them, updates, and weights between.

A scenario with ``loop`` asks for whole iterations (:class:`tspsim.scenario.loop.Loop`). Every part is a question of its
own to a room below: rollouts to :mod:`tspsim.serving`, forwards and updates to :mod:`tspsim.step.simulation`, the way
of weights to :mod:`tspsim.loop.reshard`.
"""

from __future__ import annotations
