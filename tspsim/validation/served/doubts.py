"""Published serving rows that are not scored, each with the reason to doubt it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tspsim.base.errors import InputError

from ..cells import Row, count_of
from .clients import concurrency_of


@dataclass(frozen=True)
class DoubtfulRows:
    """Rows that are not scored, by values that they have in common, and the reason.

    ``model``, ``name`` and ``source`` are parts of a row's cells; None and an empty text match every value.
    """

    why: str
    model: str = ""
    device: str | None = None
    version: str | None = None
    lengths: tuple[int, int] | None = None
    output: int | None = None
    concurrency: int | None = None
    name: str = ""
    source: str = ""

    def of(self, row: Row, device: str) -> bool:
        """Whether a row is among the doubtful ones."""
        stated = (
            (self.device, device),
            (self.version, row.get("backend_version")),
            (self.lengths, (count_of(row, "isl"), count_of(row, "osl"))),
            (self.output, count_of(row, "osl")),
            (self.concurrency, None if self.concurrency is None else concurrency_of(row)),
        )
        model, name, source = str(row.get("model_path")).lower(), str(row.get("id")), str(row.get("source_url"))
        within = self.model in model and self.name in name and self.source in source
        return within and all(wanted is None or wanted == value for wanted, value in stated)


def refuse_doubtful(row: Row, device: str, doubtful: Sequence[DoubtfulRows]) -> None:
    """Raise InputError with the reason if a row is doubtful."""
    for rows in doubtful:
        if rows.of(row, device):
            raise InputError(f"doubtful: {rows.why}")


DOUBTFUL = (
    DoubtfulRows(
        "Qwen3-32B on GB200 under TensorRT-LLM 1.3.0rc1: 21 to 169 ms a token", "qwen3-32b", "gb200", "1.3.0rc1"
    ),
    DoubtfulRows(
        "DeepSeek-R1-NVFP4 on B200 under TensorRT-LLM, 4000/1000: 85 to 92 ms a token",
        "deepseek-r1-nvfp4", "b200", lengths=(4000, 1000),
    ),
    DoubtfulRows("Qwen3-235B on H200 under vLLM 0.12: two to three times too slow", "qwen3-235b", "h200", "0.12.0"),
    DoubtfulRows(
        "gpt-oss-120b on H100, 512 at once of 8k/1k: 4.4 ms a token behind 20 s of waiting",
        "gpt-oss-120b", "h100", lengths=(8192, 1024), concurrency=512,
    ),
    DoubtfulRows("Qwen3-32B-NVFP4, 15000/500: one row of its kind", "qwen3-32b-nvfp4", lengths=(15000, 500)),
    DoubtfulRows(
        "Llama-3.1-8B on H200 under vLLM 0.12, outputs of 100 tokens", "llama-3.1-8b", "h200", "0.12.0", output=100
    ),
)  # fmt: skip
