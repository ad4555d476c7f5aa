"""SGLang: ``python -m sglang.launch_server``. Flags: docs.sglang.io, server arguments and PD disaggregation."""

from __future__ import annotations

from collections.abc import Sequence

from ...serving.deployment import BLOCKS, TOKENS
from .command import Command, degree_flags
from .server import LAUNCHERS, LaunchedServer, flags

#: Types of a cache as ``--kv-cache-dtype`` calls them; bf16 is ``auto``.
CACHES = {"fp8": "fp8_e4m3"}
#: Drafts as ``--speculative-algorithm`` calls them, and whether they need a checkpoint of their own.
DRAFTS = {"mtp": ("EAGLE", False), "eagle": ("EAGLE3", True), "ngram": ("NGRAM", False)}
#: Libraries of expert dispatch, by vendor of the GPUs.
LIBRARIES = {"nvidia": "deepep", "amd": "mori"}
#: Balance policies that it has, and the option of each that counts experts with their copies.
BALANCES = {"eplb": "replicas", "repeated": "replicas"}
#: Flags beside the number of copies.
MAPS = {"eplb": ["--enable-eplb"]}
#: Routers, as sglang_router's ``--policy`` calls them.
ROUTERS = {"round_robin": "round_robin", "prefix_aware": "cache_aware"}


class Sglang:
    """``python -m sglang.launch_server``."""

    name = "sglang"
    vendors = ("nvidia", "amd")

    def command(self, server: LaunchedServer) -> Command:
        copies = server.balance.policy in BALANCES and server.axis("ep") > 1
        chunked = "mooncake sends them chunk by chunk of the prompt"
        notes: list[str] = []
        cannot = server.unsaid(overlaps=True, copies=copies, pushes=chunked)
        cannot += server.lower("--enable-hierarchical-cache with --hicache-size, in GB a rank, states the host's")
        words = ["python", "-m", "sglang.launch_server", "--model-path", server.model]
        words += ["--tp-size", str(server.axis("tp") * server.dp_size)]
        words += degree_flags(("--pp-size", server.axis("pp")))
        if server.dp_size > 1:
            words += ["--attn-dp-size", str(server.dp_size)]
            notes.append(f"to SGLang 0.5.21 --attn-dp-size was --dp-size {server.dp_size} --enable-dp-attention")
        words += degree_flags(("--dcp-size", server.axis("dcp")), ("--ep-size", server.axis("ep")))
        if server.dispatch is not None:
            words += self._dispatch(server, cannot, notes)
        if copies:
            redundant = server.copies(BALANCES[server.balance.policy])
            words += [*MAPS.get(server.balance.policy, ()), "--ep-num-redundant-experts", str(redundant)]
        words += ["--enable-two-batch-overlap"] if server.overlap.halves else []
        # Of all attention replicas together.
        limits = [None if limit is None else limit * server.dp_size for limit in (server.tokens, server.sequences)]
        tokens, sequences = server.stated if server.scheduler == self.name else limits
        words += ["--chunked-prefill-size", str(tokens)] if tokens is not None else []
        words += ["--max-running-requests", str(sequences)] if sequences is not None else []
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
        return Command(words, cannot, notes=notes)

    def _dispatch(self, server: LaunchedServer, cannot: list[str], notes: list[str]) -> list[str]:
        """Flags of the dispatch: two pools have messages of their own; one server for both sends prompts by the
        normal ones."""
        assert server.dispatch is not None
        mode = server.dispatch.launched.get(self.name)
        if mode is None:
            cannot.append(f"expert_dispatch {server.dispatch.name}")
        if mode in (None, "none"):
            return []
        if server.dispatch.few_tokens and server.part != "decode":
            sent = "prompts by low-latency messages: they are sent by normal ones"
            cannot.append(sent if server.vendor == self.vendors[0] else f"{sent}, and mori's auto sends all by them")
            mode = "normal" if server.part else "auto"
        return ["--moe-a2a-backend", LIBRARIES[server.vendor], "--deepep-mode", mode]

    @staticmethod
    def _drafts(server: LaunchedServer, cannot: list[str]) -> list[str]:
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

    def second_port(self, server: LaunchedServer) -> str:
        """The flag of the port at which decode servers reach a prefill server."""
        return "--disaggregation-bootstrap-port" if server.part == "prefill" else ""

    def router(self, servers: Sequence[LaunchedServer]) -> list[str]:
        if servers[0].part:
            words = ["python -m sglang_router.launch_router --pd-disaggregation"]
            words += [
                f"{'--prefill' if server.part == 'prefill' else '--decode'} http://{url}"
                for server in servers
                for url in (server.urls if server.addresses else server.urls[:1])
            ]
            repeated = "" if servers[0].addresses else ", once for each of the servers"
            return [f"# in front of them{repeated}: {' '.join(words)}"]
        policy = ROUTERS.get(servers[0].router)
        policy_flag = f" --policy {policy}" if policy else ""
        other = [] if policy else [f"# cannot be said here: router {servers[0].router}"]
        urls = " ".join(f"http://{url}" for url in servers[0].addresses) or "http://HOST:PORT …"
        launched = f"python -m sglang_router.launch_router{policy_flag} --worker-urls {urls}"
        return [*other, f"# in front of them: {launched}"]


SGLANG = LAUNCHERS.register(Sglang())
