"""Low-rank adapters beside frozen weights: parameters, products, memory and exchange in their closed forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.draws import in_turn
from helpers.engine import architecture, job_of, latent, model_file, moe, programs_of, question, replica_flops

import tspsim
from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.model.layer import LayerShard
from tspsim.operators import Computes, Gemm, GroupedGemm, Role
from tspsim.parallel import Adapters, Job, peak_memory, scheme_of
from tspsim.program import Collective, SendReceive
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan

ALL = ("qkv", "output", "gate_up", "down")
DENSE = architecture(512, kv_heads=4, ffn=1792)
MODELS = {
    "dense": DENSE,
    "latent": latent(),
    "experts": moe(count=8, topk=2, width=256),
    "shared and routed experts": moe(count=8, topk=2, width=256, shared_width=512),
    "latent, dense layers first": latent(ffn=2048, layers=3, experts=moe(count=8, first_dense=1).experts),
}


def added(model: Architecture, adapters: Adapters, pairs: int) -> int:
    """Parameters of a model's adapters by the letters, r·(k + n) a product, with ``pairs`` in a layer of experts."""
    h, a, c, r = model.hidden, model.attention_width, model.kv_width, adapters.rank
    experts, widths = model.experts, model.latent

    def mlp(columns: int) -> int:
        each = {"gate_up": h + (2 if model.gated else 1) * columns, "down": columns + h}
        return sum(each[target] for target in adapters.targets if target in each)

    attention = {"qkv": h + a + 2 * c, "output": a + h}
    if widths:
        up = widths.q_rank + model.heads * widths.query_dim
        up += widths.kv_rank + model.heads * (widths.nope_dim + widths.value_dim)
        attention = {"qkv": h + widths.down_width + up, "output": model.heads * widths.value_dim + h}
    total = model.layers * sum(attention[target] for target in adapters.targets if target in attention)
    for block in model.blocks:
        if not (block.experts and experts):
            total += mlp(model.ffn)
            continue
        total += mlp(experts.shared_width) if experts.shared_width else 0
        total += pairs * mlp(experts.width)
    return r * total


def trained(model: Architecture, adapters: Adapters | None, **plan: Any) -> Job:
    return job_of(model, pass_="training", recomputation="none", adapters=adapters, **plan)


def gradient_bytes(job: Job) -> Counter[str]:
    """Bytes that a rank's gradients' sums carry, by axis, without the norm's four."""
    sizes: Counter[str] = Counter()
    for each in programs_of(job)[0].unrolled():
        instruction = each.instruction
        if isinstance(instruction, Collective) and instruction.stream == "gradients" and instruction.size_bytes > 4:
            sizes[instruction.axis] += instruction.size_bytes
    return sizes


def test_an_adapter_is_two_thin_products_and_a_sum() -> None:
    """Backward they are four, and the frozen weight's own gradient falls away."""
    model = load_model("llama-3.1-8b")
    adapters = Adapters(16, ("qkv", "output"))
    assert adapters.common(LayerShard(model, 1)).both == 16 * (4096 + 6144) + 16 * (4096 + 4096)
    product = Gemm(8, 6144, 4096, role=Role.QKV)
    forward = [each for each in adapters.attach([product]) if isinstance(each, Gemm)]
    assert [(each.m, each.n, each.k) for each in forward[1:]] == [(8, 16, 4096), (8, 6144, 16)]
    d_input = Gemm(8, 4096, 6144, role=Role.QKV, computes=Computes.INPUT_GRADIENT)
    d_weight = Gemm(4096, 6144, 8, role=Role.QKV, computes=Computes.WEIGHT_GRADIENT)
    backward = [each for each in adapters.attach([d_input, d_weight]) if isinstance(each, Gemm)]
    assert d_weight not in backward
    shapes = [(each.m, each.n, each.k) for each in backward[1:]]
    assert shapes == [(8, 16, 6144), (16, 6144, 8), (4096, 16, 8), (8, 4096, 16)]


@pytest.mark.parametrize("targets", [ALL, ("qkv",), ("output", "down"), ("gate_up",)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_multiplies_two_forwards_and_six_times_what_a_token_meets_of_adapters(
    name: str, targets: tuple[str, ...]
) -> None:
    """Frozen products run forward and back to their input; an adapter's parameter is met three times, 2 FLOPs each."""
    model, tokens = MODELS[name], 1024
    frozen = 2 / 3 * replica_flops(trained(model, None), "gemm")
    topk = model.experts.topk if model.experts else 0
    for adapters in (Adapters(4, targets), Adapters(16, targets)):
        expected = frozen + 6 * tokens * added(model, adapters, topk)
        assert replica_flops(trained(model, adapters), "gemm") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("experts", ["each", "shared", "none"])
def test_adapters_alone_have_gradients_and_state(name: str, experts: str) -> None:
    model, adapters = MODELS[name], Adapters(8, ALL, experts)
    job = trained(model, adapters, dp=2)
    count = model.experts.count if model.experts else 0
    parameters = added(model, adapters, {"each": count, "shared": 1, "none": 0}[experts])
    parts = peak_memory(job, scheme_of(job.plan).residency)
    assert parts["adapters"] == parts["gradients"] == 2 * parameters
    assert parts["optimizer_state"] == 12 * parameters
    assert parts["weights"] == peak_memory(trained(model, None, dp=2), scheme_of(job.plan).residency)["weights"]
    assert gradient_bytes(job) == {"dp": 2 * parameters}


def test_adapters_of_experts_are_summed_over_the_ranks_that_hold_them() -> None:
    """Four ranks share the experts of a layer: a rank has those of two, and one other rank holds the same."""
    model, adapters = MODELS["shared and routed experts"], Adapters(8, ALL)
    common, pair = added(model, adapters, 0), added(model, adapters, 1) - added(model, adapters, 0)
    assert gradient_bytes(trained(model, adapters, dp=8, ep=4)) == {"dp": 2 * common, "edp": 2 * 2 * pair}
    shared = Adapters(8, ALL, "shared")
    assert gradient_bytes(trained(model, shared, dp=8, ep=4)) == {"dp": 2 * common, "edp": 2 * pair}


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_tensor_parallel_ranks_sum_the_halves_that_they_hold_alike(zero: int) -> None:
    """Of column-split products A (r·h, twice a layer), of row-split ones B (the same); once a step."""
    job = trained(DENSE, Adapters(8, ALL), tp=4, dp=2, zero=zero)
    kept = 2 * DENSE.layers * 8 * 4 * 512 / (2 if zero else 1)
    assert gradient_bytes(job)["tp"] == kept
    split = DENSE.layers * 8 * (512 + 2 * 256 + 512 + 3 * 1792) / 4
    moved = 2 * (split + DENSE.layers * 8 * 4 * 512)
    assert gradient_bytes(job)["dp"] == moved


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_stage_of_frozen_tables_alone_trains_nothing(zero: int, tmp_path: Path) -> None:
    plan = {"name": "P", "pp": 2, "stage_layers": [0, DENSE.layers], "zero": zero}
    work = {"pass_": "training", "sequence": 1024, "adapters": {"rank": 8}}
    model = model_file(tmp_path, replace(DENSE, vocab=32_000))
    (found,) = tspsim.simulate(question(model, [plan], **work)).plans
    assert found.ran and found.mfu < 1.0


def test_one_pair_for_all_experts_of_a_rank_multiplies_all_their_rows() -> None:
    each, shared = (
        [each for each in Adapters(8, ("down",), experts).attach([grouped]) if isinstance(each, Gemm)]
        for grouped in [GroupedGemm(64, 512, 256, batch=4, role=Role.EXPERTS_DOWN)]
        for experts in ("each", "shared")
    )
    assert [(one.m, one.n, one.k, one.batch) for one in each[1:]] == [(64, 8, 256, 4), (64, 512, 8, 4)]
    assert [(one.m, one.n, one.k, one.batch) for one in shared[1:]] == [(256, 8, 256, 1), (256, 512, 8, 1)]


@pytest.mark.parametrize(
    ("targets", "elements"),
    [(ALL, 4 * 512 + 2 * 512 + 2 * 256 + 3 * 1792), (("qkv", "output"), 3 * 512 + 2 * 512 + 2 * 256 + 2 * 1792),
     (("output",), 2 * 512 + 2 * 512 + 2 * 256 + 2 * 1792)],
    ids=str,
)  # fmt: skip
def test_inputs_of_frozen_products_without_adapters_are_not_kept(targets: tuple[str, ...], elements: int) -> None:
    """Their weights' gradients alone needed them; norms, attention and the activation keep what they need."""
    job = trained(DENSE, Adapters(8, targets))
    assert peak_memory(job, scheme_of(job.plan).residency)["kept_activations"] == 2 * 1024 * 2 * elements


def test_full_sharding_gathers_frozen_weights_in_their_own_bytes_and_adapters_in_bf16() -> None:
    model, adapters = DENSE, Adapters(8, ALL)
    job = trained(model, adapters, dp=4, zero=3)
    gathered = {
        each.instruction.size_bytes
        for each in programs_of(job)[0].unrolled()
        if isinstance(each.instruction, Collective) and each.instruction.kind == "all_gather"
    }
    layer = added(model, adapters, 0) // model.layers
    assert gathered == {2 * (model.block_parameters(model.block(0)) + layer)}
    parts = peak_memory(job, scheme_of(job.plan).residency)
    assert parts["gathered_weights"] == 2 * gathered.pop() + 2 * layer


def test_frozen_tables_have_no_backward() -> None:
    names = [
        each.instruction.name
        for each in programs_of(trained(architecture(512, vocab=1024), Adapters(8, ALL)))[0].unrolled()
    ]
    assert "embedding lookup" in names
    assert "embedding backward" not in names


@pytest.mark.parametrize(
    ("model", "workload", "message"),
    [
        ("llama-3.1-8b", {"adapters": {"rank": 8, "targets": ["qkv", "qkv"]}}, "targets: 'qkv' is named twice"),
        ("llama-3.1-8b", {"adapters": {"rank": 8}, "pass_": "forward"}, "workload.adapters: adapters are trained"),
        ("mixtral-8x7b", {"adapters": {"rank": 8, "targets": ["down"], "experts": "none"}}, "no layer of mixtral-8x7b"),
        ("mixtral-8x7b", {"adapters": {"rank": 8, "experts": "some"}}, "workload.adapters.experts"),
    ],
)
def test_what_does_not_go_together_is_refused(model: str, workload: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked = {"pass_": "training", **workload}
        tspsim.simulate(question(model, [{"name": "P", "tp": 8}], sequence=4096, **asked))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("deepseek-v2-lite", {"ep": 8, "zero": 1}),
        ("qwen3-30b-a3b", {"tp": 2, "ep": 8, "sequence_regions": True, "zero": 1}),
        ("mixtral-8x7b", {"tp": 8}),
        ("deepseek-v2-lite", {"sp": 2, "ep": 4, "pp": 2, "zero": 1, "micro_batch": 1}),
        ("qwen3-30b-a3b", {"ep": 4, "pp": 2, "zero": 1, "expert_overlap": "micro_batches"}),
    ],
    ids=str,
)
def test_models_with_experts_and_latents_are_tuned_with_adapters(model: str, plan: dict[str, Any]) -> None:
    """In a fraction of the memory, and with experts left alone faster: thin grouped products are slow ones."""
    work = {"sequence": 4096, "sequences_per_replica": 2, "pass_": "training", "cluster": "hgx-b200-8"}
    whole, tuned, common = (
        tspsim.simulate(question(model, [{"name": "P", **plan}], **work, **more)).plan("P")
        for more in ({}, {"adapters": {"rank": 16}}, {"adapters": {"rank": 16, "experts": "none"}})
    )
    assert tuned.ran, tuned.error
    assert common.ran, common.error
    assert whole.memory.peak_bytes > 2 * tuned.memory.peak_bytes > 2 * common.memory.peak_bytes
    assert common.step_time_s < tuned.step_time_s
    if whole.ran:
        assert common.step_time_s < whole.step_time_s


# Folded: adapters travel as what they stand beside, or are gathered where every shard needs them whole.


def halves(model: Architecture, adapters: Adapters) -> dict[str, int]:
    """Of one layer of a grouped-query model, over all its shards: what is cut with the weights, and what is whole."""
    h, a, c, f, r = model.hidden, model.attention_width, model.kv_width, model.ffn, adapters.rank
    if model.experts:
        f = model.experts.shared_width
    sizes = {"qkv": (a + 2 * c, h), "output": (a, h), "gate_up": (2 * f, h), "down": (f, h)}
    return {
        f"{part}, {half}": r * sum(sizes[target][place] for target in targets if target in adapters.targets)
        for part, targets in (("attention", ("qkv", "output")), ("mlp", ("gate_up", "down")))
        for place, half in enumerate(("split", "whole"))
    }


def received(job: Job, part: str) -> float:
    """Bytes that a rank receives and did not hold in the instructions of a part, of one layer, mean over ranks."""
    degree = job.plan.tsp
    total = 0.0
    for each in programs_of(job)[0].unrolled():
        instruction = each.instruction
        if getattr(instruction, "axis", "") == "tsp" and instruction.part == part:
            share = 1.0 if isinstance(instruction, SendReceive) else (degree - 1) / degree
            total += instruction.size_bytes * share
    return total / job.model.layers


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("targets", [ALL, ("qkv", "output"), ("down",)], ids=str)
@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.parametrize("overlap", [None, False])
@pytest.mark.parametrize("degree", [2, 4])
def test_folded_adapters_move_in_their_closed_form(
    targets: tuple[str, ...], recomputation: str, overlap: bool | None, degree: int
) -> None:
    """Each rank receives every parameter of the others once a pass, and gradients of adapters alone."""
    model, adapters, tokens = DENSE, Adapters(8, targets), 1024
    job = job_of(
        model, pass_="training", tsp=degree, recomputation=recomputation, overlap=overlap, adapters=adapters,
        sequence=tokens,
    )  # fmt: skip
    h, a, c, f = model.hidden, model.attention_width, model.kv_width, model.ffn
    weights, context, columns = h * (2 * a + 2 * c), 2 * tokens * c, 3 * h * f
    beside = halves(model, adapters)
    attention = beside["attention, split"] + beside["attention, whole"]
    mlp, split, whole = beside["mlp, split"] + beside["mlp, whole"], beside["mlp, split"], beside["mlp, whole"]
    left = (degree - 1) / degree
    forward = {"attention": (weights + context + attention) * left, "mlp": (columns + mlp) * left}
    backward = {
        "none": {
            "attention": (weights + 2 * context + 2 * attention + whole) * left,
            "mlp": (columns + mlp) * left + split,
        },
        "full": {"attention": (context + attention + whole) * left, "mlp": (columns + split) * left + split},
    }[recomputation]
    for part in ("attention", "mlp"):
        assert received(job, part) == pytest.approx(2 * forward[part])
        assert received(job, f"{part} again") == pytest.approx(2 * forward[part] * (recomputation == "full"))
        assert received(job, f"{part} backward") == pytest.approx(2 * backward[part])


def test_a_rank_owns_its_part_of_folded_adapters_and_multiplies_whole_halves_with_every_shard() -> None:
    model, adapters, tokens = MODELS["shared and routed experts"], Adapters(8, ALL), 1024
    beside = halves(model, adapters)
    split = model.layers * (beside["attention, split"] + beside["mlp, split"])
    whole = model.layers * (beside["attention, whole"] + beside["mlp, whole"])
    pairs = added(model, adapters, 8) - added(model, adapters, 0)
    job = trained(model, adapters, tsp=4)
    parts = peak_memory(job, scheme_of(job.plan).residency)
    assert parts["adapters"] == 2 * ((split + whole) / 4 + pairs)
    assert gradient_bytes(job) == {"dp+tsp": 2 * pairs}
    frozen = 2 / 3 * replica_flops(trained(model, None, tsp=4), "gemm")
    met = split + 4 * whole + pairs / 4  # two of eight experts a token
    assert replica_flops(job, "gemm") == pytest.approx(frozen + 6 * tokens * met, rel=1e-12)


def test_frozen_weights_of_a_folded_plan_travel_but_have_no_gradients_to_bring_home() -> None:
    names = [
        each.instruction.name
        for each in programs_of(trained(architecture(512, vocab=1024), Adapters(8, ("qkv",)), tsp=4))[0].unrolled()
    ]
    assert any(name.startswith("head weights hop") for name in names)
    assert not [name for name in names if name.startswith(("head gradients", "MLP gradients", "embedding gradients"))]


@pytest.mark.parametrize("model", in_turn(["llama-3.1-8b", "deepseek-v2-lite", "qwen3-30b-a3b"], 3))
def test_folded_adapters_run_and_every_rank_agrees(model: str) -> None:
    folded_experts = {"ep": 8, "tsp_schedule": "published"}
    plan = {"name": "P", "tsp": 4} | ({} if model.startswith("llama") else folded_experts)
    asked = question(model, [plan], cluster="hgx-b200-8", pass_="training", sequence=8192, adapters={"rank": 16})
    found = look_up(tspsim.load(asked))
    folded, whole = (run_plan(found, found.plans[0], every_rank=every) for every in (False, True))
    assert folded.ran, folded.error
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
