"""A question of one job: an answer a plan. No number is made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import interface
from ...errors import InputError
from ...interface import Progress
from ...units import compact
from .plan_figures import figures
from .sort import Bought, Document, Figure, Pinned


class Plans:
    """Plans side by side, the best one first."""

    def entries(self, question: Any) -> list[tuple[str, str, str | None]]:
        workload = question.workload
        return [
            ("workload.model", "models", workload.model),
            ("workload.stack", "stacks", workload.stack),
            *of_cluster(question.cluster),
        ]

    def facts(self, result: Any) -> dict[str, Any]:
        refused = "" if any(plan.ran for plan in result.plans) else str(interface.nothing_runs(result.plans))
        return {
            "refused": refused,
            "best": result.best.name if result.best is not None else None,
            "doubts": {plan.name: interface.doubts(result, plan) for plan in result.plans if plan.ran},
        }

    def lines(self, document: Document) -> dict[str, list[Figure]]:
        return {plan["name"]: figures(plan) for plan in document["plans"]}

    def pinned(self, document: Document, told: Mapping[str, Any]) -> Pinned | None:
        best = next((plan for plan in document["plans"] if plan["name"] == told["best"]), None)
        return None if best is None else Pinned(best["name"], figures(best), told["doubts"][best["name"]])

    def parts(self, document: Document, told: Mapping[str, Any]) -> list[Any]:
        from .plan_parts import parts

        return parts(document, told)

    def bought(self, question: Any, progress: Progress) -> Bought:
        decision = interface.compare(question, jobs=1, progress=progress).verdict
        if decision is None:
            raise InputError("has no offers to compare; state some", key="offers")
        document = decision.to_json()
        names = [offer["name"] for offer in document["offers"]]
        return Bought(
            words=list(decision.in_words()),
            columns=list(_BOUGHT.values()),
            rows=[[_cell(offer.get(key)) for key in _BOUGHT] for offer in document["offers"]],
            best=names.index(document["winner"]) if document["winner"] in names else None,
        )

    def alone(self, question: Any) -> bool:
        return not question.offers


#: Keys of an offer's entry, and what they are called.
_BOUGHT = {
    "name": "offer",
    "device": "device",
    "gpus": "GPUs",
    "plan": "plan",
    "tokens_per_s": "tokens/s",
    "tokens_per_usd": "tokens a dollar",
    "tokens_per_joule": "tokens a joule",
    "limit": "what limits it",
}


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return compact(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def of_cluster(cluster: Any) -> list[tuple[str, str, str | None]]:
    """The entries that a cluster names."""
    if isinstance(cluster, str):
        return [("cluster", "nodes" if cluster in interface.entries("nodes") else "clusters", cluster)]
    named = (("device", "devices"), ("fabric", "fabrics"), ("node", "nodes"))
    return [(f"cluster.{key}", kind, getattr(cluster, key)) for key, kind in named]
