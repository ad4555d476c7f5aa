"""How sources count model FLOPs, and what their metrics mean."""

from __future__ import annotations

from dataclasses import dataclass

from tspsim.model import Architecture


@dataclass(frozen=True)
class Convention:
    """How a source turns a step into FLOP/s."""

    #: Part of the source's address.
    where: str
    #: Attention's score pairs are halved for the causal mask.
    causal: bool
    #: The forward that full recomputation repeats is counted (hardware FLOPs).
    recomputed: bool
    #: Where the definition stands.
    source: str
    #: Forwards' worth of FLOPs that a step with frozen weights is counted as: two, or three as if they were trained.
    adapter_passes: float = 2.0
    #: Keys and values are counted as if every head of the queries had its own.
    every_head: bool = False


#: The first entry whose ``where`` is part of a row's address; the last one fits all.
CONVENTIONS: tuple[Convention, ...] = (
    Convention("2104.04473", False, True, "Narayanan et al. 2021, §5.1, formula 3: 4 forwards with recomputation"),
    Convention(
        "Megatron-Bridge", True, False,
        "Megatron-Bridge from 25.09: attention halved for the causal mask (docs/performance-summary)",
    ),
    Convention("NVIDIA/NeMo", False, False, "NeMo 24.07 to 25.04, performance summary: full attention"),
    Convention("NVIDIA/Megatron-LM", False, False, "Megatron-LM README: full attention"),
    Convention(
        "nemotron/README_340b", False, False,
        "its notes: 24 · layers · hidden² for attention's products, of 8 heads of keys for 96", every_head=True,
    ),
    Convention("dgxc-benchmarking", False, False, "DGX Cloud benchmarking READMEs: full attention"),
    Convention(
        "Primus", True, False,
        "Megatron-Core's formula: causal, frozen or not (rates times step times: 148 GFLOP a token of Qwen3-235B)", 3.0,
    ),
    Convention("mlcommons", False, False, "MLPerf configs: MODEL_TFLOP_PER_SAMPLE with full attention"),
    Convention("2407.21783", True, False, "not stated; 43 % of 989 TFLOP/s are the 430 that stand beside it"),
    Convention("llm-foundry", False, False, "llm-foundry benchmarking README: non-causal; HFU adds a forward"),
    Convention("", False, False, "not stated: Megatron's formula, full attention"),
)  # fmt: skip


def convention_of(address: str) -> Convention:
    """How the source at ``address`` counts."""
    return next(convention for convention in CONVENTIONS if convention.where in address)


def step_flops(
    model: Architecture,
    sequence: int,
    tokens: float,
    convention: Convention,
    *,
    passes: float = 3.0,
    recomputed: bool = False,
) -> float:
    """FLOPs of a training step on ``tokens`` tokens as the source counts them.

    ``passes`` forwards: three, or two where the weights are frozen (NeMo's and Automodel's LoRA rows: TFLOP/s over
    tokens/s are four FLOPs a parameter); one more of the layers where a recomputed forward is counted.
    """
    layers = model.layers * model.layer_forward_flops_per_token(sequence, convention.causal)
    if convention.every_head:
        layers += model.layers * 4.0 * model.hidden * (model.heads - model.kv_heads) * model.head_dim
    head = 2.0 * model.hidden * model.vocab
    return tokens * ((passes + recomputed) * layers + passes * head)
