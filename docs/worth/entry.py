"""A row of the table: a scheme on one question, its rivals, and what they give on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tspsim
from tspsim.base.errors import InputError

DEVICES = ("mi300x", "mi355x", "h100", "b200")
KI = 1024

Keys = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A scheme on one question: its plan, and rivals that know nothing of it, the naive one first."""

    name: str
    question: str
    plan: Keys
    rivals: Mapping[str, Keys]
    workload: Keys
    published: str
    explained: str
    needs: str
    nodes: int = 1
    fabric: str | None = None
    further: Keys = field(default_factory=dict)
    #: Keys of the question beside cluster, workload and plans.
    asked: Keys = field(default_factory=dict)
    #: The scheme's rate on a device, and a rival's on it by name, where they are no plans of one question.
    computed: Callable[[str], float | None] | None = None
    rival: Callable[[str, str], float | None] | None = None
    devices: tuple[str, ...] = field(default=DEVICES)

    def rate(self, device: str, plan: str) -> float | None:
        """Tokens/s of the machine with the scheme (``plan`` its name) or a rival; None where it does not fit or run."""
        if plan == self.name and self.computed is not None:
            return self.computed(device)
        if plan != self.name and self.rival is not None:
            return self.rival(device, plan)
        keys = dict(self.plan if plan == self.name else self.rivals[plan])
        # A plan or a rival may change the question: bits of weights, streams, a batch, a node.
        workload = self.workload | keys.pop("workload", {})
        cluster: Keys = {"device": device, "nodes": self.nodes}
        if self.fabric is not None:
            cluster["fabric"] = self.fabric
        cluster |= self.further | keys.pop("cluster", {})
        plans = [{"name": plan, **keys}]
        question = {"name": "worth", "cluster": cluster, "workload": workload, "plans": plans, **self.asked}
        return rate_of(question)


def rate_of(question: Keys) -> float | None:
    """Tokens/s of a question's one plan; None where it does not fit or run."""
    try:
        (answer,) = tspsim.simulate(question).plans
    except InputError:
        return None
    return answer.tokens_per_s if answer.ran else None
