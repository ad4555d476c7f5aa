"""Start and rate of a library's transfers fitted to steps of two sizes: a made-up machine whose two factors are stated.

Every transfer of the machine starts ``start`` times as slowly and moves bytes ``width`` times as slowly as the shipped
node says; the tuner of the shipped node takes the same ways. Kernels and transfers scatter.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim.calibration.collectives import TransferFits
from tspsim.calibration.measurements import MeasuredCollective
from tspsim.calibration.network_files import MeasuredTransfers, calibrate_transfers
from tspsim.calibration.traced_transfers import IN_STEPS, transfers_of
from tspsim.network import Cluster, load_cluster
from tspsim.network.specs import NodeSpec
from tspsim.step.question import look_up
from tspsim.traces import read
from tspsim.traces.comparison import Laid
from tspsim.traces.lay import lay
from tspsim.traces.simulated import Simulated

SIZES = [1 << power for power in (16, 20, 22, 24, 26, 28)]


def asked(sequence: int) -> dict[str, Any]:
    work = {"model": "llama-3.2-1b", "pass": "training", "sequence": sequence, "sequences_per_replica": 1}
    return {"name": f"s{sequence}", "cluster": {"device": "h100", "nodes": 1}, "workload": work,
            "plans": [{"name": "TP8", "tp": 8, "recomputation": "none"}]}  # fmt: skip


def slower(cluster: Cluster, start: float, width: float) -> Cluster:
    """The cluster with every measured curve that much slower."""
    curves = tuple(
        curve.model_copy(
            update={
                "base": tuple(start * value for value in curve.base),
                "hop": tuple(start * value for value in curve.hop),
                "growth": start * curve.growth,
                "efficiency": tuple(value / width for value in curve.efficiency),
                "own": curve.own / width if curve.own else None,
            }
        )
        for curve in cluster.node.collectives.curves
    )
    collectives = cluster.node.collectives.model_copy(update={"curves": curves})
    return replace(cluster, node=cluster.node.model_copy(update={"collectives": collectives}))


def seconds(cluster: Cluster, size: float, kind: str = "all_reduce", library: str = "none yet") -> float:
    row = MeasuredCollective(cluster, kind, 8, size, library, 1.0)
    return min(sum(way.cost.alone(size)) for way in row.ways(cluster))


def transfers(
    folder: Path, sequences: tuple[int, ...], start: float, width: float, noise: float, seed: int
) -> MeasuredTransfers:
    scatter, steps = random.Random(seed), []
    for sequence in sequences:
        question = look_up(tspsim.load(asked(sequence)))
        machine = slower(question.cluster, start, width)

        def factor(item: Any, question: Any = question, machine: Cluster = machine) -> float:
            noisy = math.exp(scatter.gauss(0.0, noise))
            if not item.is_transfer:
                return noisy
            return noisy * seconds(machine, item.size_bytes) / seconds(question.cluster, item.size_bytes)

        document, end = kineto([], device="h100", world_size=8), 0.0
        document["traceEvents"] = []
        for event in sorted(
            of_lane(Simulated(question, question.plans[0]).lane(0).operations, factor), key=lambda each: each["ts"]
        ):
            begin = max(event["ts"], end)
            end = begin + event["dur"]
            document["traceEvents"].append({**event, "ts": begin})
        path = written(folder / f"s{sequence}.json.gz", document)
        steps.append(lay(read([path]), question))
    return transfers_of(steps)


def learnt(*arguments: Any) -> TransferFits:
    return calibrate_transfers(transfers(*arguments), "a test", held_out=False)


def corrected(fits: TransferFits) -> Cluster:
    """The cluster with the node's file that a calibration writes."""
    cluster = load_cluster("hgx-h100-8")
    node = NodeSpec.model_validate(fits.documents["nodes", "hgx-h100-8"])
    return replace(cluster, node=cluster.node.model_copy(update={"collectives": node.collectives}))


@pytest.mark.parametrize(
    ("start", "width", "noise", "seed"),
    [(2.0, 1.0, 0.03, 1), (1.0, 1.4, 0.1, 7), (2.0, 1.4, 0.1, 11), (0.5, 1.3, 0.03, 2)],
)
def test_two_sizes_tell_the_start_from_the_rate(
    tmp_path: Path, start: float, width: float, noise: float, seed: int
) -> None:
    fits = learnt(tmp_path, (64, 16384), start, width, noise, seed)
    library = f"NCCL {IN_STEPS}"
    curves = fits.documents["nodes", "hgx-h100-8"]["collectives"]["curves"]
    (factors,) = {
        (each["libraries"][library]["latency"], each["libraries"][library]["bandwidth"])
        for each in curves
        if library in each["libraries"]
    }
    assert factors == (pytest.approx(start, rel=0.07), pytest.approx(1.0 / width, rel=0.07))
    # Sizes that no step had are told too, whichever way the tuner takes there.
    machine, now = slower(load_cluster("hgx-h100-8"), start, width), corrected(fits)
    for size in SIZES:
        assert seconds(now, size, library=library) == pytest.approx(seconds(machine, size), rel=0.07), size


def test_a_slower_all_reduce_is_no_measurement_of_gathers(tmp_path: Path) -> None:
    """The ring's numbers serve gathers too; what steps say of all-reduces stays with all-reduces."""
    now = corrected(learnt(tmp_path, (64, 16384), 2.0, 1.4, 0.0, 1))
    before = load_cluster("hgx-h100-8")
    for size in SIZES:
        for kind in ("all_gather", "reduce_scatter", "all_to_all"):
            assert seconds(now, size, kind, f"NCCL {IN_STEPS}") == pytest.approx(seconds(before, size, kind), rel=1e-6)


def test_one_size_is_one_factor_for_every_size_with_a_wide_range(tmp_path: Path) -> None:
    """Without the few bytes of the loss a step has one size of all-reduces, and tells no start from a rate."""
    measured = transfers(tmp_path, (1024,), 1.5, 1.5, 0.05, 3)
    rows = measured.nodes["hgx-h100-8"]
    largest = [row for row in rows if row.size_bytes == max(row.size_bytes for row in rows)]
    fits = calibrate_transfers(replace(measured, nodes={"hgx-h100-8": largest}), "a test", held_out=False)
    curves = fits.documents["nodes", "hgx-h100-8"]["collectives"]["curves"]
    found = [each for each in curves if f"NCCL {IN_STEPS}" in each["libraries"]]
    assert [each["algorithms"] for each in found] == [["in_switch"], ["ring"]]
    for each in found:
        factors = each["libraries"][f"NCCL {IN_STEPS}"]
        assert factors["latency"] * factors["bandwidth"] == pytest.approx(1.0, rel=1e-3)
        for low, high in (each["spread"]["small"], each["spread"]["large"]):
            assert low <= 1 / 1.6 + 1e-3 and high >= 1.6
    machine, now = slower(load_cluster("hgx-h100-8"), 1.5, 1.5), corrected(fits)
    for size in SIZES:
        assert seconds(now, size, library=f"NCCL {IN_STEPS}") == pytest.approx(seconds(machine, size), rel=0.07)


def sharded(model: str) -> dict[str, Any]:
    """FSDP on MI300X, whose file has measured numbers for all-reduces alone."""
    work = {"model": model, "pass": "training", "sequence": 512, "sequences_per_replica": 1}
    return {"name": model, "cluster": {"device": "mi300x", "nodes": 1}, "workload": work,
            "plans": [{"name": "Z3", "dp": 8, "zero": 3, "recomputation": "none"}]}  # fmt: skip


def gathering(folder: Path, model: str) -> Laid:
    """A step whose gathers and scatters take 1.3 of the shipped node's time, one by one."""
    question = look_up(tspsim.load(sharded(model)))

    def factor(item: Any) -> float:
        if item.kind not in ("all_gather", "reduce_scatter"):
            return 1.0
        alone = seconds(question.cluster, item.size_bytes, item.kind) / item.seconds
        return 1.3 * alone

    document, end = kineto([], device="mi300x", world_size=8), 0.0
    lane = Simulated(question, question.plans[0]).lane(0)
    document["traceEvents"] = []
    for event in sorted(of_lane(lane.operations, factor), key=lambda each: each["ts"]):
        begin = max(event["ts"], end)
        end = begin + event["dur"]
        document["traceEvents"].append({**event, "ts": begin})
    return lay(read([written(folder / f"{model}.json.gz", document)]), question)


def test_gathers_without_a_measured_curve_are_learnt_too(tmp_path: Path) -> None:
    """Two models' layers are two sizes. The curve begins as the times that the node's protocol lines have."""
    steps = [gathering(tmp_path, model) for model in ("llama-3.2-1b", "llama-3.1-8b")]
    measured = transfers_of(steps)
    fits = calibrate_transfers(measured, "a test", held_out=False)
    (name,) = measured.nodes
    assert {fit.what.partition(" by ")[0] for fit in fits.fits} >= {"all_gather", "reduce_scatter"}
    before = steps[0].lane.question.cluster
    node = NodeSpec.model_validate(fits.documents["nodes", name])
    now = replace(before, node=before.node.model_copy(update={"collectives": node.collectives}))
    for kind in ("all_gather", "reduce_scatter"):
        for size in SIZES[2:]:
            told = seconds(now, size, kind, f"RCCL {IN_STEPS}") / seconds(before, size, kind)
            assert told == pytest.approx(1.3, rel=0.1), (kind, size)


def test_transfers_beside_transfers_tell_nothing(tmp_path: Path) -> None:
    """FSDP gathers weights while it scatters gradients: both have half the links, and say nothing of either alone."""
    laid = gathering(tmp_path, "llama-3.2-1b")
    alone = len(transfers_of([laid]).nodes["mi300x-8"])
    starts, word = laid.trace.columns["start_s"], laid.trace.word("kind")
    scatters, gathers = (np.flatnonzero(word == kind) for kind in ("reduce_scatter", "all_gather"))
    for scatter, gather in zip(scatters, gathers[-len(scatters) :], strict=True):
        starts[gather] = starts[scatter]
    rows = transfers_of([laid])
    assert any("beside kernels or other transfers" in reason for reason in rows.left_out)
    assert len(rows.nodes["mi300x-8"]) <= alone - 2 * len(scatters) + 2
