"""Rings of K and V as their papers had them: Ring Self-Attention's memory and time, and TASP's published grid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel import Job, Optimizer, Plan, Stack, Work, mesh_axes, peak_memory, scheme_of
from tspsim.parallel.checks import check
from tspsim.step.result import PlanResult

#: BERT base, in which tensor parallelism ends at twelve heads.
BERT = architecture(768, layers=12, heads=12, ffn=3072, gated=False, vocab=30522)
BYTES = 16e9


def memory(sequence: int, batch: int, flash: bool = False, **degrees: int) -> dict[str, float]:
    """Parts of a rank's memory while training, nothing recomputed."""
    optimizer = Optimizer(name="adam", weights=2.0, gradients=2.0, state=12.0, temporaries=8.0)
    work = Work(
        "training", sequence, batch, "bf16", optimizer, 0.5e9, causal=False, stack=Stack("old", flash_attention=flash)
    )  # fmt: skip
    ring = {"exchange": "ring", "overlap": False, "partition": "contiguous", "micro_batch": batch}
    plan = Plan("P", dict.fromkeys(mesh_axes(), 1) | degrees, recomputation="none", **ring)  # type: ignore[arg-type]
    job = Job(BERT, plan, work)
    check(job)
    return dict(peak_memory(job, scheme_of(plan).residency))


def largest(fits: Callable[[int], bool]) -> int:
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def test_many_ranks_of_tokens_train_batches_and_sequences_that_twelve_heads_do_not() -> None:
    """Published on 64 P100 of 16 GB: 13.7 times the batch of tensor parallelism, 3.0 times the sequence. From memory
    alone, TP at its most ranks: 8.4 and 3.1."""
    most = [largest(lambda n, d=d: sum(memory(512, n, **d).values()) <= BYTES) for d in ({"sp": 64}, {"tp": 12})]
    longest = [
        step * largest(lambda n, d=d, step=step: sum(memory(n * step, 64, **d).values()) <= BYTES)
        for d, step in (({"sp": 64}, 64), ({"tp": 12}, 1))
    ]
    assert most[0] / most[1] == pytest.approx(8.4, abs=0.1)
    assert longest[0] / longest[1] == pytest.approx(3.1, abs=0.1)


@pytest.mark.parametrize("ranks", [4, 16])
def test_memory_beyond_a_ring_is_the_score_matrix(ranks: int) -> None:
    """S/n × S scores a head and layer: five bytes each, probabilities before and after dropout and its mask."""
    written, flash = (memory(2048, 4, kind, sp=ranks) for kind in (False, True))
    scores = 5.0 * 4 * 2048 / ranks * 2048 * 12 * 12
    more = {name: size - flash.get(name, 0.0) for name, size in written.items() if size != flash.get(name, 0.0)}
    assert more == {"kept_activations": pytest.approx(scores)}


def old_stack(folder: Path) -> str:
    file = folder / "old.yaml"
    told = {"name": "old", "flash_attention": {"value": False, "source": "a test"}}
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    return str(file)


def forward(folder: Path, stack: str | None, *plans: dict[str, Any]) -> list[PlanResult]:
    named = [{"name": f"P{index}", "sp": 8, **plan} for index, plan in enumerate(plans)]
    work = {"sequence": 4096, **({"stack": stack} if stack else {})}
    return list(tspsim.simulate(question(model_file(folder, architecture(1024)), named, **work)).plans)


def test_its_bytes_are_those_of_a_ring_and_nothing_hides_them(tmp_path: Path) -> None:
    ring = {"exchange": "ring", "context_transport": "ring", "overlap": False}
    (written,), (flash,) = forward(tmp_path, old_stack(tmp_path), ring), forward(tmp_path, None, ring)
    assert written.communication_bytes_per_layer == flash.communication_bytes_per_layer
    assert written.step_time_s > flash.step_time_s
    assert written.memory.parts["written_scores"] == 512 * 4096 * 16 * 2.0
    assert set(written.memory.parts) - set(flash.memory.parts) == {"written_scores"}


@pytest.mark.parametrize(
    "plan",
    [
        {"exchange": "ring"},
        {"exchange": "ring", "overlap": False, "context_transport": "multi_ring"},
        {"exchange": "token_ring"},
        {"overlap": True, "overlap_by": "blocks"},
    ],
)
def test_parts_that_are_merged_need_flash_attention(tmp_path: Path, plan: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="merges parts of attention as FlashAttention leaves them") as told:
        forward(tmp_path, old_stack(tmp_path), plan)
    assert "overlap: false" in str(told.value)
    assert forward(tmp_path, old_stack(tmp_path), {}, {"exchange": "ulysses"})[0].ran


#: TASP on 8 × MI300X, batch 48, S = 10K to 100K: compute over communication of the ring, and the published gain.
GRID = {0.39: 2.4, 0.65: 1.8, 0.80: 1.5, 0.98: 1.3, 1.17: 1.1}


def pass_s(kernel_s: float, hop_s: float, ranks: int, rings: int = 1) -> float:
    """Seconds of attention whose hops are hidden, of equal blocks."""
    return kernel_s + (ranks - 1) * max(kernel_s, hop_s / rings)


@pytest.mark.parametrize("ratio", GRID)
def test_gains_of_all_links_over_one_are_within_their_bound_and_thirty_per_cent_of_the_published(ratio: float) -> None:
    """max(1, 1/CCR) bounds it; published gains at 0.65 and beyond are above what any exchange could give."""
    gain = pass_s(ratio, 1.0, 8) / pass_s(ratio, 1.0, 8, 7)
    bound = max(1.0, 1.0 / ratio)
    assert gain <= bound
    assert gain == pytest.approx(GRID[ratio], rel=0.3)
    assert (GRID[ratio] > bound) == (ratio >= 0.65)


def test_communication_alone_is_as_many_times_faster_as_there_are_links() -> None:
    assert pass_s(1e-9, 1.0, 8) / pass_s(1e-9, 1.0, 8, 7) == pytest.approx(7.0)
