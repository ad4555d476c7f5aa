"""Facts of a run that the names and the order of its kernels state: widths, ranks, precision, halves of a batch.

Templates of libraries have a problem's sizes among their numbers, where a trace has no shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..model import load_model
from ..model.parts import WeightClass
from .groups import axis_of
from .kinds import ATTENTION
from .names import narrow
from .table import Trace

#: Widths in the templates of norms, and in those of DeepEP's exchanges of few tokens.
_NORM_WIDTH = re.compile(r"Kernel_traits<[^<>]*?\b(\d+)u")
_EXCHANGED_WIDTH = re.compile(r"_ll::(?:dispatch|combine)<[^<>]*?\b(\d{4,5})\b")
#: n and k in DeepGEMM's templates: first of all in its first version, behind an m of zero in later ones.
_PRODUCT_WIDTHS = (
    re.compile(r"deep_gemm::fp8_gemm_kernel<(\d{3,})u?, *(\d{3,})u?,"),
    re.compile(r"deep_gemm::sm\d+_\w+_impl<[^<>]*?\b0u?, *(\d{3,})u?, *(\d{3,})u?,"),
)
#: Groups in DeepGEMM's templates: behind the blocks of its first version, behind n and k of later ones.
_GROUPS = (
    re.compile(r"deep_gemm::fp8_gemm_kernel<(?:\d+u?, *){5}(\d+)u?,"),
    re.compile(r"deep_gemm::sm\d+_\w+_impl<[^<>]*?\b0u?, *\d{3,}u?, *\d{3,}u?, *(\d+)u?,"),
)
#: In templates of DeepEP: the number of nodes (of eight ranks), or of ranks in a node.
_EXCHANGED = (
    (re.compile(r"internode::(?:dispatch|combine)<\w+, *(\d+)"), 8),
    (re.compile(r"intranode::(?:dispatch|combine)<(?:[A-Za-z_]\w*, *)?(\d+)"), 1),
)
#: Ranks in templates of engines' own all-reduces, as they are written and as symbols.
_SUMMED = (
    re.compile(r"cross_device_(?:reduce_\dstage|store)\w*?(?:<[^,<>]+, *|I\w+?Li)(\d+)"),
    re.compile(r"allreduce_fusion_kernel\w*<[^<>]*?(?:bfloat16|half|float)\w*, *(\d+)"),
)
#: Types of products in names; the first that fits.
_TYPES = (
    ("nvfp4", re.compile(r"nvfp4|E2m1.*E4m3|vec16UE4M3", re.IGNORECASE)),
    ("mxfp4", re.compile(r"mxfp4|fp4|E2m1|a4w4|_f4", re.IGNORECASE)),
    ("fp8_block", re.compile(r"deep_?gemm|dpsk|block", re.IGNORECASE)),
    ("fp8", re.compile(r"fp8|f8|e4m3|float_?8|8b|a8w8|scaled_mm", re.IGNORECASE)),
)
#: Kernels with a block for every token: PyTorch's choice of experts; norms, rotations, activations, caches of engines.
_BLOCK_A_TOKEN = re.compile(
    r"sbtopk::gatherTopK|((vllm|flashinfer|aiter|sgl\w*)\b.*|\daiter\d+\w*)(rms_?norm|RMSNorm)"
    r"|(?<!_)rotary_embedding_kernel|act_and_mul_kernel|reshape_and_cache|store_kvcache"
)
_BACKWARD = re.compile(r"bwd|bprop|backward|_grad_|grad_input", re.IGNORECASE)

#: Share of a model's layers with an exchange of replicas at which every layer has one.
_EVERY_LAYER = 0.9
#: Axes of groups of replicas, or of none that is told.
_REPLICAS = ("dp", "edp", "")
_PASSES, _WEIGHTS = ("forward", "backward"), "weight gradient"
#: Gradients of a product, with room for a few kernels of another kind.
_GRADIENTS = 2.3


def norm_width(kernel: str) -> int:
    """The width of a norm, from its template; 0 where it states none."""
    match = _NORM_WIDTH.search(kernel)
    return int(match[1]) if match is not None else 0


def product_widths(kernel: str) -> tuple[int, ...]:
    """n and k of a product, from its template; empty where it states none.

    >>> product_widths("void deep_gemm::fp8_gemm_kernel<24576u, 1536u, 64u, 128u, 128u, 1u, 6u>")
    (24576, 1536)
    >>> product_widths("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 7168u, 2048u, 1u, 128u>")
    (7168, 2048)
    """
    match = next((match for pattern in _PRODUCT_WIDTHS if (match := pattern.search(kernel)) is not None), None)
    return (int(match[1]), int(match[2])) if match is not None else ()


def exchanged_width(names: Sequence[str]) -> int:
    """The width of what travels to experts; 0 where no name states it."""
    return max((int(match[1]) for name in names if (match := _EXCHANGED_WIDTH.search(name)) is not None), default=0)


def exchanging(names: Sequence[str]) -> int:
    """Ranks that experts are spread over, from the templates of DeepEP's kernels; 0 without any."""
    ranks = [
        per * int(match.group(1)) for pattern, per in _EXCHANGED for name in names if (match := pattern.search(name))
    ]
    return max(ranks, default=0)


def forward_layers(trace: Trace) -> int:
    """Layers of a pass; what a backward pass computes again counts once."""
    forward = trace.word("phase") == "forward"
    own = forward | (trace.word("phase") == "") if forward.any() else np.ones(len(trace), bool)
    return int(trace.columns["layer"][own].max(initial=-1)) + 1


def tokens(trace: Trace, hidden: int) -> int:
    """Tokens of a pass through a layer, from the bytes of forward exchanges of tensor-parallel ranks (two bytes an
    element), else from the blocks of kernels with one for every token; 0 where none tells. A norm of heads has a block
    for each, so that most kernels decide. As many blocks as multiprocessors are of a kernel that stays on them."""
    exchanges = np.isin(trace.word("kind"), ["all_reduce", "all_gather", "reduce_scatter"])
    exchanges &= np.isin(trace.word("phase"), ["forward", ""]) & (trace.columns["layer"] >= 0)
    spread = np.array([axis_of(word) == "tp" for word in trace.words["group"]] or [False])[trace.columns["group"]]
    sizes = Counter(trace.columns["bytes"][exchanges & spread].tolist()).most_common(1)
    if hidden and sizes and sizes[0][0] > 0.0 and not sizes[0][0] % (2 * hidden):
        return int(sizes[0][0]) // (2 * hidden)
    own = np.array([_BLOCK_A_TOKEN.search(word) is not None for word in trace.words["name"]] or [False])
    rows = np.flatnonzero(own[trace.columns["name"]] & (trace.columns["layer"] >= 0))
    calls = Counter(zip(trace.word("name")[rows].tolist(), trace.word("grid")[rows].tolist(), strict=True))
    usual = {name: grid for (name, grid), _ in reversed(calls.most_common())}
    counts = Counter(int(blocks) for grid in usual.values() if (blocks := grid.partition("×")[0]).isdigit())
    counts.pop(trace.machine.compute_units, None)
    return counts.most_common(1)[0][0] if counts else 0


def reducing(names: Sequence[str]) -> int:
    """Ranks of an engine's own all-reduces, from their templates; 0 without any.

    >>> reducing(["void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)"])
    4
    >>> reducing(["_ZN5aiter26cross_device_reduce_1stageIDF16bLi8EEEvPNS_8RankDataE"])
    8
    """
    ranks = [int(match[1]) for pattern in _SUMMED for name in names if (match := pattern.search(name)) is not None]
    return max(ranks, default=0)


def local_experts(names: Sequence[str]) -> int:
    """Experts of a rank, from the groups in a product's template; 0 where none has several.

    >>> local_experts(["void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 64u, 128u, 128u, 2u, 8u, 2u, (GemmType)2>"])
    2
    >>> local_experts(["void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 7168u, 16u, 128u>"])
    16
    """
    groups = (int(match[1]) for pattern in _GROUPS for name in names if (match := pattern.search(name)) is not None)
    return max((count for count in groups if count > 1), default=0)


def runs_backward(trace: Trace) -> bool:
    """Whether attention or norms have kernels of a backward pass."""
    own = np.isin(trace.word("kind"), [*ATTENTION, "norm"])
    codes = np.unique(trace.columns["name"][own]).tolist()
    return any(_BACKWARD.search(trace.words["name"][code]) is not None for code in codes)


def precision(trace: Trace) -> str:
    """The type that most of the time of plain products is in; empty for one of 16 bits."""
    rows = np.flatnonzero(trace.word("kind") == "gemm")
    seconds: Counter[str] = Counter()
    for name, length in zip(trace.word("name")[rows].tolist(), trace.columns["duration_s"][rows].tolist(), strict=True):
        seconds[_type_of(name)] += length
    return seconds.most_common(1)[0][0] if seconds else ""


def _type_of(kernel: str) -> str:
    if not narrow(kernel) and "E2m1" not in kernel:
        return ""
    return next((name for name, pattern in _TYPES if pattern.search(kernel) is not None), "fp8")


def is_checkpoints(model: str, kind: str) -> bool:
    """Whether a model's own checkpoint has its products in a type; unquantised ones are in none."""
    own = load_model(model).checkpoint
    return (own.kept(WeightClass.ATTENTION) if own.weights else "") == kind


def preferred(models: Sequence[str], trace: Trace, ranks: int, widths: frozenset[int]) -> tuple[str, ...]:
    """Models with those first whose weights fit in the ranks' memory, whose kinds of attention the trace has, and whose
    latents become as wide as a product."""
    linear = "linear_attention" in trace.words["kind"]
    room = ranks * trace.machine.memory_bytes

    def lacks(name: str) -> tuple[bool, ...]:
        model = load_model(name)
        latent = model.latent
        queries = model.heads * (latent.nope_dim + latent.rope_dim) if latent is not None else 0
        other = bool(queries and widths) and queries not in widths
        return bool(room) and model.weight_bytes() > room, (model.linear is not None) != linear, other

    return tuple(sorted(models, key=lacks))


def sharding(trace: Trace, layers: int, region: int) -> int:
    """What replicas divide in training, as ZeRO counts it: 3 where they gather every layer's weights and scatter its
    gradients, 1 where they do both for larger pieces. ``region``: ranks of a tensor-parallel group without a name, if
    any."""
    steps = max(len(np.unique(trace.columns["step"][trace.columns["step"] >= 0])), 1)
    kinds, groups = trace.word("kind"), trace.word("group")
    own = np.array([axis_of(name) in _REPLICAS for name in groups.tolist()], bool)
    if region > 1:
        sizes = {name: group.size for group in trace.groups for name in group.name.split()}
        own &= np.array([sizes.get(name) != region for name in groups.tolist()], bool)
    gathers, scatters = (int((own & (kinds == kind)).sum()) / steps for kind in ("all_gather", "reduce_scatter"))
    if not layers or min(gathers, scatters) < 1.0:
        return 0
    return 3 if min(gathers, scatters) >= _EVERY_LAYER * layers else 1


def regions(trace: Trace, layers: int) -> int:
    """Ranks of a tensor-parallel group that scatter sums in the forward pass and gather inputs (Megatron's sequence
    parallelism), which replicas never do; 0 without any."""
    scatters = (trace.word("kind") == "reduce_scatter") & (trace.word("phase") == "forward")
    steps = max(len(np.unique(trace.columns["step"][scatters])), 1)
    if not layers or scatters.sum() < _EVERY_LAYER * layers * steps:
        return 0
    name = Counter(trace.word("group")[scatters].tolist()).most_common(1)[0][0]
    # Memory that ranks share has no group in a profile.
    of = [group for group in trace.groups if (name in group.name.split() if name else axis_of(group.name) == "tp")]
    sizes = [group.size for group in of]
    return sizes[0] if len(sizes) == 1 else 0


def micro_batches(trace: Trace) -> int:
    """Forward passes of a step, each of which looks its tokens up; 1 where no lookup is told."""
    lookups = (trace.word("kind") == "embedding") & np.isin(trace.word("phase"), ["forward", ""])
    lookups &= trace.columns["step"] >= 0
    return (
        max(int(np.median(np.unique(trace.columns["step"][lookups], return_counts=True)[1])), 1) if lookups.any() else 1
    )


def runs_again(trace: Trace) -> str:
    """What a backward pass computes again, as far as kernels show it: ``full`` with attention, ``cheap`` where it has
    norms of the forward pass, or more products than gradients, else ``none``."""
    phases, kinds = trace.word("phase"), trace.word("kind")
    forward, backward = (set(trace.word("name")[(kinds == "attention") & (phases == p)]) for p in _PASSES)
    if forward & backward:
        return "full"
    forward, backward = (set(trace.word("name")[(kinds == "norm") & (phases == p)]) for p in _PASSES)
    return "cheap" if forward & backward or products_back(trace) > _GRADIENTS else "none"


def products_back(trace: Trace) -> float:
    """Products of the backward pass for each one of the forward pass; 0 where a trace does not tell them apart, or has
    experts, whose gradients may be a product each."""
    if "grouped_gemm" in set(trace.word("kind").tolist()):
        return 0.0
    products, phases = trace.word("kind") == "gemm", trace.word("phase")
    forward, back = (int((products & np.isin(phases, own)).sum()) for own in (_PASSES[:1], (_PASSES[1], _WEIGHTS)))
    return back / forward if forward else 0.0
