"""Answers to one step: from the names in a scenario to times, memory, cost, ranges and sentences.

:mod:`tspsim.step.question` resolves what a scenario names, :mod:`tspsim.step.simulation` answers one plan,
:mod:`tspsim.step.result` is the answer; :mod:`tspsim.step.paths` bounds a step from below without events.
"""
