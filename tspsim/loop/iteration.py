"""One iteration of one plan: the time of each part, and of all together.

On the same GPUs parts follow each other,

    T = rollout + reshard + Σ forwards + mini-batches · Σ updates.

The longest rollout ends the first part. With nodes of its own, generation waits for the update and the update waits for
generation: the same sum on fewer GPUs each. With ``ahead`` generation uses the weights before, and T = max(rollout,
forwards + updates) + fetch. No other parts overlap.

Memory: the training state of every model stays on its GPUs while they generate, and caches get what is left of the
engine's share. Weights that a reshard leaves in place are stored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.errors import InputError
from ..base.memo import once
from ..base.units import duration, gib, percent
from ..network import KINDS
from ..parallel import Plan, rank_groups, scheme_of
from ..parallel.state.reshard import RESHARD_METHODS, ReshardLayout
from ..serving.answer import deployment_of, longest_request
from ..serving.points import LoadedRun, point
from ..step.description import cost_of, too_large
from ..step.question import Question
from ..step.result import Memory, PlanResult, Range
from ..step.simulation import run_plan as run_step
from .parts import LoopParts
from .reshard import Reshard, fetched, gathered, layout_of

#: Parts of memory that live from step to step.
STAYS = ("weights", "gradients", "optimizer_state")


class _RefusedError(Exception):
    """A part cannot run; the text says which and why."""


@dataclass
class Iteration:
    """The parts of one plan, each simulated on first use."""

    parts: LoopParts
    question: Question
    _steps: dict[tuple[str, bool], PlanResult] = field(default_factory=dict)

    def step(self, model: str, *, trains: bool) -> PlanResult:
        """The answer of an update or a forward. A model with several roles is simulated once."""
        key = model, trains
        if key not in self._steps:
            question = self.parts.trained(model) if trains else self.parts.read(model)
            result = run_step(question, question.plans[0])
            if not result.ran:
                what = "an update" if trains else "a forward"
                raise _RefusedError(f"{what} of {model}: {result.error}")
            self._steps[key] = result
        return self._steps[key]

    @once
    def actor(self) -> PlanResult:
        return self.step(self.parts.scenario.workload.model, trains=True)

    @once
    def updates(self) -> dict[str, PlanResult]:
        """By role, the actor first: the answer of one mini-batch."""
        others = {role: self.step(model, trains=True) for role, model in self.parts.loop.updates.items()}
        return {"actor": self.actor, **others}

    @once
    def forwards(self) -> dict[str, PlanResult]:
        return {role: self.step(model, trains=False) for role, model in self.parts.loop.forwards.items()}

    # --- weights and memory ---------------------------------------------------------------------------------------

    @once
    def weights(self) -> Reshard:
        """The transfer of weights from training to generation. Expert weights follow all others where their ranks
        differ."""
        parts, model = self.parts, self.question.model
        work = parts.scenario.workload
        element, trained, generated = work.optimizer.weights, parts.trained(work.model), parts.generated()
        of_experts = model.routed_parameters_per_layer * model.routed_layers * element
        shards, pieces = weight_shards(trained), weight_shards(generated)
        if max(parts.keys.ep, parts.rollout.ep) == 1:
            return self._moved(model.parameters * element, shards, pieces, "")
        others = self._moved(model.parameters * element - of_experts, shards, pieces, "")
        return others.and_then(self._moved(of_experts, expert_ranks(trained), expert_ranks(generated), ".ep"))

    def _moved(self, size: float, shards: int, pieces: int, key: str) -> Reshard:
        """Moves ``size`` bytes from the shards of a training stage to the pieces of a generating one."""
        parts, rollout, keys = self.parts, self.parts.rollout, self.parts.keys
        training, place = parts.cluster.gpus - parts.own, f"plans.{parts.name}.rollout"
        if parts.own:
            at = ReshardLayout(keys.pp, shards, training // (keys.pp * shards), rollout.pp, pieces)
            return fetched(parts.cluster, size, at, parts.own)
        try:
            at = layout_of(training, shards, keys.pp, pieces, rollout.pp)
        except InputError as error:
            raise InputError(error.message, key=f"{place}{key}") from None
        among = RESHARD_METHODS.get(rollout.way).ranks(at)
        if keys.zero == 3 and among != training:
            problem = f"with zero: 3 all GPUs hold parts, and {rollout.way} gathers among {among}"
            raise InputError(f"{problem} of {training}; use way: everyone, or another zero", key=f"{place}.way")
        return gathered(parts.cluster, size, at, rollout.way)

    @once
    def others_bytes(self) -> float:
        """Bytes of a training GPU that all models but the actor keep from step to step."""
        trained = sum(_stays(result) for role, result in self.updates.items() if role != "actor")
        read = {role: result for role, result in self.forwards.items() if role not in self.updates}
        return trained + sum(result.memory.parts["weights"] for result in read.values())

    @once
    def memory(self) -> Memory:
        """Memory of a training GPU during the actor's update."""
        own = self.actor.memory
        more = {"other_models": self.others_bytes} if self.others_bytes else {}
        return Memory({**own.parts, **more}, own.capacity_bytes)

    @once
    def resident_bytes(self) -> float:
        """Bytes of a generating GPU that training keeps beside the weights it generates with."""
        if self.parts.own:
            return 0.0
        reused = self.actor.memory.parts["weights"] if not self.weights.beside_bytes else 0.0
        return _stays(self.actor) + self.others_bytes - min(reused, self.weights.held_bytes)

    @once
    def rolled(self) -> LoadedRun:
        """All rollouts, with caches in the memory that training leaves."""
        question = self.parts.generated()
        deployment = deployment_of(question, question.plans[0])
        if not deployment.memory.fits:
            raise _RefusedError(f"generation: {too_large(deployment.memory)}")
        budget, resident = deployment.memory.parts["kv_cache"], self.resident_bytes
        peak = self.weights.held_bytes + resident
        if not self.parts.own and peak > deployment.memory.capacity_bytes:
            problem = f"the reshard holds {gib(self.weights.held_bytes)} of weights beside {gib(resident)} of training"
            raise _RefusedError(f"{problem}, of {gib(deployment.memory.capacity_bytes)} per GPU")
        if resident:
            room = deployment.costs.capacity_tokens
            left = None if room is None else int(room * max(0.0, 1.0 - resident / max(budget, 1.0)))
            if left is not None:
                question = self.parts.generated(left)
                deployment = deployment_of(question, question.plans[0])
        error = deployment.refusal(longest_request(deployment, self.parts.traffic))
        if error is not None:
            beside = f" (training keeps {gib(resident)} of a GPU)" if resident else ""
            raise _RefusedError(f"generation: {error}{beside}")
        self.busy = deployment.costs.breakdown
        return point(deployment, self.parts.traffic, steady=False)

    # --- time -----------------------------------------------------------------------------------------------------

    @once
    def seconds(self) -> dict[str, float]:
        """Seconds of every part, in the order of the parts."""
        steps = self.parts.loop.mini_batches
        return {
            "rollout": float(self.rolled.run.metrics["wall_s"]),
            "reshard": self.weights.seconds,
            **{f"forward of {role}": result.step_time_s for role, result in self.forwards.items()},
            **{f"update of {role}": steps * result.step_time_s for role, result in self.updates.items()},
        }

    def total(self, factors: Mapping[str, float] | None = None) -> float:
        """Seconds of the iteration, each part scaled by its factor."""
        taken = {name: seconds * (factors or {}).get(name, 1.0) for name, seconds in self.seconds.items()}
        trained = sum(seconds for name, seconds in taken.items() if name not in ("rollout", "reshard"))
        if self.parts.rollout.ahead:
            return max(taken["rollout"], trained) + taken["reshard"]
        return taken["rollout"] + taken["reshard"] + trained

    def ends(self) -> tuple[float, float]:
        """The 90 % range of an iteration's seconds, where errors of all parts go together."""
        low, high = {}, {}
        for group, word in ((self.forwards, "forward of"), (self.updates, "update of")):
            for role, result in group.items():
                assert result.range is not None
                low[f"{word} {role}"] = result.tokens_per_s / result.range.high
                high[f"{word} {role}"] = result.tokens_per_s / result.range.low
        ends = self.rolled.run.ranges.get("output_tokens_per_s")
        rate = float(self.rolled.run.metrics["output_tokens_per_s"])
        if ends is not None and min(ends) > 0.0:
            low["rollout"], high["rollout"] = rate / ends[1], rate / ends[0]
        return self.total(low), self.total(high)

    def breakdown(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Time by cause, mean over GPUs, and compute time by family of operators. A typical step stands for all rollout
        steps."""
        gpus = self.parts.cluster.gpus
        training, generating = (gpus - self.parts.own) / gpus, (self.parts.own or gpus) / gpus
        compute: dict[str, float] = {}
        exposed = {"reshard": self.seconds["reshard"]}
        bubble = 0.0

        def add(into: dict[str, float], name: str, seconds: float) -> None:
            into[name] = into.get(name, 0.0) + seconds

        steps = self.parts.loop.mini_batches
        every = [(result, 1) for result in self.forwards.values()] + [
            (result, steps) for result in self.updates.values()
        ]
        for part_result, times in every:
            scale = times * training
            for kind, seconds in part_result.compute_by_kind_s.items():
                add(compute, kind, scale * seconds)
            for kind, seconds in part_result.breakdown_s["exposed_communication"].items():
                add(exposed, kind, scale * seconds)
            bubble += scale * float(part_result.breakdown_s["bubble"])
        engine = self.rolled.run.metrics["engine_s"]
        typical = self.rolled.typical
        for kinds, step in ((("decode",), typical.decode), (("mixed", "prefill"), typical.reading)):
            busy = generating * sum(engine[kind] for kind in kinds)
            shares = self.busy(step) if step is not None else {}
            shares = {name: share for name, share in shares.items() if name not in ("host", "idle")}
            whole = sum(shares.values())
            for name, seconds in shares.items():
                into, kind = (exposed, name) if name in KINDS.names() else (compute, "generation")
                add(into, kind, busy * seconds / whole)
        idle = self.total() - sum(compute.values()) - sum(exposed.values()) - bubble
        shown = {
            "compute": sum(compute.values()),
            "exposed_communication": dict(sorted(exposed.items())),
            "bubble": bubble,
            "idle": max(0.0, idle),
        }
        return shown, dict(sorted(compute.items()))


def weight_shards(question: Question) -> int:
    """Ranks of a stage that share the weights of the question's only plan."""
    job = question.job(question.plans[0])
    return scheme_of(job.plan).residency.weight_shards(job)


def expert_ranks(question: Question) -> int:
    """Ranks of a stage that share the routed experts of the question's only plan."""
    return rank_groups.expert_ranks(question.job(question.plans[0]))


def _stays(result: PlanResult) -> float:
    return sum(result.memory.parts.get(name, 0.0) for name in STAYS)


def run_plan(question: Question, plan: Plan) -> PlanResult:
    """One plan of a question with a loop: its iteration, or the reason why it cannot run."""
    parts, model = LoopParts(question, plan.name), question.scenario.workload.model
    trained = parts.trained(model)
    actor = run_step(trained, trained.plans[0])
    one = Iteration(parts, question, {(model, True): actor})
    try:
        if not actor.ran:
            raise _RefusedError(str(actor.error))
        if not one.memory.fits:
            raise _RefusedError(too_large(one.memory))
        total, (low_s, high_s) = one.total(), one.ends()
    except _RefusedError as refused:
        return replace(actor, error=str(refused))
    shown, compute = one.breakdown()
    tokens = parts.tokens
    flops = sum(
        times * result.mfu * result.step_time_s * result.gpus
        for group, times in ((one.forwards, 1), (one.updates, parts.loop.mini_batches))
        for result in group.values()
    )
    peak = question.peak_of(question.work.precision) / question.cluster.gpus
    flops += parts.read(question.scenario.workload.model).work.flops_per_token(question.model) * tokens / peak
    low, high = tokens / high_s, tokens / low_s
    basis = "90 %: the ranges of all parts, taken together; transfers of weights have none"
    return replace(
        actor,
        memory=one.memory,
        settings={**actor.settings, "rollout": parts.rollout.model_dump(mode="json")},
        step_time_s=total,
        tokens_per_step=tokens,
        gpus=question.cluster.gpus,
        mfu=flops / (total * question.cluster.gpus),
        breakdown_s=shown,
        compute_by_kind_s=compute,
        cost=cost_of(question, total, tokens),
        range=Range(low, high, basis),
        bottleneck=bottleneck(one),
        notes=(*notes(one), *actor.notes),
        loop=entry(one),
    )


def entry(one: Iteration) -> dict[str, Any]:
    """``loop`` of the plan's JSON."""
    metrics, weights = one.rolled.run.metrics, one.weights
    seconds = one.seconds
    return {
        "parts_s": dict(seconds),
        "rollout_s": seconds["rollout"],
        "reshard_s": seconds["reshard"],
        "forwards_s": sum(value for name, value in seconds.items() if name.startswith("forward of")),
        "updates_s": sum(value for name, value in seconds.items() if name.startswith("update of")),
        "way": "fetch" if one.parts.own else one.parts.rollout.way,
        "reshard_received_bytes": weights.received_bytes,
        "reshard_held_bytes": weights.held_bytes,
        "resident_bytes": one.resident_bytes,
        "generating_gpus": one.parts.own or one.parts.cluster.gpus,
        "training_gpus": one.parts.cluster.gpus - one.parts.own,
        "rollouts": one.parts.loop.rollouts,
        "output_tokens": metrics["output_tokens"],
        "output_tokens_per_s": metrics["output_tokens_per_s"],
        "rollout_idle_share": metrics["engine_s"]["idle"] / seconds["rollout"],
        "packed_sequences": one.parts.sequences,
        "preemptions": metrics["preemptions"],
    }


#: Groups of parts in the sentence about the bottleneck.
GROUPS = {"rollout": "rollouts", "reshard": "weights on their way", "forward": "forwards", "update": "updates"}


def bottleneck(one: Iteration) -> str:
    """The parts of an iteration in a sentence, the largest first."""
    total, grouped = one.total(), dict.fromkeys(GROUPS.values(), 0.0)
    for name, value in one.seconds.items():
        grouped[GROUPS[name.split()[0]]] += value
    ranked = sorted(((name, value) for name, value in grouped.items() if value), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {duration(value)} ({percent(value / total, decimals=0)})" for name, value in ranked)
    beside = "; rollouts run beside forwards and updates" if one.parts.rollout.ahead else ""
    return f"an iteration of {duration(total)} is {parts}{beside}"


def notes(one: Iteration) -> Iterator[str]:
    """Notes on the parts."""
    parts, weights, metrics = one.parts, one.weights, one.rolled.run.metrics
    sentence = ", ".join(f"{name} {duration(value)}" for name, value in one.seconds.items() if value)
    yield f"parts: {sentence}"
    how = "each GPU that generates fetches" if parts.own else f"{parts.rollout.way}: every GPU receives"
    if weights.received_bytes:
        held = f", holds {gib(weights.held_bytes)} at most" if not parts.own else ""
        yield f"{how} {gib(weights.received_bytes)} of weights in {duration(weights.seconds)}{held}"
    else:
        yield "generation uses the weights where training keeps them: nothing moves"
    idle = metrics["engine_s"]["idle"] / one.seconds["rollout"]
    if idle > IDLE:
        yield f"engines wait {percent(idle, decimals=0)} of the rollouts for the longest ones"
    if metrics["preemptions"]:
        yield f"caches ran full: {metrics['preemptions']:,} times a rollout lost its cache and was read again"
    steps, sequence = parts.loop.mini_batches, parts.scenario.workload.sequence
    trained = one.actor.tokens_per_step * steps
    more = trained / parts.tokens - 1.0
    packed = f"rollouts of {parts.tokens:,} tokens are packed into {parts.sequences:,} sequences of {sequence:,}"
    yield f"{packed}; updates work on {percent(more, decimals=1)} more" if more > ROUNDED else packed
    if parts.own and not parts.rollout.ahead:
        yield "generation and training wait for each other; with rollout.ahead they work on two batches at once"


#: Shares above which a note says that engines wait, and that updates are padded.
IDLE, ROUNDED = 0.05, 0.01
