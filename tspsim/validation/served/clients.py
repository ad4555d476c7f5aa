"""Behaviour of published clients that no column states: cold engines, and prompts that were too long."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tspsim.traffic.kind import Ints

from ..cells import Row, count_of

#: Date from which InferenceX's client sends warm-up requests (SemiAnalysisAI/InferenceX pull request 480, of 17
#: January 2026, merged after ten days).
WARMED_SINCE = "2026-01-27"
#: Engines that compile and tune kernels at the first request with a shape, not at start-up: SGLang
#: (sgl-project/sglang 4773, 4858). vLLM and TensorRT-LLM run every shape that they capture, and tune, at start-up.
COMPILES_LATE = ("sglang",)
#: First SGLang version with transformers 5, which reports DeepSeek's tokens to the client wrongly
#: (huggingface/transformers 45488).
MISREAD_SINCE = (0, 5, 10)
#: Tokens that its server read per requested token: a prompt of 7,140 arrived as 35,921 (InferenceX pull request 937;
#: the runs of DeepSeek-R1 were repeated for it in May 2026, pull request 1502).
MISREAD = 35921 / 7140


def cold(row: Row, engine: str) -> bool:
    """Whether the first requests of a run waited for kernel compilation: their mean times to the first token include
    the compiler, up to 9 s.

    >>> found = {"silicon_data_source": "x; measured=2025-11-10T00:00:00.000Z; y"}
    >>> cold(found, "sglang"), cold(found, "vllm"), cold({"silicon_data_source": "x; measured=2026-03-25"}, "sglang")
    (True, False, False)
    """
    match = re.search(r"measured=(\d{4}-\d\d-\d\d)", str(row.get("silicon_data_source", "")))
    return engine in COMPILES_LATE and match is not None and match.group(1) < WARMED_SINCE


def read(row: Row, engine: str, model: str, prompt: int) -> int:
    """Tokens that the server read for a nominal prompt.

    >>> read({"backend_version": "0.5.10.post1"}, "sglang", "deepseek-r1", 1024)
    5152
    >>> read({"backend_version": "0.5.9"}, "sglang", "deepseek-r1", 1024)
    1024
    """
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", str(row.get("backend_version", "")))
    if engine != "sglang" or model != "deepseek-r1" or version is None:
        return prompt
    return round(prompt * MISREAD) if tuple(map(int, version.groups())) >= MISREAD_SINCE else prompt


def concurrency_of(row: Row, replicas: int = 1) -> int:
    """Concurrent requests: as in the source, or the batch of all attention replicas.

    >>> concurrency_of({"silicon_data_source": "x; silicon_concurrency=32; y", "batch_size": "8.0"}, 4)
    32
    """
    match = re.search(r"silicon_concurrency=(\d+)", str(row.get("silicon_data_source", "")))
    return int(match.group(1)) if match else count_of(row, "batch_size") * replicas


@dataclass(frozen=True)
class Bench:
    """SGLang's client (``sglang.bench_serving``), whose random numbers all have seed 1: all runs with the same number
    of prompts request the same lengths. A shorter run sends the first prompts of a longer one, text for text.

    Attributes
    ----------
    met
        First prompts that the server has answered before: those of the page's earlier run with fewer clients,
        and the first prompt, which the client sends once more to see whether the server is up.
    conversations
        ``--dataset-name`` is left out: prompts and answers come from ShareGPT, whatever ``--random-input-len`` says.
    """

    met: int = 1
    conversations: bool = False

    def lengths(self, prompt: int, output: int, requests: int) -> tuple[Ints, Ints]:
        """Tokens of prompts and answers. Random lengths are the client's own numbers:

        >>> prompts, outputs = Bench().lengths(8000, 1000, 320)
        >>> int(prompts.sum()), int(outputs.sum())  # as the pages print it
        (1273893, 170000)

        Lengths of ShareGPT are log-normals with the totals that the pages print:

        >>> [round(tokens.mean()) for tokens in Bench(conversations=True).lengths(1024, 1024, 1000)]
        [302, 196]
        """
        if not self.conversations:
            random = np.random.RandomState(1)
            first, second = (random.randint(1, nominal + 1, requests) for nominal in (prompt, output))
            return first.astype(np.int64), second.astype(np.int64)
        means = next(means for most, *means in SHAREGPT if requests <= most)
        drawn = np.random.default_rng(1).normal(size=(2, requests))
        shapes = zip(drawn, SPREADS, means, strict=True)
        lengths = [np.exp(spread * normal) * mean / np.exp(spread * normal).mean() for normal, spread, mean in shapes]
        return lengths[0].round().clip(1).astype(np.int64), lengths[1].round().clip(2).astype(np.int64)


#: Most conversations of ShareGPT as the client shuffles them (seed 1), and mean tokens of a prompt and of an answer:
#: totals that pages print for 10, 100 and 1,000 (DeepSeek's and Qwen3's tokenizers).
SHAREGPT = ((10, 197.2, 278.4), (100, 338.4, 216.4), (1 << 30, 302.1, 195.8))
#: Deviations of the logarithm: those of the shipped scenarios with such conversations, which give the reason.
SPREADS = (1.5, 1.1)
