"""One step answered: from the names in a scenario to times, memory, cost, ranges and sentences.

:mod:`tspsim.step.question` looks up what a scenario names, :mod:`tspsim.step.simulation` answers one plan,
:mod:`tspsim.step.result` is the answer; :mod:`tspsim.step.paths` says what a step takes at least, without events.
"""
