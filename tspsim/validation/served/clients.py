"""What published clients did that no column of their rows says: engines they found cold, prompts they sent too long."""

from __future__ import annotations

import re

from ..cells import Row

#: Since when InferenceX's client sends requests before the measured ones (SemiAnalysisAI/InferenceX pull request 480,
#: of 17 January 2026, merged after ten days).
WARMED_SINCE = "2026-01-27"
#: Engines that compile and tune kernels when a shape is first met, and not before they serve: SGLang
#: (sgl-project/sglang 4773, 4858). vLLM and TensorRT-LLM run every shape that they capture, and tune, as they start.
COMPILES_LATE = ("sglang",)
#: SGLang since which transformers 5 tells DeepSeek's tokens to the client wrongly (huggingface/transformers 45488).
MISREAD_SINCE = (0, 5, 10)
#: Tokens that its server read of every token asked for: a prompt of 7,140 arrived as 35,921 (InferenceX pull request
#: 937; the runs of DeepSeek-R1 were repeated for it in May 2026, pull request 1502).
MISREAD = 35921 / 7140


def cold(row: Row, engine: str) -> bool:
    """Whether the first requests of a run waited for kernels to be compiled: mean times to the first token are those of
    a compiler, up to 9 s.

    >>> found = {"silicon_data_source": "x; measured=2025-11-10T00:00:00.000Z; y"}
    >>> cold(found, "sglang"), cold(found, "vllm"), cold({"silicon_data_source": "x; measured=2026-03-25"}, "sglang")
    (True, False, False)
    """
    found = re.search(r"measured=(\d{4}-\d\d-\d\d)", str(row.get("silicon_data_source", "")))
    return engine in COMPILES_LATE and found is not None and found.group(1) < WARMED_SINCE


def read(row: Row, engine: str, model: str, prompt: int) -> int:
    """Tokens of a nominal prompt that the server read.

    >>> read({"backend_version": "0.5.10.post1"}, "sglang", "deepseek-r1", 1024)
    5152
    >>> read({"backend_version": "0.5.9"}, "sglang", "deepseek-r1", 1024)
    1024
    """
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", str(row.get("backend_version", "")))
    if engine != "sglang" or model != "deepseek-r1" or version is None:
        return prompt
    return round(prompt * MISREAD) if tuple(map(int, version.groups())) >= MISREAD_SINCE else prompt
