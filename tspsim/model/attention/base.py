"""Contract of an attention kind: its YAML section, parameters, serving operators and cache.

A serving step gives a layer rows ``(query tokens a sequence, cached tokens before them, sequences)``. Rows of at most
:data:`MOST_DECODED` queries run the decode kernels, which read the cache once for all queries of a sequence (vLLM's
latent backends: "process small prefills with decode pathway"); others run the prefill kernels. Tokens that pad a pass
to a captured size are a row with :data:`NO_CONTEXT` cached tokens: products compute them, attention kernels do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...base.errors import InputError
from ...base.registry import Registry
from ...operators import DTYPES, BatchQuantity, Gemm, Operator, Role, Rows
from ...operators.dtypes import caches
from ..parts import Block, Dimensions, WeightClass
from ..shard import ServingShard, Shard

if TYPE_CHECKING:
    from .sections import AttentionSection

Model = TypeVar("Model", bound=Dimensions)
#: Most queries a sequence that decode kernels take (drafts + 1); engines reorder batches by such a threshold.
MOST_DECODED = 16
#: Cached tokens of a padding row: with its own token, it attends 0.
NO_CONTEXT = -1


def decoded(rows: Rows) -> Rows:
    """Rows that the decode kernels run."""
    return tuple([row for row in rows if row[0] <= MOST_DECODED and row[1] >= 0])


def prefilled(rows: Rows) -> Rows:
    """Rows that the prefill kernels run."""
    return tuple([row for row in rows if row[0] > MOST_DECODED])


def attended(rows: Rows) -> Rows:
    """All rows but padding."""
    return tuple([row for row in rows if row[1] >= 0])


def tokens_of(rows: Rows) -> int:
    """Query tokens of all rows."""
    return sum([queries * sequences for queries, _, sequences in rows])


def product(layer: ServingShard, tokens: int, n: int, k: int, name: str, role: Role) -> Gemm:
    """A projection of attention, in the types of the attention weights."""
    formats, part = layer.formats, WeightClass.ATTENTION
    return Gemm(tokens, n, k, formats.multiplied(part), name=name, role=role, weight_dtype=formats.read(part))


@dataclass(frozen=True)
class CacheUse:
    """Bytes that one layer keeps for one sequence, before any sharding."""

    #: Bytes of each token in the context, or in the window.
    token_bytes: float
    #: Tokens kept at most; 0: all.
    window: int = 0
    #: Bytes of the state, which do not depend on the length.
    sequence_bytes: float = 0.0
    #: Heads over which tensor parallelism can divide ``token_bytes``; 1: all heads share them.
    heads: int = 1
    #: Heads over which tensor parallelism can divide the state.
    state_heads: int = 1
    #: Further bytes of every token on every tensor-parallel rank: an indexer's key.
    shared_token_bytes: float = 0.0
    #: Latest tokens kept uncompressed on every tensor-parallel rank, and bytes of one.
    latest: int = 0
    latest_token_bytes: float = 0.0

    @property
    def grows(self) -> bool:
        """Whether the layer keeps bytes for every token."""
        return self.token_bytes + self.shared_token_bytes + self.latest_token_bytes > 0.0

    def bytes_of(self, context: int) -> float:
        """Bytes of one sequence of ``context`` tokens."""
        kept = min(context, self.window) if self.window else context
        growing = kept * self.token_bytes + context * self.shared_token_bytes
        return growing + self.sequence_bytes + min(context, self.latest) * self.latest_token_bytes

    def rank_bytes(self, context: int, tensor: int = 1, token_shards: int = 1) -> float:
        """Bytes of one sequence of ``context`` tokens on one rank.

        ``tensor`` ranks divide heads and ``token_shards`` ranks divide tokens. Bytes that all heads share are on every
        tensor-parallel rank. The state is on every token shard.
        """
        kept = min(context, self.window) if self.window else context
        tokens = kept * self.token_bytes / min(tensor, self.heads) + context * self.shared_token_bytes
        tokens += min(context, self.latest) * self.latest_token_bytes
        return tokens / token_shards + self.sequence_bytes / min(tensor, self.state_heads)


class AttentionKind(ABC):
    """One kind of attention: its section in a model's YAML, parameters, FLOPs, cache and serving operators.

    A serving layer runs :meth:`enter`, :meth:`project`, :meth:`attend` and :meth:`leave` in this order on the shard
    ``layer``. Between :meth:`attend` and :meth:`leave` a scheme may merge partial attention over ranks that divide the
    context.
    """

    #: ``kind`` of the section ``attention`` in a model's YAML, and of its layers (:attr:`Block.attention`).
    name: ClassVar[str]
    #: Bytes of a cached element, scales included, by further types and layouts than those of all kinds
    #: (:func:`~tspsim.operators.dtypes.caches`).
    cache_layouts: ClassVar[Mapping[str, float]] = {}
    #: Training and forward steps, which pass whole sequences, run models of this kind.
    full_sequences: ClassVar[bool] = True
    #: Ranks that divide a context can each attend their part: partial results merge by log-sum-exp.
    divides_context: ClassVar[bool] = False
    #: Ranks can divide a prompt's tokens in prefill.
    divides_prompts: ClassVar[bool] = False
    #: An indexer selects the tokens that a query attends: ranks that divide the context agree on the selection.
    selects: ClassVar[bool] = False

    # --- the model's description ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def section(self) -> type[AttentionSection]:
        """Type of the section ``attention`` in a model's YAML."""

    @abstractmethod
    def describe(self, model: Dimensions) -> dict[str, Any]:
        """The section, as a mapping that reads back to ``model``."""

    def block(self, model: Dimensions, layer: int) -> Block:
        """Attention of layer number ``layer`` (from 0); its ``experts`` is not set here."""
        return Block(attention=self.name)

    def further_block(self, model: Dimensions) -> Block:
        """Attention of a multi-token-prediction module: that of the last layer."""
        return self.block(model, model.layers - 1)

    def period(self, model: Dimensions) -> int:
        """Layers after which the pattern repeats."""
        return 1

    def for_full_sequences(self, model: Model) -> Model:
        """The model as training and forward steps run it, which pass whole sequences.

        Raises
        ------
        InputError
            Only serving steps run this kind.
        """
        if not self.full_sequences:
            whole = ", ".join(sorted(kind.name for kind in ATTENTION_KINDS.values() if kind.full_sequences))
            raise InputError(
                f"attention of kind '{self.name}' runs in serving steps alone (prefill, decode, mixed, verify); "
                f"training and forward steps run models of the kinds {whole}"
            )
        return model

    # --- parameters -----------------------------------------------------------------------------------------

    @abstractmethod
    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """Matrix elements of a layer's attention that a token is multiplied with."""

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """Matrix elements of a layer's attention that every tensor-parallel rank holds whole."""
        return 0

    def shard_parameters(self, layer: Shard) -> int:
        """Matrix elements of one shard among those that heads divide."""
        whole = self.undivided_parameters(layer.model, layer.composition)
        return (self.matrix_parameters(layer.model, layer.composition) - whole) // layer.shards

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        """Biases and other parameters of attention that are neither matrices nor norms."""
        return 0

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Parameters of the norms inside attention."""
        return 0

    def head_norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Those of norms over single heads: all tensor-parallel ranks have them, and each only its heads' gradient."""
        return 0

    def divided_norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Those of norms over all heads together, which tensor-parallel ranks divide."""
        return 0

    # --- serving steps --------------------------------------------------------------------------------------

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Operators that every tensor-parallel rank repeats: latents, an indexer's keys."""
        return ()

    @abstractmethod
    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Head-parallel operators up to the cache write."""

    @abstractmethod
    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Attention over the cache."""

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """What of a pass the size of one of these operators of a layer depends on. Of what reads
        :attr:`~tspsim.operators.BatchQuantity.ROWS`, no part of a step's time has a table."""
        return operator.reads

    def bent(
        self, layer: ServingShard, queries: tuple[int, ...], lengths: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], bool] | None:
        """Of prompts with these query tokens and lengths, the segments that :meth:`attend` computes under a window or
        in chunks, by columns, and whether under a causal mask; None where this kind bends no prompts."""
        return None

    def most_cached(self, layer: ServingShard) -> int:
        """Tokens of its context that a decode kernel over keys and values, or latents, reads at most; 0: all."""
        return 0

    def select(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """The part of :meth:`attend` that selects tokens; empty where all are attended."""
        return ()

    def attend_selected(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """The part of :meth:`attend` after the selection."""
        return self.attend(layer, rows)

    def index_topk(self, model: Dimensions, block: Block) -> int:
        """Entries that the layer's indexer selects for a query; 0 in a layer without an indexer."""
        return 0

    def index_key_elements(self, model: Dimensions, block: Block) -> float:
        """Elements of an indexer's key a token; 0 in a layer without an indexer."""
        return 0.0

    def boundary_elements(self, model: Dimensions, block: Block) -> float:
        """Elements that the next shard of a prompt needs from this one besides the cache: the latest window, and
        inputs of an entry that spans the boundary."""
        return 0.0

    @abstractmethod
    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Operators after attention, the output projection included."""

    def expand(self, layer: ServingShard, tokens: int) -> tuple[Operator, ...]:
        """KV up-projection of ``tokens`` cached latents for prefill kernels; empty where K and V are cached."""
        return ()

    def kv_up_proj_width(self, layer: ServingShard) -> int:
        """Elements a token that :meth:`expand` writes for a shard's heads."""
        return 0

    def merged(self, model: Dimensions) -> tuple[int, int]:
        """Widths of a head's query and output in the decode kernels: (query, output)."""
        return model.head_dim, model.head_dim

    # --- work and cache -------------------------------------------------------------------------------------

    def breakpoints(self, model: Dimensions, block: Block) -> tuple[int, ...]:
        """Context lengths in tokens at which a query's cost changes slope: windows, chunks, the ``topk`` of an
        indexer."""
        most = block.window or block.chunk
        return (most,) if most else ()

    @abstractmethod
    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """Cache use of a layer for one sequence.

        Raises
        ------
        InputError
            This kind keeps no cache in ``cache_type``, or no state in ``state_type``.
        """

    @property
    def cache_types(self) -> Mapping[str, float]:
        """Bytes of a cached element, scales included, by type of cache."""
        return {**caches(), **self.cache_layouts}

    def cache_elements(self, model: Dimensions, block: Block) -> float:
        """Elements that a token adds to a layer's cache: of K and V, or of a latent."""
        return 2 * model.kv_width

    def element_bytes(self, cache_type: str) -> float:
        """Bytes of a cached element; raises InputError for a type in which this kind keeps no cache."""
        types = self.cache_types
        if cache_type not in types:
            allowed = ", ".join(sorted(types))
            raise InputError(f"attention of kind '{self.name}' keeps no cache in '{cache_type}'; it can: {allowed}")
        return types[cache_type]

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """Model FLOPs of attention for a query with ``pairs`` query-key pairs a head, without the projections.

        4·a a pair. Pairs are at most the window, or half a chunk: the mean over a chunk's tokens.
        """
        if block.window:
            pairs = min(pairs, block.window)
        if block.chunk:
            pairs = min(pairs, block.chunk / 2)
        return 4.0 * model.attention_width * pairs

    def mean_flops(self, model: Dimensions, block: Block, first: float, last: float) -> float:
        """:meth:`pair_flops` of a query, mean over queries that attend ``first`` to ``last`` pairs.

        A query's cost is straight between :meth:`breakpoints`, so each piece counts as its middle.
        """
        inner = sorted(length for length in self.breakpoints(model, block) if first < length < last)
        if not inner:
            return self.pair_flops(model, block, (first + last) / 2)
        pieces = pairwise((first, *inner, last))
        return sum((end - start) * self.pair_flops(model, block, (start + end) / 2) for start, end in pieces) / (
            last - first
        )

    def flops(self, model: Dimensions, block: Block, rows: Rows) -> float:
        """Model FLOPs of attention for all rows."""
        return sum(
            sequences * queries * self.mean_flops(model, block, context, context + queries)
            for queries, context, sequences in rows
        )


ATTENTION_KINDS: Registry[AttentionKind] = Registry("kind of attention", "tspsim.attention_kinds", AttentionKind)


def cache_names() -> tuple[str, ...]:
    """Names of the types and layouts in which an engine can keep its cache."""
    own = {name for kind in ATTENTION_KINDS.values() for name in kind.cache_layouts if name not in DTYPES}
    return tuple(sorted({*caches(), *own}))
