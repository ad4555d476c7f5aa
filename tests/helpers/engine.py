"""Small models, jobs and programs for the tests of schemes, memory, engine and volumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml

from tspsim.base.registry import Registry
from tspsim.engine.core import Interference, SimulationEngine, Submission
from tspsim.engine.instances import Assignment
from tspsim.model import Architecture, Experts, LatentAttention
from tspsim.model.spec import describe
from tspsim.network import Cluster
from tspsim.operators import MemoryBound, Operator
from tspsim.parallel import Adapters, ExpertRouting, Job, Optimizer, Plan, Work, mesh_axes, scheme_of, write_program
from tspsim.parallel.checks import check
from tspsim.parallel.routing import BALANCED
from tspsim.program import Collective, Compute, Instruction, Program, SendReceive
from tspsim.program.instructions import Mesh

ADAMW_UNFUSED = Optimizer(name="adamw-unfused", weights=2.0, gradients=2.0, state=12.0, temporaries=8.0)


def architecture(
    hidden: int = 512,
    *,
    layers: int = 2,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int = 64,
    ffn: int | None = None,
    gated: bool = True,
    vocab: int = 0,
    **parts: Any,
) -> Architecture:
    """A decoder: multi-head, a = h and FFN 4h unless told otherwise; ``parts`` are further ones of Architecture."""
    heads = heads or hidden // head_dim
    ffn = 4 * hidden if ffn is None else ffn
    return Architecture(
        "tiny", layers, hidden, heads, kv_heads or heads, head_dim, ffn, gated, vocab, source="a test", **parts
    )


def moe(hidden: int = 512, *, count: int = 8, topk: int = 2, width: int = 256, **parts: Any) -> Architecture:
    """A decoder with experts in every layer unless told otherwise; ``parts`` of Experts or of Architecture."""
    names = [name for name in parts if name in ("shared_width", "first_dense", "every")]
    experts = Experts(count, topk, width, **{name: parts.pop(name) for name in names})
    return architecture(hidden, ffn=parts.pop("ffn", 0), experts=experts, **parts)


#: Widths that tell query, latent, key and value apart.
LATENT = LatentAttention(192, 128, 32, 16, 64)


def latent(hidden: int = 512, *, heads: int = 8, widths: LatentAttention = LATENT, **parts: Any) -> Architecture:
    """A decoder with latent attention."""
    return architecture(hidden, heads=heads, head_dim=56, latent=widths, **parts)


def model_file(folder: Path, model: Architecture) -> str:
    """The model as YAML, for questions asked through the front door; returns the path."""
    path = folder / f"{hash(model)}.yaml"
    path.write_text(yaml.safe_dump(describe(model)), encoding="utf-8")
    return str(path)


def question(
    model: str, plans: Sequence[Mapping[str, Any]], *, cluster: Any = "mi300x-8", pass_: str = "forward", **work: Any
) -> dict[str, Any]:
    """A scenario as a mapping."""
    return {
        "name": "a test",
        "cluster": cluster,
        "workload": {"model": model, "pass": pass_, **work},
        "plans": [dict(plan) for plan in plans],
    }


def further_parameters(model: Architecture) -> int:
    """Parameters of the modules that predict further tokens."""
    return model.multi_token * (model.block_parameters(model.further_block) + model.join_parameters)


def job_of(
    model: Architecture,
    *,
    sequence: int = 1024,
    sequences: int = 1,
    pass_: str = "forward",
    tsp: int = 1,
    tp: int = 1,
    sp: int = 1,
    ep: int = 1,
    dp: int = 1,
    routing: ExpertRouting = BALANCED,
    adapters: Adapters | None = None,
    **switches: Any,
) -> Job:
    """A job that has passed its own check; ``switches`` are those of :class:`Plan`."""
    degrees = dict.fromkeys(mesh_axes(), 1) | {"tsp": tsp, "tp": tp, "sp": sp, "ep": ep, "dp": dp}
    if pass_ == "training":
        switches.setdefault("recomputation", "full")
    host = float(switches.pop("host_bytes_per_s", 0.0))
    work = Work(
        pass_, sequence, sequences, "bf16", ADAMW_UNFUSED, 2.0 * 2**30, routing=routing, adapters=adapters,
        host_bytes_per_s=host,
    )  # fmt: skip
    job = Job(model, Plan("test", degrees, **switches), work)
    check(job)
    return job


def programs_of(job: Job) -> tuple[Program, ...]:
    """The program of every position on the token axis."""
    return tuple(
        write_program(scheme_of(job.plan), job, {job.plan.token_axis: position})
        for position in range(job.plan.token_shards)
    )


#: Jobs that were counted last, and their FLOPs by family: tests ask for several of the same job.
COUNTED: deque[tuple[Job, dict[str | None, float]]] = deque(maxlen=4)


def replica_flops(job: Job, kind: str | None = None) -> float:
    """FLOPs that the ranks of one replica are told to do, of one operator family or all."""
    counted = next((flops for each, flops in COUNTED if each is job), None)
    if counted is None:
        counted = {None: 0}
        for program in programs_of(job):
            for issued in program.unrolled():
                if isinstance(issued.instruction, Compute):
                    for operator in issued.instruction.operators:
                        for family in (None, operator.kind):
                            counted[family] = counted.get(family, 0) + operator.flops
        COUNTED.append((job, counted))
    return job.plan.tp * counted.get(kind, 0)


# Programs for the engine alone: operators that say how long they take, and meshes of plain integers.


def sleep(seconds: float) -> Operator:
    """A kernel that takes as many seconds as it has bytes."""
    return MemoryBound("sleep", seconds)


def seconds_of(operator: Operator) -> float:
    """The price list for :func:`sleep`."""
    return operator.hbm_bytes


def kernel(seconds: float, *, after: Iterable[int] = ()) -> Compute:
    return Compute((sleep(seconds),), "kernel", after=tuple(after))


def collective(
    kind: str, size_bytes: int, *, axis: str = "x", after: Iterable[int] = (), stream: str = "moves", root: int = 0
) -> Collective:
    return Collective(kind, axis, size_bytes, kind, root, after=tuple(after), stream=stream)


def hop(
    size_bytes: int,
    *,
    axis: str = "x",
    to: int = 1,
    wrap: bool = True,
    after: Iterable[int] = (),
    stream: str = "moves",
) -> SendReceive:
    return SendReceive(axis, size_bytes, "hop", to, -to, wrap, after=tuple(after), stream=stream)


def program(*instructions: Instruction, role: str = "all ranks") -> Program:
    return Program(role, instructions)


def grid(*sizes: int, axes: str = "yx") -> Mesh:
    """Ranks in order on axes named by letters, the last one innermost."""
    return Mesh(tuple(axes[-len(sizes) :]), np.arange(np.prod(sizes), dtype=np.int64).reshape(sizes))


def play(
    cluster: Cluster,
    programs: Program | Sequence[Program],
    mesh: Mesh,
    *,
    by: str = "x",
    every_rank: bool = True,
    at_s: float = 0.0,
    interference: Interference | None = None,
    slowness: Mapping[int, float] | None = None,
    cost: Callable[[Operator], float] = seconds_of,
) -> Submission:
    """Run one program on every rank, or several in turn along the axis ``by``."""
    engine = SimulationEngine(cluster, cost, interference=interference, every_rank=every_rank)
    if isinstance(programs, Program):
        programs = (programs,)
    role_of = mesh.positions[by] % len(programs)
    submission = engine.launch(engine.prepare(Assignment(mesh, tuple(programs), role_of, slowness or {})), at_s)
    engine.run()
    return submission


def make_anew() -> None:
    """Nothing is left of what clusters were asked: something that registers itself might change it."""
    Registry[Any]("planet", "tspsim.planets").register(SimpleNamespace(name="mars"))
