"""vLLM: ``vllm serve``. Flags: docs.vllm.ai, engine arguments and NixlConnector usage (V1)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...serving.deployment import BLOCKS, TOKENS
from .command import Command, degree_flags
from .server import LAUNCHERS, LaunchedServer, flags

#: Types of a cache as ``--kv-cache-dtype`` calls them; bf16 is ``auto``.
CACHES = {"fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "nvfp4": "nvfp4"}
#: Tokens of a step by default, where low-latency messages go to experts of several attention replicas
#: (SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP, vllm/engine/arg_utils.py:3169 of 0.33.0).
FEW_TOKENS = 256
#: Balance policies that it has, and the option of each that counts experts with their copies.
BALANCES = {"eplb": "replicas"}
#: Drafts, as ``--speculative-config`` calls them.
DRAFTS = {"mtp": {"method": "mtp"}, "eagle": {"method": "eagle3", "model": "DRAFT_MODEL"}, "ngram": {"method": "ngram"}}
#: Routers, as vllm-router (a fork of SGLang's, with the same policies) has them.
ROUTERS = {
    "round_robin": "any HTTP load balancer, or vllm-router --policy round_robin",
    "prefix_aware": "vllm-router --policy cache_aware",
}
OTHER_ROUTER = "an HTTP load balancer with the policy of the plan's router, which vllm-router does not have"


class Vllm:
    """``vllm serve``."""

    name = "vllm"
    vendors = ("nvidia", "amd")

    def command(self, server: LaunchedServer) -> Command:
        copies = server.balance.policy in BALANCES and server.axis("ep") > 1
        pulled = "NixlConnector pulls them when the prompt has been read"
        notes: list[str] = []
        cannot = server.unsaid(overlaps=True, copies=copies, pushes=pulled)
        cannot += server.lower("state --kv-offloading-size, in GiB of all ranks, or an OffloadingConnector")
        words = ["vllm", "serve", server.model, "--tensor-parallel-size", str(server.axis("tp"))]
        words += degree_flags(
            ("--pipeline-parallel-size", server.axis("pp")),
            ("--data-parallel-size", server.dp_size),
            ("--decode-context-parallel-size", server.axis("dcp")),
        )
        if server.axis("ep") > 1:
            words.append("--enable-expert-parallel")
            spread = server.axis("tp") * server.dp_size
            if server.axis("ep") != spread:
                cannot.append(f"experts over {server.axis('ep')} ranks: they are spread over all {spread}")
        if server.dispatch is not None:
            words += self._dispatch(server, cannot, notes)
        if copies:
            config = {"num_redundant_experts": server.copies(BALANCES[server.balance.policy])}
            words += ["--enable-eplb", "--eplb-config", json.dumps(config)]
        if server.overlap.halves:
            words.append("--enable-dbo")
        if server.tokens is not None:
            words += ["--max-num-batched-tokens", str(server.tokens)]
        if server.sequences is not None:
            most = min(server.sequences, server.tokens or server.sequences)  # its SchedulerConfig raises beyond
            if most < server.sequences:
                cannot.append(f"{server.sequences} requests at once: vLLM runs no more than a step has tokens")
            words += ["--max-num-seqs", str(most)]
        if server.cache in CACHES:
            words += ["--kv-cache-dtype", CACHES[server.cache]]
        if server.scheduler == self.name:
            words += flags(server.options)
            if BLOCKS in server.options:
                words += ["--num-gpu-blocks-override", str(server.options[BLOCKS])]
            if TOKENS in server.options:
                cannot.append(f"{TOKENS} {server.options[TOKENS]}: state --num-gpu-blocks-override")
        elif server.options:
            cannot.append(f"options of {server.scheduler}: {', '.join(server.options)}")
        if server.drafts is not None:
            words += self._drafts(server, cannot)
        if server.part:
            connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
            words += ["--kv-transfer-config", json.dumps(connector)]
        return Command(words, cannot, notes=notes)

    def _dispatch(self, server: LaunchedServer, cannot: list[str], notes: list[str]) -> list[str]:
        assert server.dispatch is not None
        there = self.name if server.vendor == self.vendors[0] else f"{self.name} {server.vendor}"
        backend = server.dispatch.launched.get(there)
        if backend is None:
            cannot.append(f"expert_dispatch {server.dispatch.name}")
            return []
        if server.dispatch.few_tokens and (server.tokens or 0) > FEW_TOKENS:
            notes.append(
                f"{backend} allocates buffers for every token of a step: {server.tokens} take far more memory than the"
                f" {FEW_TOKENS} that vLLM starts with"
            )
        return ["--all2all-backend", backend]

    @staticmethod
    def _drafts(server: LaunchedServer, cannot: list[str]) -> list[str]:
        drafts = server.drafts
        assert drafts is not None
        if drafts.draft not in DRAFTS:
            cannot.append(f"drafts by {drafts.draft}")
            return []
        config = {**DRAFTS[drafts.draft], "num_speculative_tokens": drafts.tokens}
        return ["--speculative-config", json.dumps(config)]

    def second_port(self, server: LaunchedServer) -> str:
        """The variable with the port of the side channel for KV caches."""
        return "VLLM_NIXL_SIDE_CHANNEL_PORT" if server.part else ""

    def router(self, servers: Sequence[LaunchedServer]) -> list[str]:
        if servers[0].part:
            counts = ", ".join(f"{server.count} {server.part}" for server in servers)
            return [
                f"# in front of them: a proxy that sends prompts to one and answers to the other ({counts}), such as",
                "# llm-d, or toy_proxy_server.py of vllm-project/vllm, tests/v1/kv_connector/nixl_integration",
            ]
        return [f"# in front of the {servers[0].count}: {ROUTERS.get(servers[0].router, OTHER_ROUTER)}"]


VLLM = LAUNCHERS.register(Vllm())
