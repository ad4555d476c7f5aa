"""What an oracle's answers cost: ``python benchmarks/oracle.py [KIND …] [--pieces 0,1,2,4,8,16] [--json FILE]``.

Batches never come again: lengths, contexts and numbers of sequences are drawn, chunks of prompts beside 1 to 200
sequences that decode. A thousand of them warm the tables; a thousand further ones are timed one by one, with the
quickest, the median and the mean (which holds what tables still fill) in processor time; the JSON has the median of a
plain loop of Python over the same rows beside them. Then the same with both ends of the range, of as many batches more.
Cold ones are the first answers of oracles in a warm interpreter, each of an oracle of its own, beside what ``predict``
takes, and the same with their ranges.

Served ones are steps as a scheduler lists them one after the other: about a hundred sequences that decode and grow by a
token, beside chunks of the prompts that come next. None comes twice either, but neighbours are alike, and so is the
part of the tables that they read.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Batch = list[tuple[int, int, int]]
#: Tokens that every cache below holds; those of prompts in a served step.
MOST_TOKENS, BUDGET = 400_000, 512
#: Model, cluster, stack and degrees: one for each way in which attention reads a batch.
KINDS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "dense": ("qwen3-8b", "mi300x-8", "sglang", {"tp": 1}),
    "dense-tp4": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4}),
    "pipeline": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4, "pp": 2}),
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "latents-ep": ("deepseek-v3", "hgx-h200-8", "sglang", {"dp": 8, "ep": 8}),
    "windows": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "chunks": ("llama-4-scout", "hgx-h100-8", "vllm", {"tp": 8}),
    "indexer": ("deepseek-v3.2", "hgx-h200-8", "vllm", {"tp": 8}),
    "compressed": ("deepseek-v4-flash", "hgx-b200-8", "sglang", {"tp": 4}),
    "delta": ("qwen3-next-80b-a3b", "hgx-h100-8", "vllm", {"tp": 4}),
    "delta-latents": ("kimi-linear-48b", "hgx-h100-8", "vllm", {"tp": 4}),
}


def scenario(kind: str) -> dict[str, Any]:
    model, cluster, stack, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    return {"name": "bench", "cluster": cluster, "workload": work, "plans": [{"name": "P", **degrees}]}


def stream(pieces: int, count: int, seed: int) -> list[Batch]:
    """Batches of as many chunks of prompts, each before 1 to 200 sequences that decode."""
    draw = random.Random(seed)
    batches = []
    for _ in range(count):
        chunks = [(draw.randint(17, 1024), draw.choice([0, draw.randint(1, 6000)]), 1) for _ in range(pieces)]
        batch, left = chunks, MOST_TOKENS - sum(query + context for query, context, _ in chunks)
        for _ in range(draw.randint(1, 200)):
            batch.append((1, draw.randint(100, 4000), 1))
            left -= batch[-1][1] + 1
            if left < 0:
                break
        batches.append(batch)
    return batches


def served(pieces: int, count: int, seed: int) -> list[Batch]:
    """Consecutive steps of an engine that gives as many prompts their share of a budget of tokens in each."""
    draw, batches = random.Random(seed), list[Batch]()
    waiting, running = list[list[int]](), list[list[int]]()
    for _ in range(count):
        waiting += [[draw.randint(500, 4000), 0] for _ in range(pieces - len(waiting))]
        chunks = []
        for prompt in waiting:
            length, before = prompt
            query = min(length - before, BUDGET // pieces)
            chunks.append((query, before, 1))
            prompt[1] += query
        batches.append([*chunks, *((1, context, 1) for context, _ in running)])
        running = [[context + 1, left - 1] for context, left in running if left > 1]
        running += [[length, draw.randint(200, 900)] for length, read in waiting if read == length]
        waiting = [prompt for prompt in waiting if prompt[1] < prompt[0]]
    return batches


def calls_us(ask: Callable[[Batch], object], batches: list[Batch]) -> tuple[float, float, float]:
    """µs a call: the quickest, the median, and the mean in processor time."""
    spans = []
    whole = time.process_time()
    for batch in batches:
        start = time.perf_counter_ns()
        ask(batch)
        spans.append((time.perf_counter_ns() - start) / 1e3)
    mean = (time.process_time() - whole) * 1e6 / len(batches)
    return min(spans), statistics.median(spans), mean


def plain(batch: Batch) -> int:
    """A loop of Python over the rows, as a measure of the machine."""
    total = 0
    for query, context, count in batch:
        total += query * context * count
    return total


def warm(kind: str, pieces: list[int], count: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By number of chunks: µs of the quickest, the median and the mean call, and of the median plain loop; the first
    three of calls with their ranges, too."""
    import tspsim

    oracle = tspsim.predict(scenario(kind))
    answers = {}
    for number in pieces:
        for batch in stream(number, count, number):
            oracle(batch)
        batches = stream(number, count, number + 1000)
        answers[str(number)] = [*calls_us(oracle, batches), calls_us(plain, batches)[1]]
    ranged = {}
    for number in pieces:
        for batch in stream(number, count, number):
            ends(oracle(batch))
        batches = stream(number, count, number + 2000)
        ranged[str(number)] = list(calls_us(lambda batch: ends(oracle(batch)), batches))
    return answers, ranged


def beneath(kind: str, pieces: list[int], count: int) -> dict[str, list[float]]:
    """By number of chunks: sequences of the mean step, and µs of the quickest, the median and the mean call with its
    range, of served steps."""
    import tspsim

    oracle = tspsim.predict(scenario(kind))
    answers = {}
    for number in pieces:
        for batch in served(number, 2 * count, number):
            ends(oracle(batch))
        batches = served(number, 2 * count, number + 1000)[count:]
        sequences = statistics.mean(map(len, batches))
        answers[str(number)] = [sequences, *calls_us(lambda batch: ends(oracle(batch)), batches)]
    return answers


def ends(step: Any) -> tuple[float, float]:
    """Both ends of a step's range."""
    return step.low, step.high


def first_batches() -> dict[str, Batch]:
    """What a plan's first question may be; ``predict`` has written a step of 32 sequences."""
    alike, beside = [(1, 1000, 48)], random.Random(7)
    return {
        "decode": alike,
        "unequal": [(1, beside.randint(100, 4000), 1) for _ in range(99)],
        "prompt": [(2000, 0, 1)],
        "prompt beside": [(512, 0, 1), *alike],
        "behind a cache": [(512, 64, 1), *alike],
        "one chunk": stream(1, 1, 7)[0],
        "sixteen": stream(16, 1, 7)[0],
    }


def cold(kind: str) -> tuple[dict[str, float], dict[str, float]]:
    """Processor milliseconds of a new plan's oracle, and of its first answer, each of an oracle of its own; Python's
    collector looks for cycles in between. And those of the answers with their ranges."""
    import tspsim

    spans, ranged, made = {}, {}, []
    for name, batch in first_batches().items():
        start = time.process_time()
        oracle = tspsim.predict(scenario(kind))
        made.append((time.process_time() - start) * 1e3)
        gc.collect()
        start = time.process_time()
        step = oracle(batch)
        spans[name] = (time.process_time() - start) * 1e3
        start = time.process_time()
        ends(step)
        ranged[name] = spans[name] + (time.process_time() - start) * 1e3
    return {"predict": statistics.median(made), **spans}, ranged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND")
    parser.add_argument("--pieces", default="0,1,2,4,8,16")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    pieces = [int(number) for number in asked.pieces.split(",")]
    import tspsim

    start = time.process_time()
    tspsim.predict(scenario("dense"))([(512, 0, 1), (1, 1000, 32)])
    answer: dict[str, Any] = {"fresh_ms": (time.process_time() - start) * 1e3}
    print(f"first oracle of a process, with one answer: {answer['fresh_ms']:.0f} ms")
    for kind in asked.kinds:
        answer[kind] = dict(zip(("cold_ms", "ranged_cold_ms"), cold(kind), strict=True))
        answer[kind] |= zip(("warm_us", "ranged_us"), warm(kind, pieces, asked.batches), strict=True)
        figures = "  ".join(
            f"{n}: {low:.0f}/{mid:.0f}/{mean:.0f}" for n, (low, mid, mean, _) in answer[kind]["warm_us"].items()
        )
        firsts = ", ".join(f"{name} {span:.1f}" for name, span in answer[kind]["cold_ms"].items())
        print(f"{kind:<14} µs by pieces, quickest/median/mean: {figures}   cold ms: {firsts}", flush=True)
        figures = "  ".join(
            f"{n}: {low:.0f}/{mid:.0f}/{mean:.0f}" for n, (low, mid, mean) in answer[kind]["ranged_us"].items()
        )
        firsts = ", ".join(f"{name} {span:.1f}" for name, span in answer[kind]["ranged_cold_ms"].items())
        print(f"{'  with its range':<14} µs: {figures}   cold ms: {firsts}", flush=True)
        answer[kind]["served_us"] = beneath(kind, [number for number in pieces if number], asked.batches)
        figures = "  ".join(
            f"{n}: {low:.0f}/{mid:.0f}/{mean:.0f}" for n, (_, low, mid, mean) in answer[kind]["served_us"].items()
        )
        print(f"{'  served':<14} µs with its range: {figures}", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
