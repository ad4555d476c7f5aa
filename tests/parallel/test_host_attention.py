"""Attention of some sequences on the hosts' processors: room for caches, its closed form, no speed, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.engine import question

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import host_bandwidth, host_reads, load_cluster
from tspsim.parallel.decode.host_attention import parted
from tspsim.step.bound import bounds

NODE = load_cluster("mi300x-8").node
LINK, READS = host_bandwidth(NODE), host_reads(NODE)
MODEL, BATCH, CONTEXT = "llama-3.1-8b", 64, 8192
#: Bytes of a sequence's cache in one layer: 2 · 8 heads · 128 · bf16 a token.
CACHE = 4096.0 * (CONTEXT + 1)


def told(cluster: str = "mi300x-8", model: str = MODEL, **keys: Any) -> Any:
    work = {"batch": keys.pop("batch", BATCH), "context": keys.pop("context", CONTEXT)}
    plans = [{"name": "P", **keys}]
    return tspsim.simulate(question(model, plans, cluster=cluster, pass_="decode", **work)).plans[0]


def kernels_s(frame: Any, *names: str, layer: int = 3) -> float:
    """Of kernels and sums of one layer, without those named."""
    mine = frame[(frame.layer == layer) & ~frame.stream.str.contains("host") & ~frame.name.isin(names)]
    return float((mine.end_s - mine.start_s).sum())


@pytest.mark.parametrize("share", [0.03125, 0.25])
def test_a_layer_takes_the_second_part_and_the_longer_of_host_and_device(share: float) -> None:
    frame = told(host_attention=share).timeline.frame()
    frame = frame[frame["rank"] == frame["rank"].iloc[0]]
    away = round(share * BATCH)
    read_s = away * CACHE / READS
    hosts = frame[(frame.name == "attention on the host") & (frame.layer == 3)]
    assert float((hosts.end_s - hosts.start_s).iloc[0]) == pytest.approx(read_s, rel=1e-9)
    crossing_s = away * (4096 + 2048 + 4096) * 2.0 / LINK
    layer = frame[(frame.layer == 3) & ~frame.stream.str.contains("host")]
    first = hosts.start_s.iloc[0]
    beside = layer[(layer.start_s >= first - crossing_s) & (layer.end_s <= hosts.end_s.iloc[0] + crossing_s)]
    device_s = float((beside.end_s - beside.start_s).sum())
    other_s = kernels_s(frame) - device_s
    period = frame[frame.name == "attention on the host"].start_s.diff().iloc[4:].median()
    assert period == pytest.approx(other_s + max(device_s, crossing_s + read_s), rel=0.02)


def test_no_order_of_two_parts_reaches_the_ideal_and_the_best_share_is_a_few_per_cent() -> None:
    here = told(batch=128)
    frame = here.timeline.frame()
    frame = frame[frame["rank"] == frame["rank"].iloc[0]]
    attended = frame[(frame.layer == 3) & (frame.name == "attention")]
    attention_s = float((attended.end_s - attended.start_s).sum())
    others_s = kernels_s(frame, "attention")
    host_s = 128 * CACHE / READS
    ideal = (others_s + attention_s) / (attention_s + host_s)  # copies beside all of it
    assert 0.02 < ideal < 0.12
    for share in (0.0625, 0.125):
        away = told(batch=128, host_attention=share)
        least = max(others_s + (1 - share) * attention_s, share * host_s)
        assert away.step_time_s > 32 * least and away.step_time_s > here.step_time_s


def test_hosts_keep_what_the_device_then_has_room_for() -> None:
    here, away = told(), told(host_attention=0.25)
    assert away.memory.parts["kv_cache"] == 0.75 * here.memory.parts["kv_cache"]
    sessions = [plan.inference["capacity"]["sessions"] for plan in (here, away)]
    assert sessions[1] == pytest.approx(sessions[0] / 0.75, rel=1e-3)
    assert any("caches of 16 sequences" in note for note in away.notes)
    # A batch that has no room runs with a part of it on the hosts.
    full = {"cluster": "hgx-h100-8", "context": 32768, "batch": 17}
    refused, fits = told(**full), told(**full, host_attention=0.2)
    assert not refused.ran and "caches of 17 sequences need" in refused.error and fits.ran


def test_more_tensor_parallel_ranks_read_less_each_and_the_bound_stays_above() -> None:
    for tp in (1, 8):
        asked = question("llama-3.1-70b", [{"name": "P", "tp": 8, "host_attention": 0.1}], pass_="decode", batch=64,
                         context=4096) if tp == 8 else question(MODEL, [{"name": "P", "host_attention": 0.1}],
                                                                pass_="decode", batch=64, context=4096)  # fmt: skip
        ran, (bound,) = tspsim.simulate(asked).plans[0], bounds(tspsim.load(asked)).plans
        assert ran.ran and ran.tokens_per_s <= bound.tokens_per_s


def test_sequences_are_whole_and_a_share_of_none_changes_nothing() -> None:
    assert parted(((1, 10, 3), (1, 20, 5)), 0.5) == (((1, 10, 2), (1, 20, 3)), ((1, 10, 1), (1, 20, 2)))
    plain, none = told(batch=8), told(batch=8, host_attention=0.1)
    assert none.step_time_s == plain.step_time_s


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        ("deepseek-v3", {"tp": 8}, "grouped-query"),
        ("llama-3.1-70b", {"tp": 4, "pp": 2}, "not built"),
        ("llama-3.1-70b", {"tp": 8, "dcp": 2}, "not built"),
        ("llama-3.1-70b", {"tp": 8, "offload_weights": 8}, "both read"),
        ("llama-3.1-70b", {"tp": 8, "residual": "ladder"}, "not built"),
        ("llama-3.1-70b", {"tp": 8, "host_attention": 1.5}, "host_attention"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(model: str, plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        told(model=model, **{"host_attention": 0.25, **plan})


def test_other_steps_do_not_know_it() -> None:
    with pytest.raises(InputError, match="is of steps that serve"):
        tspsim.simulate(question(MODEL, [{"name": "P", "host_attention": 0.25}], sequence="4Ki"))
