"""Families of models on Hugging Face: the names of their keys, and what no key of a ``config.json`` states.

From each family's configuration class and modelling code in ``transformers``, or in the model's own repository.
"""

from __future__ import annotations

from . import zaya

NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": (
        *("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_attention_groups"),
        "multi_query_group_num",
    ),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "topk": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "expert_width": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_width": ("shared_expert_intermediate_size",),
    "shared": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "dense_width": ("intermediate_size_mlp",),
    "first_dense": ("first_k_dense_replace", "moe_layer_start_index"),
    "every": ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", "moe_layer_interval"),
    "groups": ("n_group", "num_expert_group"),
    "kept_groups": ("topk_group",),
    "multi_token": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "residual_lanes": ("hc_mult",),
    "max_context": (
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "model_max_length"),
    ),
}
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation")
GATES = ("silu", "swish", "swiglu", "geglu")

LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "opt"}
LINEAR_BIAS = {"gpt2", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom", "phi", "starcoder2"}
UNGATED = LINEAR_BIAS | {"gptj", "codegen", "falcon", "mpt", "nemotron"}
GATED = {"gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "glm", "glm4", "chatglm", "helium"}
QWEN_GATED = {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
QK_NORM = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmo3", "olmoe", zaya.FAMILY} | QWEN_GATED
QKV_BIAS = {"qwen2", "qwen2_5", "qwen2_moe", "qwen", "chatglm", "glm"}
#: Families with one shared expert, as wide as a routed one, that no key mentions.
ONE_SHARED = {"llama4", "llama4_text"}
#: Families that multiply the shared experts' output by a gate.
SHARED_GATE = {"qwen2_moe"} | QWEN_GATED
#: Families in which ``intermediate_size`` is an expert's width; elsewhere it is a dense MLP's.
WIDTH_IS_AN_EXPERTS = {
    *("mixtral", "gpt_oss", "llama4", "llama4_text", "grok", "grok-1", "phimoe", "minimax_m2", "olmoe", "granitemoe"),
}
ROUTER_BIAS = {
    *("deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2", "kimi_linear", "glm4_moe", "glm_moe_dsa", "gpt_oss"),
    *("minimax_m2", "glm4_moe_lite", "glm4v_moe", "glm4v_moe_text"),
}
#: DeepSeek's ``topk_method`` for a router with a correction bias; read in unknown families too.
CORRECTED = "noaux_tc"
#: Families whose chats servers render by a library in the place of a template (vLLM: ``use_harmony``).
CHAT = {"gpt_oss": "harmony"}
#: Families that add the router's bias to its scores, before the softmax over the chosen (``modeling_gpt_oss.py``).
BIAS_OF_SCORES = {"gpt_oss"}
#: Families whose expert products add biases (``gate_up_proj_bias``, ``down_proj_bias`` of ``modeling_gpt_oss.py``).
EXPERT_BIAS = {"gpt_oss"}
#: Families in which ``intermediate_size`` is the width of gate and up together (``modeling_qwen.py``, ``ff_dim_in``).
WIDTH_OF_GATE_AND_UP = {"qwen"}
#: Families whose attention and MLP read one input, unless the key says no.
SIDE_BY_SIDE = {
    **dict.fromkeys(("gptj", "codegen", "phi", "cohere", "cohere2"), ""),
    "falcon": "parallel_attn",
    "gpt_neox": "use_parallel_residual",
}
#: Period of layers with full attention among windowed ones where no key states it, from configuration classes and
#: modelling code; 0: all layers are windowed.
FULL_EVERY = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "cohere2": 4,
    **dict.fromkeys(("mistral", "mixtral", "phi3", "starcoder2"), 0),
}
TIED_BY_DEFAULT = {
    *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2", "cohere", "cohere2"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "smollm3", zaya.FAMILY),
}

#: Families whose keys, with the sets above, describe the decoder in full.
AS_THEIR_KEYS_SAY = {
    *("llama", "mistral", "ministral", "mixtral", "yi", "olmo", "smollm3", "seed_oss", "internlm2", "internlm3"),
    *("deepseek", "deepseek_v2", "kimi_k25", "kimi_vl", "mistral3", "mistral4"),
    *("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe", "qwen2_5_vl", "qwen2_vl"),
}
#: Every known ``model_type``.
FAMILIES = frozenset().union(
    LEARNED_POSITIONS, LINEAR_BIAS, UNGATED, GATED, QK_NORM, QKV_BIAS, ONE_SHARED, SHARED_GATE,
    WIDTH_IS_AN_EXPERTS, ROUTER_BIAS, TIED_BY_DEFAULT, AS_THEIR_KEYS_SAY,
)  # fmt: skip
