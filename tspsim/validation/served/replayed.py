"""A published run, replayed: the engine's scheduler over the product's own step costs, and what clients measure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tspsim.errors import InputError
from tspsim.parallel.capacity import capacity_of
from tspsim.parallel.serving_engine import Limits, MemoryRule, ServingEngine
from tspsim.scenario.workload import SpeculationSpec
from tspsim.serving.costs import ProgramCosts, costs_of
from tspsim.serving.engine import Engine
from tspsim.serving.metrics import Waits
from tspsim.serving.replicas import Members, Pool
from tspsim.serving.service import Service
from tspsim.serving.speculation import Speculation
from tspsim.serving.traffic import Clients
from tspsim.traffic import Asked
from tspsim.traffic.prefixes import Shared

from . import disaggregated
from .measures import Measures
from .question import QUESTIONS, question_of
from .run import ServedPlan, ServedRun

#: Of drawn lengths.
SEED = 20260427
#: Options that say how many tokens a pass takes and how many sequences run at once, by their names in any engine.
TOKENS = ("max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens")
SEQUENCES = ("max_num_seqs", "max_running_requests", "max_batch_size")


@lru_cache(QUESTIONS)
def _costs(plan: ServedPlan) -> ProgramCosts:
    question = question_of(plan)
    return costs_of(question, question.plans[0], speculation=_drafting(plan).served(plan.model).speculation())


def _drafting(plan: ServedPlan) -> SpeculationSpec:
    """Drafts by the model's own module, accepted as often as measured, or at the rate that is assumed."""
    return SpeculationSpec(tokens=plan.drafts, draft="mtp")


def replay(run: ServedRun) -> Measures:
    """The run from its first request to its last answer.

    Raises
    ------
    InputError
        The simulator does not cover the plan, or its caches do not hold one request.
    """
    if run.prefill is not None:
        return disaggregated.replay(run)
    costs = _costs(run.plan)
    asked = requests_of(run)
    tokens = kv_tokens(run, costs)
    drafts = Speculation(_drafting(run.plan).rates(run.plan.model)[0]) if run.plan.drafts else None
    block = costs.block_tokens if costs.block_tokens > 1 else None
    options = {**costs.question.work.stack.engine.scheduler.options} if run.policy == own_policy(costs) else {}
    options |= CACHES_OFF.get(run.policy, {}) | dict(run.options)
    engine = Engine(run.policy, kv_tokens=tokens, block_tokens=block, speculation=drafts, **options)
    source = Clients(asked, costs.front_end_s)
    pool = Pool([Members(engine, costs, run.replicas, run.plan.dp)])
    Service(source, pool).run()
    waits = Waits.of(source.book)
    return replace(measured(waits), kv_tokens=tokens)


def own_policy(costs: ProgramCosts) -> str:
    """The scheduler of the stack itself."""
    return str(costs.question.work.stack.engine.scheduler.name)


#: Prompts of all scored runs are random: nothing is met again.
CACHES_OFF: dict[str, dict[str, bool]] = {
    "vllm": {"enable_prefix_caching": False},
    "sglang": {"disable_radix_cache": True},
    "trtllm": {"enable_block_reuse": False},
}


def measured(waits: Waits) -> Measures:
    """What a benchmark's client says of requests that ended."""
    ttft, tpot, wall_s = waits.ttft_s, waits.tpot_s, waits.wall_s
    outputs = float(waits.output_tokens.sum())
    return Measures(
        ttft_s=float(ttft.mean()),
        tpot_s=float(np.nanmean(tpot)),
        median_ttft_s=float(np.median(ttft)),
        median_tpot_s=float(np.nanmedian(tpot)),
        output_tokens_per_s=outputs / wall_s,
        tokens_per_s=(outputs + float(waits.prompt_tokens.sum())) / wall_s,
        preemptions=int(waits.preemptions.sum()),
    )


def requests_of(run: ServedRun) -> Asked:
    """Lengths of all requests, drawn."""
    random = np.random.default_rng([SEED, run.requests, run.prompt, run.output])
    lengths = []
    shares = (run.least, run.least if run.least_output is None else run.least_output)
    for nominal, least in zip((run.prompt, run.output), shares, strict=True):
        low = max(1, round(least * nominal))
        lengths.append(random.integers(low, nominal + 1, run.requests))
    none = np.zeros(run.requests)
    return Asked(None, lengths[0], lengths[1], Shared(), none, most=run.concurrency)


# --- the cache ---------------------------------------------------------------------------------------------------


def kv_tokens(run: ServedRun, costs: ProgramCosts) -> int | None:
    """Tokens that the cache of one attention replica holds, in the script's share of memory; None: no limit."""
    question = costs.question
    engine = configured(question.work.stack.engine, run)
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


def configured(engine: ServingEngine, run: ServedRun) -> ServingEngine:
    """An engine as the run's script starts it."""
    options = dict(run.options)
    tokens = next((options[name] for name in TOKENS if name in options), None)
    sequences = next((options[name] for name in SEQUENCES if name in options), None)
    limits = engine.limits
    if limits:
        usual = limits[-1]
        limits = (Limits(0.0, tokens or usual.tokens, sequences or usual.sequences),)
    return replace(engine, limits=limits, memory=_rule(engine.memory, run))


def _rule(rule: MemoryRule, run: ServedRun) -> MemoryRule:
    """The engine's rule with the script's share; SGLang's is of all memory before weights."""
    if run.memory is None:
        return rule
    if rule.least_reserve:
        return MemoryRule(share=run.memory, before=rule.before, after=rule.after)
    return replace(rule, share=run.memory)
