"""How sources count model FLOPs, and what their metrics mean."""

from __future__ import annotations

import re
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
    #: FLOPs counted for a step with frozen weights, in forward passes: two, or three as if the weights were trained.
    adapter_passes: float = 2.0
    #: Keys and values are counted as if every head of the queries had its own.
    every_head: bool = False
    #: Part of the model's published name, in lower case, and the first container that counts otherwise.
    model: str = ""
    before: str = ""
    #: Whether attention's score pairs are counted at all, and whether the MLP is counted with its gate.
    attention: bool = True
    gate: bool = True

    def fits(self, address: str, model: str, notes: str) -> bool:
        """Whether the convention applies to a row."""
        container = re.search(r"NeMo (\d+\.\d+)", notes)
        earlier = not self.before or (container is not None and container.group(1) < self.before)
        return self.where in address and self.model in model.lower() and earlier


#: The first entry whose ``where`` is part of a row's address; the last one fits all.
CONVENTIONS: tuple[Convention, ...] = (
    Convention("2104.04473", False, True, "Narayanan et al. 2021, §5.1, formula 3: 4 forwards with recomputation"),
    Convention("InternEvo", False, True, "its page: the formula of Narayanan et al., with the recomputed forward"),
    Convention("Automodel", True, False, "its pairs of TFLOP/s and tokens/s: 250, 23.0, 32.2 GFLOP a token (causal)"),
    Convention(
        "Megatron-Bridge", False, False,
        "its pairs before container 26.06: 27.2 GFLOP a token at 4Ki and 30.8 at 8Ki, full attention and two products"
        " an expert; 32.6 since, causal and three",
        model="gpt oss", before="26.06", gate=False,
    ),
    Convention(
        "Megatron-Bridge", True, False,
        "Megatron-Bridge from 25.09: attention halved for the causal mask (docs/performance-summary)",
    ),
    *(
        Convention(
            "NVIDIA/NeMo", False, False, "NeMo 24.07, its pairs of fine-tuning: 6 FLOPs a parameter, 4 with adapters",
            model=kind, attention=False,
        )
        for kind in ("[sft]", "[lora]")
    ),
    Convention("NVIDIA/NeMo", False, False, "NeMo 24.07 to 25.04, performance summary: full attention"),
    Convention("NVIDIA/Megatron-LM", False, False, "Megatron-LM README: full attention"),
    Convention(
        "nemotron/README_340b", False, False,
        "its notes: 24 · layers · hidden² for attention's products, of 8 heads of keys for 96", every_head=True,
    ),
    Convention(
        "dgxc-benchmarking", True, False, "its pairs: 260 GFLOP a token of DeepSeek-V3, causal and with a module for a"
        " further token", model="deepseek",
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


def convention_of(address: str, model: str = "", notes: str = "") -> Convention:
    """How the source at ``address`` counts; a row's model and notes select the table of the source.

    >>> [convention_of("NVIDIA/NeMo", model).attention for model in ("LLAMA2-7B", "LLAMA2-7B [SFT]")]
    [True, False]
    >>> [convention_of("Megatron-Bridge", "GPT OSS", f"NeMo {nemo} container").causal for nemo in ("26.04", "26.06")]
    [False, True]
    """
    return next(convention for convention in CONVENTIONS if convention.fits(address, model, notes))


def step_flops(
    model: Architecture,
    sequence: int,
    tokens: float,
    convention: Convention,
    *,
    passes: float = 3.0,
    recomputed: bool = False,
    multi_token: bool = False,
) -> float:
    """FLOPs of a training step on ``tokens`` tokens as the source counts them.

    ``passes`` forwards: three, or two where the weights are frozen (NeMo's and Automodel's LoRA rows: TFLOP/s over
    tokens/s are four FLOPs a parameter); one more of the layers where a recomputed forward is counted; with
    ``multi_token`` the model's modules for further tokens.
    """
    masked, whole = (model.layer_forward_flops_per_token(sequence, causal) for causal in (True, False))
    layer = masked if convention.causal else whole
    if not convention.attention:  # pairs are half as many with the mask
        layer = 2.0 * masked - whole
    if not convention.gate and model.experts is not None:
        layer -= 2.0 * model.experts.topk * model.hidden * model.experts.width
    layers = model.layers * layer
    if convention.every_head:
        layers += model.layers * 4.0 * model.hidden * (model.heads - model.kv_heads) * model.head_dim
    head = 2.0 * model.hidden * model.vocab
    further = model.multi_token if multi_token else 0
    flops = (passes + recomputed) * layers + passes * head
    if further:
        block = model.block_forward_flops_per_token(model.further_block, sequence, convention.causal)
        flops += passes * further * (block + head + 2.0 * model.join_parameters)
    return tokens * flops
