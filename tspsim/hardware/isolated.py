"""One kernel as a benchmark times it: a method for each thing that kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from tspsim.base.errors import UnknownNameError

from . import moe
from .limits import Estimate

_ATTENTION = ("attention_forward", "attention_backward")


class IsolatedKernels:
    """What calls of one kernel take, by what they compute; sizes are numbers or arrays."""

    def estimate(
        self, family: str, dtype: str, library: str | None, second_dtype: str | None, **shape: Any
    ) -> Estimate:
        """One of :data:`tspsim.hardware.families.FAMILIES` at its shape columns."""
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
            Whose kernels; None: the device's default library.

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
        """``groups`` equal products C[m, n] = A[m, k] · B[k, n] of one call, forward or both their gradients.

        Parameters as of :meth:`gemm`; where nobody measured such calls they cost what plain products do, with a wider
        range.
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
        """softmax(Q·Kᵀ)·V, forward or the backward alone.

        Parameters
        ----------
        batch, q_len, kv_len
            Sequences, and tokens of each whose queries and whose keys there are. Numbers, or arrays that broadcast to
            one shape (rows,), as all sizes here.
        heads, kv_heads, head_dim
            Heads of queries and of keys and values, and elements of one.
        dtype, kv_dtype
            Types that are multiplied, and that K and V are kept as; None: alike.
        causal
            Aligned at the lower right corner: the last query sees the whole context.
        direction
            ``forward`` or ``backward``.
        library
            Whose kernels; None: the device's default library.

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
        """``queries`` tokens of each of ``batch`` sequences over a ``context`` of so many tokens kept as ``kv_dtype``.

        Sizes are numbers or arrays (rows,); the others and what is raised as of :meth:`attention`.
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
        """Causal attention with a key and a value a head, made from latents that are cached as ``kv_dtype``.

        ``key_dim`` and ``value_dim`` are elements of a head's; the others and what is raised as of :meth:`attention`.
        With its cache write, as serving libraries time it.
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
        """``queries`` tokens of each of ``batch`` sequences over a ``context`` of so many latents kept as ``kv_dtype``.

        ``latent_dim`` and ``rope_dim`` are elements of a latent and of its rotary key, which all ``heads`` share. Sizes
        are numbers or arrays (rows,); what is raised as of :meth:`attention`.
        """
        return self.estimate(
            "latent_decode", "bf16", library, kv_dtype,
            batch=batch, context=context, heads=heads, latent_dim=latent_dim, rope_dim=rope_dim, queries=queries,
        )  # fmt: skip

    def absorb(
        self, tokens: Any, heads: Any, n: Any, k: Any, dtype: str = "bf16", *, library: str | None = None
    ) -> Estimate:
        """``heads`` products [tokens, k] · [k, n] of one call, each with a matrix of its own; numbers or arrays."""
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
        """All products of the routed experts of a rank and what is between, in one call; numbers or arrays (rows,).

        Parameters
        ----------
        tokens
            Tokens that choose experts, of all ranks whose tokens come here.
        hidden, expert_ffn, experts, topk
            Width of the residual stream, columns and number of the experts on this rank, and how many of those of all
            ranks a token chooses.
        dtype, weight_dtype
            Of activations, and what weights are kept in (None: the same).
        pairs
            Choices that fall on this rank's experts; None: all.
        touched
            Distinct experts of this rank among them; None: as many as random choices touch.
        gated
            Gate, up and down instead of up and down.
        library
            Whose kernels, or an engine's name (``"vllm"``, ``"sglang"``, ``"trtllm"``, ``"atom"``): its newest.
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
    """A scalar of NumPy as a float; arrays as they are."""
    return number if np.ndim(number) else float(number)


def _by_direction(forward: str, backward: str, direction: str) -> str:
    if direction not in ("forward", "backward"):
        raise UnknownNameError("direction", direction, ("forward", "backward"))
    return forward if direction == "forward" else backward
