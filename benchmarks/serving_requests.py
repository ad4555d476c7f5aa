"""What requests cost to serve: ``python benchmarks/serving_requests.py [COUNT...] [--arrivals closed|poisson]``.

Kimi K2.6 on eight MI355X with vLLM, prompts of 6.6Ki to 8Ki tokens and answers of 0.8Ki to 1Ki, from the scenario to
the text of its JSON: a closed loop of 64 clients, or a Poisson stream of 1.7 requests a second. Every count is run in
a process of its own, so that its peak of memory is its own; what a request takes is the difference to the count before.

With ``--curves`` the shipped curves over nine concurrencies instead: every plan on every offer, with nothing known.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterable
from typing import Any

COUNTS = (2_000, 10_000, 100_000, 1_000_000)
ARRIVALS = {"closed": {"kind": "closed", "concurrency": 64}, "poisson": {"kind": "poisson", "rate": 1.7}}
CURVES = ("kimi-k2.6-mi355x-vs-b200", "glm-5.1-mi355x-vs-b200", "deepseek-v3.2-mi355x-vs-b200")


def scenario(requests: int, arrivals: str) -> dict[str, Any]:
    return {
        "name": "requests",
        "cluster": {"device": "mi355x", "nodes": 1},
        "workload": {"model": "kimi-k2.6", "stack": "vllm", "precision": {"kv": "fp8"}},
        "traffic": {
            "arrivals": ARRIVALS[arrivals],
            "prompt": {"kind": "uniform", "of": "8Ki", "from": 0.8},
            "output": {"kind": "uniform", "of": "1Ki", "from": 0.8},
            "requests": requests,
        },
        "plans": [{"name": "TP8", "tp": 8}],
    }


def served(requests: int, arrivals: str) -> tuple[float, float]:
    """Processor seconds, imports included, and megabytes at most."""
    import tspsim

    text = json.dumps(tspsim.simulate(scenario(requests, arrivals)).to_json())
    assert json.loads(text)["plans"][0]["serving"]["requests"] == requests
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def offered(name: str) -> list[tuple[str, str]]:
    """Offers and plans of a shipped scenario."""
    import tspsim
    from tspsim.studies.purchase.offers import expand

    return [(each.name, plan.name) for each in expand(tspsim.load(name)) for plan in each.plans]


def curve(name: str, offer: str, plan: str) -> float:
    """Processor seconds of one plan on one offer, imports included."""
    import tspsim
    from tspsim.studies.purchase.offers import expand

    asked = next(each for each in expand(tspsim.load(name)) if each.name == offer)
    alone = asked.model_copy(update={"plans": tuple(each for each in asked.plans if each.name == plan)})
    (found,) = tspsim.simulate(alone).to_json()["plans"]
    assert len(found["curve"]) == 9
    return time.process_time()


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def requests(counts: Iterable[int], arrivals: str) -> None:
    before = None
    print(f"{'requests':>10} {'s':>8} {'MB':>6} {'µs more each':>13} {'bytes more each':>16}")
    for count in counts:
        seconds, megabytes = in_own_process(served, count, arrivals)
        told = f"{count:10,} {seconds:8.1f} {megabytes:6.0f}"
        if before is not None:
            more = count - before[0]
            told += f" {1e6 * (seconds - before[1]) / more:13.0f} {1e6 * (megabytes - before[2]) / more:16.0f}"
        print(told, flush=True)
        before = count, seconds, megabytes


def curves() -> None:
    for name in CURVES:
        for offer, plan in in_own_process(offered, name):
            print(f"{name:32} {offer:8} {plan:12} {in_own_process(curve, name, offer, plan):6.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--arrivals", choices=tuple(ARRIVALS), default="closed")
    parser.add_argument("--curves", action="store_true")
    asked = parser.parse_args()
    if asked.curves:
        curves()
    else:
        requests(asked.counts, asked.arrivals)


if __name__ == "__main__":
    main()
