"""Tables of the pages about kernel models that the package itself can compute; ``docs/generate.py`` writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tspsim.hardware import kernels, load_device
from tspsim.hardware.families import FAMILIES

#: Families of one form, by the name that the page uses.
FORMS: dict[str, tuple[str, ...]] = {
    "product": ("gemm", "grouped_gemm", "grouped_gemm_backward", "absorb"),
    "attention": ("attention_forward", "attention_backward"),
    "decode": ("attention_decode",),
    "latent prefill": ("latent_prefill",),
    "latent decode": ("latent_decode",),
    "memory": ("memory_bound",),
    "experts": ("fused_moe",),
    "indexer": ("indexer", "compressed_indexer"),
    "sparse": ("sparse_attention", "compressed_attention"),
    "scan": ("gdn_scan", "gdn_step", "kda_scan", "kda_step"),
    "convolution": tuple(f"{kind}_convolution{step}" for kind in ("gdn", "kda", "mamba2") for step in ("", "_step")),
}
#: Parameters that mean the same wherever they are, in words for all forms.
COMMON = {
    "launch_us": "start of the kernel, and of small ones timed with it",
    "efficiency": "share of the dense peak that the inner loop reaches",
    "hbm_efficiency": "share of the HBM bandwidth",
    "overlap_power": "p: 1 adds compute and memory, ∞ hides the shorter one",
    "wave_blend": "0: whole waves; 1: waves blend into each other",
    "cache_share": "part of L2 that keeps recently written operands",
    "cache_cost": "cost of a byte in L2, against HBM",
    "load_gb_per_s": "bytes/s that one compute unit can load",
    "masked_keys": "masked keys that a block computes anyway",
    "width_64": "rate at head_dim 64 against 128; likewise `width_192`, `width_256`, `width_512`",
}
#: How the page calls groups of families whose borrowed ranges widen alike.
GENERATIONS = {
    "products": ("gemm", "grouped_gemm", "grouped_gemm_backward", "absorb"),
    "routed experts": ("fused_moe",),
    "attention over many queries, latents included": ("attention_forward", "attention_backward", "latent_prefill"),
    "decoding, memory-bound kernels, indexer, sparse attention": (
        "attention_decode", "memory_bound", "indexer", "sparse_attention",
    ),
    "decoding over latents, compressed entries, linear attention": (
        "latent_decode", "compressed_indexer", "compressed_attention", *FORMS["scan"], *FORMS["convolution"],
    ),
}  # fmt: skip
#: Devices in the order of the page.
DEVICES = (
    "mi300x", "mi325x", "mi350x", "mi355x", "h100", "h200", "b200", "b300", "gb200", "gb300", "a100-40gb", "a100-80gb",
)  # fmt: skip


def rows_of(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = list(header)
    lines = [first, ["---"] * len(first), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parameters() -> str:
    """Every parameter of every form, with its meaning in the code; one row for all forms that share it."""
    forms: dict[tuple[str, str], list[str]] = {}
    for form, families in FORMS.items():
        for name, parameter in FAMILIES[families[0]].parameters.items():
            if re.fullmatch(r"width_(?!64$)\d+", name):
                continue  # as width_64
            meaning = COMMON.get(name, parameter.meaning)
            forms.setdefault((name, meaning), []).append(form)
    rows = [[f"`{name}`", ", ".join(users), meaning] for (name, meaning), users in sorted(forms.items())]
    return rows_of(("parameter", "forms", "meaning"), rows)


def borrowed_widths() -> str:
    """What widens a borrowed range, as the code adds it."""
    generation = {
        f"another generation: {words}": kernels.OTHER_GENERATION[families[0]] for words, families in GENERATIONS.items()
    }
    widths = {
        "another device": kernels.OTHER_DEVICE,
        **generation,
        "another generation, where `achieved` anchors the lender's kernel": kernels.ANCHORED_GENERATION,
        "another vendor as well, without an anchor": kernels.OTHER_VENDOR,
        "another library than the one requested and than the device's default": kernels.OTHER_LIBRARY,
        "a similar type": kernels.OTHER_TYPE,
        f"the lender's fit has fewer than {kernels.LENDER_ROWS} rows": kernels.FEW_ROWS,
    }
    rows = ([words, f"{width:.2f}", f"{math.exp(width):.2f}"] for words, width in widths.items())
    return rows_of(("difference", "half width (log time)", "factor"), rows)


def clocks() -> str:
    """Rates of a long step, and slowdowns of compute and communication beside each other, from the device files."""
    rows = []
    for name in DEVICES:
        spec = load_device(name).spec
        burst = spec.sustained.burst.value if spec.sustained.burst else 1.0
        numbers = (
            spec.sustained.gemm.value, spec.sustained.attention.value, burst,
            spec.overlap.compute.value, spec.overlap.communication.value,
        )  # fmt: skip
        rows.append([name, *(f"{number:g}" for number in numbers), ", ".join(spec.relatives)])
    header = ("device", "sustained GEMM", "sustained attention", "burst", "compute slowdown", "communication slowdown")
    return rows_of((*header, "borrows from"), rows)
