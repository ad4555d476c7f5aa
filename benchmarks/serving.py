"""What a serving step costs to simulate: ``python benchmarks/serving.py [--repeats N]``.

A decode step of Kimi K2.6 on eight GPUs: the first time that a process asks, another batch size, another plan; and the
same replica 128 times, on 1,024 GPUs, beside one alone, turn by turn. Processor time; the ratios are the figures to
look at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from tspsim.scenario import load
from tspsim.step.question import Question
from tspsim.step.simulation import run_plan
from tspsim.studies.query import Library


def scenario(batch: int, *, nodes: int = 1, **plan: Any) -> dict[str, Any]:
    cluster = {"device": "mi355x", "nodes": nodes} | ({"fabric": "rails-400g"} if nodes > 1 else {})
    work = {"model": "kimi-k2.6", "pass": "decode", "batch": batch, "context": "32Ki", "precision": {"kv": "fp8"}}
    return {"name": "s", "cluster": cluster, "workload": work, "plans": [{"name": "P", "tp": 8, **plan}]}


def processor_s(library: Library, asked: dict[str, Any]) -> tuple[float, float]:
    """Of looking up what a scenario names, and of simulating it."""
    parsed = load(asked)
    begin_s = time.process_time()
    question: Question = library.look_up(parsed)
    found_s = time.process_time()
    assert run_plan(question, question.plans[0]).ran
    return found_s - begin_s, time.process_time() - found_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    other = {"workload": scenario(1)["workload"] | {"model": "llama-3.1-8b"}, "cluster": {"device": "h100"}}
    processor_s(Library(), scenario(1) | other)  # imports are not measured here
    read_s, simulated_s = processor_s(Library(), scenario(8))
    print(f"{'first of a process':28} {1e3 * simulated_s:8.1f} ms, and {1e3 * read_s:.1f} ms to read its files")
    firsts, others, plans, alone, many = [], [], [], [], []
    for turn in range(repeats):
        library = Library()
        firsts.append(processor_s(library, scenario(8)))
        others.append(processor_s(library, scenario(9 + turn)))
        plans.append(processor_s(library, scenario(8, ep=8)))
        alone.append(processor_s(library, scenario(40 + turn)))
        processor_s(library, scenario(1, nodes=128))  # the cluster itself is built once
        many.append(processor_s(library, scenario(60 + turn, nodes=128)))
    rows = {
        "nothing remembered": [sum(each) for each in firsts],
        "another batch size": [each for _, each in others],
        "another plan": [each for _, each in plans],
        "one replica": [each for _, each in alone],
        "1,024 GPUs": [each for _, each in many],
    }
    for name, seconds in rows.items():
        print(f"{name:28} {1e3 * statistics.median(seconds):8.1f} ms")
    ratios = [more / one for more, one in zip(rows["1,024 GPUs"], rows["one replica"], strict=True)]
    print(f"{'1,024 GPUs over one replica':28} {statistics.median(ratios):8.2f}")


if __name__ == "__main__":
    main()
