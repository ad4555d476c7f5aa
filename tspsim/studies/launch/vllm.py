"""vLLM: ``vllm serve``. Flags: docs.vllm.ai, engine arguments and NixlConnector usage (V1)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...serving.deployment import BLOCKS, TOKENS
from .command import Command, degree_flags
from .server import LAUNCHERS, Server, flags

#: Types of a cache as ``--kv-cache-dtype`` calls them; bf16 is ``auto``.
CACHES = {"fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "nvfp4": "nvfp4"}
#: Who drafts, as ``--speculative-config`` calls it.
DRAFTS = {"mtp": {"method": "mtp"}, "eagle": {"method": "eagle3", "model": "DRAFT_MODEL"}, "ngram": {"method": "ngram"}}


class Vllm:
    """``vllm serve``."""

    name = "vllm"
    vendors = ("nvidia", "amd")

    def command(self, server: Server) -> Command:
        cannot = [f"ranks along {axis}" for axis in server.strange]
        words = ["vllm", "serve", server.model, "--tensor-parallel-size", str(server.axis("tp"))]
        words += degree_flags(
            ("--pipeline-parallel-size", server.axis("pp")),
            ("--data-parallel-size", server.lanes),
            ("--decode-context-parallel-size", server.axis("dcp")),
        )
        if server.axis("ep") > 1:
            words.append("--enable-expert-parallel")
            spread = server.axis("tp") * server.lanes
            if server.axis("ep") != spread:
                cannot.append(f"experts over {server.axis('ep')} ranks: they are spread over all {spread}")
        if server.dispatch is not None:
            words += self._dispatch(server, cannot)
        if server.tokens is not None:
            words += ["--max-num-batched-tokens", str(server.tokens)]
        if server.sequences is not None:
            words += ["--max-num-seqs", str(server.sequences)]
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
            if server.pushes:
                cannot.append("caches pushed layer by layer: NixlConnector pulls them when the prompt has been read")
        return Command(words, cannot)

    @staticmethod
    def _dispatch(server: Server, cannot: list[str]) -> list[str]:
        assert server.dispatch is not None
        if server.dispatch.gathers:
            return ["--all2all-backend", "allgather_reducescatter"]
        if server.dispatch.phases is None:
            cannot.append(f"expert_dispatch {server.dispatch.name}")
            return []
        if server.vendor == "amd":
            return ["--all2all-backend", "mori"]
        small = server.dispatch.element_bytes is not None
        return ["--all2all-backend", "deepep_low_latency" if small else "deepep_high_throughput"]

    @staticmethod
    def _drafts(server: Server, cannot: list[str]) -> list[str]:
        drafts = server.drafts
        assert drafts is not None
        if drafts.draft not in DRAFTS:
            cannot.append(f"drafts by {drafts.draft}")
            return []
        config = {**DRAFTS[drafts.draft], "num_speculative_tokens": drafts.tokens}
        return ["--speculative-config", json.dumps(config)]

    def router(self, servers: Sequence[Server]) -> list[str]:
        if servers[0].part:
            counts = ", ".join(f"{server.count} {server.part}" for server in servers)
            return [
                f"# in front of them: a proxy that sends prompts to one and answers to the other ({counts}), such as",
                "# llm-d, or toy_proxy_server.py of vllm-project/vllm, tests/v1/kv_connector/nixl_integration",
            ]
        return [f"# in front of the {servers[0].count}: any HTTP load balancer, or vllm-router"]


VLLM = LAUNCHERS.register(Vllm())
