"""Operators are an open set: what one is decides, not how it is labelled, and whoever has a pricer can run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import grid, make_anew, play, program, question

import tspsim
from tspsim import operators
from tspsim.base import registry
from tspsim.base.errors import TspsimError
from tspsim.hardware import Costs, Device, Estimate, load_device, pricer, pricers
from tspsim.model.layer import LayerShard
from tspsim.network import load_cluster
from tspsim.operators import (
    Attention,
    DecodeAttention,
    FusedMoE,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operator,
    Role,
    Sharding,
)
from tspsim.program import Compute

LORA = {"rank": 16}
TRAINED: dict[str, Any] = {"cluster": "hgx-b200-8", "pass_": "training", "sequence": 4096}
QUESTIONS = {
    "dense": question("llama-3.1-8b", [{"name": "P", "tp": 8}], **TRAINED),
    "folded": question("tsp-8b", [{"name": "P", "tsp": 8}], sequence=65536),
    "experts": question("qwen3-30b-a3b", [{"name": "P", "ep": 8, "zero": 1}], **TRAINED),
    "latent": question("deepseek-v2-lite", [{"name": "P", "tp": 2, "ep": 8, "sequence_regions": True}], **TRAINED),
    "adapters": question("llama-3.1-8b", [{"name": "P", "tp": 2, "zero": 1}], adapters=LORA, **TRAINED),
    "adapters of experts and latents": question(
        "deepseek-v2-lite", [{"name": "P", "ep": 8, "recomputation": "none"}], adapters=LORA, **TRAINED
    ),
    "launches": question("llama-3.1-8b", [{"name": "P", "tp": 4, "pp": 2}], stack="nanotron", **TRAINED),
    "launches of experts": question("qwen3-30b-a3b", [{"name": "P", "ep": 8}], stack="megatron-core", **TRAINED),
    "scores written out": question("llama-3.1-8b", [{"name": "P", "tp": 8}], stack="megatron-2022", **TRAINED),
    "a slow attention": question("llama-3.1-8b", [{"name": "P", "tp": 8}], stack="llm-foundry", **TRAINED),
}


def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator made from here on is called x."""
    for cls in (Gemm, GroupedGemm, FusedMoE, Attention, DecodeAttention, MemoryBound):
        original = cls.__init__

        def init(self: Operator, *sizes: Any, original: Any = original, **more: Any) -> None:
            original(self, *sizes, **more)
            object.__setattr__(self, "name", "x")

        monkeypatch.setattr(cls, "__init__", init)
    make_anew()


@pytest.mark.in_turn(5)
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", QUESTIONS)
def test_labels_decide_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tspsim.simulate(QUESTIONS[name]).plan("P")
    assert named.ran, named.error
    nameless(monkeypatch)
    renamed = tspsim.simulate(QUESTIONS[name]).plan("P")
    assert renamed.timeline is not None and named.timeline is not None
    for plan, label in ((named, "projection"), (renamed, "x [")):
        assert any(label in entry.shape for entry in plan.timeline.labels)  # type: ignore[union-attr]
    assert not any("projection" in entry.shape for entry in renamed.timeline.labels)
    assert renamed.step_time_s == named.step_time_s
    assert renamed.memory == named.memory
    assert renamed.compute_by_kind_s == named.compute_by_kind_s
    assert renamed.breakdown_s == named.breakdown_s
    assert renamed.block_forward_tokens_per_s == named.block_forward_tokens_per_s
    assert renamed.range == named.range


def test_roles_say_how_weights_are_divided() -> None:
    """Megatron's: what leaves the residual stream by columns, what returns to it by rows; latents and routers whole."""
    columns, rows = Sharding.COLUMNS, Sharding.ROWS
    assert {role for role in Role if role.sharding is rows} == {Role.OUTPUT, Role.DOWN, Role.EXPERTS_DOWN}
    for role in (Role.QKV, Role.LATENT_QUERIES, Role.LATENT_KEYS_VALUES, Role.GATE_UP, Role.EXPERTS_GATE_UP, Role.HEAD):
        assert role.sharding is columns
    assert Role.LATENT_DOWN.sharding is Role.ROUTER.sharding is Sharding.REPLICATED


# --- pricers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan(Operator):
    """A recurrence over tokens: a kernel of nobody's catalog."""

    tokens: int
    name: str = "scan"

    kind = "scan"

    @property
    def flops(self) -> float:
        return 8.0 * self.tokens

    @property
    def hbm_bytes(self) -> float:
        return 4.0 * self.tokens

    @property
    def shape(self) -> str:
        return f"{self.tokens} tokens"


@pricer(Scan)
def price_scan(device: Device, scan: Scan) -> Estimate:
    seconds = scan.tokens * 1e-9
    return Estimate(seconds, 0.5 * seconds, 2.0 * seconds)


class Faster(Scan):
    """Nobody prices it: a pricer is for its very class."""


@pytest.mark.usefixtures("apart")
def test_an_operator_of_another_package_runs_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of rope, in every layer; the answer counts it as a family of its own, and its range with it."""
    asked = question("llama-3.1-8b", [{"name": "P", "tp": 8}], cluster="hgx-h100-8", sequence=8192)
    with_rope = tspsim.simulate(asked).plan("P")
    monkeypatch.setattr(LayerShard, "rope", lambda layer, tokens: Scan(1_000_000))
    make_anew()
    plan = tspsim.simulate(asked).plan("P")
    assert plan.compute_by_kind_s["scan"] == pytest.approx(32 * 1e-3, rel=0.01)
    rope_s = with_rope.compute_by_kind_s["memory_bound"] - plan.compute_by_kind_s["memory_bound"]
    assert plan.step_time_s == pytest.approx(with_rope.step_time_s + 32 * 1e-3 - rope_s, rel=1e-3)
    assert plan.range is not None
    assert plan.tokens_per_s / plan.range.low - 1 > 0.9 * 32 * 1e-3 / plan.step_time_s
    assert any("scan 1000000 tokens" in entry.shape for entry in plan.timeline.labels)  # type: ignore[union-attr]


def test_a_class_without_a_pricer_is_named() -> None:
    with pytest.raises(TspsimError, match=r"no pricer for operators of class test_operators\.Faster: register one"):
        load_device("h100").time(Faster(1))


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that prices its operators, as pip would leave it."""
    (tmp_path / "scans.py").write_text(
        "from tspsim.hardware import pricer\n"
        "from tspsim.operators import MemoryBound\n"
        "class Lookup(MemoryBound): pass\n"
        "pricer(Lookup)(lambda device, lookup: device.memory_bound(2 * lookup.size_bytes))\n"
    )
    info = tmp_path / "scans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scans\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tspsim.pricers]\nscans = scans\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for looked_up in (pricers.load_entry_points, registry.installed):
        looked_up.cache_clear()
    yield
    for looked_up in (pricers.load_entry_points, registry.installed):
        looked_up.cache_clear()


@pytest.mark.usefixtures("other_package")
def test_an_installed_package_brings_its_pricers() -> None:
    import sys

    device = load_device("h100")
    device.time(MemoryBound("copy", 1e6))
    lookup = sys.modules["scans"].Lookup("copy", 1e9)
    assert device.time(lookup) == device.memory_bound(2e9)


def run_alone(operator: Operator, cluster: str, device: Device) -> float:
    """Seconds of a program of one kernel, through the engine."""
    return play(load_cluster(cluster), program(Compute((operator,), "kernel")), grid(8), cost=Costs(device)).makespan_s


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (64, 8), (8, 1)])
@pytest.mark.parametrize(("context", "slower"), [(1024, 1.25), (131072, 2.2)])
def test_one_query_a_sequence_costs_the_decode_kernel(heads: int, kv_heads: int, context: int, slower: float) -> None:
    """Bytes decide it, so the clock of a step hardly does; as rows of the kernel of many queries it takes far longer,
    for that reads K and V once a query head."""
    device = load_device("h100")
    operator = DecodeAttention(((context, 16),), heads, kv_heads, 128)
    isolated, slowed = device.decode_attention(16, context, heads, kv_heads, 128), device.time(operator)
    share = device.matrix_share(operator)
    assert share < 0.06
    clock = 1 / device.spec.sustained.attention.value - 1
    assert slowed.seconds == pytest.approx(isolated.seconds * (1 + share * clock), rel=1e-12)
    many = device.time(Attention(((1, context),) * 16, heads, kv_heads, 128))
    assert many.seconds > slower * slowed.seconds
    assert run_alone(operator, "hgx-h100-8", device) == pytest.approx(slowed.seconds, rel=1e-12)


def test_sequences_of_unequal_contexts_read_their_bytes() -> None:
    device = load_device("h200")
    mixed = DecodeAttention(((131072, 8), (1024, 8)), 64, 8, 128)
    assert mixed.hbm_bytes == sum(DecodeAttention((row,), 64, 8, 128).hbm_bytes for row in ((131072, 8), (1024, 8)))
    even = DecodeAttention(((66048, 16),), 64, 8, 128)
    longest = DecodeAttention(((131072, 8),), 64, 8, 128)
    least, alone = device.time(even).seconds, device.time(longest).seconds
    # Bytes decide, and the longest of them take no less for being beside others.
    assert max(least, alone) <= device.time(mixed).seconds < 1.03 * max(least, alone)


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_fused_experts_cost_their_kernel(tokens: int) -> None:
    device = load_device("mi300x")
    operator = FusedMoE(tokens, 7168, 2048, 256, 8, "fp8")
    isolated = device.fused_moe(tokens, 7168, 2048, 256, 8, "fp8")
    assert isolated.seconds <= device.time(operator).seconds <= isolated.seconds / device.spec.sustained.gemm.value
    assert operator.flops == 6 * tokens * 8 * 7168 * 2048
    assert run_alone(operator, "mi300x-8", device) == pytest.approx(device.time(operator).seconds, rel=1e-12)


def test_a_group_costs_what_as_many_equal_products_in_a_call_do() -> None:
    for name in ("mi300x", "h200", "b200"):
        device = load_device(name)
        assert device.time(GroupedGemm(512, 4096, 7168, batch=8)) == device.time(Gemm(512, 4096, 7168, batch=8))


def test_everything_that_the_package_offers_is_priced() -> None:
    classes = {value for value in vars(operators).values() if isinstance(value, type) and issubclass(value, Operator)}
    for cls in classes - {Operator}:
        assert cls in pricers.PRICERS
