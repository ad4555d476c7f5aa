"""Names of kernels of libraries and engines: products, attention, small kernels, transfers."""

from __future__ import annotations

from . import framework_names  # registered first and so asked last
from .names import KERNEL_NAMES, KernelNames

__all__ = ["framework_names"]

KERNEL_NAMES.register(
    KernelNames(
        "products",
        "matrix products of cuBLAS, CUTLASS, hipBLASLt, DeepGEMM and Triton, and convolutions",
        kinds={
            "grouped_gemm": (
                r"[Gg]rouped_?[Gg]emm(?!::cuda::(fp8_|utils))|GemmGrouped|gemm_grouped",
                r"GemmType\)[1-3]\b",  # DeepGEMM: rows of experts one behind the other, masked, along k
                r"_cg_(persistent_)?(forward|backward)\w*_kernel",
                r"m_grouped_fp8",
                r"[Ff]used_[Mm]oe_[Kk]ernel|moe_\w*w\d+a\d+|w\d+a\d+_moe",
                r"_grouped_\w*(gemm|linear|mm|w\d+)_",
                r"_matmul_ogs|group(ed)?_matmul",
                r"_p_matmul",
                r"fmoe_",
                r"moe_gemm",
                r"ck_moe",
                r"MoeGemm",
                r"GroupProblemShape",
                r"bmm_.*_dynBatch|\bbmm_(E4m3|E2m1|Mx\w+|Bfloat16|Fp16)_\w*_t\d+x\d+",
                r"(\b|_)fused_moe_silu|(\b|_)gemm[12]_\w*moe|MoeFlatmm|moe_mxgemm|mfma_moe\d|\bflydsl_moe\d|mega_?moe|moe_lora_(shrink|expand|kernel)",
                r"(\b|_)group_gemm",
                r"marlin_moe",
                r"mxfp4_moe",
            ),
            "convolution": (
                r"cudnn(?!.*(bn_|nhwcToNchw|nchwToNhwc))",
                r"scudnn",
                r"wgrad_alg",
                r"dgrad_engine",
                r"[Cc]onv(olve|2d|3d|_depthwise)",
                r"miopen",
                r"winograd|\bigemm_(fwd|bwd|wrw)_",
                r"implicit_convolve|[fdw](prop|grad)_implicit_gemm",
            ),
            "gemm": (
                r"(\b|_)Cijk_",
                r"GEMM|(?<!fb)[Gg]emm(?!\w*::)",  # a namespace says where a kernel lies
                r"gemv",
                r"splitKreduce",
                r"nvjet",
                r"cublas",
                r"cutlass::Kernel",
                r"wvSplitK",
                r"^_?scaled_mm",
                r"_w8a8_block_fp8_matmul",
                r"matmul|(\b|_)mul_mat_",
                r"ampere_.*_(tn|nn|nt)$",
                r"volta_.*_(tn|nn|nt)$",
                r"marlin(?!_dequant)",
                r"machete",
                r"dot_kernel",
                r"(\b|_)lora_(shrink|expand|[ab]_)",
                r"(\b|_)w\d+a(8|16)_(?!.*(quant|rout|count|encode|utils))",  # widths of weights and inputs
            ),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "attention",
        "attention of FlashAttention, FlashInfer, cuDNN, Composable Kernel, aiter, vLLM, SGLang and TensorRT-LLM",
        kinds={
            "cache": (
                r"reshape_and_cache|concat_and_cache|quant_(and_)?cache|cp_gather_\w*cache",
                r"(store|load|append|write|gather)_?\w*[Cc]ache(?!d)",
                r"AppendPagedKVCache|_zero_kv_blocks|(swap|copy)_blocks_kernel",
            ),
            "linear_attention": (
                r"gated_delta|[Dd]elta_?[Rr]ule|(\b|_)(gdn|kda|gla|rwkv\d|lightning_attn)_(?!\w*norm)|\bGdn[A-Z]",
                r"chunk_(fwd|bwd|gated|local|scaled|delta)|wy_repr|(linear|lightning)_?att(n|ention)",
                r"causal_conv1d",
                r"selective_scan|(\b|_)mamba",
                r"fused_recurrent",
                r"_chunk_(scan|state|cumsum)|_state_passing|_bmm_chunk",
                r"recompute_w_u",
                r"solve_tril|merge_16x16_to_\w+_inverse",
            ),
            "attention": (
                r"flash_fwd",
                r"flash_bwd",
                r"flash::",
                r"FlashAttn",
                r"[Ff]lash_?[Aa]ttn",
                r"paged_attention",
                r"unified_attention|multi_?head_attention|(\b|_)attention(_\w*kernel|::)|flash_?decod",
                r"fmha|Fmha",
                r"attn_fwd",
                r"attn_bwd",
                r"bwd_kernel_fuse",
                r"bwd_kernel_d[kqv]|_bwd_preprocess|(fwd|bwd)_hd\d",
                r"(Prefill|Decode|POD)With|PersistentVariableLengthMergeStates",
                r"mla_(a8w8|a16w16|dec|reduce|prefill|fwd)|mla::\w*BatchMLA|BatchMLAPage|sparse_mla",
                r"\d+pa_(bf16|fp16)|\bpa_(bf16|fp16|fp8)_",  # assembly kernels of aiter
                r"flash_mla",
                r"FlashMLA|flashmla",
                r"_fwd_kernel_stage|_fwd_grouped_kernel|decode_att|^_fwd_kernel$|\breduce_segments",
                r"xqa_kernel|mmha|\bkernel_mha",
                r"compute_attn_ws",
                r"cudnn_generated_fort_native_sdpa",
                r"cudnn::fusion::(compute_dot_do_o|convert_dq)",
                r"merge_attn_states|MergeState",
                r"_attn_|\bthd_(out|lse)_correction",
                r"kn_get_mla_metadata|get_mla_metadata",
                r"sparse_attention|indexer_([kq](?!uant)|\w*logits)|mqa_logits|index_score|_sparse_decode",
            ),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "engines",
        "small kernels of vLLM, SGLang, aiter, Transformer Engine and DeepSeek's libraries",
        kinds={
            "sample": (
                r"argmax|resolve_future_token|clamp_position|compute_position|greedy_sample|rejection_",
                r"topk_topp|top_k_top_p|gumbel_sample|_temperature_kernel|verify_tree",
            ),
            "activation": (
                r"^(?!.*matmul)(?!.*_ogs)(?!.*[^p]_gemm).*(silu_and_mul|act_(and_)?mul|silu_mul|swiglu)",
                r"activation18|(\b|_)[a-z]+_and_mul",
                r"gated_act|cast_\w*gated_kernel|_geglu_",
            ),
            # A norm stays a norm if it also casts its output or adds a residual first; fused with a transfer it is a
            # transfer.
            "norm": (
                r"^(?!.*userbuffers).*(rmsnorm|RMSNorm|Rmsnorm|rms_norm|RmsNorm(?!Lamport)|layernorm)",
                r"ln_(fwd|bwd)_\w*kernel|norm_quant|(\b|_)rms_(?!\w*(gemm|reduce))|qk_?norm|_rms_normalize|Q[Kk]_?Norm",
            ),
            "rope": (
                r"\bkn_entry_\d|rotary_?(embedding)?_kernel|_rope_kernel|\brope_kernel|RotaryEmbedding|fused_rope|mrope|_triton_rope",
                r"ApplyRotary|applyMLARope|BiasRope|RopeQuantize|qk_rope_|_rope_embedding|norm_rope",
            ),
            "cache": (r"[gs]et_mla_kv|concat_and_cast_mha|fused_store_\w*cache",),
            "router": (
                r"topk(_gating|GatingSoftmax|_softmax|_sum|_forward|_idx|_transform|_sigmoid)|grouped_topk|moe_fused_gate",
                r"T(op|OP)[kK](Sigmoid|Softmax|Gating)|moeTopK|moe(Sigmoid|Softmax)|fused_topk_with|v\d_topk_kernel|fused_router",
                r"get_dispatch_layout|_topk_forward|_combined_routing|_sum_bitmatrix|biased_grouped|select_experts",
                r"(?<!finalizeMoe)RoutingKernel|routing|[Mm]oe_?Gate[A-Z_]",
            ),
            "permute": (
                r"moe_align|count_and_sort_expert|moe_(\w+_)?sort|MoeSorting|moe_permute|expand(Input|_to_fused)|ep_(gather|scatter)",
                r"permute_?[Kk]ernel|_permute|unpermute|moe_(\w+_)?finalize|finalize_?(moe|Moe|matmul|kernel|Kernel)|moe_sum|moe_reduc|reduce_fused_impl",
                r"get_fused_mapping|clean_and_count_expert|aux_fi_impl|unique_group_indices|_finalize_matmul_scatter",
                r"(silu|act)_.*masked_post|post_reorder|pre_reorder|shuffle_rows|build_expert_maps",
                r"compute_src2dst|seg_indptr|masked_m_triton|fill_gateup|row_id_map|chunk_sort|sort_chunks|writeback_idx",
            ),
            "quantize": (
                r"per_token_cast|per_channel_cast|cast_back|cast_only|deep_gemm::transpose|transpose_fp32|float8_copy",
                r"segmented_max_reduction|quantize_with_block|^(?!.*[Gg]emm)(?!.*attention).*((\b|_)quantize_|NVFP4Quantize)",
                r"^(?!.*attn).*per_(token|tensor)_(group_)?quant|dynamic_(per_token_)?(scaled_)?quant|scaled_fp8_quant|static_scaled_quant",
                r"cast_transpose|cast_fp8|quantize_mxfp|mxfp4_quant|mxfp8_quant|fp4_quant|amax_kernel",
                r"^(?!.*[Gg]emm).*(group_quant|_quant_kernel)|float8_cast|cvt_fp",
                r"grouped_gemm::cuda::utils::(transpose|fill)|batched_transpose|swizzle_(row|col)\w*scaling",
            ),
            "copy": (
                r"create_flashinfer_kv_indices|get_last_loc|alloc_(extend|decode)_kernel|write_req_to_token|compute_slot_mapping|pack_seq",
                r"(\b|_)(re|pre)pack(_|\b)|^_prepare_(?!\w*cache)\w+_kernel|^_post_update_kernel|multi_(un)?padding",
            ),
            "elementwise": (r"(\b|_)m?hc_(pre|post|split|head|fused)(?!\w*gemm)|sinkhorn",),
        },
    )
)
KERNEL_NAMES.register(
    KernelNames(
        "collectives",
        "NCCL, RCCL, NVSHMEM, DeepEP, custom all-reduces of engines, symmetric memory",
        waits=(
            r"notify_dispatch|cached_notify",
            # What TensorRT-LLM and FlashInfer run before and behind an exchange moves nothing between ranks.
            r"A2A(Prepare|Sanitize)",
            r"\bbarrier_all|signal_wait|(node|elastic)::barrier",
            r"nvshmem\w*(barrier|sync|quiet)|symmetric_memory::.*(barrier|signal)",
            # PyTorch's symmetric memory, without its namespaces.
            r"\bbarrier_kernel\(|\b(put|wait|set|reset)_signal\w*_kernel|stream_write_value",
        ),
        # Operators of torch.distributed, and what PyTorch records of a collective whose kernel has every kind's name.
        operators={
            "all_reduce": (r"all_?reduce",),
            "all_gather": (r"all_?gather",),
            "reduce_scatter": (r"reduce_?scatter",),
            "all_to_all": (r"all_?to_?all",),
            "broadcast": (r"broadcast",),
            "send_recv": (r"^(c10d::)?(send|recv)\b",),
        },
        kinds={
            "dispatch": (
                r"notify_dispatch|A2ASanitize",
                r"(internode|intranode|elastic|ep)\w*::(\w+_)?dispatch|_ep_dispatch|EpDispatch(?!Combine)|moe_?a2a_dispatch|[Dd]ispatchKernel|AllToAllDispatch",
            ),
            "combine": (
                r"cached_notify",
                r"(internode|intranode|elastic|ep)\w*::(\w+_)?combine|_ep_combine|EpCombine|moe_?a2a_combine|A2ACombine|AllToAllCombine|(?<!Fwd)(?<!SplitKV)[Cc]ombineKernel",
            ),
            "all_reduce": (
                r"nccl\w*(Kernel|Func)_AllReduce",
                r"cross_device_(reduce|store)|quick_?reduce|one_?shot_?all_?reduce|two_?shot_?all_?reduce",
                # A compiled kernel has the names of the operators beside it.
                r"^(?!triton_).*([Aa]ll_?[Rr]educe|mnnvl_ar_|RmsNormLamport)",
                r"userbuffers_\w*sum_inplace_gpu(?!\w*(allgather|_ag|_rs))",
            ),
            "all_gather": (
                r"nccl\w*(Kernel|Func)_AllGather|all_?gather_kernel|multimem_all_gather|AllGather|mscclpp::\w*.*allgather",
                r"userbuffers_\w*(allgather|_ag)",
            ),
            "reduce_scatter": (
                r"nccl\w*(Kernel|Func)_ReduceScatter|reduce_scatter_kernel|ReduceScatter",
                r"userbuffers_\w*_rs|multimem_reduce_scatter",
            ),
            "all_to_all": (r"nccl\w*(Kernel|Func)_All[Tt]oAll|all_?to_?all|AlltoAll",),
            "broadcast": (r"nccl\w*(Kernel|Func)_Broadcast",),
            "send_recv": (r"nccl\w*(Kernel|Func)_SendRecv|userbuffers_push",),
            "exchange": (
                r"nccl\w*(Kernel|Func)",
                # A copy from one device's memory into another's.
                r"^\[?(CUDA )?[Mm]emcpy (PtoP|Peer)",
                r"nvshmem",
                r"rccl",
                r"mscclpp|msccl|symmetric_memory::.*(barrier|signal)",
                r"\bbarrier_all|signal_wait|(node|elastic)::barrier",
                r"\bbarrier_kernel\(|\b(put|wait|set|reset)_signal\w*_kernel|stream_write_value",
            ),
        },
    )
)
