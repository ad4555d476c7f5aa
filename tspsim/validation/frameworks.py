"""Which software a published source ran, where its rows do not say: its stack, and its adapters."""

from __future__ import annotations

#: Part of a source's address → the stack its runs used.
STACKS = {
    "llm-foundry": "llm-foundry",
    "InternEvo": "internevo",
    "Automodel": "fsdp2",
    "torchtitan": "fsdp2",
    "Primus": "primus",
}
#: Everything else that is published ran on Megatron-Core: NeMo, Megatron-Bridge, DGX Cloud recipes, MLPerf.
USUAL_STACK = "megatron-core"

#: Part of a source's address → rank and products of its adapters.
ADAPTERS: dict[str, tuple[int, tuple[str, ...]]] = {
    # MLPerf Training's Llama 2 70B LoRA reference: rank 16 on attention's products (rules, and the rows' notes).
    "mlcommons": (16, ("qkv", "output")),
    # NeMo Automodel's PEFT recipes match all linear layers, rank 8.
    "Automodel": (8, ("qkv", "output", "gate_up", "down")),
}
#: NeMo's and Megatron-Bridge's LoRA recipes for performance: rank 16 on QKV alone.
USUAL_ADAPTERS: tuple[int, tuple[str, ...]] = (16, ("qkv",))


def stack_of(address: str) -> str:
    """The catalog name of the stack behind a source."""
    return next((stack for part, stack in STACKS.items() if part in address), USUAL_STACK)


def adapters_of(model: str, address: str) -> tuple[int, tuple[str, ...]]:
    """Rank and products of a run's adapters; rank 0 where the model's name speaks of none."""
    if "lora" not in model.lower():
        return 0, ()
    return next((adapters for part, adapters in ADAPTERS.items() if part in address), USUAL_ADAPTERS)
