"""Types of numbers: bytes of an element in kernels, checkpoints, caches and on links.

:data:`DTYPES` registers them (entry points ``tspsim.dtypes``). A registered type can be named in
``workload.precision``, in a checkpoint, as a cache's type, on links and among a device's peaks, as far as its fields
allow.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..base.registry import Registry


@dataclass(frozen=True)
class DataType:
    """One type of numbers. Where ``cache_bytes`` or ``wire_bytes`` is None, the type is not used there.

    Parameters
    ----------
    name
        Name in scenarios, models and device files.
    element_bytes
        Bytes of an element that kernels read and write; block-scaled types count the scales.
    weight_bytes
        Bytes of a weight in a checkpoint, scales included; None: ``element_bytes``.
    multiplies
        ``workload.precision`` can name it: products of training and forward steps take operands of this type.
    cache_bytes
        Bytes of an element of K, V or a latent in an engine's cache of this type.
    wire_bytes
        Bytes of an element of weights or gradients that are converted to this type to be sent.
    similar
        Types with similar kernels, nearest first; their kernel models are used where this type was not measured.
    multiplied_as
        Type whose matrix instructions, and rate, products of this type use on devices without instructions for it.
    block_scaled
        Blocks of numbers share a scale that the matrix units apply. Such a type is ``multiplied_as`` another only on
        devices with instructions for some block-scaled type.
    widened_to
        Types whose kernels can read and widen operands of this type.
    one_scale
        All numbers of a tensor share a scale, which a cast must know before it reads the first.
    """

    name: str
    element_bytes: float
    weight_bytes: float | None = None
    multiplies: bool = False
    cache_bytes: float | None = None
    wire_bytes: float | None = None
    similar: tuple[str, ...] = ()
    multiplied_as: str = ""
    block_scaled: bool = False
    widened_to: tuple[str, ...] = ()
    one_scale: bool = False


DTYPES: Registry[DataType] = Registry("type of numbers", "tspsim.dtypes", DataType)

# Block-scaled types count their scales: OCP MX v1.0 has one byte a block of 32, NVFP4 one byte a block of 16; fp8 in
# blocks of 128 x 128 has an fp32 scale a block (DeepSeek-V3, section 3.3.2), not counted in kernels' reads; integers of
# few bits have a bf16 scale a group of 32 (compressed-tensors). ZeRO++ sends integers (parallel/state).
for _data_type in (
    DataType("fp32", 4.0, similar=("bf16",)),
    DataType("bf16", 2.0, multiplies=True, cache_bytes=2.0, similar=("fp16",)),
    DataType("fp16", 2.0, similar=("bf16",), multiplied_as="bf16"),
    DataType(
        "fp8", 1.0, multiplies=True, cache_bytes=1.0, similar=("fp8_block", "bf16"), widened_to=("bf16",),
        one_scale=True,
    ),
    # Scales of blocks of fp8 are applied outside the matrix units.
    DataType(
        "fp8_block", 1.0, 1.0 + 4.0 / 128**2, multiplies=True, similar=("fp8", "bf16"), multiplied_as="fp8",
        widened_to=("bf16",),
    ),
    DataType("int8", 1.0, wire_bytes=1.0, similar=("fp8", "bf16"), widened_to=("bf16",)),
    DataType(
        "mxfp8", 1.0 + 1.0 / 32, multiplies=True, similar=("fp8", "fp8_block", "bf16"), multiplied_as="fp8",
        block_scaled=True, widened_to=("bf16",),
    ),
    DataType(
        "mxfp6", 0.75 + 1.0 / 32, multiplies=True, similar=("mxfp8", "fp8", "fp8_block", "bf16"), multiplied_as="fp8",
        block_scaled=True, widened_to=("mxfp8", "fp8", "bf16"),
    ),
    DataType(
        "mxfp4", 0.5 + 1.0 / 32, multiplies=True, similar=("nvfp4", "fp8", "bf16"), block_scaled=True,
        widened_to=("mxfp6", "mxfp8", "fp8_block", "fp8", "bf16"),
    ),
    DataType(
        "nvfp4", 0.5 + 1.0 / 16, multiplies=True, cache_bytes=0.5 + 1.0 / 16, similar=("mxfp4", "fp8", "bf16"),
        block_scaled=True, widened_to=("mxfp8", "fp8_block", "fp8", "bf16"),
    ),
    *(DataType(f"int{bits}", bits / 8, bits / 8 + 2.0 / 32) for bits in (7, 6, 5)),
    DataType("int4", 0.5, 0.5 + 2.0 / 32, wire_bytes=0.5, similar=("mxfp4", "fp8", "bf16")),
    *(DataType(f"int{bits}", bits / 8, bits / 8 + 2.0 / 32) for bits in (3, 2)),
):  # fmt: skip
    DTYPES.register(_data_type)


def element_bytes(dtype: str) -> float:
    """Bytes of an element in kernels; raises UnknownNameError with the nearest names.

    >>> element_bytes("bf16"), element_bytes("nvfp4")
    (2.0, 0.5625)
    """
    return DTYPES.get(dtype).element_bytes


def weight_bytes(dtype: str) -> float:
    """Bytes of a weight in a checkpoint, scales included; raises UnknownNameError with the nearest names.

    >>> weight_bytes("int4")
    0.5625
    """
    data_type = DTYPES.get(dtype)
    return data_type.element_bytes if data_type.weight_bytes is None else data_type.weight_bytes


def similar_types(dtype: str) -> tuple[str, ...]:
    """Types with similar kernels, nearest first; empty for an unknown type."""
    return DTYPES.get(dtype).similar if dtype in DTYPES else ()


def widened_to(dtype: str) -> tuple[str, ...]:
    """Types whose kernels can read operands of a type; empty for an unknown type."""
    return DTYPES.get(dtype).widened_to if dtype in DTYPES else ()


def multiplied_as(peaks: Container[str], *, in_blocks: bool = False) -> dict[str, str]:
    """Types without a peak of their own that a device multiplies on the instructions of one of ``peaks``, and which.

    ``in_blocks`` adds block-scaled types, on devices with instructions for one.

    >>> multiplied_as({"bf16", "fp8"}), multiplied_as({"fp8", "mxfp4"})
    ({'fp16': 'bf16', 'fp8_block': 'fp8'}, {'fp8_block': 'fp8'})
    >>> multiplied_as({"fp8", "mxfp4"}, in_blocks=True)
    {'fp8_block': 'fp8', 'mxfp8': 'fp8', 'mxfp6': 'fp8'}
    """
    every = DTYPES.values()
    scales = in_blocks and any(data_type.block_scaled and data_type.name in peaks for data_type in every)
    return {
        data_type.name: data_type.multiplied_as
        for data_type in every
        if data_type.name not in peaks and data_type.multiplied_as in peaks and (scales or not data_type.block_scaled)
    }


def products() -> tuple[str, ...]:
    """Types that ``workload.precision`` can name."""
    return tuple(data_type.name for data_type in DTYPES.values() if data_type.multiplies)


def caches() -> dict[str, float]:
    """Bytes of an element in a cache, by the types that an engine can keep caches in."""
    return {data_type.name: data_type.cache_bytes for data_type in DTYPES.values() if data_type.cache_bytes is not None}


def wires() -> dict[str, float]:
    """Bytes of an element on a link, by the types that weights and gradients can be sent in."""
    return {data_type.name: data_type.wire_bytes for data_type in DTYPES.values() if data_type.wire_bytes is not None}
