"""Names of kernels that frameworks and compilers write, and words of names that no rule knows.

The rules of :mod:`.library_names` register behind these and are asked before them.
"""

from __future__ import annotations

from .names import KERNEL_NAMES, KernelNames

#: A compiled kernel that makes norms of what it looks up or of a loss's gradient is a norm.
_UNLESS_NORM = r"^(?!triton_(per|red)_fused.*(layer_norm|rms_?norm|rsqrt)).*"
#: This rule is the first registered and so the last tried: the names of generated and framework kernels state the
#: operation.
KERNEL_NAMES.register(
    KernelNames(
        "frameworks",
        "kernels of PyTorch, Triton's compiler, and what launched them",
        kinds={
            "memcpy": (r"^\[?(CUDA )?[Mm]emcpy(?! PtoP| Peer)", r"copyBuffer", r"^Copy(Device|Host)To(Device|Host)"),
            "memset": (r"^\[?(CUDA )?[Mm]emset", r"fillBuffer", r"FillFunctor"),
            # Inductor's templates are products, convolutions and flexible attention; many of their names have no word
            # for it.
            "convolution": (r"triton_tem_fused.*convolution",),
            "gemm": (r"triton_tem_fused.*(mm|matmul|linear)",),
            "attention": (r"triton_tem_fused", r"masked_softmax_warp"),
            "loss": (
                _UNLESS_NORM + r"nll_loss",
                r"cross_?entropy",
                r"[Ll]og_?[Ss]oft[Mm]ax",
                r"^online_softmax_kernel",
            ),
            "optimizer": (
                r"(?<![Hh])[Aa]dam",
                r"FusedOptimize",  # a table may cut a name
                r"\bsgd\b",
                r"lpnorm|L2Norm(Functor|Mxp)",
                r"[Ll]amb(Stage|Functor)",
                r"adagrad",
            ),
            "sample": (r"ArgMaxOps", r"[Ss]ampling", r"multinomial", r"TopKTopP", r"top_k_top_p", r"apply_penalt"),
            "embedding": (
                r"indexSelect",
                r"vectorized_gather_kernel",
                _UNLESS_NORM + r"[Ee]mbedding",
                r"compute_grad_weight",
                r"sum_and_scatter",
                r"indexing_backward_kernel",
                r"permute_2D",
                r"bucketize",
                r"krn_partial",
                r"permute_pooled_embs",
            ),
            "norm": (
                r"triton_(per|red|poi)_fused.*(rms_?norm|layer_norm|rsqrt)",
                r"[Ll]ayer_?[Nn]orm",
                r"[Rr][Mm][Ss]_?[Nn]orm",
                r"\bln_(fwd|bwd)",
                r"bn_(bw|fw)_",
                r"batch_norm",
                r"[Gg]roup_?[Nn]orm",
                r"cuCompute(Part)?Grad(GammaBeta|Input)",
                r"GammaBeta",
                r"RowwiseMoments|ComputeFusedParams",
                r"\bl2norm",
                # The schedules of nvFuser: a persistent one reads its rows once, as norms and softmax want it.
                r"nvfuser_(inner_outer|inner|outer)_persistent",
            ),
            "quantize": (
                r"triton_\w+_fused(?!\w*(silu|gelu)).*(_scaled_mm|float8|clamp.*reciprocal|reciprocal.*clamp)",
                r"triton_(red|per)_fused(?!\w*_exp_)\w*_abs_\w*amax",
            ),
            "activation": (
                r"[Ss]wi?glu",
                r"silu",
                r"ge?glu",
                r"gelu",
                r"act_and_mul",
                r"GeluCUDAKernel",
                r"relu_kernel",
            ),
            "rope": (
                r"rotary",
                r"[^a-z]rope",
                r"apply_rope",
                r"triton_\w+view_as_(complex|real)",
                # Halves that turn: the names of a compiled kernel's operators stand in the order of the alphabet.
                r"triton_poi_fused\w*_cat_\w*(cos_\w*sin|mul_neg|mul_\w*sub)(_|\b)",
            ),
            "cache": (r"reshape_and_cache", r"store_kv", r"kv_?cache", r"concat_and_cache", r"set_mla_kv"),
            "permute": (r"kernelHistogram1D", r"fill_reverse_indices"),
            "router": (
                r"triton_\w+_fused\w*_topk",
                r"sbtopk",
                r"mbtopk",
                r"bitonicSortKV",
                r"radixSortKV",
                r"gatherTopK",
                r"radix_?sort",
            ),
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
                r"(?<!hadamard_)transform_kernel",
                r"block_reduce",
                r"nvfuser_reduction",
            ),
            "elementwise": (
                r"nvfuser_pointwise",
                r"elementwise_kernel",
                r"triton_poi_fused",
                r"multi_tensor_apply",
                r"fused_dropout",
                r"triton__0d",
                r"vectorized_templated",
                r"index_elementwise",
                r"scatter_gather",
                r"elementwise",
                r"index_put|indexFunc|(?<!fp8_)(?<!sample_)index_kernel",
                r"where_kernel|masked_(fill|scale|scatter|select|softmax)",
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
#: What runs around the products of experts or adapters: routing, sorting, summing, casting.
_AROUND_EXPERTS = (
    r"gat(e(?!_up)|ing)|rout|top_?k|align|sort|perm|sum|reduc|prepare|_act(_|\b)|quant|scatter|gather|ind(ex|ices)|count|map|meta|final"
    r"|shuffle|fill"
)
#: Words in the names of unknown kernels, the most specific first.
_WORDS = {
    "all_reduce": (r"[Aa]ll_?[Rr]educe",),
    "all_gather": (r"[Aa]ll_?[Gg]ather",),
    "reduce_scatter": (r"[Rr]educe_?[Ss]catter",),
    "all_to_all": (r"[Aa]ll_?(2|to_?|To)_?[Aa]ll",),
    "exchange": (r"(\b|_)(barrier|signal_kernel|(wait|publish)_flag)(_|\b)",),
    "send_recv": (r"(\b|_)pp_(send|recv)(_|\b)",),
    "grouped_gemm": (
        r"[Gg]roup(ed)?_?([Gg]emm|mm)|[Mm]oe_?([Gg]emm|mm)|[Ee]xperts?_?([Gg]emm|mm)|[Ss]egment_?(GEMM|[Gg]emm)",
        # Experts with the widths of weights and inputs, a tile, or the first or second of their products.
        r"([Mm]oe|MoE|[Ee]xpert)(?!\w*[Aa]ctivation)\w*?(_?[aw]\d+[aw]\d+|_\d+x\d+x\d+|_g(emm)?[12](_|\b)|_?stage[12]|_bmm|_fc[12])",
        # A kernel that is the experts, and none of the steps around their products.
        r"(\b|_)moe_(persistent_)?kernel|scatter2scatter|[Mm]oe_(bwd|fwd)_d[WX]|(\b|_)g(rouped_)?mm_kernel",
        r"(\b|_)fused_moe_(?!\w*(" + _AROUND_EXPERTS + "))",
    ),
    "gemm": (
        r"(?<!fb)[Gg]e(mm|mv)|GEM[MV]|(?<!^_fwd_kernel_)(?<!sparse_)[Ss]plit_?[Kk](_|\b)|[Ss]tream_?[Kk](_|\b)|[Mm]at_?[Mm]ul|(\b|_)(add|b|[iuf]\d+)?mm_",
        r"(?<!_ttt)(\b|_)[Ll]inear_(?!\w*(attn|attention|cross|jsd|scale|ce_))|(\b|_)mm(v?[qf])(_|\b)|hgemm|kernel_contraction|[Dd]ot_?[Pp]rod|(\b|_)[bs]gm[mv](_|\b)",
        r"(\b|_)lora_(?!\w*(" + _AROUND_EXPERTS + "))",
    ),
    "linear_attention": (
        r"[Mm]amba|[Ss]elective_?[Ss]can|(\b|_)(ssm|ssd)_|(\b|_)chunk(wise|ed)?_(\w+_)?(fwd|bwd|state|h|o|preprocess\w*)_?kernel",
        # Chunks of a recurrence, and what a state-space model sums over them.
        r"(\b|_)chunk(wise)?_(\w+_)?(fwd|bwd)(_|\b)|[Rr]ecurren(t|ce)|^_fwd_kv_|(\b|_)conv_states?(_|\b)|(\b|_)(\w*segsum|d?da_?cs|dadt|ddt|ssu|seg_la)(_|\b)|[Ff]lash_?kda|[Rr]eplay_?ssm",
    ),
    "attention": (
        r"prefill_(\w+_)?kv|[Ff]lash_?prefill|^_fwd_(grouped|kernel)_split|[Aa]tt(n|ention|end_)|(\b|_)(mla|mha|mqa|gqa|sdpa|nsa|dsa|msa|swa|moba)(_|\b)|MLA|MHA|MQA|[Nn]eighborhood|(\b|_)sparse_(\w{4}_)?split|fp8_index|(\b|_)lse_|(\b|_)(index\w*|proxy|block)_(\w+_)?scores?(_|\b)",
        # The names of Triton's tutorial, which many copies keep, and gradients of queries, keys and values.
        r"^_(\w{2}_)?(fwd|bwd)(_(kernel|inner|pre\w*|kernel_unified))?$|(bwd|backward|grad)_(\w+_)?d[qkv](_|\b)|(\b|_)d(kv|kdv|vdk|kdvdq|qdkdv)(_|\b)|(\b|_)merge_states?(_|\b)",
        r"(\b|_)parallel_\w+_(fwd|bwd)(_|\b)",
    ),
    "convolution": (r"(?<!post_)(?<!pre_)[Cc]onv(?!ert)(\d|_|olution)",),
    "optimizer": (
        r"[Oo]ptimizer|(\b|_)(muon|newton_schulz|lion|lamb|lars|adam\w?|adagrad|adafactor|rmsprop|shampoo|soap|sgd)(_|\b)",
    ),
    "loss": (
        r"[Ll]oss|[Cc]ross_?[Ee]ntropy|kl_div|(\b|_)(jsd|tvd|tv_distance|entropy|ce_(fwd|bwd|forward|backward)|grpo|dpo|kto|orpo|simpo|ppo|reinforce)(_|\b)",
    ),
    "sample": (
        r"[Ss]ampl|penalt|bincount|[Tt]emperature|logit_?bias|bitmask|[Ss]pecul|[Aa]ccept(ed|ance)|eagle|draft|next_token|min_p(_|\b)|bad_words|[Tt]op_?[pP](_|\b|[A-Z])",
        r"(\b|_)verif(y|ied)(_|\b)",
    ),
    "dispatch": (r"dispatch_(tokens?|send|recv)(_|\b)|(\b|_)a2a_dispatch",),
    "combine": (r"combine_(tokens?|send|recv)(_|\b)|(\b|_)a2a_combine",),
    "norm": (r"[Nn]orm(?!al_)|(\b|_)ln(_|\b)",),
    "rope": (r"(\b|_)ro?pe(_|\b)|RoPE|Rope|[Rr]otary|(\b|_)rotat(e|ion)(_|\b)|(\b|_)cos_(and_)?sin(_|\b)",),
    "cache": (r"[Cc]ache|(\b|_)kv(_|\b)|KV([A-Z]|_v\d)|(\b|_)(set_k_|compress_)",),
    # Several activations are the inputs of a product, which are scaled and cast; one is a function.
    "activation": (
        r"[Aa]ctivation(?!s)|(\b|_)act_(combine|mul|forward|backward|and)|[Ss]i?lu|[Gg]e?lu|[Rr]elu|(\b|_)[a-z]?elu(_|\b)",
        r"gated|[a-z]glu(_|\b)",
    ),
    "router": (r"[Rr]out(er|ing)|top_?k|Top_?K|(\b|_)route[ds]?(_|\b)|noaux_tc",),
    "permute": (
        r"[Pp]ermut|(\b|_)(histogram|dedup)(_|\b)|([Ss]huffle|[Ee]xpand|[Dd]uplicate)\w*[Rr]ows?|[Ss]huffling|align_scatter",
        r"([Mm]oe|MoE|[Ee]xpert)(?!\w*[Mm]emset)",
    ),
    "quantize": (
        r"[Qq]uant|fp8|FP8|fp4|FP4|(?<!b)[Cc]ast(?!er)|(\b|_)abs_?max|amax|e8m0|(\b|_)scales?(_|\b)|(\b|_)q?dq_|(\b|_)per_(token|tensor|block|channel)(_|\b)",
        r"\d+_?bit(_|\b)|(\b|_)u?int[248]b?(_|\b)",
    ),
    "embedding": (r"[Ee]mbed|[Ll]ookup",),
    "reduction": (
        r"[Ss]oftmax|SoftMax|[Aa]rg_?sort|(\b|_)sorted_|log_?(cum)?_?sum_?exp|cum_?sum|[Rr]educe|[Rr]eduction|sparsemax|(\b|_)(sum|mean|max|min|cumsum|arg\w+|sort|scan)_|Sort|Scan",
    ),
    "copy": (
        r"[Cc]opy|cpy|[gs]et_rows|[Tt]ranspose|(\b|_)(cat|concat|pad|pack|unpack|split|slice|index|gather|scatter|convert|prepare|strides?)_",
        # Four axes by their numbers in a new order, and the tables by which other kernels find their rows.
        r"[Tt]ransform\w*_\d{3,4}(_|\b)|(\b|_)(ind(ices|ptr)|idx|ids|meta(data)?|pages?|spec_info|slots?|(block|page)_tables?)(_|\b)|[Rr]eplicate|[Rr]earrange",
    ),
    "memset": (r"(\b|_)([Ff]ill|zeros?|full|memset|clear|reset|clean)_|Memset",),
    "elementwise": (
        r"_func_|[Ee]lement_?[Ww]ise|[Hh]adamard|[Ss]igmoid|[Tt]anh|(\b|_)(add|sub|mul|div|exp|pow|where|mask\w*|clamp)_",
        r"(\b|_)(mhc|residual|bcast\w*|dropout|merge|unary|binary|soft_?cap)(_|\b)",
    ),
}
KERNEL_NAMES.register(KernelNames("words", "words in names of kernels that no rule knows", guesses=_WORDS))
