"""SGLang: ``python -m sglang.launch_server``. Flags: docs.sglang.io, server arguments and PD disaggregation."""

from __future__ import annotations

from collections.abc import Sequence

from ...serving.deployment import BLOCKS, TOKENS
from .command import Command, degree_flags
from .server import LAUNCHERS, Server, flags

#: Types of a cache as ``--kv-cache-dtype`` calls them; bf16 is ``auto``.
CACHES = {"fp8": "fp8_e4m3"}
#: Who drafts, as ``--speculative-algorithm`` calls it, and whether it needs a checkpoint of its own.
DRAFTS = {"mtp": ("EAGLE", False), "eagle": ("EAGLE3", True), "ngram": ("NGRAM", False)}


class Sglang:
    """``python -m sglang.launch_server``."""

    name = "sglang"
    vendors = ("nvidia", "amd")

    def command(self, server: Server) -> Command:
        cannot = [f"ranks along {axis}" for axis in server.strange]
        words = ["python", "-m", "sglang.launch_server", "--model-path", server.model]
        words += ["--tp-size", str(server.axis("tp") * server.lanes)]
        words += degree_flags(("--pp-size", server.axis("pp")))
        words += ["--dp-size", str(server.lanes), "--enable-dp-attention"] if server.lanes > 1 else []
        words += degree_flags(("--dcp-size", server.axis("dcp")), ("--ep-size", server.axis("ep")))
        if server.dispatch is not None and server.dispatch.phases is not None:
            small = server.dispatch.element_bytes is not None
            deepep = ["--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency" if small else "normal"]
            words += ["--moe-a2a-backend", "mori"] if server.vendor == "amd" else deepep
        elif server.dispatch is not None and not server.dispatch.gathers:
            cannot.append(f"expert_dispatch {server.dispatch.name}")
        if server.tokens is not None:
            words += ["--chunked-prefill-size", str(server.tokens)]
        if server.sequences is not None:
            # Of all attention replicas together.
            words += ["--max-running-requests", str(server.sequences * server.lanes)]
        if server.cache in CACHES:
            words += ["--kv-cache-dtype", CACHES[server.cache]]
        elif server.cache not in (None, "bf16"):
            cannot.append(f"a cache in {server.cache}")
        if server.scheduler == self.name:
            words += flags(server.options, negated=None)
            if TOKENS in server.options:
                words += ["--max-total-tokens", str(server.options[TOKENS])]
            if BLOCKS in server.options:
                cannot.append(f"{BLOCKS} {server.options[BLOCKS]}: state --max-total-tokens")
        elif server.options:
            cannot.append(f"options of {server.scheduler}: {', '.join(server.options)}")
        if server.drafts is not None:
            words += self._drafts(server, cannot)
        if server.part:
            words += ["--disaggregation-mode", server.part, "--disaggregation-transfer-backend", "mooncake"]
            if server.pushes:
                cannot.append("caches pushed layer by layer: mooncake sends them chunk by chunk of the prompt")
        return Command(words, cannot)

    @staticmethod
    def _drafts(server: Server, cannot: list[str]) -> list[str]:
        drafts = server.drafts
        assert drafts is not None
        if drafts.draft not in DRAFTS:
            cannot.append(f"drafts by {drafts.draft}")
            return []
        algorithm, own = DRAFTS[drafts.draft]
        words = ["--speculative-algorithm", algorithm, "--speculative-num-draft-tokens", str(drafts.tokens + 1)]
        if algorithm != "NGRAM":
            words += ["--speculative-num-steps", str(drafts.tokens), "--speculative-eagle-topk", "1"]
        return words + (["--speculative-draft-model-path", "DRAFT_MODEL"] if own else [])

    def router(self, servers: Sequence[Server]) -> list[str]:
        if servers[0].part:
            words = ["python -m sglang_router.launch_router --pd-disaggregation"]
            words += [f"{'--prefill' if s.part == 'prefill' else '--decode'} http://HOST:PORT" for s in servers]
            return [f"# in front of them, once for each of the servers: {' '.join(words)}"]
        return ["# in front of them: python -m sglang_router.launch_router --worker-urls http://HOST:PORT …"]


SGLANG = LAUNCHERS.register(Sglang())
