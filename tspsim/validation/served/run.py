"""A published serving run: model, plan, engine with its options, and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .clients import Bench

#: Options of an engine by their real names, sorted; hashable: a section of options is pairs too.
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ServedPlan:
    """Everything that the cost of a step depends on: a replica of a model on some GPUs."""

    #: Catalog name.
    model: str
    #: Catalog name of the GPU.
    device: str
    #: Attention tensor-parallel ranks.
    tp: int
    #: Attention replicas that step together and share experts (attention data parallelism); 1: none.
    dp: int = 1
    #: Expert-parallel ranks; 1: every rank has a part of each expert.
    ep: int = 1
    #: Catalog name of the engine's software, with its version if that matters.
    stack: str = "vllm"
    #: Weight types by class; empty: the checkpoint's own, multiplied as on the device.
    weights: Options = ()
    activations: Options = ()
    #: Type of the cache; empty: the checkpoint's own.
    kv: str = ""
    #: Drafted tokens per step; 0: no speculation.
    drafts: int = 0
    #: Kind of a drafter's prompts, which selects the acceptance; empty without drafts.
    prompts: Literal["", "coding", "chat", "random"] = ""
    #: Whether the version accepts no draft, because of a bug.
    rejected: bool = False
    #: Tokens per step counted by the run's own client; 0: as measured elsewhere for such prompts.
    accepted: float = 0.0
    #: How tokens reach the experts of other replicas.
    dispatch: str = "gather"
    #: Experts and copies over all ranks of an expert group; 0: no copies.
    slots: int = 0
    #: Whether all experts get as many tokens.
    even: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.dp

    @property
    def expert_keys(self) -> dict[str, Any]:
        """Keys of a plan that say where experts are."""
        keys: dict[str, Any] = {"ep": self.ep} if self.ep > 1 else {}
        if self.dp > 1 and self.ep > 1:
            keys["expert_dispatch"] = self.dispatch
        if self.slots:
            keys["expert_balance"] = {"policy": "repeated", "replicas": self.slots}
        return keys


@dataclass(frozen=True)
class ServedRun:
    """One measured configuration."""

    #: Plan of every replica.
    plan: ServedPlan
    #: Name of the engine's scheduler.
    policy: str
    #: Nominal tokens.
    prompt: int
    output: int
    #: Requests in a closed loop; None: all are sent at once (offline throughput).
    concurrency: int | None
    #: Number of requests; 0 for an offline run: twice the engine's capacity.
    requests: int
    #: Prompts and outputs are uniform from this share of the nominal length on; 1: all are equal; None: as prompts.
    least: float = 1.0
    least_output: float | None = None
    #: Client that chooses the lengths; None: they are drawn.
    client: Bench | None = None
    #: Options of the scheduler, by their real names.
    options: Options = ()
    #: Share of memory that the script gives the engine (``gpu_memory_utilization``, ``mem_fraction_static``,
    #: ``free_gpu_memory_fraction``); None: the engine's default.
    memory: float | None = None
    #: Replicas that share the requests evenly.
    replicas: int = 1
    #: Disaggregated runs: plan and number of prefill workers; ``plan``, ``options`` and ``replicas`` are the decode
    #: workers'.
    prefill: tuple[ServedPlan, int] | None = None
    #: Options of prefill workers.
    reading: Options = ()
    #: The first requests waited for kernel compilation, so the time to the first token is not scored.
    cold: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        others = self.prefill[0].gpus * self.prefill[1] if self.prefill else 0
        return self.plan.gpus * self.replicas + others

    @property
    def engine_options(self) -> dict[str, Any]:
        """The scheduler's options as an engine takes them."""
        return {name: dict(value) if isinstance(value, tuple) else value for name, value in self.options}

    @property
    def plans(self) -> tuple[ServedPlan, ...]:
        """Plans whose steps the run needs."""
        return (self.plan, self.prefill[0]) if self.prefill else (self.plan,)
