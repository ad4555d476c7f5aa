"""TensorRT-LLM: ``trtllm-serve``, and a YAML file for options without a flag.

Flags and keys: NVIDIA/TensorRT-LLM, docs of trtllm-serve, TorchLlmArgs and disaggregated serving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from ...serving.deployment import BLOCKS, TOKENS
from .command import Command, degree_flags
from .server import LAUNCHERS, LaunchedServer

#: Section of the YAML for an option; options that are not here stand at the top level.
SECTIONS = {
    "capacity_scheduler_policy": "scheduler_config",
    "enable_block_reuse": "kv_cache_config",
    "mamba_state_config": "kv_cache_config",
    "tokens_per_block": "kv_cache_config",
    "free_gpu_memory_fraction": "kv_cache_config",
}
#: Drafts, as ``speculative_config`` calls them; drafts by layers of the model are counted in ``max_draft_len`` since
#: pull request 12341 (March 2026), in ``num_nextn_predict_layers`` before.
DRAFTS: dict[str, dict[str, Any]] = {
    "mtp": {"decoding_type": "MTP"},
    "eagle": {"decoding_type": "Eagle3", "speculative_model": "DRAFT_MODEL"},
    "ngram": {"decoding_type": "NGram"},
}


class Trtllm:
    """``trtllm-serve``."""

    name = "trtllm"
    vendors = ("nvidia",)

    def command(self, server: LaunchedServer) -> Command:
        whole = "they are sent when the prompt has been read"
        cannot = server.unsaid(overlaps=False, copies=False, pushes=whole)
        cannot += server.lower("kv_cache_config.host_cache_size, in bytes a rank, states the host's")
        if server.dispatch is not None:
            cannot.append(f"expert_dispatch {server.dispatch.name}: TensorRT-LLM chooses it by itself")
        keys: dict[str, Any] = {}
        if server.axis("dcp") > 1:
            cannot.append(f"ranks along dcp {server.axis('dcp')}")
        words = ["trtllm-serve", server.model, "--backend", "pytorch"]
        words += ["--tp_size", str(server.axis("tp") * server.dp_size)]
        words += degree_flags(("--pp_size", server.axis("pp")), ("--ep_size", server.axis("ep")))
        if server.dp_size > 1:
            keys["enable_attention_dp"] = True
            if server.axis("tp") > 1:
                cannot.append(f"attention replicas of {server.axis('tp')} ranks: each rank is one of its own")
        if server.sequences is not None:
            words += ["--max_batch_size", str(server.sequences)]
        if server.tokens is not None:
            words += ["--max_num_tokens", str(server.tokens)]
        if server.cache not in (None, "bf16"):
            keys.setdefault("kv_cache_config", {})["dtype"] = server.cache
        if server.scheduler == self.name:
            self._options(server, keys, cannot)
        elif server.options:
            cannot.append(f"options of {server.scheduler}: {', '.join(server.options)}")
        if server.drafts is not None:
            if server.drafts.draft in DRAFTS:
                keys["speculative_config"] = {**DRAFTS[server.drafts.draft], "max_draft_len": server.drafts.tokens}
            else:
                cannot.append(f"drafts by {server.drafts.draft}")
        if server.part:
            keys["cache_transceiver_config"] = {"backend": "NIXL"}
            if server.part == "prefill":
                keys["disable_overlap_scheduler"] = True  # required of context servers
        files = {}
        if keys:
            file = f"{server.part or 'server'}.yaml"
            files[file] = yaml.safe_dump(keys, sort_keys=False)
            words += ["--extra_llm_api_options", file]
        return Command(words, cannot, files)

    @staticmethod
    def _options(server: LaunchedServer, keys: dict[str, Any], cannot: list[str]) -> None:
        for name, value in server.options.items():
            if name == TOKENS:
                keys.setdefault("kv_cache_config", {})["max_tokens"] = value
            elif name == BLOCKS:
                cannot.append(f"{BLOCKS} {value}: state kv_cache_config.max_tokens")
            else:
                section = keys.setdefault(SECTIONS[name], {}) if name in SECTIONS else keys
                section[name] = value

    def router(self, servers: Sequence[LaunchedServer]) -> list[str]:
        if not servers[0].part:
            policy = servers[0].router.replace("_", " ")
            return [f"# in front of the {servers[0].count}: an HTTP load balancer, {policy}"]
        names = {"prefill": "context_servers", "decode": "generation_servers"}
        keys = {names[server.part]: {"num_instances": server.count, "urls": server.urls} for server in servers}
        text = yaml.safe_dump({"hostname": "localhost", "port": 8000, **keys}, sort_keys=False).rstrip()
        return ["cat > disaggregated.yaml <<'EOF'", *text.splitlines(), "EOF",
                "trtllm-serve disaggregated -c disaggregated.yaml"]  # fmt: skip


TRTLLM = LAUNCHERS.register(Trtllm())
