"""The planner's answer about requests in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tspsim.base.units import compact, digits, several, share_beside
from tspsim.serving.bounds import kept_in_words
from tspsim.serving.steady import figures, interval, tied

from .figures import ACCENT, value_axis
from .fronts import front_figure, front_line, marks
from .numbers import label, seconds
from .searched import SearchedView

if TYPE_CHECKING:
    from tspsim.studies.planner import TrafficPlanned
    from tspsim.studies.planner.traffic_answer import ServiceUnderLoad

COLUMNS = (
    "Plan", "Offer", "Load", "Good requests/s", "Within bounds", "Tokens/s", "Per GPU", "First token", "Output token",
    "Per user", "$/M output tokens",
)  # fmt: skip
COLOURS = (ACCENT, "#c2410c", "#15803d", "#7c3aed", "#b45309")


def cells(tried: ServiceUnderLoad, mark: str = "") -> tuple[str, ...]:
    """A plan as cells under :data:`COLUMNS`."""
    serving = tried.result.serving
    lasts = figures(serving)
    good, per_user = lasts["goodput_requests_per_s"], serving["tokens_per_s_per_user"]
    prices = sorted(lasts["usd_per_million_output_tokens"].values())
    return (
        tried.name + mark,
        tried.offer,
        load_in_words(tried) or "–",
        "–" if good is None else digits(good),
        "–" if good is None else share_beside(tried.share, wanted(tried)),
        compact(tried.result.lasting_tokens_per_s),
        compact(tried.result.lasting_tokens_per_s / tried.result.gpus),
        seconds(serving["ttft_s"]["mean"]),
        seconds(serving["tpot_s"]["mean"]) if serving["tpot_s"] else "–",
        "–" if per_user is None else digits(per_user),
        " – ".join(dict.fromkeys(digits(price) for price in (prices[0], prices[-1]))) if prices else "–",
    )


def wanted(tried: ServiceUnderLoad) -> float:
    """The share of requests that have to keep the bounds."""
    return float((tried.result.serving.get("bounds") or {"wanted": 1.0})["wanted"])


def load_in_words(tried: ServiceUnderLoad) -> str:
    """The load of a plan's run, in the words of other pages."""
    words = {"concurrency": "clients", "rate": "requests/s"}
    return ", ".join(f"{value:,.4g} {words.get(name, name)}" for name, value in tried.load.items())


def rows(planned: TrafficPlanned) -> list[tuple[str, ...]]:
    """The best plans, the best plan of every offer, and the stated plans."""
    first = [tried.name for tried in planned.best]
    offers = [tried for tried in planned.by_offer if all(tried.result is not best.result for best in planned.best)]
    stated = [tried for tried in planned.stated if tried.name not in first]
    best = [cells(tried) for tried in planned.best]
    others = [*(cells(tried, " (best there)") for tried in offers), *(cells(tried, " (stated)") for tried in stated)]
    return [*best, *others]


def view_of(planned: TrafficPlanned) -> SearchedView:
    """The answer as the page shows it."""
    from tspsim.studies.planner.written import keys_text

    best = planned.best[0]
    every = rows(planned)
    alone = len({row[1] for row in every}) == 1
    return SearchedView(
        scenario=planned.scenario,
        kicker=headline(planned),
        headline=_served(best),
        sentences=sure(planned),
        keys=keys_text({"name": best.name, **best.keys}),
        columns=[name for name in COLUMNS if name != "Offer"] if alone else COLUMNS,
        rows=[(row[0], *row[2:]) for row in every] if alone else every,
        best=len(planned.best),
        refused=planned.refused,
        front=drawn_front(planned),
        caption="Every simulated run: output tokens/s of one GPU over tokens/s of one user. The line joins the runs "
        "that no other run beats in both.",
    )


def _served(best: ServiceUnderLoad) -> str:
    """The best plan in one line; the requests within the bounds come first, where there are bounds."""
    good = figures(best.result.serving)["goodput_requests_per_s"]
    within = f"{digits(good)} requests/s within the bounds, " if good is not None else ""
    return f"{best.name}: {within}{best.result.in_a_line()}"


def headline(planned: TrafficPlanned) -> str:
    """The model, the objective and the bounds, as a heading."""
    words = planned.objective.replace("_", " ")
    bounds = ", ".join(f"{name.upper()} ≤ {seconds(bound)}" for name, bound in planned.bounds.items())
    within = f" under {bounds}" if bounds else ""
    return f"Plans for requests to {planned.question.model.name}: most {words}{within}"


def sure(planned: TrafficPlanned) -> list[str]:
    """What was searched, and what may be left."""
    searched = ", ".join(planned.searched)
    said = [
        f"{several(planned.bounded, 'plan')} bounded in closed form, {several(planned.simulated, 'run')} simulated; "
        f"searched: {searched}."
    ]
    if not planned.kept:
        bounds = planned.best[0].result.serving["bounds"]
        said.insert(0, f"No plan keeps the bounds; these come nearest: {kept_in_words(bounds)}.")
    if planned.interrupted:
        said.append("Interrupted: the best so far.")
    elif not planned.complete:
        said.append("The budget ran out (--budget): plans that may be better were not searched.")
    level = [tried.name for tried in planned.best[1:] if _ties(planned.best[0], tried)]
    if level:
        said.insert(0, f"{planned.best[0].name} ties with {', '.join(level)}: a longer run may turn their order.")
    said += filter(None, [in_the_names(planned)])
    said += planned.notes
    said += machines(planned)
    load = load_in_words(planned.best[0])
    return [*said, f"{planned.best[0].name} is best at {load} (traffic.arrivals)."] if load else said


def in_the_names(planned: TrafficPlanned) -> str:
    """What the parts of the shown plans' names stand for; empty where all of them were stated."""
    stated = {plan.name for plan in planned.stated}
    plans = [plan for plan in (*planned.best, *planned.by_offer) if plan.name not in stated]
    pooled = next((plan for plan in plans if "pools" in plan.keys), None)
    degrees = next((plan.name.split()[0] for plan in plans if "pools" not in plan.keys), "")
    parts = [f"`{degrees}` degrees of parallelism, one per axis"] if degrees else []
    if pooled is not None:
        counts, ways = pooled.name.split()[:2]
        parts.append(f"`{counts}` replicas that read prompts (P) and that decode (D), `{ways}` the degrees of each")
    routers = dict.fromkeys(str(plan.keys["router"]) for plan in plans if plan.keys.get("router"))
    parts += [f"`{router}` the router" for router in routers if any(router in plan.name for plan in plans)]
    return f"In the names: {'; '.join(parts)}." if parts else ""


def _ties(mine: ServiceUnderLoad, other: ServiceUnderLoad) -> bool:
    """Whether two plans differ by no more than the random requests allow."""
    servings = [tried.result.serving for tried in (mine, other)]
    if mine.offer != other.offer or not all(serving.get("steady") for serving in servings):
        return False
    name = "output_tokens_per_s" if servings[0]["goodput_requests_per_s"] is None else "goodput_requests_per_s"
    first, second = ((float(figures(serving)[name]), *interval(serving, name)) for serving in servings)
    return tied(first, second)


def machines(planned: TrafficPlanned) -> list[str]:
    """The number of machines of every offer that the project's users and requests need."""
    from tspsim.studies.purchase.machines import machines_of

    return [
        said for tried in planned.by_offer if (said := machines_of(tried.offer, tried.source_scenario, tried.result))
    ]


def drawn_front(planned: TrafficPlanned) -> dict[str, Any]:
    """The rate of a GPU over the rate of a user, one colour per offer."""
    traces = []
    for number, offer in enumerate(dict.fromkeys(tried.offer for tried in planned.contenders)):
        mine = [tried for tried in planned.contenders if tried.offer == offer and _user(tried)]
        texts = [
            f"<b>{label(tried.name, 60)}</b><br>{load_in_words(tried)}<br>"
            f"{compact(_rate_per_gpu(tried))} tokens/s per GPU"
            for tried in mine
        ]
        rates = [_rate_per_gpu(tried) for tried in mine]
        traces.append(marks(label(offer, 40), COLOURS[number % len(COLOURS)], [_user(e) for e in mine], rates, texts))
    joined = sorted((_user(tried), _rate_per_gpu(tried)) for tried in planned.contenders if _user(tried))
    upper = [mark for mark in joined if not any(o[0] >= mark[0] and o[1] > mark[1] for o in joined)]
    axis = value_axis("tokens/s per user", rangemode="normal")
    return front_figure([*traces, front_line("front", upper, "vh")], axis, "output tokens/s per GPU")


def _rate_per_gpu(tried: ServiceUnderLoad) -> float:
    """Output tokens/s of one GPU in the steady part, as in the table."""
    return tried.result.lasting_tokens_per_s / tried.result.gpus


def _user(tried: ServiceUnderLoad) -> float:
    return float(tried.result.serving["tokens_per_s_per_user"] or 0.0)
