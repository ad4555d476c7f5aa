"""From a scenario with traffic to its answer: every plan serves the requests, at every point of a curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..base.display import Progress
from ..base.units import digits, duration, percent, several
from ..parallel import Plan
from ..scenario.traffic import TrafficSpec
from ..step.description import describe_cluster, describe_model, provenance
from ..step.question import FRESH, Lookups, Question
from ..step.result import PlanResult, Range, Result, merit_of
from ..step.statements import announced_in_words, notes_of, of_experts_types, served_in_words
from ..traffic import sizes
from .deployment import ROUTER, Deployment, request_tokens
from .highest import HighestRate, highest_rate, most_served
from .points import LoadedRun, point
from .pooled import pooled_deployment
from .spread import BASIS

#: A cache counts as full from this share on.
FULL = 0.98

#: Contexts of a decode step whose experts the notes describe.
LOOKED_AT = (2048,) * 32


def answer(
    question: Question, *, every_step: bool = False, every_kernel: bool = False, progress: Progress | None = None
) -> Result:
    """Serve the scenario's requests with every plan, in their order.

    An interrupt (Ctrl-C) ends the run; finished points are kept.

    Parameters
    ----------
    question
        The resolved question of a scenario with traffic.
    every_step
        Simulate every step by itself, not runs of equal ones.
    every_kernel
        Compare sampled steps with their whole programs, and report the deviation.
    progress
        Called with a plan's name and the overall share done.

    Raises
    ------
    InputError
        The traffic or the engine's options are wrong.
    KeyboardInterrupt
        No point was finished.
    """
    plans: list[PlanResult] = []
    interrupted = False
    for index, plan in enumerate(question.plans):

        def told(share: float, index: int = index, name: str = plan.name) -> None:
            if progress is not None:
                progress(name, (index + share) / len(question.plans))

        told(0.0)
        try:
            result = serve_plan(question, plan, every_step=every_step, every_kernel=every_kernel, progress=told)
        except KeyboardInterrupt:
            if not any(plan_result.ran for plan_result in plans):
                raise
            interrupted = True
            break
        plans.append(result)
        if any(note.startswith(INTERRUPTED) for note in result.notes):
            interrupted = True
            break
    scenario = question.scenario
    assert scenario.traffic is not None
    return Result(
        scenario=scenario.to_dict() | {"model": describe_model(question.model)},
        cluster=describe_cluster(question.cluster, question.device),
        plans=tuple(plans),
        provenance=(*provenance(question), *_more_provenance(question)),
        defaults=(*scenario.in_words(), *assumptions(question)),
        unexplained=UNEXPLAINED,
        source_scenario=scenario,
        interrupted=interrupted,
    )


#: First word of the notes of a plan with unfinished points.
INTERRUPTED = "interrupted"


def serve_plan(
    question: Question,
    plan: Plan,
    *,
    every_step: bool = False,
    every_kernel: bool = False,
    progress: Callable[[float], None] | None = None,
) -> PlanResult:
    """One plan: refused with its memory where it cannot serve, else every point of the traffic."""
    deployment = deployment_of(question, plan)
    scenario = question.scenario
    traffic = scenario.traffic
    assert traffic is not None

    def refused(error: str, notes: Sequence[str] = ()) -> PlanResult:
        return PlanResult(plan.name, deployment.degrees, deployment.memory, settings, error=error, notes=tuple(notes))

    settings = deployment.settings
    longest = longest_request(deployment, traffic)
    error = deployment.refusal(longest)
    if error is not None:
        return refused(error + deployment.advice(longest))
    highest: HighestRate | None = None
    points = list(traffic.points())
    if traffic.arrivals.searches:
        highest = highest_rate(deployment, traffic, progress=progress)
        if highest.rate is None:
            return refused(f"keeps the bounds at no rate: even for requests that are alone {highest.missed}")
        points = [traffic.model_copy(update={"requests": highest.requests}).at_rate(highest.rate)]
    done: list[LoadedRun] = []
    programs = deployment.costs.programs
    notes = [*notes_of(programs.decoding((1,))), *of_experts_types(programs.question, programs.decoding(LOOKED_AT))]
    notes += [*deployment.costs.notes, *idle_clients(points)]
    for number, point_traffic in enumerate(points):

        def told(share: float, number: int = number) -> None:
            if progress is not None:
                progress((number + share) / len(points))

        try:
            one = point(deployment, point_traffic, every_step=every_step, progress=told)
        except KeyboardInterrupt:
            if not done:
                raise
            one = None
        if one is None or one.interrupted:
            if not done:
                raise KeyboardInterrupt
            notes.insert(0, f"{INTERRUPTED}: {len(done)} of {len(points)} points were finished")
            break
        done.append(one)
    if len(points) == 1 and highest is None:
        rate = points[0].arrivals.mean_rate if traffic.arrivals.trace() is None else None
        most = most_served(deployment, traffic, done[0].run.waits, rate) if rate else None
        if rate and most is not None:
            come = f"requests come at {digits(rate)}/s, and it serves about {digits(most)}/s at most"
            return replace(refused(f"{come}: the queue grows without end", notes), served_at_most=most)
    best = max(done, key=lambda one: merit_of(one.run.metrics))
    notes += notes_of_runs(deployment, [loaded.run.metrics for loaded in done], best)
    if every_kernel:
        notes += deviation_notes(deployment)
    return result_of(deployment, best, done, highest, notes)


def result_of(
    deployment: Deployment,
    best: LoadedRun,
    done: Sequence[LoadedRun],
    highest: HighestRate | None,
    notes: Sequence[str],
) -> PlanResult:
    """The plan's entry: its best point, and the curve."""
    run = best.run
    rate = run.metrics["output_tokens_per_s"]
    ranges = dict(run.ranges)
    low, high = ranges.pop("output_tokens_per_s", (rate, rate))
    serving = {**run.label, **run.metrics}
    if highest is not None:
        serving |= {
            "highest_rate_requests_per_s": highest.rate,
            "lowest_rate_over_bounds_requests_per_s": highest.over,
            "runs_to_find_it": highest.runs,
        }
    step = best.typical.decode
    if step is not None:
        parts = deployment.costs.breakdown(step)
        serving["decode_step"] = {"sequences": step.sequences, "context": step.contexts[0], "parts_s": parts}
    return PlanResult(
        name=deployment.plan.name,
        degrees=deployment.degrees,
        memory=deployment.memory,
        settings=deployment.settings,
        step_time_s=run.metrics["wall_s"],
        tokens_per_step=run.metrics["output_tokens"],
        gpus=deployment.gpus,
        cost=deployment.cost(run.metrics["wall_s"], max(1, run.metrics["output_tokens"])),
        range=Range(low, high, BASIS, ranges | {"output_tokens_per_s": (low, high)}),
        bottleneck=bottleneck(serving),
        notes=tuple(dict.fromkeys(notes)),
        serving=serving,
        curve=tuple(loaded.run.to_json() for loaded in done) if len(done) > 1 else (),
        runs=tuple(loaded.run for loaded in done),
    )


def deployment_of(question: Question, plan: Plan, lookups: Lookups = FRESH) -> Deployment:
    """A plan with its engine's options: the plan's own, then the workload's."""
    scenario = question.scenario
    keys = scenario.plan(plan.name)
    if keys.pools is not None:
        return pooled_deployment(scenario, keys, lookups)
    own = dict(getattr(keys, "engine", {}) or {})
    options = {**scenario.workload.engine, **own}
    place = {name: f"plans.{plan.name}.engine.{name}" if name in own else f"workload.engine.{name}" for name in options}
    place[ROUTER] = f"plans.{plan.name}.router"
    speculation = getattr(keys, "speculation", None) or scenario.workload.speculation
    return Deployment(question, plan, options, place, speculation, router=keys.router, tiers=keys.tiers)


def longest_request(deployment: Deployment, traffic: TrafficSpec) -> int:
    """Tokens of the longest prompt with its output. Raises InputError where the model has fewer positions."""
    return int(request_tokens(traffic, deployment.question.model).max())


# --- in words -----------------------------------------------------------------------------------------------------


def bottleneck(serving: dict[str, Any]) -> str:
    """The engine's time by task, and a decode step's time by part, in a sentence."""
    seconds = serving["engine_s"]
    total = sum(seconds.values()) or 1.0
    read, idle = (seconds["mixed"] + seconds["prefill"]) / total, seconds["idle"] / total
    shares = {"steps that read prompts": read, "steps that decode alone": seconds["decode"] / total, "waiting": idle}
    name, share = max(shares.items(), key=lambda item: item[1])
    if name == "waiting":
        sentence = f"engines wait for requests {percent(share, decimals=0)} of the time"
    else:
        sentence = f"{name} take {percent(share, decimals=0)} of an engine's time"
        sentence += f", waiting {percent(idle, decimals=0)}" if idle > 0.05 else ""
    step = serving.get("decode_step")
    if step is None:
        return sentence
    parts = sorted(step["parts_s"].items(), key=lambda item: -item[1])
    whole = sum(step["parts_s"].values()) or 1.0
    largest = ", ".join(f"{part.replace('_', '-')} {percent(taken / whole, decimals=0)}" for part, taken in parts[:3])
    decoded = f"{several(step['sequences'], 'sequence')} of {step['context']:,} tokens"
    return f"{sentence}; a step that decodes {decoded} is {largest}"


def notes_of_runs(deployment: Deployment, metrics: Sequence[Any], best: LoadedRun) -> Iterator[str]:
    """Notes on a plan's points."""
    if len(metrics) > 1:
        units = {"concurrency": "clients", "rate": "requests/s"}
        label = ", ".join(f"{value:g} {units.get(name, name)}" for name, value in best.run.label.items())
        yield f"sentences describe the best of {len(metrics)} loads: {label}"
    yield from notes_of_steady(metrics)
    fullest = max((point_metrics["kv"]["peak_share"] or 0.0 for point_metrics in metrics), default=0.0)
    preempted = sum(point_metrics["preemptions"] for point_metrics in metrics)
    if preempted:
        yield f"caches ran full: {preempted:,} times a request lost its cache and was read again"
    elif fullest >= FULL:
        yield "caches ran full: requests waited for room"
    spec = deployment.speculation
    if spec is not None and deployment.drafts is not None:
        rates, source = spec.rates(deployment.question.scenario.workload.model)
        accepted_rates = ", ".join(f"{100 * rate:.0f} %" for rate in rates)
        accepted = f"{deployment.drafts.accepted:.3g}"
        outputs = f"with {spec.tokens} drafts ({spec.draft}) a step puts out {accepted} tokens, mean"
        yield f"{outputs}; acceptance {accepted_rates} ({source})"


def notes_of_steady(metrics: Sequence[Any]) -> Iterator[str]:
    """Notes on runs that were lengthened for a steady part, and runs without one."""
    lengthened = [
        (point_metrics["requests"], point_metrics["steady"]["run_requests"])
        for point_metrics in metrics
        if point_metrics.get("steady") and point_metrics["steady"]["run_requests"] > point_metrics["requests"]
    ]
    if lengthened:
        stated, count = max(lengthened, key=lambda pair: pair[1])
        yield (
            f"{stated:,} requests are only ramp and drain: the steady part, and every figure of it, is of {count:,} "
            "requests of the same traffic"
        )
    without = sum(1 for point_metrics in metrics if "steady" in point_metrics and point_metrics["steady"] is None)
    if without:
        which = "" if len(metrics) == 1 else f" at {without} of {len(metrics)} points"
        yield f"the run has no steady part{which}: its rates and dollars include ramp and drain"


def idle_clients(points: Sequence[TrafficSpec]) -> Iterator[str]:
    """A note where a closed loop has fewer conversations than clients."""
    for spec in points:
        clients, sent = spec.arrivals.most, spec.requests or spec.protocol.requests(spec.arrivals)
        turns_each = sizes(spec.prefix, sent, spec.seed)
        conversations, turns = len(turns_each), int(turns_each.max())
        if spec.arrivals.closed and clients is not None and conversations < clients:
            of = f" of {turns:,}" if turns == turns_each.min() > 1 else ""
            yield (
                f"of {clients:,} clients {clients - conversations:,} send nothing: {sent:,} requests are "
                f"{conversations:,} conversations{of}; state requests: {clients * turns:,} or more (`traffic.requests`)"
            )


def deviation_notes(deployment: Deployment) -> Iterator[str]:
    """Deviation of tabulated steps from their whole programs."""
    for costs in deployment.every_cost:
        yield str(costs.check())


def assumptions(question: Question) -> Iterator[str]:
    """Assumptions that decide the answer, as sentences; each can be switched."""
    yield from announced_in_words(question)
    for sentence in served_in_words(question, question.plans):
        if not any(word in sentence for word in ("Every replica decodes a batch", "Only the last token")):
            yield sentence
    yield (
        "A step's time is that of its program on the cluster, tabulated over batch and context; steps between two "
        "events are added up in closed form (`--every-step` takes them one by one)."
    )
    front = question.work.stack.engine.front_end.value
    if front:
        yield f"The front end takes {duration(front)} a request, in TTFT and E2E (the stack's `front_end`)."


def _more_provenance(question: Question) -> Iterator[dict[str, str]]:
    """Provenance of the traffic's further inputs."""
    spec = question.scenario.workload.speculation
    if spec is not None:
        rates, source = spec.rates(question.scenario.workload.model)
        value = ", ".join(f"{rate:.3g}" for rate in rates)
        basis = "assumed" if source == "assumed" else "stated"
        yield {"what": f"drafts accepted ({spec.draft})", "value": value, "source": source, "basis": basis}


#: What the model leaves out, knowingly.
UNEXPLAINED = (
    "Contents of prompts: acceptance of drafts and routing to experts do not change within a run.",
    "Clients that give up, retries, failures, and engines that start or stop.",
    "Experts that move or are replicated for balance; adapters; grammars and penalties of a sampler.",
    "Stragglers and clock drift between GPUs; with the ideal stack also a host that launches too slowly.",
)
