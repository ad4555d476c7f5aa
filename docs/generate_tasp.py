"""Rewrite the tables of tasp.md, which set TASP's published speed-ups beside simulated ones.

    python docs/generate_tasp.py

Attention alone, forward: a model whose products are next to nothing runs on eight sequence shards, `exchange: ring`
over one link of a GPU and over all; what counts is the time from the first kernel of attention to the last. A quarter
of a minute. ``tests/house/test_tasp_page.py`` holds points of it against what the package says now.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pages
import yaml

import tspsim

PAGE = Path(__file__).parent / "tasp.md"
RANKS, BATCH = 8, 48
#: Heads and their width, of HamiltonAttention's test.
SHAPES = ((20, 128), (4, 512), (12, 192))
#: 3360 * 2**k tokens, batch times tokens at most ten million.
SEQUENCES = tuple(3360 * 2**power for power in range(6))
#: Of the published row with its times: tokens -> compute over communication of a ring, gain.
ROW = {10_240: (0.39, 2.4), 20_480: (0.65, 1.8), 40_960: (0.80, 1.5), 51_200: (0.98, 1.3), 102_400: (1.17, 1.1)}
#: Published means and largest gains over the grid: (device, causal).
GRID = {
    ("mi300x", False): (1.57, 3.58), ("mi300x", True): (1.68, 3.58),
    ("h100", False): (1.05, 2.31), ("h100", True): (1.08, 2.25),
}  # fmt: skip


class Point(NamedTuple):
    """Seconds of attention by a ring over one link and over all, of a block's kernel, and of its hop."""

    one_s: float
    all_s: float
    kernel_s: float
    hop_s: float

    @property
    def gain(self) -> float:
        return self.one_s / self.all_s

    @property
    def ratio(self) -> float:
        """Compute over communication of the ring."""
        return self.kernel_s / self.hop_s

    @property
    def most(self) -> float:
        """No exchange over seven times the links gains more: max(1, w/c)."""
        return max(1.0, 1.0 / self.ratio)


@cache
def point(device: str, heads: int, width: int, tokens: int, causal: bool) -> Point:
    """One point of the grid."""
    facts = {
        "name": f"attention-{heads}x{width}", "layers": 2, "hidden": 64,
        "attention": {"heads": heads, "kv_heads": heads, "head_dim": width},
        "mlp": {"width": 64, "gated": False}, "embedding": {"vocab": 0, "tied": True}, "source": "attention alone",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.yaml"
        path.write_text(yaml.safe_dump(facts), encoding="utf-8")
        work = {
            "model": str(path), "pass": "forward", "sequence": tokens, "sequences_per_replica": BATCH, "causal": causal
        }  # fmt: skip
        plans = [
            {"name": way, "sp": RANKS, "exchange": "ring", "context_transport": way} for way in ("ring", "multi_ring")
        ]
        asked = {"name": "tasp", "cluster": {"device": device, "nodes": 1}, "workload": work, "plans": plans}
        one, every = tspsim.simulate(asked).plans
    times = []
    for plan in (one, every):
        assert plan.timeline is not None, plan.error
        frame = plan.timeline.frame()
        layer = frame[(frame["rank"] == 0) & (frame.layer == 1)]
        blocks = layer[layer.name.str.startswith("attention block")]
        hops = layer[layer.name.str.startswith("K,V hop")]
        times.append((blocks.end_s.max() - blocks.start_s.min(), blocks, hops))
    _, blocks, hops = times[0]
    kernel_s = float((blocks.end_s - blocks.start_s).iloc[1:].median())
    return Point(float(times[0][0]), float(times[1][0]), kernel_s, float((hops.end_s - hops.start_s).median()))


def published_row() -> str:
    """Five lengths with their published times, on MI300X, beside every shape and mask."""
    head = [f"{heads} × {width}" for heads, width in SHAPES]
    lines = [f"| sequence | c/w published | gain published | {' | '.join(f'c/w, gain: {each}' for each in head)} |"]
    lines.append("| ---: | ---: | ---: |" + " ---: |" * len(head))
    for tokens, (ratio, gain) in ROW.items():
        cells = []
        for heads, width in SHAPES:
            found = point("mi300x", heads, width, tokens, False)
            cells.append(f"{found.ratio:.2f}, {found.gain:.2f}")
        lines.append(f"| {tokens // 1024}Ki | {ratio:.2f} | {gain:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def whole_grid() -> str:
    """Every point, simulated gains; then their mean and largest beside the published ones."""
    columns = list(GRID)
    names = [f"{device.upper()} {'causal' if causal else 'full'}" for device, causal in columns]
    lines = [f"| heads × width | tokens | {' | '.join(names)} |", "| --- | ---: |" + " ---: |" * len(columns)]
    found: dict[tuple[str, bool], list[float]] = {column: [] for column in columns}
    for heads, width in SHAPES:
        for tokens in SEQUENCES:
            gains = [point(device, heads, width, tokens, causal).gain for device, causal in columns]
            for column, gain in zip(columns, gains, strict=True):
                found[column].append(gain)
            lines.append(f"| {heads} × {width} | {tokens:,} | {' | '.join(f'{gain:.2f}' for gain in gains)} |")
    means = " | ".join(f"{sum(found[each]) / len(found[each]):.2f}, {max(found[each]):.2f}" for each in columns)
    told = " | ".join(f"{mean:.2f}, {most:.2f}" for mean, most in GRID.values())
    return "\n".join([*lines, f"| **mean, largest** | simulated | {means} |", f"| | published | {told} |"])


def main() -> None:
    pages.rewrite(PAGE, {"tasp_row": published_row(), "tasp_grid": whole_grid()})


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
