"""One contract for everything registered that serves requests, and for what a stranger's package brings: schedulers,
routers, arrivals, lengths, prefixes, ways to count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import documents, serving_newcomers

from tspsim.base.catalog import validate
from tspsim.base.units import WITH_UNITS
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving import POLICIES
from tspsim.serving.routers import ROUTERS
from tspsim.serving.tiers import TierSpec
from tspsim.studies.contract import services
from tspsim.traffic import ARRIVALS, LENGTHS, PREFIXES, PROTOCOLS

ROOT = Path(__file__).resolve().parents[2]
TRACE = "azure-2023-conv-1000"
REGISTRIES = {
    "tspsim.schedulers": POLICIES, "tspsim.routers": ROUTERS, "tspsim.arrivals": ARRIVALS,
    "tspsim.lengths": LENGTHS, "tspsim.prefixes": PREFIXES, "tspsim.protocols": PROTOCOLS,
}  # fmt: skip
#: One of every kind, and what has to stand beside it.
EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "arrivals": {
        "at_once": {},
        "closed": {"concurrency": 6},
        "fixed": {"rate": 20},
        "gamma": {"rate": 20, "burstiness": 0.5},
        "poisson": {"rate": 20, "max_concurrency": 9},
        "trace": {"file": TRACE, "rate": 20},
        "twice": {"every": 0.1},
    },
    "prompt": {
        "fixed": {"of": 300},
        "file": {"file": TRACE, "cap": 900},
        "lognormal": {"median": 200, "sigma": 1.0, "cap": 1500},
        "mixture": {"parts": [{"lengths": 40}, {"weight": 2, "lengths": {"kind": "uniform", "of": 700, "from": 0.5}}]},
        "uniform": {"of": 600, "from": 0.2},
        "either": {"short": 40, "long": 700},
    },
    "prefix": {
        "share": {"share": 0.5, "groups": 2},
        "agents": {"turns": 2, "tool": "100 ms", "workers": 2},
        "research": {"breadth": 2, "tool": "100 ms", "workers": 2},
        "debate": {"debaters": 2, "rounds": 2},
        "retrieval": {"levels": 1, "breadth": 2},
        "calls": {"calls": [{"name": "ask"}, {"name": "read", "after": ["ask"], "times": 2}]},
        "hash_ids": {},
        "turns": {"turns": 3, "think": "50 ms"},
        "first": {"tokens": 128},
    },
    "protocol": {
        "aiperf": {"warm_ups": 4},
        "inferencex": {},
        "mlperf_server": {},
        "mlperf_interactive": {},
        "mlperf_offline": {},
        "plain": {"skip_first": 2, "skip_last": 3},
        "vllm_bench": {},
        "middle": {},
    },
}
FAMILIES = {"arrivals": ARRIVALS, "prompt": LENGTHS, "prefix": PREFIXES, "protocol": PROTOCOLS}
#: Arrivals that a way to count asks for.
ASKS = {"inferencex": "closed", "mlperf_offline": "at_once"}
REQUESTS = 30


@pytest.fixture(autouse=True)
def strangers() -> Iterator[None]:
    brought = [
        (REGISTRIES[group], getattr(serving_newcomers, called))
        for group, names in serving_newcomers.ENTRY_POINTS.items()
        for called in names.values()
    ]
    for registry, thing in brought:
        registry.register(thing)
    yield
    for registry, thing in brought:
        registry.remove(thing.name)


def traffic(**keys: Any) -> TrafficSpec:
    stated = {"prompt": 300, "output": {"kind": "uniform", "of": 40, "from": 0.1}, "requests": REQUESTS, "seed": 3}
    return validate({"arrivals": {"kind": "poisson", "rate": 20}, **stated, **keys}, TrafficSpec)


def example(key: str, kind: str) -> TrafficSpec:
    """Requests of one kind; what it needs beside it is there."""
    given: dict[str, Any] = {key: {"kind": kind, **EXAMPLES[key][kind]}}
    if key == "protocol":
        arrivals = ASKS.get(kind, "poisson")
        given["arrivals"] = {"kind": arrivals, **EXAMPLES["arrivals"][arrivals]}
    return traffic(**given)


#: A host of each replica, and a store of all: one written when blocks are computed, the other when they are forgotten.
TIERS = [
    TierSpec("host", 6000.0, 1.0, 1e-6, on_eviction=True),
    TierSpec("remote", 20000.0, 1.0, 4e-6, 1e-3, shared=True),
]


def keeps_the_laws(
    asked: TrafficSpec,
    scheduler: str = "vllm",
    router: str = "least_load",
    tiers: Sequence[TierSpec] = (),
    kv_tokens: int = 16384,
) -> Any:
    """Those of `tspsim check-plugin`; what came of the requests."""
    found = list(services.laws(asked, scheduler, router, tiers, kv_tokens))
    assert len(found) >= 8 and [each for each in found if each.outcome != "kept"] == []
    return services.served(asked, scheduler, router, tiers, kv_tokens=kv_tokens)[2]


def every_kind() -> list[tuple[str, str]]:
    return [(key, kind) for key, kinds in EXAMPLES.items() for kind in kinds if kind != "hash_ids"]


def test_everything_registered_has_an_example() -> None:
    assert {key: set(kinds) for key, kinds in EXAMPLES.items()} == {k: set(r.names()) for k, r in FAMILIES.items()}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("key", "kind"), every_kind())
def test_requests_of_every_kind_keep_the_laws(key: str, kind: str) -> None:
    keeps_the_laws(example(key, kind))


def test_every_scheduler_behind_every_router_keeps_the_laws() -> None:
    asked = traffic(prefix={"share": 0.5, "groups": 3}, prompt={"kind": "uniform", "of": 900, "from": 0.1})
    for scheduler, router in product(POLICIES.names(), ROUTERS.names()):
        keeps_the_laws(asked, scheduler, router)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("tiers", [(), TIERS[:1], TIERS[1:], TIERS], ids=["none", "host", "store", "both"])
def test_every_scheduler_behind_every_router_keeps_the_laws_with_short_caches(tiers: Sequence[TierSpec]) -> None:
    """Small caches forget, so that tiers are asked; blocks that were loaded are computed by nobody. Every scheduler and
    every router meets every tier, and every two meet in half of them."""
    place = [(), TIERS[:1], TIERS[1:], TIERS].index(tiers)
    asked = traffic(prefix={"share": 0.8, "groups": 9}, prompt={"kind": "uniform", "of": 1500, "from": 0.5})
    loaded = 0
    pairs = [*product(enumerate(POLICIES.names()), enumerate(ROUTERS.names()))]
    for scheduler, router in [(each[1], other[1]) for each, other in pairs if (each[0] + other[0] + place) % 2]:
        outcome = keeps_the_laws(asked, scheduler, router, tiers, kv_tokens=3000)
        assert all(each.start_s <= each.end_s and each.exposed_s >= 0.0 for each in outcome.transfers)
        loaded += len(outcome.transfers)
    assert bool(loaded) == bool(tiers)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES["prefix"] if kind != "hash_ids"])
def test_prefixes_of_every_kind_keep_the_laws_with_tiers(kind: str) -> None:
    keeps_the_laws(example("prefix", kind), tiers=TIERS, kv_tokens=4096)


def test_everything_registered_says_what_it_is() -> None:
    tables = documents.script("generate_serving")
    listed = {"routers": tables.routers(), "kinds": tables.kinds(), "schedulers": tables.schedulers()}
    for router in ROUTERS.values():
        assert router.summary and f"| `{router.name}` | {router.summary} |" in listed["routers"]
    for policy in POLICIES.values():
        assert f"| `{policy.name}` |" in listed["schedulers"] and policy.scheduler.__doc__ and policy.options.__doc__
    for key, registry in FAMILIES.items():
        for kind in registry.values():
            assert kind.__doc__ and f"| `{kind.name}` |" in listed["kinds"]
            assert example(key, kind.name).in_words("m") if kind.name != "hash_ids" else True


@pytest.mark.parametrize(("key", "kind"), every_kind())
def test_every_kind_is_read_back_as_it_is_written(key: str, kind: str) -> None:
    asked = example(key, kind)
    again = validate(asked.model_dump(mode="json", by_alias=True, context={WITH_UNITS: True}), TrafficSpec)
    assert np.array_equal(again.draw().prompt_tokens, asked.draw().prompt_tokens)
    assert again == asked


def test_a_package_that_serves_is_found_by_its_entry_points(tmp_path: Path) -> None:
    """A tiny installed package: its module, and metadata that names the objects; no file of tspsim is touched."""
    site, metadata = tmp_path / "site", tmp_path / "site" / "strangers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "strangers.py").write_text(Path(serving_newcomers.__file__).read_text(encoding="utf-8"))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    groups = serving_newcomers.ENTRY_POINTS.items()
    lines = chain.from_iterable([f"[{g}]", *(f"{n} = strangers:{o}" for n, o in names.items())] for g, names in groups)
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    asked = {
        "name": "new",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm", "engine": {"policy": "shortest", "page": 8}},
        "traffic": {
            **{key: {"kind": kind, **EXAMPLES[key][kind]} for key, kind in {
                "arrivals": "twice", "prompt": "either", "prefix": "first", "protocol": "middle"
            }.items()},
            "output": 8,
            "requests": 20,
        },
        "plans": [{"name": "P", "tp": 4, "router": "by_length"}],
    }  # fmt: skip
    (tmp_path / "new.yaml").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-m", "tspsim", "run", "new.yaml", "--json", "-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (plan,) = json.loads(done.stdout)["plans"]
    assert plan["serving"]["requests"] == 10 and plan["settings"]["router"] == "by_length"
    assert plan["settings"]["engine"]["scheduler"] == "shortest" and plan["settings"]["engine"]["page"] == 8
