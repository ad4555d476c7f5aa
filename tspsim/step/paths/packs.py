"""What sequences of unequal length take at least, from the rates of one long sequence and how they are dealt.

A micro-batch of sequences of s tokens each, over r ranks, takes a rank at least

    c = Σ (s·l + a(s)·q) / r,

with l the kernels of a token but for attention, through the whole model, forward and back, where products are as long
as they ever are; a(s) the FLOPs of a sequence's attention, and 1/q the best rate of any. The ranks of a replica take

    step ≥ Σ c / p + (p − 1)/p · min c     of p stages, which wait for the first and at the end for the last, and
    step ≥ max c                           for the longest goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...base.quick import replace
from ...model import Architecture
from ...operators import Operator, Role
from ...parallel import Job, Unequal
from ...parallel.lengths import Pack

#: Tokens of the sequence that rates are found on, and how much faster a token may be than on it.
PROBED, FASTER = 32_768, 1.02


@dataclass(frozen=True)
class TokenRates:
    """Of one rank, through a whole model: seconds of a token, and of a FLOP of attention."""

    token_s: float
    attention_s: float

    def pack_s(self, job: Job, pack: Pack) -> float:
        """c, of a micro-batch."""
        work = sum(tokens * self.token_s + self.attention_of(job, tokens) for tokens in pack.tokens)
        return work / pack.ranks

    def attention_of(self, job: Job, tokens: int) -> float:
        return self.attention_s * attention_flops(job.model, tokens, job.work.causal) if self.attention_s else 0.0


def attention_flops(model: Architecture, tokens: int, causal: bool) -> float:
    """a(s), of a forward."""
    return tokens * (model.forward_flops_per_token(tokens, causal) - model.forward_flops_per_token(0, causal))


def probe(job: Job) -> Job:
    """The job of one long sequence, on the ranks that divide a sequence's heads and columns alone."""
    plan = job.plan
    alone = dict.fromkeys((plan.token_axis, "pp", "dp"), 1)
    options = {name: value for name, value in plan.options.items() if name not in ("dynamic_sp", "rank_tokens", "deal")}
    one = replace(plan, degrees={**plan.degrees, **alone}, vpp=1, zero=0, options=options, together={})
    one = replace(one, schedule="1f1b", stage_layers=(), accumulation=1)
    one = replace(one, shard_group=None, secondary_shard=None, weight_wire=None, gradient_wire=None)
    work = replace(job.work, sequence=PROBED, unequal=Unequal((PROBED,)), replicas=1)
    return Job(job.model, one, work)


def rates_of(job: Job, summed: Callable[[Job, Callable[[Operator], float]], float], least: Callable[[Operator], float],
             cost: Callable[[Operator], float]) -> TokenRates:  # fmt: skip
    """Rates of a job's ranks; ``summed`` adds up a micro-batch's kernels by what each takes, ``least`` and ``cost``."""
    one = probe(job)
    others = summed(one, lambda operator: 0.0 if operator.role is Role.ATTENTION else cost(operator))
    flops = attention_flops(job.model, PROBED, job.work.causal)

    def attended(operator: Operator) -> float:
        return least(operator) if operator.role is Role.ATTENTION and operator.at_best else 0.0

    attention_s = summed(one, attended) / flops if flops else 0.0
    return TokenRates(others / PROBED / FASTER, attention_s)


def replicas_s(job: Job, rates: TokenRates) -> list[float]:
    """Seconds that each replica takes at least, as its sequences are dealt."""
    stages, replicas = job.plan.pp, []
    for packs in job.dealt.packs:
        packs_s = [rates.pack_s(job, pack) for pack in packs]
        replicas.append(max(sum(packs_s) / stages + (stages - 1) / stages * min(packs_s), max(packs_s)))
    return replicas
