"""A question of one job: one line per plan; taken from the answer, not computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import api
from ...api import Progress
from ...base.errors import InputError
from .offer_columns import NOTHING, OFFER_COLUMNS
from .plan_figures import figures
from .sort import Bought, Document, Figure, Pinned


def entries(question: Any) -> list[tuple[str, str, str | None]]:
    workload = question.workload
    return [
        ("workload.model", "models", workload.model),
        ("workload.stack", "stacks", workload.stack),
        *of_cluster(question.cluster),
    ]


def facts(question: Any, result: Any) -> dict[str, Any]:
    refused = "" if any(plan.ran for plan in result.plans) else str(api.nothing_runs(result.plans))
    return {
        "refused": refused,
        "best": result.best.name if result.best is not None else None,
        "doubts": {plan.name: api.doubts(result, plan) for plan in result.plans if plan.ran},
        "projects": api.project_of(question, result),
    }


def lines(document: Document, facts: Mapping[str, Any]) -> dict[str, list[Figure]]:
    return {plan["name"]: figures(plan) for plan in _with_projects(document, facts)["plans"]}


def pinned(document: Document, facts: Mapping[str, Any]) -> Pinned | None:
    plans = _with_projects(document, facts)["plans"]
    best = next((plan for plan in plans if plan["name"] == facts["best"]), None)
    return None if best is None else Pinned(best["name"], figures(best), facts["doubts"][best["name"]])


def parts(document: Document, facts: Mapping[str, Any]) -> list[Any]:
    from .plan_parts import parts

    return parts(_with_projects(document, facts), facts)


def bought(question: Any, progress: Progress) -> Bought:
    decision = api.compare(question, jobs=1, progress=progress).verdict
    if decision is None:
        raise InputError("has no offers to compare; state some", key="offers")
    document = decision.to_json()
    offers = document["offers"]
    names = [offer["name"] for offer in offers]
    columns = {name: cell for name, cell in OFFER_COLUMNS.items() if any(cell(offer) != NOTHING for offer in offers)}
    return Bought(
        words=list(decision.in_words()),
        columns=list(columns),
        rows=[[cell(offer) for cell in columns.values()] for offer in offers],
        best=names.index(document["winner"]) if document["winner"] in names else None,
    )


def alone(question: Any) -> bool:
    return not question.offers


def _with_projects(document: Document, facts: Mapping[str, Any]) -> Document:
    """The answer with the project's figures in the entry of every plan, for tables and curves."""
    projects = facts.get("projects") or {}
    if not projects:
        return document
    plans = [{**plan, "project": projects[plan["name"]]} if plan["name"] in projects else plan
             for plan in document["plans"]]  # fmt: skip
    return {**document, "plans": plans}


def of_cluster(cluster: Any) -> list[tuple[str, str, str | None]]:
    """The entries that a cluster names."""
    if isinstance(cluster, str):
        return [("cluster", "nodes" if cluster in api.entries("nodes") else "clusters", cluster)]
    named = (("device", "devices"), ("fabric", "fabrics"), ("node", "nodes"))
    return [(f"cluster.{key}", kind, getattr(cluster, key)) for key, kind in named]
