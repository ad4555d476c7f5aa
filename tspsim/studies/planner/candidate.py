"""A plan of a search: its job and mesh, its keys in a scenario, and a name made from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...parallel import CONTEXT_METHODS, SWITCHES, Job, Plan, choices_of, method_of, scheme_axes
from ...parallel.balance import BUSIEST
from ...parallel.lengths import OF_LENGTHS, OFFLOAD_FROM
from ...program.instructions import Mesh

#: Longest plan name in a scenario.
LONGEST_NAME = 60
#: Hexadecimal digits that distinguish shortened names.
MARK = 8


@dataclass(frozen=True)
class Candidate:
    """A legal plan with its job (its replica's share of the batch) and mesh. ``order`` breaks ties: simpler plans have
    a smaller one."""

    job: Job
    mesh: Mesh = field(repr=False, compare=False)
    order: tuple[int, ...]
    #: Keys of the scenario's plan, where the plan was stated.
    stated: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def plan(self) -> Plan:
        return self.job.plan

    @property
    def keys(self) -> dict[str, Any]:
        """The plan as keys of a scenario's plan."""
        return dict(self.stated) if self.stated is not None else plan_keys(self.plan)

    @property
    def name(self) -> str:
        return self.plan.name


def plan_keys(plan: Plan) -> dict[str, Any]:
    """A plan as keys of a scenario, without defaults."""
    keys: dict[str, Any] = {"name": plan.name}
    keys |= {axis: plan.degree(axis) for axis in (*scheme_axes(), "pp", "ep") if plan.degree(axis) > 1}
    for name in SWITCHES:
        value = getattr(plan, name)
        always = name == "recomputation" or (name == "micro_batch" and value is not None)
        if value != getattr(Plan, name) or always:
            keys[name] = value
    if plan.recomputed is not None:
        keys["recomputation"] = plan.recomputation_keys
    stored = ("activation_store", "offload_layers", "offload_weights")
    keys |= {name: getattr(plan, name) for name in stored if getattr(plan, name)}
    keys |= {name: plan.options[name] for name in OF_LENGTHS if name in plan.options}
    keys |= {"expert_balance": plan.expert_balance.policy} if plan.expert_balance != BUSIEST else {}
    keys |= {name: plan.value(name) for name in plan.chosen}
    if plan.rail_axes:
        keys["placement"] = {"node": list(plan.node_axes), "rails": list(plan.rail_axes)}
    return keys


#: Keys of a scenario's plan that its name contains completely.
NAMED = frozenset(
    {"name", "dp", "pp", "ep", "vpp", "zero", "shard_group", "micro_batch", "recomputation", "exchange", "schedule"}
    | {"sequence_regions", "overlap", "expert_dispatch", "expert_overlap", "expert_pieces", "expert_shards"}
    | {*scheme_axes()}
)


#: Words of a plan's name for recomputation: ``keep`` stores everything, ``attn`` recomputes attention, ``cheap`` what
#: is cheap, ``full`` everything.
_WORDS = {"none": "keep", "selective": "attn"}


def name_of(plan: Plan) -> str:
    """A name with everything that a search may choose, in at most 60 characters.

    After the degrees (``x5``: chunks a stage) the exchange, the ZeRO stage, the micro-batch, what is recomputed
    (``keep`` nothing, ``attn`` attention, ``cheap``, ``full``), ``sr`` sequence regions, ``ov`` overlap, what was
    chosen of the schedule (``g2p4``: two groups of heads, the MLP gathered in four pieces; ``g2r``: by several
    rings), ``zb`` for zero-bubble and ``dual`` for DualPipe, ``xe`` where tokens travel to each of their experts
    and ``xl`` where they do so at the links' rate, ``sh`` where shared experts run beside that and ``mi`` where
    another micro-batch does, ``xc2`` where that is cut into two pieces, ``xr0`` where all experts are gathered
    (``xr2``: each on two ranks), the policy that balances them, and after ``@`` the axes laid across nodes.
    ``Z3/8``: groups of eight ranks divide it; ``hw12``: weights of twelve layers lie on hosts. Of sequences of
    unequal length ``auto`` says that each is shared by the ranks it needs, and ``r8192`` how many tokens a rank
    takes. A name that grows too long leaves out dp, which follows from the others; if that is not enough its end is
    a mark of the whole.

    >>> from tspsim.parallel import Plan
    >>> name_of(Plan("", {"tp": 4, "sp": 2, "dp": 16}, exchange="ring", zero=1, micro_batch=2, recomputation="full"))
    'TP4-SP2-DP16 ring Z1 mb2 full'
    """
    axes = [axis for axis in (*scheme_axes(), "pp", "ep") if plan.degree(axis) > 1]
    degrees = [f"{axis.upper()}{plan.degree(axis)}" for axis in axes]
    degrees += ["auto"] if plan.options.get("dynamic_sp") else []
    if plan.vpp > 1:
        degrees = [f"{degree}x{plan.vpp}" if degree.startswith("PP") else degree for degree in degrees]
    words = ["-".join([*degrees, f"DP{plan.dp}"])]
    method = CONTEXT_METHODS.get(plan.exchange) if plan.options.get("dynamic_sp") else method_of(plan)
    words += [method.word or method.name] if method.name else []
    words += [f"Z{plan.zero}" + (f"/{plan.shard_group}" if plan.shard_group else "")] if plan.zero else []
    words += [f"mb{plan.micro_batch}"] if plan.micro_batch else []
    words += [f"r{plan.options['rank_tokens']}"] if "rank_tokens" in plan.options else []
    words += [_WORDS.get(plan.recomputation, plan.recomputation) + (plan.recomputed.word if plan.recomputed else "")]
    words += [f"a:{plan.activation_store}"] if plan.activation_store else []
    words += [f"off{plan.offload_layers}"] if plan.offload_layers else []
    words += [f"from{plan.options[OFFLOAD_FROM]}"] if OFFLOAD_FROM in plan.options else []
    words += [f"hw{plan.offload_weights}"] if plan.offload_weights else []
    words += [plan.options["deal"]] if "deal" in plan.options else []
    words += ["sr"] if plan.sequence_regions else []
    words += ["ov"] if plan.overlap else []
    words += [word for choice in choices_of(plan) if (word := choice.word(plan))]
    words += [word for word in (plan.order.word, plan.dispatch.word, plan.hiding.word) if word]
    words += [f"xc{plan.expert_pieces}"] if plan.expert_pieces > 1 else []
    words += [f"xr{plan.expert_shards}"] if plan.expert_shards is not None else []
    words += [plan.expert_balance.policy] if plan.expert_balance != BUSIEST else []
    words += ["@" + "+".join(plan.rail_axes)] if plan.rail_axes else []
    if len(" ".join(words)) > LONGEST_NAME:
        words[0] = "-".join(degrees)
    for name in (" ".join(words), "".join(words)):
        if len(name) <= LONGEST_NAME:
            return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:MARK]
    return f"{name[: LONGEST_NAME - MARK - 1]}~{mark}"
