"""Times of isolated kernels, as a benchmark measures them: a method for each operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tspsim.base.errors import UnknownNameError

from . import moe
from .limits import Estimate

_ATTENTION = ("attention_forward", "attention_backward")


class IsolatedKernels:
    """Times of isolated kernel calls; sizes are numbers or arrays."""

    def estimate(
        self, family: str, dtype: str, library: str | None, second_dtype: str | None, **shape: Any
    ) -> Estimate:
        """Time of a call of one of :data:`tspsim.hardware.families.FAMILIES` by its shape columns."""
        raise NotImplementedError

    def gemm(
        self, m: Any, n: Any, k: Any, dtype: str = "bf16", batch: Any = 1, *, library: str | None = None
    ) -> Estimate:
        """C[m, n] = A[m, k] · B[k, n], ``batch`` times in one call.

        Parameters
        ----------
        m, n, k, batch
            Positive numbers, or arrays that broadcast to one shape (rows,).
        dtype
            Operand type, one of :data:`tspsim.operators.DTYPES`.
        library
            Library of the kernel; None: the device's default.

        Raises
        ------
        UnknownNameError
            The type is unknown.
        InputError
            The device has no matrix units for the type.
        """
        return self.estimate("gemm", dtype, library, None, m=m, n=n, k=k, batch=batch)

    def grouped_gemm(
        self,
        groups: Any,
        m: Any,
        n: Any,
        k: Any,
        dtype: str = "bf16",
        direction: str = "forward",
        *,
        library: str | None = None,
    ) -> Estimate:
        """``groups`` equal products C[m, n] = A[m, k] · B[k, n] in one call: forward, or both gradients (``backward``).

        Parameters as of :meth:`gemm`. On devices without measured grouped products, plain products with a wider range.
        """
        family = _by_direction("grouped_gemm", "grouped_gemm_backward", direction)
        return self.estimate(family, dtype, library, None, m=m, n=n, k=k, batch=groups)

    def attention(
        self,
        batch: Any,
        q_len: Any,
        kv_len: Any,
        heads: Any,
        kv_heads: Any,
        head_dim: Any,
        dtype: str = "bf16",
        causal: Any = True,
        direction: str = "forward",
        *,
        kv_dtype: str | None = None,
        library: str | None = None,
    ) -> Estimate:
        """softmax(Q·Kᵀ)·V: the forward, or the backward without the forward.

        Parameters
        ----------
        batch, q_len, kv_len
            Sequences; query tokens and context tokens of each. All sizes are numbers, or arrays that broadcast to one
            shape (rows,).
        heads, kv_heads, head_dim
            Query heads, KV heads, and elements of a head.
        dtype, kv_dtype
            Operand type; type of cached K and V (None: ``dtype``).
        causal
            The mask is aligned at the lower right corner: the last query sees the whole context.
        direction
            ``forward`` or ``backward``.
        library
            Library of the kernel; None: the device's default.

        Raises
        ------
        UnknownNameError
            A type or the library is unknown.
        InputError
            The device has no matrix units for the type.
        """
        return self.estimate(
            _by_direction(*_ATTENTION, direction), dtype, library, kv_dtype, batch=batch, q_len=q_len, kv_len=kv_len,
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, causal=causal,
        )  # fmt: skip

    def decode_attention(
        self,
        batch: Any,
        context: Any,
        heads: Any,
        kv_heads: Any,
        head_dim: Any,
        kv_dtype: str = "bf16",
        queries: Any = 1,
        *,
        library: str | None = None,
    ) -> Estimate:
        """Attention of ``queries`` tokens a sequence over ``context`` tokens cached in ``kv_dtype``.

        ``batch`` is the number of sequences. Sizes are numbers or arrays (rows,). Other parameters and exceptions as of
        :meth:`attention`.
        """
        return self.estimate(
            "attention_decode", "bf16", library, kv_dtype,
            batch=batch, context=context, heads=heads, kv_heads=kv_heads, head_dim=head_dim, queries=queries,
        )  # fmt: skip

    def latent_prefill(
        self,
        batch: Any,
        q_len: Any,
        kv_len: Any,
        heads: Any,
        key_dim: Any = 192,
        value_dim: Any = 128,
        dtype: str = "bf16",
        kv_dtype: str | None = None,
        *,
        library: str | None = None,
    ) -> Estimate:
        """Causal attention with a key of ``key_dim`` and a value of ``value_dim`` elements per head, from latents.

        ``kv_dtype`` is the type of cached latents; their cache write is included, as serving libraries time it. Other
        parameters and exceptions as of :meth:`attention`.
        """
        return self.estimate(
            "latent_prefill", dtype, library, kv_dtype,
            batch=batch, q_len=q_len, kv_len=kv_len, heads=heads, key_dim=key_dim, value_dim=value_dim,
        )  # fmt: skip

    def latent_decode(
        self,
        batch: Any,
        context: Any,
        heads: Any,
        latent_dim: Any = 512,
        rope_dim: Any = 64,
        kv_dtype: str = "bf16",
        queries: Any = 1,
        *,
        library: str | None = None,
    ) -> Estimate:
        """Attention of ``queries`` tokens a sequence over ``context`` latents cached in ``kv_dtype``.

        ``latent_dim`` and ``rope_dim`` are elements of a latent and of its rotary key, which all ``heads`` share.
        ``batch`` is the number of sequences. Sizes are numbers or arrays (rows,). Exceptions as of :meth:`attention`.
        """
        return self.estimate(
            "latent_decode", "bf16", library, kv_dtype,
            batch=batch, context=context, heads=heads, latent_dim=latent_dim, rope_dim=rope_dim, queries=queries,
        )  # fmt: skip

    def absorb(
        self, tokens: Any, heads: Any, n: Any, k: Any, dtype: str = "bf16", *, library: str | None = None
    ) -> Estimate:
        """``heads`` products [tokens, k] · [k, n] in one call, each with its own matrix; numbers or arrays."""
        return self.estimate("absorb", dtype, library, None, tokens=tokens, heads=heads, n=n, k=k)

    def fused_moe(
        self,
        tokens: Any,
        hidden: Any,
        expert_ffn: Any,
        experts: Any,
        topk: Any,
        dtype: str = "bf16",
        weight_dtype: str | None = None,
        *,
        pairs: Any = None,
        touched: Any = None,
        gated: Any = True,
        library: str | None = None,
    ) -> Estimate:
        """The fused MoE kernels of a rank's routed experts in one call; sizes are numbers or arrays (rows,).

        Parameters
        ----------
        tokens
            Tokens that reach this rank, from all ranks.
        hidden, expert_ffn, experts, topk
            Width of the residual stream; columns and number of the experts on this rank; experts a token chooses among
            those of all ranks.
        dtype, weight_dtype
            Type of activations; type of the stored weights (None: ``dtype``).
        pairs
            (token, expert) choices that fall on this rank's experts; None: all.
        touched
            Distinct experts of this rank among them; None: the expectation for random choices.
        gated
            Experts have gate, up and down instead of up and down.
        library
            Library of the kernels, or an engine (``"vllm"``, ``"sglang"``, ``"trtllm"``, ``"atom"``): its newest one.
        """
        least = np.minimum(topk, experts) if pairs is None else 0.0  # choices of one token are distinct
        pairs = np.multiply(tokens, topk) if pairs is None else pairs
        touched = moe.touched_by(pairs, experts, least) if touched is None else touched
        return self.estimate(
            "fused_moe", dtype, library, weight_dtype or dtype,
            tokens=tokens, hidden=hidden, expert_ffn=expert_ffn, experts=experts, topk=topk,
            pairs=_plain(pairs), touched=_plain(touched), gated=gated,
        )  # fmt: skip


def _plain(number: Any) -> Any:
    """A NumPy scalar as a float; an array unchanged."""
    return number if np.ndim(number) else float(number)


def _by_direction(forward: str, backward: str, direction: str) -> str:
    if direction not in ("forward", "backward"):
        raise UnknownNameError("direction", direction, ("forward", "backward"))
    return forward if direction == "forward" else backward
