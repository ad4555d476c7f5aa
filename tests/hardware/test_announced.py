"""Devices and racks from a data sheet alone: what stands in for measurements, and how wide it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.calibration.run import _kernels
from tspsim.cli import main
from tspsim.hardware import Device, load_device
from tspsim.hardware.announced import LATEST_MEASURED
from tspsim.hardware.families import FAMILIES
from tspsim.network.announced import NODES
from tspsim.operators import Attention, Gemm

ANNOUNCED = ("mi455x", "rubin")
SHEET: dict[str, Any] = {
    "name": "mine", "vendor": "amd", "announced": True, "description": "from a data sheet", "node": "mi355x-8",
    "peak": {"bf16": {"value": "5 PFLOP/s", "source": "its sheet"}},
    "hbm_bandwidth": {"value": "16 TB/s", "source": "its sheet"},
    "memory": {"value": "400 GB", "source": "its sheet"},
}  # fmt: skip


def sheet(folder: Path, **changes: Any) -> Path:
    """The file of a device with these keys changed; None takes one out."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (SHEET | changes).items() if value is not None}))
    return path


def test_a_peak_a_bandwidth_and_a_memory_make_a_device(tmp_path: Path) -> None:
    mine, like = load_device(sheet(tmp_path)), load_device("mi355x")
    assert mine.spec.like == "mi355x" and mine.compute_units == like.compute_units
    assert mine.visible_memory_bytes / mine.memory_bytes == pytest.approx(like.visible_memory_bytes / like.memory_bytes)
    told = {row.what: row for row in mine.provenance()}
    assert told["mine: peak bf16"].basis == "announced" and told["mine: peak bf16"].source == "its sheet"
    assert told["mine: L2"].basis == "assumed" and told["mine: L2"].source.startswith("assumed as mi355x: ")
    assert not {row.basis for row in mine.provenance()} & {"stated", "measured"}


@pytest.mark.parametrize("name", ANNOUNCED)
def test_no_kernel_of_an_announced_device_claims_to_be_measured_or_a_measured_ones_range(name: str) -> None:
    device = load_device(name)
    like = load_device(str(device.spec.like))
    for family in FAMILIES:
        for dtype in ("bf16", "fp8"):
            try:
                measured = like.kernel(family, dtype)
            except InputError:  # nobody measured this family in this type
                continue
            kernel = device.kernel(family, dtype)
            assert kernel.basis.startswith("announced, never measured: ")
            assert all(a < b for a, b in zip(kernel.low, measured.low, strict=True)), (family, dtype)
            assert all(a > b for a, b in zip(kernel.high, measured.high, strict=True)), (family, dtype)


@pytest.mark.parametrize("name", ANNOUNCED)
def test_kernels_reach_the_shares_of_the_device_that_it_is_like_and_never_more_than_the_peak(name: str) -> None:
    device = load_device(name)
    like = load_device(str(device.spec.like))
    for dtype in ("bf16", "fp8"):
        product = Gemm(8192, 8192, 8192, dtype=dtype)
        share, lent = (product.flops / each.peak_of(dtype) / each.time(product).seconds for each in (device, like))
        assert share == pytest.approx(lent, rel=0.15)  # launches and HBM have not become faster by as much
        assert product.flops / device.time(product).low <= device.peak_of(dtype) * (1.0 + 1e-9)
    attention = Attention(((16384, 16384),), 64, 8, 128)
    assert attention.flops / device.time(attention).low <= device.peak_of("bf16") * (1.0 + 1e-9)
    moved = [4e9 / each.memory_bound(4e9).seconds / each.hbm_bytes_per_s for each in (device, like)]
    assert moved[0] == pytest.approx(moved[1], rel=0.02)


def test_a_type_that_its_like_has_not_is_lent_from_a_kindred_one_with_a_wider_range(tmp_path: Path) -> None:
    peak = SHEET["peak"] | {name: {"value": "10 PFLOP/s", "source": "its sheet"} for name in ("fp8", "mxfp4")}
    device = load_device(sheet(tmp_path, like="mi300x", peak=peak))
    narrow, kindred = (device.gemm(8192, 8192, 8192, dtype) for dtype in ("fp8", "mxfp4"))
    assert kindred.high / kindred.low > narrow.high / narrow.low
    with pytest.raises(InputError, match="mine has no matrix units for nvfp4"):
        device.gemm(8192, 8192, 8192, "nvfp4")


def test_the_devices_that_lend_were_measured_themselves() -> None:
    for vendor, name in LATEST_MEASURED.items():
        spec = load_device(name).spec
        assert spec.vendor == vendor and not spec.announced
        own = {kernel.family for kernel in spec.kernels}
        assert own >= {"gemm", "attention_forward", "attention_backward"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"peak": None}, "peak"),
        ({"hbm_bandwidth": None}, "hbm_bandwidth"),
        ({"memory": None}, "memory"),
        ({"achieved": {}}, "achieved"),
        ({"kernels": []}, "kernels"),
        ({"like": "mi356x"}, "like: unknown device 'mi356x'.*did you mean 'mi355x'"),
        ({"like": "rubin"}, "like: 'rubin' is announced itself; name a measured device"),
        ({"like": "mine"}, "like: an announced device cannot be like itself"),
        ({"peak": {"fp8": {"value": "5 PFLOP/s", "source": "its sheet"}}}, "peak.bf16 is needed"),
        ({"announced": False, "like": "mi355x"}, "visible_memory"),
    ],
)
def test_a_wrong_sheet_is_told_by_key(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_device(sheet(tmp_path, **change))
    assert "\n" not in str(caught.value)


def test_like_is_no_key_of_what_was_measured(tmp_path: Path) -> None:
    for kind, name in (("devices", "mi355x"), ("nodes", "mi355x-8")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"like: other\n{catalog.locate(kind, name).read_text()}")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="like is a key of announced"):
            (load_device if kind == "devices" else NODES.load)(str(path))


def test_an_announced_device_is_not_calibrated_before_its_file_is_a_measured_ones() -> None:
    import pandas as pd

    told = r"rubin.yaml: announced: 'rubin' is announced; take `announced` and `like` out"
    with pytest.raises(InputError, match=told):
        _kernels("rubin", pd.DataFrame(), pd.DataFrame(), "2026-11", "a test")


@pytest.mark.parametrize("name", ["helios-72", "vera-rubin-nvl144"])
def test_a_rack_takes_its_library_from_the_one_that_was_measured_with_wider_ranges(name: str) -> None:
    node = NODES.load(name)
    like = NODES.load(str(node.like))
    assert (node.gpus, node.link.bandwidth.value) == (72, 1.8e12)
    assert load_device(node.device).spec.node == name
    measured = {curve.kinds: curve for curve in like.collectives.curves}
    for curve in node.collectives.curves:
        assert curve.basis == "assumed" and curve.source.startswith("as gb200-nvl72: ")
        assert curve.spread.large[1] >= measured[curve.kinds].spread.large[1]
        assert curve.efficiency == measured[curve.kinds].efficiency
    considered = {algorithm for names in node.collectives.inside_node.values() for algorithm in names}
    assert ("in_switch" in considered) == (name == "vera-rubin-nvl144")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("like: gb200-nvl72", "like: gb200-nvl27", "like: unknown node 'gb200-nvl27'"),
        ("like: gb200-nvl72", "like: vera-rubin-nvl144", "like: 'vera-rubin-nvl144' is announced itself"),
        ("like: gb200-nvl72", "like: helios-72", "cannot be like itself"),
        ("gpus: 72", "gpus: 72\nnics: 7", "7 NICs do not divide 72 GPUs"),
        ("library:", "libary:", "libary"),
    ],
)
def test_a_wrong_announced_node_is_told_by_key(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "rack.yaml"
    path.write_text(catalog.locate("nodes", "helios-72").read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=told):
        NODES.load(str(path))


def test_init_writes_a_sheet_and_its_rack_that_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "announced"]) == 0
    for path in ("topologies/devices/next-gpu.yaml", "topologies/nodes/next-gpu-72.yaml"):
        assert main(["check", path]) == 0
    assert answer({"device": "next-gpu"}).plans[0].ran


def answer(cluster: dict[str, Any], **workload: Any) -> Any:
    work = {"model": "llama-3.1-8b", "pass": "training", "sequence": "8Ki", "global_batch": 144} | workload
    return tspsim.simulate({"name": "a", "cluster": cluster, "workload": work, "plans": [{"name": "TP2", "tp": 2}]})


def test_an_answer_says_what_was_announced_and_what_assumed() -> None:
    told = answer({"device": "mi455x"})
    first, second = told.defaults[:2]
    assert first.startswith("mi455x is announced: nobody has published a measurement of it.")
    assert "Assumed as mi355x has them: visible memory, power" in first
    assert second.startswith("helios-72 is announced: ") and "assumed as on gb200-nvl72" in second
    plan = told.plans[0]
    assert 0.0 < plan.mfu <= 1.0
    measured = answer({"device": "gb200"}).plans[0]
    assert plan.range is not None and measured.range is not None
    assert plan.range.high / plan.range.low > measured.range.high / measured.range.low
    assert not any("announced" in sentence for sentence in answer({"device": "gb200"}).defaults)


def test_serving_an_announced_device_says_so_too() -> None:
    asked = {
        "name": "a", "cluster": {"device": "rubin", "gpus_per_node": 8},
        "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 32, "context": "8Ki"},
        "plans": [{"name": "TP8", "tp": 8}],
    }  # fmt: skip
    assert any(sentence.startswith("rubin is announced: ") for sentence in tspsim.simulate(asked).defaults)


def test_a_sheet_with_more_is_never_slower_and_its_range_stays_around_its_time(tmp_path: Path) -> None:
    base = load_device(sheet(tmp_path))
    for key, more in (("hbm_bandwidth", "32 TB/s"), ("peak", "10 PFLOP/s")):
        number = {"value": more, "source": "its sheet"}
        better: Device = load_device(sheet(tmp_path, **{key: {"bf16": number} if key == "peak" else number}))
        for operator in (Gemm(64, 8192, 8192), Gemm(8192, 8192, 8192), Attention(((8192, 8192),), 32, 8, 128)):
            before, after = base.time(operator), better.time(operator)
            assert after.seconds <= before.seconds
            assert after.low <= after.seconds <= after.high


@pytest.mark.parametrize("name", ["a10", "t4", "v100", "v100-16gb", "p100", "l20", "mi250x", "a800", "h100-pcie"])
def test_what_was_sold_but_is_not_fitted_here_is_not_called_announced(name: str) -> None:
    device = load_device(name)
    node = NODES.load(str(device.spec.node))
    kernel = device.kernel("gemm", "bf16")
    assert device.spec.sold and node.sold and node.device == name and kernel.basis.startswith("a data sheet, nothing")
    assert Gemm(8192, 8192, 8192).flops / device.time(Gemm(8192, 8192, 8192)).low <= device.peak_of("bf16") * 1.000001
    asked = {
        "name": "old", "cluster": {"device": name, "nodes": 1},
        "workload": {"model": "qwen3-8b", "pass": "forward", "sequence": 512},
        "plans": [{"name": "P", "tp": node.gpus}],
    }  # fmt: skip
    result = tspsim.simulate(asked)
    told = [sentence for sentence in result.defaults if sentence.startswith(name)]
    assert told and "is known by its data sheet" in told[0] and not any("is announced" in each for each in told)
    (plan,) = result.plans
    assert plan.ran or "GiB" in str(plan.error)
