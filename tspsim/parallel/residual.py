"""Residual wiring: how a layer's blocks read and write the residual stream, and so which sums over ``tp`` they wait
for.

All kinds but ``standard`` are other models: a checkpoint has to be trained, or trained further, as one of them. Their
gain is the cost of a sum beside what hides it. With block times A and M and a sum r (max-plus, exact):

    standard A + M + 2r    ladder max(A, r) + max(M, r)    parallel A + M + r    desync A + M

A kind is one object that registers itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.registry import Registry
from .expert_rows import tokens_leave
from .feature import FEATURES, Feature
from .job import Job
from .pipeline import Refusal
from .reasons import ANOTHER_MODEL
from .registries import Option
from .search_rule import SearchRule


@dataclass(frozen=True)
class Residual:
    """Wiring of attention and MLP to the residual stream."""

    #: Its name in a plan's ``residual``, and a line for the catalogue.
    name: str
    summary: str
    #: Whether a block reads the stream without the sum of the block before: each waits for the sum of its own kind in
    #: the layer before. Otherwise the MLP waits for its layer's attention, and attention for the MLP before.
    late: bool = False
    #: Whether attention and MLP read the same normed input, and their outputs are added before the sum.
    side_by_side: bool = False
    #: Whether the outputs of attention, and of the MLP, are summed over ranks.
    sums_attention: bool = True
    sums_mlp: bool = True
    #: Residual-sized buffers of partial sums in flight beside a running layer.
    in_flight: int = 0
    #: A note for readers of such a plan; empty: none.
    note: str = ""

    @property
    def sums(self) -> int:
        """Sums over ranks in a layer's forward."""
        return self.sums_attention + self.sums_mlp

    def layer_s(self, attention_s: float, mlp_s: float, sum_s: float) -> float:
        """Seconds of a layer in the steady state, from those of its blocks and of one sum.

        >>> [RESIDUALS.get(kind).layer_s(2.0, 6.0, 3.0) for kind in ("standard", "ladder", "parallel", "desync")]
        [14.0, 9.0, 11.0, 8.0]
        """
        if self.late:
            return max(attention_s, sum_s * self.sums_attention) + max(mlp_s, sum_s * self.sums_mlp)
        return attention_s + mlp_s + sum_s * self.sums


RESIDUALS: Registry[Residual] = Registry("residual", "tspsim.residuals", Residual)

STANDARD = RESIDUALS.register(Residual("standard", "every block reads the sum of all before it"))
RESIDUALS.register(
    Residual(
        "ladder",
        "a block reads the stream without the sum of the one before, which is under way beside it",
        late=True,
        in_flight=2,
        note="ladder residual is another model (Zhang et al. 2025, arXiv:2501.06589): a checkpoint of the standard one "
        "has to be trained on for it",
    )
)
RESIDUALS.register(
    Residual(
        "parallel",
        "attention and MLP read one normed input, and one sum takes what both put out",
        side_by_side=True,
        sums_attention=False,
        note="attention and MLP side by side are another model (Wang and Komatsuzaki 2021, GPT-J): a checkpoint of the "
        "standard one does not fit it",
    )
)
RESIDUALS.register(
    Residual(
        "desync",
        "no sums: what a layer would take if links were free",
        sums_attention=False,
        sums_mlp=False,
        note="without sums between ranks this is no model that anybody serves: it bounds what hiding them can give",
    )
)


#: The wiring of a plan's layers.
residual_of = RESIDUALS.named_by("residual", STANDARD.name)


def check(job: Job) -> Refusal:
    """Kinds other than ``standard`` need the plain schedules."""
    plan, residual = job.plan, residual_of(job.plan)
    if residual is STANDARD:
        return None
    said = f"{residual.name} beside"
    for key in ("sequence_regions", "overlap"):
        if getattr(plan, key) and plan.tp > 1:
            return "residual", f"{said} `{key}: true` is not built; leave that out"
    if tokens_leave(job):
        return "residual", f"{said} experts that tokens are sent to (`ep`: {plan.ep}) is not built; leave that out"
    return None


def notes(job: Job) -> Iterator[str]:
    """A note that the plan's model is another one."""
    note = residual_of(job.plan).note
    if note:
        yield note


FEATURES.register(
    Feature(
        "residual",
        "blocks that read and write the residual stream in another way",
        options=(
            Option(
                "residual",
                RESIDUALS,
                None,
                "how blocks read and write the residual stream; all but standard are other models",
                SearchRule(why_not=ANOTHER_MODEL),
            ),
        ),
        scheme="tensor",
        check=check,
        notes=notes,
    )
)
