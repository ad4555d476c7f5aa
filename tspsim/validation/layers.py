"""One decoder layer and small whole models on one device, end to end: the programs of a plan, kernel after kernel.

A row asks for its model on the GPUs that share a layer, forward or training. The kernels of the first rank
come from the program that the plan's scheme writes; ``1/tp`` of a layer has no collective, so collectives are
left out. Kernels cost what :meth:`tspsim.hardware.Device.time` says, at sustained clocks; a benchmark's clock, its
launches and the range of the sum are set here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tspsim.base.errors import InputError
from tspsim.hardware import Device, Estimate
from tspsim.model import Architecture
from tspsim.operators import Gemm, Operator, Role
from tspsim.parallel import Job, peak_memory, scheme_of, write_program
from tspsim.program import Compute

from .answers import RowAnswers, each_row
from .cells import Row
from .devices import device
from .kernels import MICROSECONDS
from .runs import Run, question_of, served

#: Operators of a measurement, and how often each runs.
Kernels = Mapping[Operator, int]
#: The tables name no GPU in a column; their file names do.
MEASURED_ON = "h200"
#: Least time of a layer's forward and backward. A backward that Python's autograd drives cannot end before its calls
#: are issued from one thread (PyTorch 2.11, no graph replay of the backward).
LEAST_FORWARD_AND_BACKWARD_S = 2.1e-3
#: Idle time of the device, before and between kernels that take longer than their launches.
FIRST_LAUNCHES_S = 0.5e-3
#: The tables do not say what the device did before, and its clock is one factor for everything on the matrix units.
#: Equal products back to back ran at 643 to 769 TFLOP/s (overlap table), and our layers of one length differ by this
#: factor each way around the sum of their kernels.
CLOCK_SPREAD = 1.13
#: The overlap table: products in one measurement, and the share of a copy's time that they lose beside it.
PRODUCTS_BESIDE_A_COPY = 8
LOST_BESIDE_A_COPY = 0.68
#: Library of the kernels in the measured models, where the device has several.
LIBRARY = "pytorch"
#: PyTorch's fused AdamW reads and writes bf16 weights and moments, and reads the gradients. The simulator counts
#: these weights as optimizer state.
FUSED_ADAMW = (("weights", 0.0), ("gradients", 2.0), ("state", 6.0))
#: Part of the program that a measured layer lacks.
OPTIMIZER = "optimizer"


@each_row
def predict_layers(row: Row, position: int, answers: RowAnswers) -> None:
    """One layer or ``1/tp`` of it: forward, or forward and backward; compiled rows only."""
    if row["compiled"] != 1:
        raise InputError("eager execution is not modelled: compiled kernels are")
    passes = LAYER_PASSES.get(row["pass"])
    if passes is None:
        raise InputError("pass is neither fwd nor fwd+bwd")
    model = _architecture(row, layers=1, vocab=0)
    job = job_of(model, passes, int(row["b"]), int(row["s"]), tp=int(row["tp"]))
    total = add(device(MEASURED_ON), kernels_of(job, without=OPTIMIZER))
    if job.training:
        total = Estimate(*(max(value + FIRST_LAUNCHES_S, LEAST_FORWARD_AND_BACKWARD_S) for value in total))
    answers.predict(position, *(value * MICROSECONDS for value in total))


#: The table's name of a pass → the simulator's.
LAYER_PASSES = {"fwd": "forward", "fwd+bwd": "training"}


@each_row
def predict_models(row: Row, position: int, answers: RowAnswers) -> None:
    """A whole model: prefill, one decoding step, or a training step with a fused AdamW; time and peak memory."""
    model = _architecture(row, layers=int(row["layers"]), vocab=int(row["vocab"]))
    if row["phase"] not in JOBS:
        raise InputError("phase is none of prefill, decode, train")
    job = JOBS[row["phase"]](model, int(row["b"]), int(row["s"]), int(row["ctx"]))
    total = add(device(MEASURED_ON).with_engine(LIBRARY), kernels_of(job))
    memory = peak_memory(job, scheme_of(job.plan).residency)
    answers.predict(position, *(value * MICROSECONDS for value in total))
    answers.also(position, "peak_gb", sum(memory.values()) / 1e9)


def prefill_job(model: Architecture, batch: int, sequence: int, context: int) -> Job:
    """Prompts without cached tokens."""
    question = served(model, MEASURED_ON, "prefill", sequence=sequence, sequences_per_replica=batch)
    return question.job(question.plans[0])


def decode_job(model: Architecture, batch: int, sequence: int, context: int) -> Job:
    """One token per sequence; the cache of ``context`` tokens includes it."""
    question = served(model, MEASURED_ON, "decode", batch=batch, context=context - 1)
    return question.job(question.plans[0])


#: The table's name of a phase → function from (model, batch, sequence, context) to a job.
JOBS: Mapping[str, Callable[[Architecture, int, int, int], Job]] = {
    "prefill": prefill_job,
    "decode": decode_job,
    "train": lambda model, batch, sequence, context: job_of(model, "training", batch, sequence),
}


@each_row
def predict_overlap(row: Row, position: int, answers: RowAnswers) -> None:
    """Eight products beside one copy inside HBM, and each of the two alone."""
    on = device(MEASURED_ON)
    products = add(on, {Gemm(int(row["m"]), int(row["n"]), int(row["k"])): PRODUCTS_BESIDE_A_COPY})
    copy = on.memory_bound(2.0 * row["copy_mb"] * 2**20)
    lost = Estimate(*(LOST_BESIDE_A_COPY * value for value in copy))
    answers.predict(position, *(value * MICROSECONDS for value in join((products, lost))))
    answers.also(position, "gemm_alone_us", products.seconds * MICROSECONDS)
    answers.also(position, "copy_alone_us", copy.seconds * MICROSECONDS)


def job_of(model: Architecture, passes: str, batch: int, sequence: int, tp: int = 1) -> Job:
    """The job of one replica that works on ``batch`` sequences at once.

    Raises
    ------
    InputError
        The degree divides no heads or columns of the model.
    """
    run = Run(
        model=model, device=MEASURED_ON, gpus=tp, tp=tp, pass_=passes, sequence=sequence, micro_batch=batch,
        global_batch=batch, recomputation="none", optimizer=FUSED_ADAMW,
    )  # fmt: skip
    question = question_of(run, micro_batches=1)
    return question.job(question.plans[0])


def kernels_of(job: Job, without: str = "") -> Kernels:
    """The kernels of the first rank, without one part of the program."""
    kernels: Counter[Operator] = Counter()
    for instruction, times in write_program(scheme_of(job.plan), job).counted():
        if isinstance(instruction, Compute) and instruction.part != without:
            for operator in instruction.operators:
                kernels[operator] += times
    return kernels


def add(on: Device, kernels: Kernels) -> Estimate:
    """The sum of kernels that run one after the other, as a benchmark repeats them.

    Kernels on the matrix units run faster in shorter calls (:meth:`Device.cool_gain`). A family's
    error is one factor for all its calls, and families err independently: their ranges add in quadrature.
    """
    counted = [(operator, times, on.time(operator)) for operator, times in kernels.items()]
    gain = on.cool_gain(sum(times * estimate.seconds for _, times, estimate in counted))
    families: dict[str, list[float]] = {}
    for operator, times, estimate in counted:
        kind = f"{operator.kind} {operator.computes}" if operator.role is Role.ATTENTION else operator.kind
        family = families.setdefault(kind, [0.0, 0.0, 0.0])
        factor = times * (1.0 + on.matrix_share(operator) * (1.0 / gain - 1.0))
        for index, value in enumerate(estimate):
            family[index] += factor * value
    hot = [Estimate(*family) for kind, family in families.items() if kind != "memory_bound"]
    rest = [Estimate(*family) for kind, family in families.items() if kind == "memory_bound"]
    return join([slow_or_cool(join(hot)) if hot else Estimate(0.0, 0.0, 0.0), *rest])


def slow_or_cool(estimate: Estimate) -> Estimate:
    """The estimate with the state of the clock in its range."""
    seconds = estimate.seconds
    return Estimate(
        seconds,
        seconds * math.exp(-math.hypot(math.log(seconds / estimate.low), math.log(CLOCK_SPREAD))),
        seconds * math.exp(math.hypot(math.log(estimate.high / seconds), math.log(CLOCK_SPREAD))),
    )


def join(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent estimates."""
    seconds = sum(part.seconds for part in parts)
    faster = sum((part.seconds - part.low) ** 2 for part in parts) ** 0.5
    slower = sum((part.high - part.seconds) ** 2 for part in parts) ** 0.5
    return Estimate(seconds, seconds - faster, seconds + slower)


def _architecture(row: Row, *, layers: int, vocab: int) -> Architecture:
    """The model of a row; a head's width is the hidden size over the heads."""
    heads = int(row["heads"])
    return Architecture(
        name=str(row["model"]),
        layers=layers,
        hidden=int(row["h"]),
        heads=heads,
        kv_heads=int(row["kv"]),
        head_dim=int(row["h"]) // heads,
        ffn=int(row["ffn"]),
        vocab=vocab,
        tied_embeddings=True,
        source="the row's own columns",
    )
