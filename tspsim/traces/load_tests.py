"""Results of further load generators and of the engines' own benchmarks: a row is a measure (kind ``measure``).

GuideLLM's ``benchmarks.json`` (statistics of each metric, a benchmark for each rate), inference-perf's summaries of a
life cycle (seconds), LLMPerf's summary (``results_…_s_…``), ``sglang.bench_one_batch`` (JSON lines), ``vllm bench
latency`` and ``vllm bench throughput``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .benches import MISSING, documents, flat, holds, row
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Rows

#: Metrics of inference-perf and the engines' benchmarks that are times in seconds, by their names' words.
_TIMES = re.compile(
    r"latency|time_to|time_per|_s_(mean|min|max|stddev|quantiles)|elapsed|duration|schedule_delay|send_duration"
)

_BATCH = {"batch_size": "sequences", "input_len": "tokens in", "output_len": "tokens out"}


def read_guidellm(path: Path) -> FilePart:
    """Read GuideLLM's report: of each benchmark the statistics of successful requests."""
    rows = Rows()
    benchmarks = documents(path)[-1].get("benchmarks", [])
    several = len(benchmarks) > 1
    for number, benchmark in enumerate(benchmarks):
        metrics = benchmark.get("metrics", {}) if isinstance(benchmark, dict) else {}
        for metric, entry in metrics.items() if isinstance(metrics, dict) else ():
            own = entry.get("successful", entry) if isinstance(entry, dict) else entry
            for statistic, value in flat(own):
                name = ".".join(word for word in (metric, statistic.replace("percentiles.", "")) if word)
                scale = 1e-3 if metric.endswith("_ms") else 1.0 if metric == "request_latency" else 0.0
                row(rows, f"{number}.{name}" if several else name, value, value * scale)
    return FilePart(rows, missing=MISSING, facts={"benchmarks": len(benchmarks)})


def read_seconds(path: Path) -> FilePart:
    """Read a report whose times are in seconds; of JSON lines each is a batch, and ``shapes`` says which."""
    rows = Rows()
    for document in documents(path):
        batch = ", ".join(f"{document[key]} {word}" for key, word in _BATCH.items() if key in document)
        for name, value in _measures(document):
            is_time = _TIMES.search(name) and not re.search("per_sec|throughput", name)
            row(rows, name, value, value if is_time else 0.0, batch)
    return FilePart(rows, missing=MISSING)


def _measures(document: dict[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in flat(document):
        if not name.startswith("latencies"):
            yield name.removeprefix("successes."), value


TRACE_READERS.register(
    TraceReader(
        "guidellm",
        "GuideLLM's benchmarks.json",
        # Requests with their texts may come before the metrics.
        holds((b'"benchmarks"', b'"strategy"'), (b'"benchmarks"', b'"time_to_first_token_ms"')),
        read_guidellm,
    )
)
TRACE_READERS.register(
    TraceReader(
        "inference-perf",
        "inference-perf's summaries",
        holds((b'"load_summary"', b'"successes"'), (b'"successes"', b'"time_per_output_token"')),
        read_seconds,
    )
)
TRACE_READERS.register(TraceReader("llmperf", "LLMPerf's summary", holds((b'"results_ttft_s',)), read_seconds))
TRACE_READERS.register(
    TraceReader(
        "engine-bench",
        "`sglang.bench_one_batch`, `vllm bench latency` and `vllm bench throughput`",
        holds(
            (b'"prefill_latency"', b'"batch_size"'),
            (b'"avg_latency"', b'"percentiles"'),
            (b'"elapsed_time"', b'"tokens_per_second"'),
        ),
        read_seconds,
    )
)
