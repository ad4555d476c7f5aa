"""Fitting collectives: what made a table comes back, few rows move little, and outliers do not pull."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tspsim.base.errors import InputError
from tspsim.calibration.collectives import TransferFits, fit_fabric, fit_node
from tspsim.calibration.forms import TransferFit
from tspsim.calibration.measurements import MeasuredCollective, MeasuredExchange
from tspsim.calibration.residuals import transfer_spread
from tspsim.network import Cluster, ExpertExchange, build_cluster, collective, exchange_experts, load_cluster
from tspsim.network.calibration import CollectivesSpec, LibraryFactors

NODE = load_cluster("hgx-h100-8")
SIZES = tuple(2**power for power in range(9, 33))
RING = ("all_gather", "reduce_scatter")


def with_collectives(cluster: Cluster, collectives: CollectivesSpec) -> Cluster:
    return replace(cluster, node=cluster.node.model_copy(update={"collectives": collectives}))


def with_ring(cluster: Cluster, **changed: Any) -> Cluster:
    """The cluster with another first curve."""
    library = cluster.node.collectives
    curves = (library.curves[0].model_copy(update=changed), *library.curves[1:])
    return with_collectives(cluster, library.model_copy(update={"curves": curves}))


def measured(
    truth: Cluster, kinds: Sequence[str] = RING, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = (2, 4, 8), *,
    library: str = "mine", known_as: str | None = None, scatter: float = 0.02, told: Cluster | None = None,
) -> list[MeasuredCollective]:  # fmt: skip
    """Rows as another cluster makes them, told of ``told``."""
    random = np.random.default_rng(5)
    rows = []
    for kind, n, size in itertools.product(kinds, ranks, sizes):
        seconds = collective(truth, range(n), kind, size, library=known_as).alone_s
        noisy_s = seconds * float(np.exp(random.normal(0.0, scatter)))
        rows.append(MeasuredCollective(told or NODE, kind, n, size, library, noisy_s))
    return rows


def errors(rows: Sequence[MeasuredCollective], collectives: CollectivesSpec | None = None) -> float:
    """Median of |predicted/measured − 1| by the file, or by these collectives."""
    found = []
    for row in rows:
        cluster = row.cluster if collectives is None else with_collectives(row.cluster, collectives)
        library = row.library if row.library in cluster.node.collectives.libraries else None
        traffic = collective(cluster, range(row.ranks), row.kind, row.size_bytes, library=library)
        found.append(traffic.alone_s / row.seconds)
    return float(np.median(np.abs(np.array(found) - 1.0)))


@pytest.fixture(scope="module")
def slower() -> list[MeasuredCollective]:
    """A node whose rings start later and whose links reach less."""
    ring = NODE.node.collectives.curves[0]
    return measured(with_ring(NODE, base=tuple(2.0 * each for each in ring.base), efficiency=(0.0134, 0.25, 0.6)))


@pytest.fixture(scope="module")
def fitted(slower: list[MeasuredCollective]) -> tuple[CollectivesSpec, TransferFits]:
    return fit_node(slower, "here")


@pytest.mark.in_turn(5, group="fits")
def test_what_made_a_table_comes_back(
    slower: list[MeasuredCollective], fitted: tuple[CollectivesSpec, TransferFits]
) -> None:
    now, fits = fitted
    (fit,) = fits.fits
    assert isinstance(fit, TransferFit)
    assert fit.moved == "curve" and fit.libraries == ("mine",)
    assert fit.before is not None and fit.after is not None
    assert fit.rows_used + fit.after.rows == len(slower)
    assert fit.before.median > 0.2
    assert fit.after.median < 0.03
    curve, was = now.curves[0], NODE.node.collectives.curves[0]
    factors = curve.libraries["mine"]
    assert factors.latency * curve.base[2] == pytest.approx(2.0 * was.base[2], rel=0.25)
    assert factors.bandwidth * curve.efficiency[2] == pytest.approx(0.6, rel=0.06)
    assert errors(slower, now) < 0.03 < 0.2 < errors(slower)


def test_a_fit_says_where_it_is_from_and_how_far_off_it_is(fitted: tuple[CollectivesSpec, TransferFits]) -> None:
    curve = fitted[0].curves[0]
    assert curve.source.startswith("here: mine, ")
    assert "rows used;" in curve.source and "left out: median" in curve.source
    assert curve.basis == "fitted"
    assert fitted[0].default_library == "mine"
    low, high = curve.spread.large
    assert 0.9 < low < 1.0 < high < 1.1


def test_what_was_not_measured_stays(fitted: tuple[CollectivesSpec, TransferFits]) -> None:
    was, now = NODE.node.collectives, fitted[0]
    assert now.curves[1:] == was.curves[1:]
    assert now.custom_all_reduce == was.custom_all_reduce
    assert set(was.curves[0].libraries) < set(now.curves[0].libraries)
    assert now.curves[0].growth > 0.0 and now.across == was.across


def test_a_larger_message_and_a_larger_group_still_take_longer(fitted: tuple[CollectivesSpec, TransferFits]) -> None:
    cluster = with_collectives(NODE, fitted[0])
    for kind in RING:
        times = [[collective(cluster, range(n), kind, size).alone_s for size in SIZES] for n in (2, 3, 4, 6, 8)]
        assert (np.diff(times, axis=1) >= 0.0).all()
        assert (np.diff(times, axis=0) >= -1e-12).all()


@pytest.mark.in_turn(5, group="fits")
def test_the_same_rows_make_the_same_fit(
    slower: list[MeasuredCollective], fitted: tuple[CollectivesSpec, TransferFits]
) -> None:
    assert fit_node(slower, "here") == fitted


def test_few_rows_move_only_the_factors_of_their_library() -> None:
    was = NODE.node.collectives.curves[0]
    slow = {"slow": LibraryFactors(latency=1.5, bandwidth=0.8)}
    rows = measured(with_ring(NODE, libraries=slow), ("all_gather",), SIZES, (8,), known_as="slow")
    now, fits = fit_node(rows, "here")
    curve = now.curves[0]
    assert fits.fits[0].moved == "factors" and fits.fits[0].rows_used < 40
    assert curve.libraries["mine"].latency == pytest.approx(1.5, rel=0.05)
    assert curve.libraries["mine"].bandwidth == pytest.approx(0.8, rel=0.05)
    assert "here: mine" in (curve.libraries["mine"].source or "")
    same = {"libraries": was.libraries, "spread": was.spread}
    assert curve.model_copy(update=same) == was
    assert curve.spread.small[0] <= was.spread.small[0] and curve.spread.large[1] >= was.spread.large[1]


@pytest.mark.in_turn(5, group="fits")
def test_a_few_wild_rows_do_not_pull(
    slower: list[MeasuredCollective], fitted: tuple[CollectivesSpec, TransferFits]
) -> None:
    wild = [replace(row, seconds=row.seconds * 6.0) if i % 20 == 7 else row for i, row in enumerate(slower)]
    now, _ = fit_node(wild, "here")
    for n in (2, 8):
        for size in (2**12, 2**22, 2**31):
            clean, dirty = (
                collective(with_collectives(NODE, each), range(n), "all_gather", size).alone_s
                for each in (fitted[0], now)
            )
            assert dirty == pytest.approx(clean, rel=0.05)


def test_a_file_that_tells_the_rows_as_well_stays() -> None:
    rows = measured(NODE, library="NCCL 2.29.2", known_as="NCCL 2.29.2", scatter=0.05)
    now, fits = fit_node(rows, "here")
    assert fits.fits == ()
    assert "predicted the others better" in fits.kept[0]
    assert now == NODE.node.collectives.model_copy(update={"default_library": "NCCL 2.29.2"})


def test_a_collective_that_names_no_library_gets_the_default(fitted: tuple[CollectivesSpec, TransferFits]) -> None:
    cluster = with_collectives(NODE, fitted[0])
    unnamed, named, other = (
        collective(cluster, range(8), "all_gather", 2**20, library=library) for library in (None, "mine", "NCCL 2.23")
    )
    assert unnamed == named != other


@pytest.mark.in_turn(5, group="fits")
def test_a_kind_without_a_curve_gets_one_where_rows_carry_it() -> None:
    """RCCL's all-gathers on a mesh have no measured curve in the catalog."""
    mesh = load_cluster("mi300x-8")
    assert not any("all_gather" in curve.kinds for curve in mesh.node.collectives.curves)
    curve = mesh.node.collectives.curves[0].model_copy(update={
        "kinds": ("all_gather",), "ranks": (2, 8), "algorithms": ("direct", "multi_ring", "ring"),
        "base": (9e-6, 1.5e-5, 3e-5), "hop": (1e-6, 1e-6, 1e-6),
    })  # fmt: skip
    truth = with_collectives(mesh, mesh.node.collectives.model_copy(update={"curves": (curve,)}))
    rows = measured(truth, ("all_gather",), told=mesh, library="RCCL 2.22")
    now, _ = fit_node(rows, "here")
    assert len(now.curves) == len(mesh.node.collectives.curves) + 1
    assert now.curves[-1].kinds == ("all_gather",) and now.curves[-1].ranks == (2, 8)
    assert errors(rows, now) < 0.05 < errors(rows)
    few, why = fit_node(rows[:20], "here")
    assert few.curves == mesh.node.collectives.curves and why.fits == ()
    assert "40 to fit make one" in why.left_out[0]


def test_on_a_mesh_two_gpus_have_one_link_by_a_curve_too() -> None:
    mesh = load_cluster("mi300x-8")
    curve = mesh.node.collectives.curves[0].model_copy(
        update={"kinds": ("all_gather",), "ranks": (2, 8), "algorithms": ("direct", "multi_ring", "ring")}
    )
    node = with_collectives(mesh, mesh.node.collectives.model_copy(update={"curves": (curve,)}))
    two, eight = (collective(node, range(n), "all_gather", 2**32).alone_s for n in (2, 8))
    assert 2**32 / 2 / two == pytest.approx(curve.efficiency[2] * 64e9, rel=0.02)
    assert 2**32 * 7 / 8 / eight == pytest.approx(curve.efficiency[2] * 448e9, rel=0.02)


@pytest.mark.in_turn(5, group="fits")
def test_an_engines_kernels_are_fitted_too() -> None:
    library = NODE.node.collectives
    engine = next(each for each in library.custom_all_reduce if each.library == "vllm custom")
    slow = engine.model_copy(
        update={"one_shot": engine.one_shot.model_copy(update={"base": 1.2e-5, "efficiency": 0.3})}
    )
    truth = with_collectives(NODE, library.model_copy(update={"custom_all_reduce": (slow,)}))
    rows = measured(truth, ("all_reduce",), SIZES[:20], library="vllm custom", known_as="vllm custom")
    now, fits = fit_node(rows, "here")
    assert [fit.what for fit in fits.fits] == ["all_reduce of vllm custom"]
    found = next(each for each in now.custom_all_reduce if each.library == "vllm custom")
    assert found.one_shot.base == pytest.approx(1.2e-5, rel=0.15)
    assert now.default_library is None
    assert errors(rows, now) < 0.04 < errors(rows)


@pytest.mark.in_turn(5, group="fits")
def test_an_expert_exchange_is_fitted_too() -> None:
    library = NODE.node.collectives
    dispatch = library.experts[0]
    slow = dispatch.model_copy(update={"base": 5e-5, "efficiency": 0.4})
    truth = with_collectives(NODE, library.model_copy(update={"experts": (slow, *library.experts[1:])}))
    random = np.random.default_rng(3)
    rows = [
        MeasuredExchange.of(
            NODE, "dispatch", "normal", 8, asked,
            exchange_experts(truth, range(8), "dispatch", asked).alone_s * float(np.exp(random.normal(0.0, 0.02))),
        )
        for asked in (
            ExpertExchange(tokens=float(tokens), token_bytes=size, topk=topk, multiprocessors=units)
            for tokens in (64, 256, 1024, 4096, 16384) for size in (2048.0, 7392.0) for topk in (2, 8)
            for units in (8, 16, 24, 48, 96)
        )
    ]  # fmt: skip
    now, fits = fit_node(rows, "here")
    (fit,) = fits.fits
    assert fit.what == "normal dispatch of deepep, one node" and fit.moved == "curve"
    assert fit.before is not None and fit.after is not None
    assert fit.after.median < 0.03 < 0.2 < fit.before.median
    assert now.experts[0].base == pytest.approx(5e-5, rel=0.05)
    assert now.experts[0].efficiency == pytest.approx(0.4, rel=0.1)
    assert now.experts[1:] == library.experts[1:] and now.curves == library.curves
    with pytest.raises(InputError, match="no asynchronous dispatch"):
        MeasuredExchange.of(NODE, "dispatch", "asynchronous", 8, ExpertExchange(1.0, 7168.0), 1e-4)


def test_a_fabrics_factors_are_fitted() -> None:
    pair = build_cluster("h100", 2, "rail-optimised-400g")
    assert pair.fabric is not None and pair.fabric.collectives is not None
    slow = pair.fabric.collectives.model_copy(update={"latency": 3.0, "bandwidth": 0.7})
    truth = replace(pair, fabric=pair.fabric.model_copy(update={"collectives": slow}))
    factors, fits = fit_fabric(measured(truth, ("all_reduce",), ranks=(16,), told=pair), "here")
    assert factors is not None
    assert factors.latency == pytest.approx(3.0, rel=0.06)
    assert factors.bandwidth == pytest.approx(0.7, rel=0.03)
    assert factors.source.startswith("here, ") and fits.fits[0].what == "between nodes on rail-optimised-400g"


def test_rows_that_cannot_move_a_fabric_say_why() -> None:
    known = build_cluster("mi300x", 2, "rails-400g")
    bare = known.node.model_copy(update={"collectives": known.node.collectives.model_copy(update={"across": None})})
    amd = replace(known, node=bare)
    factors, fits = fit_fabric(measured(amd, ("all_reduce",), ranks=(16,), told=amd), "here")
    assert factors is None and fits.fits == ()
    assert "states no regimes between nodes" in fits.left_out[0]
    pair = build_cluster("h100", 2, "rail-optimised-400g")
    factors, fits = fit_fabric(measured(pair, ("all_reduce",), SIZES[:2], (16,), told=pair), "here")
    assert factors is None and "3 are needed" in fits.left_out[0]


def test_a_range_holds_nine_of_ten_and_knows_small_from_large() -> None:
    random = np.random.default_rng(1)
    share = random.uniform(0.0, 1.0, 4000)
    residual = random.normal(0.0, 0.3 - 0.25 * share)
    spread = transfer_spread(residual, share)
    low, high = np.array([spread.factors(1.0 - part, part) for part in share]).T
    inside = (np.log(low) <= residual) & (residual <= np.log(high))
    assert 0.87 < inside.mean() < 0.95
    assert spread.small[1] > spread.large[1] > 1.0
