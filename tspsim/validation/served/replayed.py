"""A replay of a published run: the engine's scheduler over the simulator's step costs, and the clients' measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tspsim.base.errors import InputError
from tspsim.parallel.engine_memory import EngineLimits, MemoryRule
from tspsim.parallel.serving_engine import ServingEngine
from tspsim.parallel.state.capacity import capacity_of
from tspsim.scenario import acceptance
from tspsim.scenario.workload import SpeculationSpec
from tspsim.serving.costs import ProgramCosts, costs_of
from tspsim.serving.engine import Engine
from tspsim.serving.metrics import Waits
from tspsim.serving.policies import POLICIES
from tspsim.serving.replicas import Members, ReplicaPool
from tspsim.serving.service import Service
from tspsim.serving.speculation import AcceptanceModel
from tspsim.serving.tables import Floats
from tspsim.serving.traffic import Clients
from tspsim.step.simulation import Question
from tspsim.traffic import DrawnRequests
from tspsim.traffic.prefixes import Shared
from tspsim.traffic.prefixes.share import SharedPrefixes

from ...base.memo import remembered
from . import disaggregated
from .measures import Measures
from .question import QUESTIONS, question_of
from .run import ServedPlan, ServedRun

#: Simulated requests per client, and the fewest in all.
ROUNDS, FEWEST = 5, 200
#: Seed of drawn lengths.
SEED = 20260427
#: Options for the tokens of a pass and for the running sequences, by their names in any engine.
TOKENS = ("max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens")
SEQUENCES = ("max_num_seqs", "max_running_requests", "max_batch_size")


@remembered(QUESTIONS)
def _costs(plan: ServedPlan) -> ProgramCosts:
    question = question_of(plan)
    return costs_of(question, question.plans[0], speculation=drafting(plan).served(plan.model).speculation())


def drafting(plan: ServedPlan) -> SpeculationSpec:
    """Drafts by the model's own module, with the measured acceptance of such prompts or an assumed rate."""
    if plan.rejected:
        return SpeculationSpec(tokens=plan.drafts, draft="mtp", positions=(0.0,) * plan.drafts)
    if plan.accepted:
        return SpeculationSpec(tokens=plan.drafts, draft="mtp", accepted=plan.accepted)
    return SpeculationSpec(tokens=plan.drafts, draft="mtp", prompts=plan.prompts or acceptance.USUAL)


def replay(run: ServedRun) -> Measures:
    """Replay a run from its first request to its last answer.

    Raises
    ------
    InputError
        The simulator does not cover the plan, or its caches do not hold one request.
    """
    if run.prefill is not None:
        return measured(disaggregated.waits_of(run, simulated(run, None)), run)
    costs = _costs(run.plan)
    tokens = kv_tokens(run, costs)
    requests = requests_of(run, simulated(run, tokens))
    drafts = AcceptanceModel(drafting(run.plan).rates(run.plan.model)[0]) if run.plan.drafts else None
    block = costs.block_tokens if costs.block_tokens > 1 else None
    options = usual_options(costs.question, run.policy)
    if not requests.warm_up:
        options |= CACHES_OFF.get(run.policy, {})
    options |= run.engine_options
    engine = Engine(run.policy, kv_tokens=tokens, block_tokens=block, speculation=drafts, **options)
    source = Clients(requests, costs.front_end_s, costs.process)
    pool = ReplicaPool([Members(engine, costs, run.replicas, run.plan.dp)])
    if Service(source, pool).run().interrupted:
        raise KeyboardInterrupt
    waits = Waits.of(source.table)
    return replace(measured(waits, run), kv_tokens=tokens)


def usual_options(question: Question, policy: str) -> dict[str, Any]:
    """The engine's default options: its stack's options, and its limits on GPUs with this memory. There are none for a
    scheduler other than the stack's own."""
    return POLICIES.get(policy).usual_options(question.work.stack.engine, question.device.visible_memory_bytes)


#: Random prompts share no prefixes.
CACHES_OFF: dict[str, dict[str, bool]] = {
    "vllm": {"enable_prefix_caching": False},
    "sglang": {"disable_radix_cache": True},
    "trtllm": {"enable_block_reuse": False},
    "atom": {"enable_prefix_caching": False},
}


def measured(waits: Waits, run: ServedRun) -> Measures:
    """The measures of the benchmark's client over all requests of a run, of which the first few were simulated.

    In a closed loop the requests left out are like those in the middle: after the first two of every client, which
    come in a burst, and before the last. Each request left out adds the time between two ends to the time from the
    first send to the last end: the time of one request over the clients (Little's law), or for offline runs the mean.
    """
    simulated, most = len(waits), run.concurrency or 0
    left_out = run.requests - simulated
    first = min(most, simulated)
    weights, each_s = np.ones(simulated), waits.wall_s / simulated
    if not most:
        weights *= run.requests / simulated
    if simulated > 3 * first > 0:
        middle = slice(2 * first, simulated - first)
        weights[middle] += left_out / (simulated - 3 * first)
        each_s = float(waits.e2e_s[middle].mean()) / most
    wall_s = waits.wall_s + left_out * each_s
    ttft, tpot = waits.ttft_s, waits.tpot_s
    outputs, prompts = (float((weights * tokens).sum()) for tokens in (waits.output_tokens, waits.prompt_tokens))
    return Measures(
        ttft_s=float(np.average(ttft, weights=weights)),
        tpot_s=float(np.average(tpot[~np.isnan(tpot)], weights=weights[~np.isnan(tpot)])),
        median_ttft_s=_median(ttft, weights),
        median_tpot_s=_median(tpot, weights),
        output_tokens_per_s=outputs / wall_s,
        tokens_per_s=(outputs + prompts) / wall_s,
        e2e_s=float(np.average(waits.e2e_s, weights=weights)),
        preemptions=int(waits.preemptions.sum()),
    )


def _median(values: Floats, weights: Floats) -> float:
    """The weighted median of the values that are numbers."""
    finite = ~np.isnan(values)
    order = np.argsort(values[finite], kind="stable")
    share = np.cumsum(weights[finite][order])
    return float(values[finite][order][np.searchsorted(share, share[-1] / 2.0)])


def simulated(run: ServedRun, capacity_tokens: int | None) -> int:
    """Number of simulated requests of a run: five per client, or for offline runs twice the engine's capacity."""
    if run.concurrency is not None:
        return min(run.requests, max(FEWEST, ROUNDS * run.concurrency))
    slots = next((value for name, value in run.options if name in SEQUENCES), 256)
    held = slots if capacity_tokens is None else min(slots, capacity_tokens // (run.prompt + run.output))
    return min(run.requests, max(FEWEST, 2 * held * run.plan.dp * run.replicas))


def requests_of(run: ServedRun, count: int) -> DrawnRequests:
    """Lengths of the first requests of a run: drawn, or the client's own, after the prompts that the server has
    answered before."""
    if run.client is not None:
        prompts, outputs = (tokens[:count] for tokens in run.client.lengths(run.prompt, run.output, run.requests))
        met = min(run.client.met, count)
        prompts, outputs = np.append(prompts[:met], prompts), np.append(np.ones(met, dtype=np.int64), outputs)
        numbers = np.append(np.arange(met), np.arange(count))
        shared = SharedPrefixes(np.where(numbers < met, prompts, 0), numbers)
        return DrawnRequests(
            None, prompts, outputs, shared, np.zeros(met + count), most=run.concurrency, ignore_eos=True,
            warm_up=met, pauses=True,
        )  # fmt: skip
    random = np.random.default_rng([SEED, run.prompt, run.output])
    lengths = []
    shares = (run.least, run.least if run.least_output is None else run.least_output)
    for nominal, least in zip((run.prompt, run.output), shares, strict=True):
        low = max(1, round(least * nominal))
        lengths.append(random.integers(low, nominal + 1, count))
    none = np.zeros(count)
    return DrawnRequests(None, lengths[0], lengths[1], Shared(), none, most=run.concurrency, ignore_eos=True)


# --- the cache ---------------------------------------------------------------------------------------------------


def kv_tokens(run: ServedRun, costs: ProgramCosts) -> int | None:
    """Capacity in tokens of one attention replica's cache, in the script's share of memory; None: no limit."""
    question = costs.question
    engine = configured(question.work.stack.engine, run, question.device.visible_memory_bytes)
    stack = replace(question.work.stack, engine=engine)
    job = costs.programs.decoding((1,))
    job = replace(job, work=replace(job.work, stack=stack))
    capacity = capacity_of(job, question.device.visible_memory_bytes)
    context = run.prompt + run.output
    sessions = capacity.sessions(context)
    if sessions == float("inf"):
        return None
    tokens = int(sessions * context)
    if tokens < context:
        raise InputError("no room for one request by the memory model")
    return tokens


def configured(engine: ServingEngine, run: ServedRun, visible_bytes: float) -> ServingEngine:
    """The engine as the run's script starts it on GPUs with this memory."""
    options = dict(run.options)
    tokens = next((options[name] for name in TOKENS if name in options), None)
    sequences = next((options[name] for name in SEQUENCES if name in options), None)
    usual = engine.limits_on(visible_bytes)
    policy = POLICIES.get(run.policy)
    if sequences is not None:
        sequences = policy.of_replica(policy.sequence_option, sequences, run.plan.dp)
    limits = (EngineLimits(tokens=tokens or usual.tokens, sequences=sequences or usual.sequences),) if usual else ()
    scheduler = replace(engine.scheduler, shares_tokens=policy.shares_tokens)
    return replace(engine, limits=limits, memory=_rule(engine.memory, run), scheduler=scheduler)


def _rule(rule: MemoryRule, run: ServedRun) -> MemoryRule:
    """The engine's memory rule with the script's share."""
    return rule if run.memory is None else rule.with_share(run.memory)
