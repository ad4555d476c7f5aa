"""Training plans as launches: word by word, with names that the frameworks have, and what they lack in comments."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.scenario import load
from tspsim.step.question import look_up
from tspsim.studies.launch import TRAINERS, Command, train

ARGUMENTS = json.loads((Path(__file__).parents[1] / "golden" / "launch_arguments.json").read_text())
#: torchrun's own.
LAUNCHED = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}


def text(framework: str, plan: dict[str, Any], *, device: str = "h100", nodes: int = 16, **workload: Any) -> str:
    work = {"model": "llama-3.1-70b", "pass": "training", "sequence": "8Ki", "global_batch": 1024, **workload}
    question = look_up(
        load(
            {
                "name": "one",
                "cluster": {"device": device, "nodes": nodes, "fabric": "rails-400g"},
                "workload": work,
                "plans": [{"name": "best", **plan}],
            }
        )
    )
    return train(framework, question, question.plans[0])


def toml_of(found: str) -> dict[str, Any]:
    """The file that a launch writes."""
    return tomllib.loads(found.split("<<'EOF'\n")[1].split("EOF")[0])


#: What a Megatron user would run: tensor parallelism with sequence regions, interleaved stages, ZeRO-1.
STAGES = {
    "tp": 8, "pp": 4, "vpp": 5, "sequence_regions": True, "overlap": True, "zero": 1, "recomputation": "selective",
    "placement": {"node": ["tp"], "rails": ["dp", "pp"]},
}  # fmt: skip
MEGATRON = """\
# one: best, 128 GPUs (h100)
# beside these: the model's arguments, its tokenizer and data, the optimizer's rate
# on each of 16 nodes, HOST being one of them

export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \\
  --nproc-per-node 8 \\
  --nnodes 16 \\
  --rdzv-backend c10d \\
  --rdzv-endpoint HOST:29500 \\
  pretrain_gpt.py \\
  --tensor-model-parallel-size 8 \\
  --pipeline-model-parallel-size 4 \\
  --sequence-parallel \\
  --tp-comm-overlap \\
  --num-virtual-stages-per-pipeline-rank 5 \\
  --use-distributed-optimizer \\
  --overlap-grad-reduce \\
  --overlap-param-gather \\
  --seq-length 8192 \\
  --micro-batch-size 1 \\
  --global-batch-size 1024 \\
  --recompute-granularity selective \\
  --recompute-modules core_attn \\
  --bf16 \\
  --grad-reduce-in-bf16 \\
  --cross-entropy-loss-fusion
"""
#: What a torchtitan user would run: FSDP in groups and copies of them, sequence shards, float8.
HYBRID = {"tp": 4, "sp": 2, "exchange": "ring", "sequence_regions": True, "zero": 3, "shard_group": 8}
TORCHTITAN = """\
# one: best, 128 GPUs (h100)
# beside these: model.name, model.flavor and its assets, the data set, the optimizer's rate
# on each of 16 nodes, HOST being one of them

cat > plan.toml <<'EOF'
[model]
converters = ["quantize.linear.float8"]

[training]
local_batch_size = 1
global_batch_size = 1024
seq_len = 8192
mixed_precision_param = "bfloat16"
mixed_precision_reduce = "float32"

[parallelism]
data_parallel_replicate_degree = 4
data_parallel_shard_degree = 4
fsdp_reshard_after_forward = "always"
tensor_parallel_degree = 4
enable_async_tensor_parallel = false
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"
context_parallel_load_balancer = "headtail"

[activation_checkpoint]
mode = "full"

[compile]
enable = true

[quantize.linear.float8]
recipe_name = "tensorwise"
EOF
torchrun \\
  --nproc-per-node 8 \\
  --nnodes 16 \\
  --rdzv-backend c10d \\
  --rdzv-endpoint HOST:29500 \\
  --module torchtitan.train \\
  --job.config_file plan.toml
"""
FP32_GRADIENTS = {"weights": 2, "gradients": 4, "state": 12}


def test_tensor_parallel_stages_word_by_word():
    assert text("megatron", STAGES) == MEGATRON


def test_hybrid_shards_and_float8_word_by_word():
    found = text("torchtitan", {**HYBRID, "recomputation": "full"}, precision="fp8", optimizer=FP32_GRADIENTS)
    assert found == TORCHTITAN


EXPERTS = {"pp": 8, "ep": 16, "zero": 1}
PLANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (STAGES, {}),
    (HYBRID, {"precision": "mxfp8"}),
    ({"tp": 4, "sp": 2, "pp": 4, "stage_layers": [19, 20, 21, 20]}, {"precision": "nvfp4"}),
    ({"zero": 2, "recomputation": "none"}, {"precision": "fp8"}),
    ({**EXPERTS, "expert_dispatch": "experts", "expert_overlap": "shared_experts"}, {"model": "deepseek-v3"}),
    ({**EXPERTS, "expert_dispatch": "links", "recomputation": "cheap"}, {"model": "deepseek-v3", "multi_token": True}),
    ({**EXPERTS, "vpp": 2, "expert_overlap": "micro_batches", "recomputation": "none"}, {"model": "deepseek-v3"}),
    ({"ep": 8}, {"model": "mixtral-8x7b", "precision": "fp8", "routing": {"capacity_factor": 1.25}}),
]


def test_deferred_weight_gradients_are_asked_for_where_the_order_has_them(tmp_path):
    """The orders of Megatron-Core with ``delay_wgrad_compute`` and without."""
    plan, work = PLANS[6]
    for order, said in (("megatron-core", True), ("megatron-core-whole", False)):
        (tmp_path / "mine.yaml").write_text(f"name: mine\ninterleaving: {{value: {order}, source: this test}}\n")
        found = text("megatron", plan, device="b200", **work, stack=str(tmp_path / "mine.yaml"))
        assert "--overlap-moe-expert-parallel-comm" in found
        assert ("--delay-wgrad-compute" in found) is said


@pytest.mark.parametrize("framework", ARGUMENTS)
@pytest.mark.parametrize("case", range(len(PLANS)))
def test_every_word_is_one_of_the_framework(framework: str, case: int):
    plan, work = PLANS[case]
    found = text(framework, plan, device="b200", **work)
    if "<<'EOF'" in found:
        said = set(keys_of(toml_of(found)))
    else:
        said = {word for word in found.split() if word.startswith("--")} - LAUNCHED
    assert said <= set(ARGUMENTS[framework]["names"])


def keys_of(section: dict[str, Any], before: str = "") -> list[str]:
    """Keys of nested sections with dots between them."""
    found: list[str] = []
    for key, value in section.items():
        found += keys_of(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]
    return found


def test_uneven_stages_are_laid_out_chunk_by_chunk():
    uneven = {"pp": 4, "stage_layers": [19, 20, 20, 21]}
    assert "--pipeline-model-parallel-layout 'Et*19|(t*20|)*2t*21L'" in text("megatron", uneven)
    chunks = toml_of(text("torchtitan", uneven))["parallelism"]["module_fqns_per_model_part"]
    layers = [f"layers.{number}" for number in range(80)]
    assert [name for chunk in chunks for name in chunk] == ["tok_embeddings", *layers, "norm", "output"]
    assert [sum(name.startswith("layers") for name in chunk) for chunk in chunks] == uneven["stage_layers"]


def test_an_embedding_alone_is_a_stage_of_its_own():
    assert "'E|(t*40|)*2L'" in text("megatron", {"pp": 4, "stage_layers": [0, 40, 40, 0]})


def test_order_of_ranks_is_told_or_named():
    mapped = {"tp": 8, "pp": 4}
    assert "--use-tp-pp-dp-mapping" in text("megatron", mapped)
    assert "cannot be said here: placement" in text("torchtitan", mapped)
    scattered = {"tp": 4, "pp": 2, "placement": {"node": ["tp"], "rails": ["pp"]}}
    assert "cannot be said here: placement" in text("megatron", scattered)


@pytest.mark.parametrize(
    ("plan", "stack", "reshards", "differs"),
    [
        ({}, "torchtitan", "always", False),
        ({"pp": 4}, "torchtitan", "never", False),
        ({"pp": 4}, "fsdp2", "never", False),
        ({"pp": 4}, "ideal", "always", True),
        ({"pp": 4, "zero": 2}, "ideal", "never", False),
    ],
)
def test_weights_stay_gathered_in_a_pipeline_as_its_stack_keeps_them(plan, stack, reshards, differs):
    found = text("torchtitan", {"zero": 3, **plan}, stack=stack)
    assert toml_of(found)["parallelism"]["fsdp_reshard_after_forward"] == reshards
    assert ("cannot be said here: zero 3 that gathers" in found) == differs


@pytest.mark.parametrize(
    ("framework", "plan", "work", "named"),
    [
        ("megatron", {"tsp": 8}, {}, "tsp 8: those ranks would be replicas"),
        ("torchtitan", {"tsp": 8}, {}, "tsp 8: those ranks would be replicas"),
        ("megatron", {"pp": 4, "schedule": "zb-h1"}, {}, "schedule zb-h1"),
        ("torchtitan", {"sp": 8, "exchange": "ulysses"}, {}, "exchange ulysses"),
        ("megatron", {"sp": 8, "partition": "contiguous"}, {}, "partition contiguous"),
        ("torchtitan", {"tp": 8}, {}, "tp without sequence_regions"),
        ("torchtitan", {"zero": 1}, {}, "zero 1: gradients are divided too"),
        ("torchtitan", {}, {"precision": "fp8_block"}, "products in fp8_block"),
        ("megatron", {"zero": 1}, {"adapters": {"rank": 16}}, "adapters of rank 16"),
        ("megatron", {"tp": 8, "overlap": True}, {}, "overlap of tensor-parallel sums without sequence_regions"),
        ("megatron", {"algorithms": {"all_reduce": "ring"}}, {}, "algorithms: ring for all_reduce"),
    ],
)
def test_what_cannot_be_said_is_named(framework: str, plan: dict[str, Any], work: dict[str, Any], named: str):
    assert f"# cannot be said here: {named}" in text(framework, plan, **work)


def test_only_training_is_launched_so():
    with pytest.raises(InputError, match="megatron trains"):
        text("megatron", {}, **{"pass": "forward"})


@pytest.mark.parametrize(
    ("name", "scenario", "said"),
    [
        ("megatron", "tsp-vs-tpsp-8x-mi300x", "megatron trains"),
        ("vllm", "plan-70b-8k-1024-mi355x", "vllm serves requests"),
        ("torchtitans", "plan-70b-8k-1024-mi355x", "did you mean 'torchtitan'"),
    ],
)
def test_the_command_refuses_what_nobody_can_launch(name: str, scenario: str, said: str, capsys):
    assert main(["plan", scenario, "--emit", name]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_the_best_plan_as_a_launch(capsys):
    small = ["--set", "cluster.nodes=1", "--set", "workload.model=llama-3.1-8b"]
    few = ["--limit", "schemes=dp", "--top", "1", "--budget", "1 s", "--jobs", "1"]
    assert main(["plan", "plan-70b-8k-1024-mi355x", *small, *few, "--emit", "megatron"]) == 0
    assert "--global-batch-size 16" in capsys.readouterr().out


def test_a_framework_from_outside_is_asked_like_the_others():
    class Mine:
        name, vendors, beside = "mine", ("nvidia",), "nothing"

        def command(self, run):
            return Command(["mine", f"--replicas={run.plan.dp}"])

    TRAINERS.register(Mine())
    try:
        assert text("mine", {"tp": 8}).endswith("mine \\\n  --replicas=16\n")
    finally:
        TRAINERS.remove("mine")


@pytest.mark.parametrize(
    ("framework", "method", "told"),
    [
        ("megatron", "block", "--recompute-method block \\\n  --recompute-num-layers 4"),
        ("megatron", "uniform", "--recompute-method uniform \\\n  --recompute-num-layers 4"),
        ("megatron", "every", "recomputation of some layers by every, 4"),
        ("torchtitan", "every", 'selective_ac_option = "4"'),
        ("torchtitan", "block", "recomputation of some layers by block, 4"),
    ],
)
def test_layers_that_are_made_again_are_named_as_the_framework_chooses_them(
    framework: str, method: str, told: str
) -> None:
    found = text(framework, {"tp": 8, "recomputation": {"what": "full", "layers": 4, "method": method}})
    assert told in found.replace("  --recompute-method \\\n  ", "  --recompute-method ")


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_what_no_framework_takes_is_told(framework: str) -> None:
    plan = {"tp": 8, "activation_store": "fp8", "offload_layers": 2, "checkpoint": "overlapped", "residual": "ladder"}
    found = text(framework, plan, precision="fp8")
    for told in ("activation_store fp8", "offload_layers 2", "checkpoint overlapped", "residual ladder"):
        assert f"cannot be said here: {told}" in found
