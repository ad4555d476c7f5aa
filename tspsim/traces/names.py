"""From the name of a kernel, and the operator that launched it, to what the kernel does.

Rules register under ``tspsim.kernel_names``. The last one registered is asked first, so that a stranger's rule for its
own kernels goes before those of this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.memo import once, remembered
from ..base.registry import Registry, changes
from .kinds import UNKNOWN


@dataclass(frozen=True)
class KernelNames:
    """Names of kernels of one library.

    Parameters
    ----------
    name, summary
        What it is called, and whose kernels they are.
    kinds
        Kind (:data:`tspsim.traces.kinds.KINDS`) → regular expressions; the first that is found in a kernel's name, in
        the order given, says its kind.
    operators
        The same for the operator that launched the kernel (``aten::mm``), asked where no name is known.
    waits
        Regular expressions of kernels that only wait for other ranks before their exchange begins.
    """

    name: str
    summary: str
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waits: tuple[str, ...] = ()

    @once
    def _patterns(self) -> tuple[list[tuple[Any, str]], list[tuple[Any, str]]]:
        first, second = (
            [(re.compile("|".join(patterns)), kind) for kind, patterns in table.items()]
            for table in (self.kinds, self.operators)
        )
        return first, second

    def kind_of(self, kernel: str) -> str | None:
        """What a kernel of this name does; None where the rule does not know it."""
        return next((kind for pattern, kind in self._patterns[0] if pattern.search(kernel)), None)

    def kind_of_operator(self, operator: str) -> str | None:
        """The same from the operator that launched it."""
        return next((kind for pattern, kind in self._patterns[1] if pattern.search(operator)), None)


KERNEL_NAMES: Registry[KernelNames] = Registry("rule of kernel names", "tspsim.kernel_names", KernelNames)


def kind_of(kernel: str, operator: str = "") -> str:
    """What a kernel does, by all rules: by its name, else by what launched it, else ``unknown``.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> kind_of("triton_poi_fused_7", "aten::silu"), kind_of("my_kernel")
    ('activation', 'unknown')
    """
    return _kind_of(kernel, operator, changes())


@remembered(65_536)
def _kind_of(kernel: str, operator: str, version: int) -> str:
    rules = tuple(reversed(KERNEL_NAMES.values()))
    for rule in rules:
        kind = rule.kind_of(kernel)
        if kind is not None and kind != "elementwise":
            return kind
    if operator:
        for rule in rules:
            kind = rule.kind_of_operator(operator)
            if kind is not None:
                return kind
    return next((kind for rule in rules if (kind := rule.kind_of(kernel)) is not None), UNKNOWN)


def waits(kernel: str) -> bool:
    """Whether a kernel only waits for other ranks: its time is theirs, and no transfer."""
    return _waits(kernel, changes())


#: Types of eight bits and fewer as libraries write them into names of kernels.
_NARROW = re.compile(r"fp8|e4m3|e5m2|mxfp|nvfp4|fp4|_f8_|f8f8|int8|int4|w4a16|w8a8", re.IGNORECASE)


@remembered(65_536)
def narrow(kernel: str) -> bool:
    """Whether a kernel's name states operands of eight bits or fewer.

    >>> narrow("fp8_ptp128c::GemmKernel"), narrow("sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n")
    (True, False)
    """
    return _NARROW.search(kernel) is not None


@remembered(65_536)
def _waits(kernel: str, version: int) -> bool:
    return any(re.search(pattern, kernel) for rule in KERNEL_NAMES.values() for pattern in rule.waits)


#: Registered first, so asked last: generated and framework kernels, whose names say the operation.
KERNEL_NAMES.register(
    KernelNames(
        "frameworks",
        "kernels of PyTorch, Triton's compiler, and what launched them",
        kinds={
            "memcpy": (r"^[Mm]emcpy", r"copyBuffer", r"^CopyDeviceToDevice"),
            "memset": (r"^[Mm]emset", r"fillBuffer", r"FillFunctor"),
            "loss": (r"nll_loss", r"cross_?entropy", r"[Ll]og_?[Ss]oft[Mm]ax"),
            "optimizer": (r"[Aa]dam", r"FusedOptimizer", r"\bsgd\b", r"lpnorm", r"[Ll]amb(Stage|Functor)", r"adagrad"),
            "sample": (r"ArgMaxOps", r"[Ss]ampling", r"multinomial", r"TopKTopP", r"top_k_top_p", r"apply_penalt"),
            "embedding": (
                r"indexSelect",
                r"vectorized_gather_kernel",
                r"[Ee]mbedding",
                r"compute_grad_weight",
                r"sum_and_scatter",
                r"indexing_backward_kernel",
                r"permute_2D",
                r"bucketize",
                r"krn_partial",
                r"permute_pooled_embs",
            ),
            "norm": (
                r"triton_(per|red)_fused.*(rms_?norm|layer_norm|rsqrt)",
                r"[Ll]ayer_?[Nn]orm",
                r"[Rr][Mm][Ss]_?[Nn]orm",
                r"\bln_(fwd|bwd)",
                r"bn_(bw|fw)_",
                r"batch_norm",
                r"[Gg]roup_?[Nn]orm",
                r"cuCompute(Part)?GradGammaBeta",
                r"GammaBeta",
            ),
            "activation": (r"[Ss]wi?glu", r"silu", r"gelu", r"act_and_mul", r"GeluCUDAKernel", r"relu_kernel"),
            "rope": (r"rotary", r"[^a-z]rope", r"apply_rope"),
            "cache": (r"reshape_and_cache", r"store_kv", r"kv_?cache", r"concat_and_cache", r"set_mla_kv"),
            "permute": (r"kernelHistogram1D", r"fill_reverse_indices"),
            "router": (r"sbtopk", r"mbtopk", r"bitonicSortKV", r"radixSortKV", r"gatherTopK", r"radix_?sort"),
            "copy": (
                r"direct_copy_kernel",
                r"_copy_kernel",
                r"CatArrayBatchedCopy",
                r"bfloat16tofloat32",
                r"multi_tensor_apply.*Copy<",
                r"_copy_tensor",
                r"chunk_cat|split_with_sizes_copy",
                r"nchwToNhwc|nhwcToNchw",
                r"triton_poi_fused_+(to_copy|constant_pad|cat|clone)",
                r"[Tt]ranspose",
                r"pad_kernel",
            ),
            "reduction": (
                r"reduce_kernel",
                r"DeviceCompactInit|partial_segment",
                r"triton_(red|per)_fused",
                r"softmax_warp",
                r"cunn_SoftMax",
                r"[Dd]eviceScan",
                r"kernel_scan_(inner|outer)",
                r"Device(Reduce|Select|RadixSort|Histogram|Merge)",
                r"rocprim",
                r"lookback_scan",
                r"partition_kernel",
                r"device_block_merge",
                r"block_sort",
                r"transform_kernel",
                r"block_reduce",
            ),
            "elementwise": (
                r"elementwise_kernel",
                r"triton_poi_fused",
                r"multi_tensor_apply",
                r"fused_dropout",
                r"triton__0d",
                r"vectorized_templated",
                r"index_elementwise",
                r"scatter_gather",
                r"elementwise",
                r"index_put|indexFunc|index_kernel",
                r"where_kernel|masked_",
                r"arange|linspace",
                r"distribution_",
                r"fused_compiled",
                r"max_pool|avg_pool|upsample",
            ),
        },
        operators={
            "gemm": (
                r"aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm)\b",
                r"(te_|TE::)?gemm",
                r"_Linear",
                r"aten::addmv",
            ),
            "attention": (r"scaled_dot_product", r"flash_attn", r"[Aa]ttention(?!.*cache)"),
            "convolution": (r"convolution",),
            "norm": (r"layer_norm", r"rms_?norm", r"batch_norm", r"RMSNorm"),
            "activation": (r"aten::(silu|gelu|relu)", r"SiluBackward", r"GeluBackward", r"swiglu"),
            "embedding": (r"aten::embedding", r"EmbeddingBackward"),
            "loss": (r"nll_loss", r"cross_entropy", r"log_softmax"),
            "optimizer": (r"Optimizer\.step", r"_fused_adam", r"aten::_foreach_(addc|lerp|sqrt)"),
            "router": (r"aten::topk",),
            "sample": (r"aten::(multinomial|argmax)",),
            "copy": (r"aten::(copy_|cat|clone|contiguous|_to_copy|index_copy_)",),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "products",
        "matrix products of cuBLAS, CUTLASS, hipBLASLt, DeepGEMM and Triton, and convolutions",
        kinds={
            "grouped_gemm": (
                r"[Gg]rouped_?[Gg]emm(?!::cuda::(fp8_|utils))",
                r"m_grouped_fp8",
                r"fused_moe_kernel",
                r"_matmul_ogs",
                r"_p_matmul",
                r"fmoe_",
                r"moe_gemm",
                r"ck_moe",
                r"MoeGemm",
                r"GroupProblemShape",
                r"bmm_.*_dynBatch",
                r"_group_gemm",
                r"marlin_moe",
                r"mxfp4_moe",
            ),
            "convolution": (
                r"cudnn(?!.*bn_)",
                r"scudnn",
                r"wgrad_alg",
                r"dgrad_engine",
                r"[Cc]onv(olve|2d|3d|_depthwise)",
                r"miopen",
                r"winograd",
                r"implicit_convolve",
            ),
            "gemm": (
                r"^Cijk_",
                r"gemm",
                r"GEMM",
                r"[Gg]emm",
                r"gemv",
                r"splitKreduce",
                r"nvjet",
                r"cublas",
                r"cutlass::Kernel",
                r"wvSplitK",
                r"^_?scaled_mm",
                r"_w8a8_block_fp8_matmul",
                r"matmul",
                r"ampere_.*_(tn|nn|nt)$",
                r"volta_.*_(tn|nn|nt)$",
                r"marlin",
                r"machete",
                r"dot_kernel",
            ),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "attention",
        "attention of FlashAttention, FlashInfer, cuDNN, Composable Kernel, aiter, vLLM, SGLang and TensorRT-LLM",
        kinds={
            "cache": (r"reshape_and_cache", r"store_kvcache", r"concat_and_cache_mla", r"AppendPagedKVCache"),
            "linear_attention": (
                r"gated_delta",
                r"chunk_(fwd|bwd|gated|local|scaled|delta)",
                r"causal_conv1d",
                r"selective_scan",
                r"fused_recurrent",
                r"_chunk_scan|_state_passing|_bmm_chunk",
                r"recompute_w_u",
                r"solve_tril",
            ),
            "attention": (
                r"flash_fwd",
                r"flash_bwd",
                r"flash::",
                r"FlashAttn",
                r"[Ff]lash_?[Aa]ttn",
                r"paged_attention",
                r"unified_attention",
                r"fmha",
                r"attn_fwd",
                r"attn_bwd",
                r"bwd_kernel_fuse",
                r"bwd_kernel_dk_dv|bwd_kernel_dq|_bwd_preprocess",
                r"BatchPrefillWith|BatchDecodeWith|PersistentVariableLengthMergeStates",
                r"mla_(a8w8|a16w16|decode|reduce|prefill|fwd)",
                r"flash_mla",
                r"FlashMLA",
                r"_fwd_kernel_stage|_fwd_grouped_kernel|decode_att",
                r"xqa_kernel|mmha",
                r"compute_attn_ws",
                r"cudnn_generated_fort_native_sdpa",
                r"cudnn::fusion::(compute_dot_do_o|convert_dq)",
                r"merge_attn_states|MergeState",
                r"_attn_",
                r"kn_get_mla_metadata|get_mla_metadata",
                r"sparse_attention|indexer_(k|q)|mqa_logits",
            ),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "engines",
        "small kernels of vLLM, SGLang, aiter, Transformer Engine and DeepSeek's libraries",
        kinds={
            "activation": (
                r"^(?!.*matmul)(?!.*gemm).*(silu_and_mul|act_and_mul|swiglu)",
                r"activation18",
                r"gated_act",
            ),
            "norm": (r"rmsnorm|RMSNorm|Rmsnorm|rms_norm|layernorm|ln_(fwd|bwd)_\w*kernel|norm_quant",),
            "quantize": (
                r"per_token_cast|per_channel_cast|cast_back",
                r"per_token_(group_)?quant|dynamic_(per_token_)?(scaled_)?quant|scaled_fp8_quant|static_scaled_quant",
                r"cast_transpose|cast_fp8|quantize_mxfp|mxfp4_quant|mxfp8_quant|fp4_quant|amax_kernel",
                r"group_quant|_quant_kernel(?!.*norm)|float8_cast|cvt_fp",
                r"grouped_gemm::cuda::utils::(transpose|fill)|batched_transpose",
            ),
            "permute": (
                r"moe_align|count_and_sort_expert|moe_sort|MoeSorting|moe_permute|expand(Input|_to_fused)|ep_(gather|scatter)",
                r"permute_kernel|_permute|unpermute|finalize_?(moe|matmul|kernel)|moe_sum|moe_reduce|reduce_fused_impl",
                r"get_fused_mapping|clean_and_count_expert|aux_fi_impl|unique_group_indices|_finalize_matmul_scatter",
                r"(silu|act)_.*masked_post|post_reorder|pre_reorder|shuffle_rows|build_expert_maps",
            ),
            "router": (
                r"topk(_gating|GatingSoftmax|_softmax|_sum|_forward|_idx|_transform|_sigmoid)|grouped_topk|moe_fused_gate",
                r"get_dispatch_layout|_topk_forward|_combined_routing|_sum_bitmatrix|biased_grouped|select_experts|RoutingKernel|routing",
            ),
            "rope": (r"rotary_?(embedding)?_kernel|rope_kernel|RotaryEmbedding|fused_rope|mrope",),
            "sample": (r"argmax|resolve_future_token|clamp_position|compute_position|greedy_sample|rejection_",),
            "copy": (r"create_flashinfer_kv_indices|get_last_loc|write_req_to_token|compute_slot_mapping|pack_seq",),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "collectives",
        "NCCL, RCCL, NVSHMEM, DeepEP, custom all-reduces of engines, symmetric memory",
        waits=(r"notify_dispatch|cached_notify", r"\bbarrier_all|signal_wait"),
        kinds={
            "dispatch": (
                r"notify_dispatch",
                r"(internode|intranode|ep)\w*::dispatch|EpDispatch|moe_?a2a_dispatch|[Dd]ispatchKernel",
            ),
            "combine": (
                r"cached_notify",
                r"(internode|intranode|ep)\w*::combine|EpCombine|moe_?a2a_combine|[Cc]ombineKernel",
            ),
            "all_reduce": (
                r"nccl\w*Kernel_AllReduce",
                r"cross_device_reduce|quick_?reduce|one_?shot_?all_?reduce|two_?shot_?all_?reduce",
                r"all_?reduce_(fusion|kernel|rms)|allreduce_(fusion|kernel)|multimem_all_reduce|AllReduce",
            ),
            "all_gather": (r"nccl\w*Kernel_AllGather|all_?gather_kernel|multimem_all_gather|AllGather",),
            "reduce_scatter": (r"nccl\w*Kernel_ReduceScatter|reduce_scatter_kernel|ReduceScatter",),
            "all_to_all": (r"nccl\w*Kernel_AllToAll|all_?to_?all|AlltoAll",),
            "broadcast": (r"nccl\w*Kernel_Broadcast",),
            "send_recv": (r"nccl\w*Kernel_SendRecv",),
            "exchange": (r"nccl\w*Kernel", r"nvshmem", r"rccl", r"mscclpp|msccl", r"\bbarrier_all|signal_wait"),
        },
    )
)
