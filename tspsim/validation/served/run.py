"""A published serving run as what the simulator is asked: model, plan, engine with its options, and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .clients import Bench

#: Options of an engine by their real names, sorted; hashable.
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ServedPlan:
    """What the cost of a step depends on: a replica of a model on some GPUs."""

    #: Catalog name.
    model: str
    #: Catalog name of the GPU.
    device: str
    #: Ranks that share every token's attention.
    tp: int
    #: Attention replicas that step together, experts over all of them (attention data parallelism); 1: none.
    dp: int = 1
    #: Ranks that divide whole experts; 1: every rank has a part of each.
    ep: int = 1
    #: Catalog name of the engine's software, with its version where that matters.
    stack: str = "vllm"
    #: Types by class of weights; empty: as the checkpoint keeps them, and as the device multiplies those.
    weights: Options = ()
    activations: Options = ()
    #: Type of the cache; empty: as the checkpoint says.
    kv: str = ""
    #: Drafted tokens a step; 0: no speculation.
    drafts: int = 0
    #: What a drafter's prompts are like, by which the acceptance is looked up; empty without drafts.
    prompts: Literal["", "coding", "chat", "random"] = ""
    #: The version accepts no draft: a fault of it.
    rejected: bool = False
    #: Tokens a step that the run's own client counted; 0: as measured elsewhere of such prompts.
    accepted: float = 0.0

    @property
    def gpus(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True)
class ServedRun:
    """One measured configuration."""

    #: Of every replica.
    plan: ServedPlan
    #: Name of the engine's scheduler.
    policy: str
    #: Tokens, nominal.
    prompt: int
    output: int
    #: Requests in a closed loop; None: all are sent at once (offline throughput).
    concurrency: int | None
    #: How many; 0 with None above: as many as twice the engine holds at once.
    requests: int
    #: Prompts and outputs are uniform from this share of the nominal on; 1: all are equal; None: as prompts.
    least: float = 1.0
    least_output: float | None = None
    #: The client whose own numbers the lengths are; None: they are drawn, as above.
    client: Bench | None = None
    #: Of the scheduler, by their real names.
    options: Options = ()
    #: Share of memory that the script gives the engine (``gpu_memory_utilization``, ``mem_fraction_static``,
    #: ``free_gpu_memory_fraction``); None: the engine's default.
    memory: float | None = None
    #: That share the requests evenly.
    replicas: int = 1
    #: Disaggregated: the plan of prefill workers and how many; ``plan``, ``options`` and ``replicas`` are the decode
    #: workers'.
    prefill: tuple[ServedPlan, int] | None = None
    #: Options of prefill workers.
    reading: Options = ()
    #: The first requests waited for kernels to be compiled: the time to the first token is not of requests.
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
