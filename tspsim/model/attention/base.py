"""What a layer's attention is to a serving step: its operators on a rank's rows, and what it keeps of a token.

A serving step hands a layer rows ``(query tokens, tokens in the cache before them, sequences)``. A row of few queries
runs the decode kernels, which read the cache once for all of them, whether anything was cached before or not (vLLM's
latent backends: "process small prefills with decode pathway"); others run the prefill kernels. Tokens that pad a pass
to a captured size are a row behind :data:`NO_CONTEXT`: products compute them, and no attention kernel takes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...base.errors import InputError
from ...base.registry import Registry
from ...operators import DTYPES, BatchQuantity, Gemm, Operator, Role
from ...operators.dtypes import caches
from ..parts import Block, Dimensions, WeightClass
from ..shard import ServingShard, Shard

if TYPE_CHECKING:
    from .sections import AttentionSection

Model = TypeVar("Model", bound=Dimensions)
#: (query tokens a sequence, tokens in its cache before them, sequences).
Rows = tuple[tuple[int, int, int], ...]
#: Most queries a sequence that decode kernels take at once (drafts and one; engines reorder batches by such a number).
MOST_DECODED = 16
#: Tokens before those that pad a pass: with their own one, they see none.
NO_CONTEXT = -1


def decoded(rows: Rows) -> Rows:
    """Rows that the decode kernels run."""
    return tuple([row for row in rows if row[0] <= MOST_DECODED and row[1] >= 0])


def prefilled(rows: Rows) -> Rows:
    """Rows that the prefill kernels run."""
    return tuple([row for row in rows if row[0] > MOST_DECODED])


def attended(rows: Rows) -> Rows:
    """Rows that attention kernels take: all but padding."""
    return tuple([row for row in rows if row[1] >= 0])


def tokens_of(rows: Rows) -> int:
    """Query tokens."""
    return sum([queries * sequences for queries, _, sequences in rows])


def product(layer: ServingShard, tokens: int, n: int, k: int, name: str, role: Role) -> Gemm:
    """A projection of attention, in the type that its weights are multiplied in."""
    formats, part = layer.formats, WeightClass.ATTENTION
    return Gemm(tokens, n, k, formats.multiplied(part), name=name, role=role, weight_dtype=formats.read(part))


@dataclass(frozen=True)
class CacheUse:
    """What one layer keeps for a sequence, before any sharding."""

    #: Of every token in the context, or in the window.
    token_bytes: float
    #: Tokens that are kept at most; 0: all.
    window: int = 0
    #: Whatever the length: a state.
    sequence_bytes: float = 0.0
    #: Heads that tensor parallelism can divide it by: 1 where all heads share it.
    heads: int = 1
    #: The same of the state.
    state_heads: int = 1
    #: Of every token besides, and on every tensor-parallel rank: keys of an indexer.
    shared_token_bytes: float = 0.0
    #: Latest tokens that are kept besides on every tensor-parallel rank, and bytes of one.
    latest: int = 0
    latest_token_bytes: float = 0.0

    @property
    def grows(self) -> bool:
        """Whether tokens are kept, not states alone."""
        return self.token_bytes + self.shared_token_bytes + self.latest_token_bytes > 0.0

    def bytes_of(self, context: int) -> float:
        """Of one sequence with so many tokens."""
        kept = min(context, self.window) if self.window else context
        growing = kept * self.token_bytes + context * self.shared_token_bytes
        return growing + self.sequence_bytes + min(context, self.latest) * self.latest_token_bytes

    def rank_bytes(self, context: int, tensor: int = 1, token_shards: int = 1) -> float:
        """On one of ``tensor`` ranks that divide heads, with tokens divided over ``token_shards``: what no head divides
        is on every rank, and what a token adds is with the token."""
        kept = min(context, self.window) if self.window else context
        tokens = kept * self.token_bytes / min(tensor, self.heads) + context * self.shared_token_bytes
        tokens += min(context, self.latest) * self.latest_token_bytes
        return tokens / token_shards + self.sequence_bytes / min(tensor, self.state_heads)


class AttentionKind(ABC):
    """One kind of attention: what it says in a model's YAML, its parameters, FLOPs and cache, and its serving steps.

    The four methods :meth:`enter` to :meth:`leave` give the operators of a layer in order; ``layer`` says which shard
    of which model. Between :meth:`attend` and :meth:`leave` a scheme may merge what ranks with other parts of the
    context found.
    """

    #: ``kind`` of the section ``attention`` in a model's YAML, and of its layers (:attr:`Block.attention`).
    name: ClassVar[str]
    #: Layouts of its own, and types besides those that all kinds keep (:func:`~tspsim.operators.dtypes.caches`): bytes
    #: of a cached element, scales included.
    cache_layouts: ClassVar[Mapping[str, float]] = {}
    #: Training and forward steps, where whole sequences pass, run models of this kind.
    whole: ClassVar[bool] = True
    #: Ranks that hold parts of a context can each attend theirs: what they found is merged by log-sum-exp.
    divides_context: ClassVar[bool] = False
    #: Ranks can hold parts of a prompt's tokens while they are read.
    divides_prompts: ClassVar[bool] = False
    #: A query attends the best of its context, which ranks that hold parts of it have to agree on.
    chooses: ClassVar[bool] = False

    # --- the model's description ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def section(self) -> type[AttentionSection]:
        """The type of ``attention`` in a model's YAML."""

    @abstractmethod
    def describe(self, model: Dimensions) -> dict[str, Any]:
        """The section that reads back to ``model``."""

    def block(self, model: Dimensions, layer: int) -> Block:
        """Attention of layer number ``layer`` of a model of this kind; whether it has experts is not asked here."""
        return Block(attention=self.name)

    def further_block(self, model: Dimensions) -> Block:
        """Attention of a module for further tokens: that of the last layer."""
        return self.block(model, model.layers - 1)

    def period(self, model: Dimensions) -> int:
        """Layers after which the pattern repeats."""
        return 1

    def whole_pass(self, model: Model) -> Model:
        """The model as training and forward steps run it, where whole sequences pass.

        Raises
        ------
        InputError
            Only serving steps run this kind.
        """
        if not self.whole:
            whole = ", ".join(sorted(kind.name for kind in ATTENTION_KINDS.values() if kind.whole))
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
        """Those of them that stand whole on every tensor-parallel rank."""
        return 0

    def shard_parameters(self, layer: Shard) -> int:
        """Those that heads divide, on one shard."""
        whole = self.undivided_parameters(layer.model, layer.kind)
        return (self.matrix_parameters(layer.model, layer.kind) - whole) // layer.shards

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        """Biases, and what else belongs to the projections and is no matrix."""
        return 0

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Of norms inside attention."""
        return 0

    # --- serving steps --------------------------------------------------------------------------------------

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """What no tensor-parallel rank divides, behind the norm: latents, keys of an indexer."""
        return ()

    @abstractmethod
    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """What heads divide, up to the write to the cache."""

    @abstractmethod
    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Attention over the cache."""

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """What of a pass the size of one of these operators of a layer depends on. Of what reads
        :attr:`~tspsim.operators.BatchQuantity.ROWS`, no part of a step's time has a table."""
        return operator.reads

    def choose(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Of :meth:`attend`, what says which tokens are attended: nothing where all are."""
        return ()

    def attend_chosen(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """The rest of :meth:`attend`."""
        return self.attend(layer, rows)

    def choices(self, model: Dimensions, block: Block) -> int:
        """Entries that an indexer of the layer chooses a query; 0 where it owns none."""
        return 0

    def scored_elements(self, model: Dimensions, block: Block) -> float:
        """Elements of a token that its indexer scores, as they are made; 0 where a layer owns none."""
        return 0.0

    def border_elements(self, model: Dimensions, block: Block) -> float:
        """Elements that whoever goes on with a prompt needs of the tokens before, besides what is cached of all."""
        return 0.0

    @abstractmethod
    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """What follows it, up to the output projection."""

    def expand(self, layer: ServingShard, tokens: int) -> tuple[Operator, ...]:
        """What makes keys and values of cached tokens for the kernels of prompts: nothing where those are cached."""
        return ()

    def unpacked_width(self, layer: ServingShard) -> int:
        """Elements of a cached token that the kernels of prompts need made, of a shard's heads: what :meth:`expand`
        leaves."""
        return 0

    def merged(self, model: Dimensions) -> tuple[int, int]:
        """Widths of a head's query and output as the decode kernels take them and give them back."""
        return model.head_dim, model.head_dim

    # --- work and cache -------------------------------------------------------------------------------------

    def bends(self, model: Dimensions, block: Block) -> tuple[int, ...]:
        """Lengths of a context beyond which a query reads less of what is added, or chooses."""
        most = block.window or block.chunk
        return (most,) if most else ()

    @abstractmethod
    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """What a layer keeps, ``state_type`` being that of a state; raises InputError for a type that this kind has no
        cache in."""

    @property
    def cache_types(self) -> Mapping[str, float]:
        """Types that a cache can be kept in, and bytes of an element, scales included."""
        return {**caches(), **self.cache_layouts}

    def cache_elements(self, model: Dimensions, block: Block) -> float:
        """Elements of K and V, or of latents, that a token adds to a layer's cache."""
        return 2 * model.kv_width

    def element_bytes(self, cache_type: str) -> float:
        """Bytes of a cached element; raises InputError for a type that this kind has no cache in."""
        types = self.cache_types
        if cache_type not in types:
            allowed = ", ".join(sorted(types))
            raise InputError(f"attention of kind '{self.name}' keeps no cache in '{cache_type}'; it can: {allowed}")
        return types[cache_type]

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """Model FLOPs of a token that meets ``pairs`` others, besides the layer's matrices: 4·a a pair, no more of them
        than the window, and of a chunk half, as the mean over its tokens is."""
        if block.window:
            pairs = min(pairs, block.window)
        if block.chunk:
            pairs = min(pairs, block.chunk / 2)
        return 4.0 * model.attention_width * pairs

    def flops(self, model: Dimensions, block: Block, rows: Rows) -> float:
        """The same of all rows, each query at the mean number of pairs of its row."""
        return sum(
            sequences * queries * self.pair_flops(model, block, context + queries / 2.0)
            for queries, context, sequences in rows
        )


ATTENTION_KINDS: Registry[AttentionKind] = Registry("kind of attention", "tspsim.attention_kinds", AttentionKind)


def cache_names() -> tuple[str, ...]:
    """Types that an engine can be asked to keep its cache in: of elements, and of layouts with names of their own."""
    own = {name for kind in ATTENTION_KINDS.values() for name in kind.cache_layouts if name not in DTYPES}
    return tuple(sorted({*caches(), *own}))
