"""Modules of sparse attention as their operators: the rows of ``sparse_attention.csv``.

A module goes from hidden state to hidden state: projections, norms, the indexer, attention over the chosen tokens, the
output projection; no all-reduce. The rows give the time of the indexer and the attention, with the small kernels around
them; all other operators are priced as elsewhere. Shapes: DeepSeek-AI 2025, DeepSeek-V3.2, §2.1; DeepSeek-V4 as in its
published configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from tspsim.base.errors import InputError
from tspsim.hardware import Device, Estimate
from tspsim.hardware.sparse import attention_call, indexer_call
from tspsim.operators import AbsorbProduct, Gemm, Indexer, MemoryBound, Operator, Role, SparseAttention

from .answers import RowAnswers, each_row
from .cells import Row, count_of, number_of
from .devices import device, named_device

#: Output projection of DeepSeek-V4: heads per group, and the output width of each group.
GROUP_HEADS, GROUP_RANK = 8, 1024
#: Latest tokens that DeepSeek-V4 attends uncompressed, and bytes of a cached entry (448 in fp8, 64 in bf16, scales).
V4_WINDOW, V4_ENTRY = 128, 584.0
#: Bytes of a token's latent of 512 in fp8 with its scales, and of its rotary key of 64 in bf16.
FP8_LATENT = 656.0
#: Tokens per compressed entry; attention chooses among entries of four tokens.
COMPRESSION = {"csa": 4, "hca": 128}
CHOSEN_FROM = 4
MICROSECONDS = 1e6
#: Largest batch of SGLang's default graphs, on GPUs with at least this memory (bytes) and with less. Larger decode
#: batches of its latent modules were launched eagerly, although the table says graph: they take the host's 0.9 to 1.5
#: ms.
CAPTURED, CAPTURED_LESS, AMPLE_MEMORY = 512, 256, 160e9


@dataclass(frozen=True)
class Module:
    """A row's sizes; ``heads`` are the rank's, ``context`` are tokens cached before the ``q_len`` queries."""

    kind: str
    gemm_dtype: str
    kv_dtype: str
    batch: int
    q_len: int
    context: int
    heads: int
    hidden: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v: int
    index_heads: int
    index_dim: int
    topk: int
    down_projected: bool
    indexed: bool

    @classmethod
    def of(cls, row: Row) -> Module:
        """Read a module from a row's cells. Raises InputError with the reason for a row that is none."""
        kind, variant = str(row["kind"]), str(row.get("variant", "full"))
        if kind not in KINDS:
            raise InputError(f"sparse attention of kind '{kind}' is not modelled; known: {', '.join(KINDS)}")
        sizes = {
            name: count_of(row, name)
            for name in ("batch", "q_len", "context", "heads", "hidden", "q_lora", "kv_lora", "nope", "rope", "v")
        }
        index = {name: count_of(row, name) for name in ("index_heads", "index_dim")}
        topk = count_of(row, "index_topk")
        return cls(
            kind, str(row["gemm_dtype"]), str(row["kv_dtype"]), **sizes, **index, topk=topk,
            down_projected=number_of(row.get("down_proj", 1)) != 0.0,
            indexed=topk > 0 and variant != "skip_indexer",
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        return self.batch * self.q_len

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        return ((self.q_len, self.context, self.batch),)

    def operators(self) -> tuple[Operator, ...]:
        """All operators, in order."""
        return KINDS[self.kind](self)

    def core(self) -> tuple[Indexer | None, SparseAttention]:
        """The operators whose time the rows give: the indexer, if there is one, and the attention."""
        operators = self.operators()
        indexer = next((op for op in operators if isinstance(op, Indexer)), None)
        return indexer, next(op for op in operators if isinstance(op, SparseAttention))

    def product(self, n: int, k: int, name: str, dtype: str | None = None, batch: int = 1) -> Gemm:
        return Gemm(self.tokens, n, k, dtype or self.gemm_dtype, batch, name=name)

    def norms(self, columns: int) -> MemoryBound:
        """A norm that reads and writes bf16 rows with this number of columns."""
        return MemoryBound("rmsnorm", 4.0 * self.tokens * columns, self.tokens, name="norms", role=Role.NORM)


def latent(module: Module) -> tuple[Operator, ...]:
    """Latents as in MLA, absorbed for prompts too, over the best ``topk`` tokens."""
    m, operators = module, list[Operator]()
    if m.down_projected:
        operators.append(m.product(m.q_lora + m.kv_lora + m.rope, m.hidden, "down"))
    operators.append(m.norms(m.q_lora + m.kv_lora + m.rope))
    operators.append(m.product(m.heads * (m.nope + m.rope), m.q_lora, "up"))
    if m.indexed:
        operators.append(m.product(m.index_heads * m.index_dim, m.q_lora, "indexer queries"))
        operators.append(m.product(m.index_dim + m.index_heads, m.hidden, "indexer keys and weights", "bf16"))
        operators.append(Indexer(m.rows, m.index_heads, m.index_dim, m.topk))
    operators.append(AbsorbProduct(m.tokens, m.heads, m.kv_lora, m.nope))
    width = m.kv_lora + m.rope
    entry = FP8_LATENT if m.kv_dtype == "fp8" else 2.0 * width
    operators.append(SparseAttention(m.rows, m.heads, width, m.kv_lora, m.topk, entry_bytes=entry, kv_dtype=m.kv_dtype))
    operators.append(AbsorbProduct(m.tokens, m.heads, m.v, m.kv_lora))
    operators.append(m.product(m.hidden, m.heads * m.v, "output"))
    return tuple(operators)


def compressed(module: Module) -> tuple[Operator, ...]:
    """DeepSeek-V4: one latent head of keys that are also values. Entries of 4 tokens, of which the best ``topk`` are
    attended, or entries of 128 tokens, which are all attended; and the latest tokens."""
    m, operators = module, list[Operator]()
    ratio, width = COMPRESSION[m.kind], m.nope + m.rope
    operators.append(m.product(m.q_lora + width, m.hidden, "down"))
    operators.append(m.norms(m.q_lora + width))
    operators.append(m.product(m.heads * width, m.q_lora, "up"))
    # # One key and one gate per token; entries of four tokens overlap, so there are two of each.
    parts = 4 if ratio == CHOSEN_FROM else 2
    operators.append(m.product(parts * width, m.hidden, "compressor", "bf16"))
    if m.indexed:
        operators.append(m.product(m.index_heads * m.index_dim, m.q_lora, "indexer queries"))
        columns = parts * m.index_dim + m.index_heads
        operators.append(m.product(columns, m.hidden, "indexer keys and weights", "bf16"))
        operators.append(Indexer(m.rows, m.index_heads, m.index_dim, m.topk, ratio))
    topk = m.topk if m.indexed else 0
    operators.append(
        SparseAttention(m.rows, m.heads, width, width, topk, ratio, V4_WINDOW, V4_ENTRY, kv_dtype=m.kv_dtype)
    )
    groups = max(1, m.heads // GROUP_HEADS)
    operators.append(m.product(GROUP_RANK, m.heads * width // groups, "output of groups", "bf16", groups))
    operators.append(m.product(m.hidden, groups * GROUP_RANK, "output"))
    return tuple(operators)


#: The table's name of a kind → its operators.
KINDS = {"dsa": latent, "csa": compressed, "hca": compressed}


def engine(library: str) -> str:
    """Name and version of the engine: it chooses the kernels of a call by type and heads."""
    return " ".join(library.split()[:2])


def captured(on: Device, row: Row) -> bool:
    """Whether the engine had a graph for a row that the table calls graph-launched."""
    if not engine(str(row["library"])).startswith("SGLang") or row["kind"] != "dsa" or row["phase"] != "decode":
        return True
    return count_of(row, "batch") <= (CAPTURED if on.memory_bytes > AMPLE_MEMORY else CAPTURED_LESS)


def isolated(on: Device, operator: Operator, library: str | None = None) -> Estimate:
    """One operator of a module, timed in a hot loop; ``library`` chooses the kernels of sparse attention."""
    if isinstance(operator, Indexer):
        family, shape = indexer_call(operator)
        return on.estimate(family, operator.dtype, library, None, **shape)
    if isinstance(operator, SparseAttention):
        family, shape = attention_call(operator)
        return on.estimate(family, operator.dtype, library, operator.kv_dtype, **shape)
    if isinstance(operator, AbsorbProduct):
        return on.gemm(operator.tokens, operator.n, operator.k, operator.dtype, operator.heads)
    if isinstance(operator, Gemm):
        return on.gemm(operator.m, operator.n, operator.k, operator.dtype, operator.batch)
    assert isinstance(operator, MemoryBound)
    return on.memory_bound(operator.size_bytes, "copy", operator.rows)


def total(on: Device, operators: tuple[Operator, ...], library: str | None = None) -> Estimate:
    """The sum of operators that run one after the other."""
    parts = [isolated(on, operator, library) for operator in operators]
    return Estimate(*(sum(values) for values in zip(*parts, strict=True)))


@each_row
def predict(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict every module that a graph launches; the others wait for their host."""
    if row["launch"] != "graph":
        raise InputError("launched eagerly: the host decides")
    on, library = device(named_device(row["gpu"])), engine(row["library"])
    operators = Module.of(row).operators()
    answers.predict(position, *(value * MICROSECONDS for value in total(on, operators, library)))
    if not captured(on, row):
        answers.note(f"{library}: larger than the graphs it captures; its host decides, which is not in the price", 1)
    for operator in operators:
        if isinstance(operator, SparseAttention):
            family, _ = attention_call(operator)
            kernel = on.kernel(family, operator.dtype, library, operator.kv_dtype)
            if kernel.library != library or not kernel.basis.startswith("fitted"):
                answers.note(f"{on.name} {family} of '{library}': {kernel.library}, {kernel.basis}", 1)
