"""The parts of an iteration as scenarios of their own.

Rollouts are packed: Σ (prompt + output) tokens are trained in ⌈Σ / S⌉ sequences of the workload's S tokens, each
attended as a whole. Every mini-batch has the same number of sequences, rounded up to a multiple of replicas ·
micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..base.errors import InputError
from ..base.memo import once
from ..network import Cluster
from ..scenario import PlanSpec, Scenario
from ..scenario.loop import Loop, Rollout
from ..scenario.traffic import TrafficSpec
from ..scenario.workload import Workload
from ..step.question import Lookups, Question, look_up, own_gpus, replica_of
from ..traffic import ARRIVALS

#: Keys of a plan that a forward pass does not use.
OF_TRAINING = (
    "name", "rollout", "recomputation", "activation_store", "offload_layers", "zero", "shard_group",
    "secondary_shard", "weight_wire", "gradient_wire", "checkpoint_rate", "checkpoint_every",
)  # fmt: skip


@dataclass(frozen=True)
class LoopParts:
    """One plan of a scenario with a loop."""

    #: The resolved scenario, on the whole cluster.
    question: Question
    #: Name of the plan.
    name: str

    @property
    def scenario(self) -> Scenario:
        return self.question.scenario

    @property
    def loop(self) -> Loop:
        assert self.scenario.loop is not None
        return self.scenario.loop

    @property
    def keys(self) -> PlanSpec:
        return self.scenario.plan(self.name)

    @property
    def rollout(self) -> Rollout:
        assert self.keys.rollout is not None
        return self.keys.rollout

    @once
    def own(self) -> int:
        """GPUs that only generate."""
        return own_gpus(self.keys, self.question.cluster)

    @property
    def cluster(self) -> Cluster:
        return self.question.cluster

    @once
    def tokens(self) -> int:
        """Tokens of all prompts and answers.

        Raises
        ------
        InputError
            A rollout is longer than the packed sequences, or than the model's positions.
        """
        drawn = self.traffic.draw(self.question.model)
        whole = drawn.prompt_tokens + drawn.output_tokens
        longest, sequence = int(whole.max()), self.scenario.workload.sequence
        if longest > sequence:
            problem = f"a rollout of {longest:,} tokens does not fit sequences of {sequence:,}"
            raise InputError(f"{problem}; use longer ones, or state a cap", key="workload.sequence")
        return int(whole.sum())

    @once
    def traffic(self) -> TrafficSpec:
        """Traffic that sends all prompts at once."""
        loop = self.loop
        return TrafficSpec(
            arrivals=ARRIVALS.get("at_once")(),
            prompt=loop.prompt,
            output=loop.output,
            requests=loop.rollouts,
            seed=loop.seed,
        )

    # --- what is trained and read ---------------------------------------------------------------------------------

    @once
    def sequences(self) -> int:
        """Packed sequences of all rollouts."""
        return -(-self.tokens // self.scenario.workload.sequence)

    def batch(self, replicas: int, steps: int) -> int:
        """Sequences of one of ``steps`` equal steps, rounded up to a multiple of replicas · micro-batch."""
        unit = replicas * (self.keys.micro_batch or 1)
        return -(-self.sequences // (steps * unit)) * unit

    def work(self, batch: int, **others: Any) -> Workload:
        """The workload of a step on ``batch`` packed sequences."""
        return self.scenario.workload.model_copy(update={"global_batch": batch, **others})

    def trained(self, model: str) -> Question:
        """An optimizer step on one mini-batch."""
        plan = self.keys.model_copy(update={"rollout": None})
        return self._ask(self.work(self.batch(self._replicas(plan), self.loop.mini_batches), model=model), plan)

    def read(self, model: str) -> Question:
        """A forward over all rollouts, with the plan's degrees."""
        keys = self.keys
        stated = {key: getattr(keys, key) for key in keys.model_fields_set | _further(keys) if key not in OF_TRAINING}
        plan = PlanSpec(name=self.name, **{"micro_batch": 1, **stated, "recomputation": "none"})
        return self._ask(self.work(self.batch(self._replicas(plan), 1), model=model, pass_="forward"), plan)

    def _replicas(self, plan: PlanSpec) -> int:
        return plan.degrees(self.cluster.gpus - self.own)["dp"]

    # --- what is generated ----------------------------------------------------------------------------------------

    def generated(self, kv_tokens: int | None = None) -> Question:
        """The engines that answer all prompts. ``kv_tokens``: cache of each engine; None: the stack's rule."""
        loop, rollout = self.loop, self.rollout
        options = {"kv_tokens": kv_tokens} if kv_tokens is not None else {}
        plan = PlanSpec(name=self.name, **rollout.degree_keys, engine={**rollout.engine, **options})
        work = Workload.model_validate(
            {
                "model": self.scenario.workload.model,
                "pass": "decode",
                "batch": 1,
                "context": 1,
                "stack": loop.stack,
                "precision": loop.precision,
            }
        ).model_copy(update={"runtime_reserve": self.scenario.workload.runtime_reserve})
        return self._ask(work, plan, self.traffic, self.own or self.cluster.gpus)

    def _ask(
        self, work: Workload, plan: PlanSpec, traffic: TrafficSpec | None = None, gpus: int | None = None
    ) -> Question:
        """One part as a question of its own, on the first ``gpus`` GPUs (default: those that train)."""
        alone = self.scenario.model_copy(
            update={"workload": work, "plans": (plan,), "traffic": traffic, "loop": None, "offers": (), "project": None}
        )
        wanted = gpus or self.cluster.gpus - self.own
        part = self.cluster if wanted == self.cluster.gpus else replica_of(self.cluster, wanted)
        return look_up(alone, replace(Lookups(), build_cluster=lambda *_: part, load_cluster=lambda _: part))


def _further(keys: PlanSpec) -> set[str]:
    """Keys that registered objects add to a plan and this plan states."""
    return set(keys.model_extra or {})
