"""How published recipes of AMD's Megatron-LM and Primus ran, where a row says nothing of it.

Read in AMD-AGI/Primus, ``examples/megatron/configs``, in ROCm's pages of Primus and Megatron-LM v25.9 and v25.10, and in
ROCm/Megatron-LM, ``examples``. Nothing here is a number that a run was measured at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .frameworks import stack_of


@dataclass(frozen=True)
class RocmRecipe:
    """What some rows ran, by words of their source, how their model's name starts, type and number of GPUs."""

    source: str = ""
    model: str = ""
    types: tuple[str, ...] = ()
    gpus: int = 0
    #: Version of the source's stack; empty: the stack as it is.
    version: str = ""
    #: Value of a plan's ``expert_dispatch``; empty: as other recipes have it.
    dispatch: str = ""
    #: What is recomputed, in the words of the published tables.
    recompute: str = ""

    def holds(self, address: str, model: str, precision: str, gpus: int) -> bool:
        name = re.sub(r"[^a-z0-9]", "", model.lower())
        return (
            self.source in address
            and name.startswith(self.model)
            and (not self.types or precision in self.types)
            and self.gpus in (0, gpus)
        )


#: The first that holds is meant.
RECIPES = (
    # Llama 3.1 70B has ``use_torch_fsdp2: true`` everywhere. Eight nodes: ``--micro_batch_size 1 --global_batch_size 256
    # --recompute_num_layers 12`` in BF16, 4, 256 and 80 in FP8 (ROCm's page of Primus, "Multi-node training"). What one
    # node of MI325X recomputes with micro-batches of 1 is nowhere: MI300X's file, for 192 GB, has all 80 layers.
    RocmRecipe("projection.md", "llama3170b", ("bf16",), 64, "fsdp2", recompute="full block, 12 layers"),
    RocmRecipe("projection.md", "llama3170b", ("fp8",), 64, "fsdp2", recompute="full"),
    RocmRecipe("projection.md", "llama3170b", version="fsdp2"),
    # configs/MI300X/mixtral_8x7B_v0.1-pretrain.yaml: ``moe_permute_fusion``, ``gradient_accumulation_fusion`` False,
    # ``moe_use_legacy_grouped_gemm`` True, no Primus-Turbo, so the all-to-all dispatcher.
    RocmRecipe("03_primus", "mixtral", version="unfused", dispatch="experts"),
    # configs/MI300X/llama3.1_8B-pretrain.yaml, configs/MI355X/deepseek_v2_lite-*.yaml:
    # ``gradient_accumulation_fusion: false``. Those of Qwen3 and MiniMax-M2.5 have it.
    RocmRecipe("train_amd_prim", "llama318b", version="separate-sums"),
    RocmRecipe("AMD-AGI/Primus", "deepseekv2lite", version="separate-sums"),
)
#: Of rows whose notes say so: Megatron's ``--use-torch-fsdp2``.
SHARDED, NOTHING = RocmRecipe(version="fsdp2"), RocmRecipe()


def rocm_recipe(address: str, notes: str, model: str, precision: str, gpus: int) -> RocmRecipe:
    """The recipe of a row; one that says nothing if none is known.

    >>> rocm_recipe("tech_blogs/projection.md", "8-node", "Llama 3.1 70B", "bf16", 64).recompute
    'full block, 12 layers'
    >>> rocm_recipe("04_megatron-pyxis", "torch FSDP2, fp8 hybrid", "Llama 3.1 70B", "fp8", 64).version
    'fsdp2'
    """
    found = next((recipe for recipe in RECIPES if recipe.holds(address, model, precision, gpus)), NOTHING)
    return SHARDED if found is NOTHING and "torch FSDP2" in notes else found


def rocm_stack(address: str, recipe: RocmRecipe) -> str:
    """The source's stack in the recipe's version; empty if the recipe has none.

    >>> rocm_stack("03_primus", SHARDED), rocm_stack("03_primus", NOTHING)
    ('primus@fsdp2', '')
    """
    return f"{stack_of(address)}@{recipe.version}" if recipe.version else ""
