"""Plans as launch commands: word by word for each engine, and what an engine cannot say stands in a comment."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tspsim.base.errors import UnknownNameError
from tspsim.scenario import load
from tspsim.serving.answer import deployment_of
from tspsim.step.question import look_up
from tspsim.studies.launch import LAUNCHERS, Command, launch


def text(engine: str, plan: dict[str, Any], *, stack: str | None = None, device: str = "h200", **workload: Any) -> str:
    asked = {
        "name": "one",
        "cluster": {"device": device},
        "workload": {"model": "deepseek-v3", "stack": stack or engine, **workload},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": 16},
            "prompt": {"kind": "fixed", "of": 1024},
            "output": {"kind": "fixed", "of": 128},
        },
        "plans": [{"name": "best", **plan}],
    }
    question = look_up(load(asked))
    return launch(engine, question.scenario, deployment_of(question, question.plans[0]))


VLLM = """\
# one: best, 8 GPUs (h200)

vllm serve deepseek-ai/DeepSeek-V3 \\
  --tensor-parallel-size 1 \\
  --data-parallel-size 8 \\
  --enable-expert-parallel \\
  --all2all-backend deepep_low_latency \\
  --max-num-batched-tokens 256 \\
  --max-num-seqs 256 \\
  --kv-cache-dtype fp8 \\
  --gpu-memory-utilization 0.9 \\
  --no-enable-prefix-caching \\
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'
"""
SGLANG = """\
# one: best, 8 GPUs (h200)

# cannot be said here: prompts by low-latency messages: they are sent by normal ones
# to SGLang 0.5.21 --attn-dp-size was --dp-size 8 --enable-dp-attention
python -m sglang.launch_server \\
  --model-path deepseek-ai/DeepSeek-V3 \\
  --tp-size 8 \\
  --attn-dp-size 8 \\
  --ep-size 8 \\
  --moe-a2a-backend deepep \\
  --deepep-mode auto \\
  --chunked-prefill-size 8192 \\
  --max-running-requests 2048 \\
  --kv-cache-dtype fp8_e4m3 \\
  --disable-radix-cache \\
  --speculative-algorithm EAGLE \\
  --speculative-num-draft-tokens 2 \\
  --speculative-num-steps 1 \\
  --speculative-eagle-topk 1
"""
TRTLLM = """\
# one: best, 8 GPUs (h200)

# cannot be said here: expert_dispatch low_latency: TensorRT-LLM chooses it by itself
cat > server.yaml <<'EOF'
enable_attention_dp: true
kv_cache_config:
  dtype: fp8
  enable_block_reuse: false
speculative_config:
  decoding_type: MTP
  max_draft_len: 1
EOF
trtllm-serve deepseek-ai/DeepSeek-V3 \\
  --backend pytorch \\
  --tp_size 8 \\
  --ep_size 8 \\
  --max_batch_size 256 \\
  --max_num_tokens 8192 \\
  --extra_llm_api_options server.yaml
"""
CASES = {
    "vllm": (VLLM, {"max_num_seqs": 256, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False}),
    "sglang": (SGLANG, {"max_running_requests": 2048, "chunked_prefill_size": 8192, "disable_radix_cache": True}),
    "trtllm": (TRTLLM, {"max_batch_size": 256, "max_num_tokens": 8192, "enable_block_reuse": False}),
}


@pytest.mark.parametrize("engine", CASES)
def test_attention_replicas_with_experts_and_drafts_word_by_word(engine: str):
    golden, options = CASES[engine]
    plan = {"dp": 8, "ep": 8, "expert_dispatch": "low_latency", "engine": options}
    drafts = {"tokens": 1, "draft": "mtp"}
    assert text(engine, plan, precision={"kv": "fp8"}, speculation=drafts) == golden


POOLS = {"prefill": {"replicas": 1, "tp": 4, "ep": 4}, "decode": {"replicas": 1, "tp": 4, "ep": 4}}


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("vllm", ['{"kv_connector": "NixlConnector", "kv_role": "kv_both"}', "# prefill: 1 of", "# decode: 1 of"]),
        ("sglang", ["--disaggregation-mode prefill", "--disaggregation-mode decode", "--pd-disaggregation"]),
        ("trtllm", ["cat > prefill.yaml", "cat > decode.yaml", "trtllm-serve disaggregated -c disaggregated.yaml"]),
    ],
)
def test_pools_are_two_kinds_of_servers_and_what_joins_them(engine: str, said: list[str]):
    found = text(engine, {"pools": POOLS}, device="b300", precision={"weights": "fp8", "kv": "fp8"})
    assert all(each in found for each in said), found


def test_another_checkpoint_is_asked_for_where_the_published_one_is_kept_otherwise():
    """DeepSeek-V3 is published in fp8, and the model's own precision is no statement."""
    stated = {kept: text("vllm", {"tp": 8}, precision={"weights": kept}) for kept in ("fp8", "fp8_block", "nvfp4")}
    assert "weights in" not in stated["fp8"] + stated["fp8_block"]
    said = "# weights in nvfp4, the published checkpoint in fp8_block: name a checkpoint in nvfp4"
    assert said in stated["nvfp4"]
    assert "# weights in fp8, the published checkpoint in bf16" in text(
        "vllm", {"tp": 8}, model="llama-3.1-70b", precision={"weights": "fp8"}
    )


def test_the_yaml_that_is_written_reads_back():
    found = text("trtllm", {"pools": POOLS}, device="b300", precision={"kv": "fp8"})
    written = found.split("disaggregated.yaml <<'EOF'\n")[1].split("EOF")[0]
    assert set(yaml.safe_load(written)) == {"hostname", "port", "context_servers", "generation_servers"}


def test_replicas_are_so_many_servers_behind_a_router():
    found = text("vllm", {"tp": 2}, model="llama-3.1-8b")
    assert "# 4 of it, behind a router" in found
    assert "--tensor-parallel-size 2" in found


def test_what_cannot_be_said_stands_in_a_comment():
    pushed = text("vllm", {"pools": {**POOLS, "transfer": "push"}}, device="b300")
    assert "# cannot be said here: caches pushed layer by layer" in pushed
    assert "# cannot be said here: ranks along tsp 8" in text("vllm", {"tsp": 8}, model="llama-3.1-8b")


def test_another_engine_than_the_simulated_one_is_told():
    plan = {"tp": 8, "engine": {"max_num_seqs": 64}}
    found = text("trtllm", plan, stack="vllm", device="mi300x", model="llama-3.1-8b")
    assert "# found for vllm: trtllm schedules and computes otherwise" in found
    assert "# trtllm does not run on GPUs of amd" in found
    assert "--max_batch_size 64" in found


def test_an_engine_from_outside_is_asked_like_the_others():
    class Mine:
        name, vendors = "mine", ("nvidia",)

        def command(self, server):
            return Command(["mine", f"--ranks={server.gpus}"])

        def router(self, servers):
            return []

    LAUNCHERS.register(Mine())
    try:
        assert text("mine", {"tp": 8}, stack="vllm").endswith("mine \\\n  --ranks=8\n")
    finally:
        LAUNCHERS.remove("mine")


def test_an_unknown_engine_is_told_with_its_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'sglang'"):
        LAUNCHERS.get("sglan")


@pytest.mark.parametrize("engine", CASES)
def test_servers_of_one_node_have_gpus_and_ports_of_their_own(engine: str, tmp_path):
    """The shell starts each with other GPUs and ports, and whatever stands in front knows where."""
    import os
    import subprocess

    pools = {"prefill": {"replicas": 2, "tp": 1}, "decode": {"replicas": 3, "tp": 2}}
    for plan in ({"tp": 2}, {"pools": pools}):
        found = text(engine, plan, model="llama-3.1-8b")
        for name in ("vllm", "python", "trtllm-serve"):
            tool = tmp_path / name
            tool.write_text('#!/bin/bash\necho "RAN $CUDA_VISIBLE_DEVICES $@" >> out.txt\n')
            tool.chmod(0o755)
        (tmp_path / "out.txt").write_text("")
        script = found.replace("trtllm-serve disaggregated -c disaggregated.yaml", "") + "\nwait\n"
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, env=environment)
        runs = [line.split() for line in (tmp_path / "out.txt").read_text().splitlines()]
        gpus = [int(gpu) for run in runs for gpu in run[1].split(",")]
        ports = [run[run.index("--port") + 1] for run in runs]
        assert sorted(gpus) == list(range(8)) and len(set(ports)) == len(runs) == (4 if "tp" in plan else 5)
        if engine != "vllm" and "pools" in plan:
            assert all(f"NODE0:{port}" in found for port in ports) and "HOST:PORT" not in found


def test_servers_that_fill_their_nodes_keep_the_command_alone():
    assert "CUDA_VISIBLE_DEVICES" not in text("vllm", {"tp": 8}, model="llama-3.1-8b")
