"""A published serving run as what the simulator is asked: model, plan, engine with its options, and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: Options of an engine by their real names, sorted; hashable.
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ServedPlan:
    """What the cost of a step depends on: a replica of a model on some GPUs.

    Attributes
    ----------
    model
        Catalog name.
    device
        Catalog name of the GPU.
    tp
        Ranks that share every token's attention.
    dp
        Attention replicas that step together, experts over all of them (attention data parallelism); 1: none.
    ep
        Ranks that divide whole experts; 1: every rank has a part of each.
    stack
        Catalog name of the engine's software, with its version where that matters.
    weights, activations
        Types by class of weights; empty: as the checkpoint keeps them, and as the device multiplies those.
    kv
        Type of the cache; empty: as the checkpoint says.
    drafts
        Drafted tokens a step; 0: no speculation.
    prompts
        What a drafter's prompts are like, by which the acceptance is looked up; empty without drafts.
    rejected
        The version accepts no draft: a fault of it.
    """

    model: str
    device: str
    tp: int
    dp: int = 1
    ep: int = 1
    stack: str = "vllm"
    weights: Options = ()
    activations: Options = ()
    kv: str = ""
    drafts: int = 0
    prompts: Literal["", "coding", "chat", "random"] = ""
    rejected: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True)
class ServedRun:
    """One measured configuration.

    Attributes
    ----------
    plan
        Of every replica.
    policy
        Name of the engine's scheduler.
    options
        Of the scheduler, by their real names.
    memory
        Share of memory that the script gives the engine (``gpu_memory_utilization``, ``mem_fraction_static``,
        ``free_gpu_memory_fraction``); None: the engine's default.
    prompt, output
        Tokens, nominal.
    least, least_output
        Prompts and outputs are uniform from this share of the nominal on; 1: all are equal; None: as prompts.
    concurrency
        Requests in a closed loop; None: all are sent at once (offline throughput).
    requests
        How many; 0 with None above: as many as twice the engine holds at once.
    replicas
        That share the requests evenly.
    prefill
        Disaggregated: the plan of prefill workers and how many; ``plan``, ``options`` and ``replicas`` are the decode
        workers'.
    reading
        Options of prefill workers.
    cold
        The first requests waited for kernels to be compiled: the time to the first token is not of requests.
    """

    plan: ServedPlan
    policy: str
    prompt: int
    output: int
    concurrency: int | None
    requests: int
    least: float = 1.0
    least_output: float | None = None
    options: Options = ()
    memory: float | None = None
    replicas: int = 1
    prefill: tuple[ServedPlan, int] | None = None
    reading: Options = ()
    cold: bool = False

    @property
    def gpus(self) -> int:
        """Of all workers."""
        others = self.prefill[0].gpus * self.prefill[1] if self.prefill else 0
        return self.plan.gpus * self.replicas + others

    @property
    def plans(self) -> tuple[ServedPlan, ...]:
        """Whose steps the run needs."""
        return (self.plan, self.prefill[0]) if self.prefill else (self.plan,)
