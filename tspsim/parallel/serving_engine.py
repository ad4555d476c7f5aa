"""A serving engine beside its kernels: graphs, padding, the host, and its memory.

An engine captures graphs of a decode pass for some batch sizes and pads a batch to the next one; other passes are
launched kernel by kernel, which may make the host the slower side. It takes a share of a GPU's memory; what weights,
activations and graphs leave of it holds caches (:mod:`.engine_memory`). Numbers come from `workloads/stacks` (sources:
docs/engines.md); the default engine captures nothing, pads nothing and costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import log2
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, PositiveInt, StrictBool

from ..base.memo import once, remembered
from ..base.stated import STATED, Expected, Source, Stated
from ..base.strict import PLAIN, FileKey, section
from ..base.units import Bytes, PositiveCount, Seconds
from ..model.attention import NO_CONTEXT, decoded
from ..model.attention.base import tokens_of
from ..model.parts import Chat, Experts
from ..operators import AbsorbProduct, Gemm, Operator, Role
from .engine_memory import ALL_FOR_CACHES, EngineLimits, MemoryRule, Pages, StateRule
from .paces import Factor, Pace, of_families

if TYPE_CHECKING:
    from ..hardware import Device

#: (query tokens of a sequence, its cached tokens before them, sequences).
Rows = Iterable[tuple[int, int, int]]


class Captured(Enum):
    """The part of a pass that is launched as graphs."""

    #: Members are single objects; Enum's own looks at their names, several times for every step that is priced.
    __hash__ = object.__hash__

    NOTHING = "kernel by kernel"
    #: All kernels but attention, in graphs from one attention to the next.
    PIECES = "in pieces"
    WHOLE = "as one graph"


class Prior(NamedTuple):
    """A number, with its 90 % interval over installations."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Prior:
        return Prior(self.value * factor, self.low * factor, self.high * factor)


NONE = Prior(0.0, 0.0, 0.0)
#: Fields that are times of the host, slower on some devices.
HOST_TIMES = ("step", "sequence", "drafted", "front_end", "tokenize", "intake", "streamed")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=256.0, allow_inf_nan=False)]
#: Seconds that a file states with their range, and such times by name.
Time = Annotated[Prior, FileKey(Expected[Seconds])]
Times = Annotated[Mapping[str, Prior], FileKey(dict[str, Expected[Seconds]])]
#: Class of operators → kernels that the host launches for one.
Launched = Annotated[Stated[dict[str, PositiveInt]], AfterValidator(of_families)]

#: A size, or (start, stride).
Size = PositiveInt | tuple[PositiveInt, PositiveInt]


@dataclass(frozen=True)
class Graphs:
    """Decode passes that an engine captures.

    Sizes are of batches, in tokens or in sequences. A sequence counts with all its queries; tokens are rounded up to
    multiples of the queries of a sequence.
    """

    __pydantic_config__ = section(
        "Batches whose decode pass is captured: ``sizes`` are numbers, then pairs (from here on, every so many)."
    )

    source: Source = field(compare=False)
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)]
    #: Upper limit of the sizes; 0: none is captured.
    most: PositiveInt
    per_slot: Annotated[
        PositiveInt | None, Field(description="largest size over the sequences that may run at once")
    ] = None
    with_most: Annotated[
        StrictBool, Field(description="the largest size is captured even if `sizes` leaves it out")
    ] = False
    unit: Literal["tokens", "sequences"] = "tokens"
    with_drafts: Annotated[
        tuple[Size, ...] | None, Field(description="sizes when drafts are verified, if different")
    ] = None
    pads: Annotated[StrictBool, Field(description="smaller batches are padded to the next size")] = True
    pieces: Annotated[
        StrictBool, Field(description="other passes run as piecewise graphs, up to the same largest size")
    ] = False

    def tokens(self, queries: int, slots: int | None) -> tuple[int, ...]:
        """Captured sizes in tokens, ascending, for ``queries`` per sequence and at most ``slots`` running sequences."""
        return _captured(self, queries, slots)


@remembered(4096)
def _captured(graphs: Graphs, queries: int, slots: int | None) -> tuple[int, ...]:
    most = graphs.most
    of_sequences = graphs.unit == "sequences"
    if graphs.per_slot is not None and slots is not None:
        most = min(most, graphs.per_slot * slots * (1 if of_sequences else queries))
    stated = graphs.with_drafts if graphs.with_drafts is not None and queries > 1 else graphs.sizes
    captured = sizes_up_to(stated, most, itself=graphs.with_most and most > 0)
    if of_sequences:
        return tuple(size * queries for size in captured)
    rounded = {-(-size // queries) * queries for size in captured}
    return tuple(sorted(size for size in rounded if size <= most))


def sizes_up_to(sizes: Iterable[Size], most: int, *, itself: bool = False) -> tuple[int, ...]:
    """All sizes to ``most``, ascending; with ``itself`` that too.

    >>> sizes_up_to((1, 2, 4, (8, 8), (256, 16)), 24), sizes_up_to((1, 2, 4, (8, 8), (256, 16)), 280)[-3:]
    ((1, 2, 4, 8, 16, 24), (248, 256, 272))
    """
    numbers = {size for size in sizes if isinstance(size, int) and size <= most}
    spans = [size for size in sizes if not isinstance(size, int)]
    ends = (*(start for start, _ in spans[1:]), most + 1)
    ranges = [range(start, min(end, most + 1), step) for (start, step), end in zip(spans, ends, strict=False)]
    return tuple(sorted(numbers.union(*ranges, {most} if itself else ())))


#: Of an engine that captures nothing.
NO_GRAPHS = Graphs("no engine's graphs", (), 0)


@dataclass(frozen=True)
class Scheduler:
    """The scheduler of an engine's requests.

    Attributes
    ----------
    name, options
        Its name in :mod:`tspsim.serving`, and options that differ from the defaults there.
    share
        The engine's name for its share of memory; empty: it has no such option.
    shares_tokens
        Whether attention replicas divide the tokens of a pass among them.
    """

    __pydantic_config__ = section("Who decides what a step does.")

    source: Source = field(compare=False)
    name: Annotated[str, Field(min_length=1, max_length=200)]
    options: Annotated[dict[str, Any], Field(description="options of the scheduler, by their real names")] = field(
        default_factory=dict
    )
    share: Annotated[str, Field(max_length=200, description="the engine's own name for its share of memory")] = ""
    shares_tokens: Annotated[StrictBool, Field(description="attention replicas share the tokens of a pass")] = False


@dataclass(frozen=True)
class Selection:
    """Kernels that select a token's experts by biased sigmoids of their scores (one if the engine has it fused, several
    otherwise), and those of the gate of shared experts.
    """

    __pydantic_config__ = section(
        "Choosing experts by biased sigmoids where the engine's one kernel for it does not take their number."
    )

    per_group: Annotated[PositiveInt, Field(description="experts of a group that it takes, powers of two in all")]
    kernels: Annotated[PositiveInt, Field(description="kernels that run instead")]
    kernel_time: Annotated[Expected[Seconds], Field(alias="each", description="time of one of them in a graph")]
    source: Source = field(compare=False)
    counts: Annotated[tuple[PositiveInt, ...], Field(description="further numbers of experts that have a kernel")] = ()
    but: Annotated[
        tuple[str, ...], Field(description="words in names of GPUs on which one kernel takes any number")
    ] = ()
    gate: Annotated[
        PositiveCount, Field(description="kernels of a gate of shared experts, and of the sum with the others")
    ] = 0

    def several(self, experts: Experts) -> int:
        """Kernels beyond the one that programs count.

        >>> each = Expected[Seconds](value="3 us", source="an example")
        >>> selection = Selection(32, 12, each, "an example", counts=(384,))
        >>> [selection.several(Experts(count, 8, 1, router_bias=True, groups=groups))
        ...  for count, groups in ((256, 8), (384, 1), (256, 1), (160, 1))]
        [0, 0, 11, 11]
        """
        power = not experts.count & (experts.count - 1)
        fused = (power and experts.count // experts.groups <= self.per_group) or experts.count in self.counts
        chosen = self.kernels - 1 if experts.corrected and not fused else 0
        return chosen + (self.gate if experts.shared_gate else 0)


@dataclass(frozen=True)
class ServingEngine:
    """How an engine runs the passes of a model.

    Keys of files are derived from the fields (:class:`~tspsim.parallel.engine_spec.EngineSpec`); descriptions say what
    they are. Further: ``kernels`` is of fused experts, attention and all-reduces; empty: a device's own. ``libraries``
    are of kernels that engines share but only one's tables measure; of experts ``whole`` or ``divided``: ranks have all
    columns of some, or a part of each; ``contiguous`` or ``masked``: how an exchange lays their rows; further words are
    a vendor and a family of devices. No product quantises types in ``fused_quantising``. A collective takes longer by
    ``skew`` in a step than alone, since its ranks wait for the slowest. ``selection`` None: one kernel; ``states``
    None: kept beside the sequence's blocks, reusable at any block. Zeros of ``context_workspace`` and ``few_tokens``
    are no limits. ``limits`` ascend by memory.
    """

    name: str = "ideal"
    kernels: Annotated[str, STATED, Field(description="first word of its kernels' libraries")] = ""
    libraries: Annotated[
        Mapping[str, str],
        FileKey(dict[str, Stated[str]]),
        Field(description="family and types → the library that it runs instead, by the first words of its name"),
    ] = field(default_factory=dict)
    graphs: Annotated[Graphs, PLAIN] = NO_GRAPHS
    saved: Annotated[Time, Field(description="time that a graph saves of a product measured alone")] = NONE
    saved_types: Annotated[Times, Field(description="type of operands → the same, if different")] = field(
        default_factory=dict
    )
    fused_quantising: Annotated[
        tuple[str, ...], STATED, Field(description="types to which the kernel before a product casts its input")
    ] = ()
    separate_quantising: Annotated[
        tuple[str, ...],
        STATED,
        Field(description="types to which a separate kernel casts every product's input, after norms too"),
    ] = ()
    step: Annotated[Time, Field(description="host time per step")] = NONE
    sequence: Annotated[Time, Field(description="host time per sequence of a step")] = NONE
    hidden: Annotated[Share, STATED, Field(description="share of both that runs beside the device")] = 0.0
    layer: Annotated[Time, Field(description="time per layer of small kernels that programs leave out")] = NONE
    routed: Annotated[Time, Field(description="the same, in addition, per layer with routed experts")] = NONE
    drafted: Annotated[
        Time, Field(description="host time between the passes of a verify step, while the device waits")
    ] = NONE
    selection: Annotated[Selection | None, PLAIN] = None
    launched: Annotated[
        Mapping[str, int],
        FileKey(Launched),
        Field(description="class of operators → kernels that the host launches for one"),
    ] = field(default_factory=dict)
    skew: Annotated[Time, Field(description="wait in a collective per doubling of its ranks")] = NONE
    skews: Annotated[Times, Field(description="device → the same, if different")] = field(default_factory=dict)
    front_end: Annotated[Time, Field(description="from arrival to schedule and first token to client")] = NONE
    tokenize: Annotated[Time, Field(description="a token of a prompt, in one process for all of them")] = NONE
    intake: Annotated[Time, Field(description="a request, in the same process, before the engine has it")] = NONE
    intakes: Annotated[
        Mapping[str, Prior],
        FileKey(dict[Chat, Expected[Seconds]]),
        Field(description="what renders chats → the same, if different"),
    ] = field(default_factory=dict)
    streamed: Annotated[Time, Field(description="a token of an answer, in the same process")] = NONE
    turns: Annotated[
        StrictBool,
        STATED,
        Field(description="that process takes turns between its requests: those of a burst leave it together"),
    ] = False
    hosts: Annotated[
        Mapping[str, Prior], FileKey(dict[str, Expected[Factor]]), Field(description="device → slowdown of its host")
    ] = field(default_factory=dict)
    paces: Annotated[
        tuple[Pace, ...],
        PLAIN,
        Field(description="kernels that take longer on some GPUs than measured; the first entry that applies"),
    ] = ()
    memory: Annotated[MemoryRule, PLAIN] = ALL_FOR_CACHES
    context_bytes: Annotated[Prior, FileKey(Expected[Bytes], "context"), Field(description="memory of the runtime")] = (
        NONE
    )
    peer_bytes: Annotated[
        Prior, FileKey(Expected[Bytes], "peer"), Field(description="memory of communication per other GPU of a replica")
    ] = NONE
    graph_bytes: Annotated[
        Prior, FileKey(Expected[Bytes], "graph_memory"), Field(description="memory of captured graphs")
    ] = NONE
    logit_bytes: Annotated[
        Prior,
        FileKey(Expected[BytesPerLogit], "logit"),
        Field(description="bytes per logit while the largest pass samples"),
    ] = NONE
    block_tokens: Annotated[
        PositiveInt, FileKey(Stated, "block"), Field(description="tokens of a block of the cache")
    ] = 1
    pages: Annotated[
        tuple[Pages, ...], PLAIN, Field(description="other sizes of blocks; the first entry that applies")
    ] = ()
    states: Annotated[StateRule | None, PLAIN, Field(description="how states of linear attention are kept")] = None
    context_workspace: Annotated[
        PositiveCount,
        STATED,
        Field(description="most tokens of cached latents expanded to keys and values at once; default: whole contexts"),
    ] = 0
    limits: Annotated[tuple[EngineLimits, ...], STATED] = ()
    few_tokens: Annotated[
        PositiveCount,
        STATED,
        Field(description="tokens of a pass if attention replicas reach experts by low-latency messages"),
    ] = 0
    slots: Annotated[PositiveCount | None, STATED, Field(description="sequences that may run at once, if stated")] = (
        None
    )
    norms_all: Annotated[
        StrictBool,
        STATED,
        Field(description="the last norm is of all tokens of a pass, not only of those that output one"),
    ] = False
    scheduler: Annotated[Scheduler, PLAIN, Field(description="scheduler of requests, and its options")] = Scheduler(
        "no engine's scheduler", "vllm"
    )

    def __hash__(self) -> int:
        return hash((self.name, self.kernels, self.graphs, self.step, self.sequence, self.block_tokens, self.slots))

    # --- graphs ---------------------------------------------------------------------------------------------

    def padded(self, sequences: int, queries: int = 1) -> int:
        """Tokens that a decode pass computes for ``sequences``, each with ``queries`` (drafts and one)."""
        return self._next(sequences * queries, queries) or sequences * queries

    def filled(self, rows: Rows, decoding: int | None = None) -> tuple[tuple[int, int, int], ...]:
        """Rows of a pass with its padding to a captured size; ``decoding`` as in :meth:`captured`.

        A whole graph is padded with sequences of one cached token. Piecewise graphs leave attention its own rows, and
        add tokens without a context (vLLM pads attention, ``pad_attn``, in full graphs alone).
        """
        kept = tuple(rows)
        tokens = tokens_of(kept)
        captured = self._captured(kept, tokens, decoding)
        if captured is Captured.NOTHING:
            return kept
        queries, context = (kept[0][0], 1) if captured is Captured.WHOLE else (1, NO_CONTEXT)
        more = ((self._next(tokens, queries) or tokens) - tokens) // queries
        return (*kept, (queries, context, more)) if more else kept

    def captured(self, rows: Rows, decoding: int | None = None) -> Captured:
        """The part of a pass that runs as graphs: all of it if its rows are decodes with equal queries, up to the
        largest size.

        Graphs are captured for sequences with ``decoding`` queries (None: with the rows' own), so that the short rest
        of a prompt is no decode for them.
        """
        kept = tuple(rows)
        return self._captured(kept, tokens_of(kept), decoding)

    def _captured(self, kept: tuple[tuple[int, int, int], ...], tokens: int, decoding: int | None) -> Captured:
        queries = {row[0] for row in kept}
        if len(queries) == 1 and decoded(kept) == kept and decoding in (None, *queries):
            (per_sequence,) = queries
            if self._next(tokens, per_sequence) is not None:
                return Captured.WHOLE
        if self.graphs.pieces and kept and self._next(tokens, 1) is not None:
            return Captured.PIECES
        return Captured.NOTHING

    def _next(self, tokens: int, queries: int) -> int | None:
        """The captured size in which ``tokens`` run; None: there is none."""
        sizes = self.graphs.tokens(queries, self.slots)
        index = bisect_left(sizes, tokens)
        if index == len(sizes) or (sizes[index] != tokens and not self.graphs.pads):
            return None
        return sizes[index]

    @property
    def saves(self) -> bool:
        """Whether a graph saves time of any kernel."""
        return max(saved.value for saved in (self.saved, *self.saved_types.values())) > 0.0

    @once
    def _quantised(self) -> dict[str, bool]:
        """Type → whether the kernel before a product quantises to it; of others, products say it."""
        return {**dict.fromkeys(self.fused_quantising, True), **dict.fromkeys(self.separate_quantising, False)}

    def finding(self, operator: Operator) -> Operator:
        """A product without the quantisation that the kernel before it does, or with that of a kernel of its own."""
        if not isinstance(operator, Gemm):
            return operator
        quantised = self._quantised.get(operator.dtype, operator.quantised)
        return operator if quantised == operator.quantised else replace(operator, quantised=quantised)

    # --- the host -------------------------------------------------------------------------------------------

    def host_s(self, sequences: int) -> float:
        """Seconds per step that the device waits for the host, launches apart: scheduling, inputs, sampling, copies."""
        return (1.0 - self.hidden) * (self.step.value + self.sequence.value * sequences)

    def host_range_s(self, sequences: int) -> tuple[float, float]:
        """90 % interval of :meth:`host_s`."""
        low, high = (seconds * sequences for seconds in self.sequence[1:])
        return (1.0 - self.hidden) * (self.step.low + low), (1.0 - self.hidden) * (self.step.high + high)

    def between_s(self, layers: int, routed: int, ranks: int, experts: Experts | None = None) -> float:
        """Seconds of a pass beside counted kernels and collectives alone: of ``layers``, ``routed`` of them with
        ``experts``, on ``ranks`` with two collectives per layer."""
        waits = 2 * layers * log2(ranks) * self.skew.value
        chosen = self.selected(experts) * self.selection.kernel_time.value if self.selection else 0.0
        return layers * self.layer.value + routed * (self.routed.value + chosen) + waits

    def selected(self, experts: Experts | None) -> int:
        """Kernels that select a token's experts, and gate shared ones, beyond those that programs count."""
        return self.selection.several(experts) if self.selection and experts is not None else 0

    def launches(self, operator: Operator, experts: Experts | None = None) -> int:
        """Kernels that the host launches for one operator outside graphs: one unless counted, with casts and with the
        kernels that select experts."""
        if not self.launched:
            return 1
        casts = operator.dtype in self.separate_quantising
        chosen = self.selected(experts) if operator.role is Role.EXPERTS else 0
        return self.launched.get(operator.family, 1) + casts + chosen

    def hidden_s(self, sequences: int) -> float:
        """Seconds of the host beside the device: a lower bound of a step."""
        return self.hidden * (self.step.value + self.sequence.value * sequences)

    def slower_host(self, device: str) -> float:
        """Slowdown of a device's host against that of the measured times."""
        return self.hosts[device].value if device in self.hosts else 1.0

    def on(self, device: str, kind: str = "") -> ServingEngine:
        """The engine with a device's host times, waits and limits, and with the blocks of a kind of attention."""
        factor, skew = self.slower_host(device), self.skews.get(device, self.skew)
        limits = tuple(limit for limit in self.limits if limit.applies_to(device))
        block = next((pages.tokens for pages in self.pages if pages.hold(kind, device)), self.block_tokens)
        chosen = self.selection
        if chosen is not None and any(word in device.lower() for word in chosen.but):
            chosen = replace(chosen, kernels=1, but=())
        states = None if self.states is None else self.states.on(kind, device)
        here = (1.0, self.skew, self.limits, self.block_tokens, self.selection, self.states)
        if (factor, skew, limits, block, chosen, states) == here:
            return self
        times = {name: getattr(self, name).scaled(factor) for name in HOST_TIMES}
        intakes = {chat: time.scaled(factor) for chat, time in self.intakes.items()}
        facts = replace(self, skew=skew, limits=limits, block_tokens=block, selection=chosen, states=states)
        return replace(facts, intakes=intakes, **times)

    def intake_of(self, chat: str) -> Prior:
        """Time of a request in the server's process, by what renders its chat."""
        return self.intakes.get(chat, self.intake)

    # --- memory ---------------------------------------------------------------------------------------------

    def limits_on(self, visible_bytes: float) -> EngineLimits | None:
        """Limits of a pass's tokens and of sequences on GPUs with this memory; None: no limits."""
        fitting = [limit for limit in self.limits if limit.memory_bytes <= visible_bytes]
        return fitting[-1] if fitting else None

    def pass_tokens(self, limits: EngineLimits, replicas: int) -> int:
        """Tokens in the largest pass of one of ``replicas`` attention replicas that step together."""
        return max(1, limits.tokens // replicas) if self.scheduler.shares_tokens else limits.tokens


@dataclass(frozen=True)
class Saving:
    """Time that a captured graph saves of kernels measured alone: of a product at most its launch, and never below its
    FLOPs at the peak or its bytes at the bandwidth of HBM."""

    engine: ServingEngine
    device: Device

    def seconds(self, operator: Operator, alone_s: float) -> float:
        """Seconds of a kernel that takes ``alone_s`` alone."""
        if not isinstance(operator, Gemm | AbsorbProduct):
            return alone_s
        device, dtype, engine = self.device, operator.dtype, self.engine
        limits = device.limits(dtype)
        start_s = 1e-6 * device.product_without_cast("gemm", dtype).parameters["launch_us"]
        saved = engine.saved_types.get(dtype, engine.saved)
        least_s = max(operator.flops / limits.peak, operator.hbm_bytes / limits.hbm)
        return min(alone_s, max(least_s, alone_s - min(saved.value, start_s)))


#: The default engine.
NO_ENGINE = ServingEngine()
