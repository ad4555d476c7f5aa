"""Experts under Primus against what others measured on eight MI355X: a layer's parts (xmpeng-dev/AIInfra-Book@2f90fe4,
notes/moe_perf/turbo), and a trace of DeepSeek-V3 (AMD-AGI/Primus@7196acd, profile/profile_analysis.md), which nothing
was fitted on."""

from __future__ import annotations

import pytest

from tspsim.hardware import load_device
from tspsim.network import ExpertExchange, exchange_experts, load_cluster
from tspsim.operators import Computes, GroupedGemm, MemoryBound, Role
from tspsim.parallel import load_stack
from tspsim.scenario import load
from tspsim.step.simulation import look_up, run_plan

#: Groups that keep a token's experts on one of eight ranks.
ONE_RANK = {"experts": 256, "topk": 8, "groups": 32, "kept_groups": 1}
#: All of eight experts: a token goes to every rank.
EVERY_RANK = {"experts": 8, "topk": 8, "groups": 8, "kept_groups": 8}
#: DeepSeek-V3's experts on a rank of eight.
LOCAL, HIDDEN, WIDTH = 32, 7168, 2048


def exchanged_us(phase: str, tokens: int, hidden: int, choice: dict[str, int]) -> float:
    library = load_stack("primus").stack().exchange_library
    exchange = ExpertExchange(float(tokens), 2.0 * hidden, **choice, multiprocessors=80)
    return exchange_experts(load_cluster("mi355x-8"), range(8), phase, exchange, library=library).alone_s * 1e6


@pytest.mark.parametrize(
    ("phase", "tokens", "hidden", "choice", "measured_us"),
    [
        # Rows that the fit left out.
        ("dispatch", 4096, 4096, EVERY_RANK, 825.9),
        ("dispatch", 16384, 4096, EVERY_RANK, 3012.7),
        ("dispatch", 32768, 2048, EVERY_RANK, 3414.1),
        ("dispatch", 4096, 7168, ONE_RANK, 350.4),
        ("combine", 16384, 4096, EVERY_RANK, 2909.9),
        ("combine", 32768, 2048, EVERY_RANK, 3018.3),
    ],
)
def test_an_exchange_of_primus_turbo(
    phase: str, tokens: int, hidden: int, choice: dict[str, int], measured_us: float
) -> None:
    assert exchanged_us(phase, tokens, hidden, choice) == pytest.approx(measured_us, rel=0.13)


def test_a_balanced_run_sends_a_token_to_one_rank() -> None:
    one, four = (
        exchanged_us("dispatch", 8192, HIDDEN, choice)
        for choice in (ONE_RANK, {"experts": 256, "topk": 8, "groups": 8, "kept_groups": 4})
    )
    # The trace has 785 and 674 us of kernels that also wait for the slowest rank; its router, left alone, would keep
    # four of eight groups.
    assert 0.7 < one / 785.0 < 1.0 and four > 1.6 * 785.0


def test_experts_gradients_are_added_apart() -> None:
    layer = [
        GroupedGemm(
            m=m, n=n, k=2048, batch=LOCAL, dtype="bf16", computes=Computes.WEIGHT_GRADIENT, role=Role.EXPERTS_DOWN
        )
        for m, n in ((HIDDEN, 2 * WIDTH), (WIDTH, HIDDEN))
    ]  # fmt: skip
    device, added = load_device("mi355x"), {}
    for name in ("primus", "primus@precision-aware"):
        stack = load_stack(name).stack()
        kernels = [kernel for kernel in stack.run(layer) if isinstance(kernel, MemoryBound)]
        added[name] = sum(device.time(kernel).seconds for kernel in kernels)
        assert len(list(stack.run(layer, accumulates=False))) == len(layer)
    # The trace: 2,647 us (grad_acc). Kept in bf16 they are 6 bytes of 10.
    assert added["primus"] == pytest.approx(2647e-6, rel=0.15)
    assert added["primus@precision-aware"] / added["primus"] == pytest.approx(0.6, rel=0.02)


def test_products_of_experts_in_a_step() -> None:
    device, rows = load_device("mi355x"), 8192 * 8 // LOCAL

    def us(computes: Computes, m: int, n: int, k: int) -> float:
        return device.time(GroupedGemm(m=m, n=n, k=k, batch=LOCAL, dtype="bf16", computes=computes)).seconds * 1e6

    forward = us(Computes.OUTPUT, rows, 2 * WIDTH, HIDDEN) + us(Computes.OUTPUT, rows, HIDDEN, WIDTH)
    inputs = us(Computes.INPUT_GRADIENT, rows, HIDDEN, 2 * WIDTH) + us(Computes.INPUT_GRADIENT, rows, WIDTH, HIDDEN)
    weights = us(Computes.WEIGHT_GRADIENT, HIDDEN, 2 * WIDTH, rows) + us(Computes.WEIGHT_GRADIENT, WIDTH, HIDDEN, rows)
    # The legacy grouped library in the trace: one kernel an expert, on two streams at a time.
    assert forward == pytest.approx(3203 + 1366, rel=0.06)
    assert inputs + weights == pytest.approx(3098 + 4875, rel=0.25)


def test_the_host_of_a_layer_with_few_tokens() -> None:
    scenario = {
        "name": "few tokens",
        "cluster": {"device": "mi355x", "nodes": 1},
        "workload": {
            "model": "qwen3-30b-a3b", "stack": "primus", "pass": "training", "sequence": 2048, "global_batch": 8,
            "precision": "bf16",
        },
        "plans": [{"name": "EP8", "dp": 8, "ep": 8, "expert_dispatch": "ranks", "recomputation": "none"}],
    }  # fmt: skip
    question = look_up(load(scenario))
    frame = run_plan(question, question.plans[0]).timeline.frame()
    host = frame[(frame.stream == "host") & (frame.layer == 20)]
    parts = ("dispatch", "experts", "combine", "sum of experts")
    layer = host[host.name.str.contains("|".join(parts)) & ~host.name.str.contains("norm")]
    # 8,555 us where every product of an expert is a launch (hipBLASLt), forward and backward, events apart.
    assert (layer.end_s - layer.start_s).sum() * 1e6 == pytest.approx(8555, rel=0.1)
