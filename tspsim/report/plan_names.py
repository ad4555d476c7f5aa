"""A legend of the words in names of searched plans, for those on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tspsim.parallel import BALANCES, Plan, choices_of, method_of
from tspsim.parallel.balance import BUSIEST
from tspsim.parallel.lengths import OFFLOAD_FROM
from tspsim.parallel.recomputed import RECOMPUTE_METHODS

#: Value of `recomputation` → its word in names, and its meaning.
KEPT = {
    "none": ("keep", "a layer keeps all that its backward needs"),
    "selective": ("attn", "attention is recomputed in the backward"),
    "cheap": ("cheap", "norms, activations and the like are recomputed in the backward"),
    "full": ("full", "a layer keeps its input and is recomputed in the backward"),
}
#: State that replicas shard, by ZeRO stage.
DIVIDED = {
    1: "the optimizer's state",
    2: "the optimizer's state and gradients",
    3: "the optimizer's state, gradients and weights",
}


def legend(plans: Sequence[Plan]) -> list[tuple[str, str]]:
    """(words, meaning), each meaning once, for plans that the search named."""
    if not plans:
        return []
    by_meaning: dict[str, list[str]] = {"degrees of parallelism, one per axis": [plans[0].name.split()[0]]}
    for plan in plans:
        for word, meaning in words_of(plan):
            words = by_meaning.setdefault(meaning, [])
            words += [word] if word not in words else []
    return [(", ".join(words), meaning) for meaning, words in by_meaning.items()]


def named_by_search(plans: Sequence[Plan]) -> list[Plan]:
    """Plans whose names consist of the words below: named by a search."""
    words = [{word for word, _ in words_of(plan)} for plan in plans]
    return [plan for plan, own in zip(plans, words, strict=True) if own <= set(plan.name.split()[1:])]


def in_words(plans: Sequence[Plan]) -> str:
    """The legend in a sentence; empty where the search named no plan."""
    entries = [f"`{words}` {meaning}" for words, meaning in legend(plans)]
    return f"In the names: {'; '.join(entries)}." if entries else ""


def words_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """The words after the degrees in a plan's name, in its order."""
    if plan.vpp > 1:
        yield f"x{plan.vpp}", "layer chunks of a pipeline stage"
    method = method_of(plan)
    if method.name:
        yield method.word or method.name, method.summary
    if plan.zero:
        yield f"Z{plan.zero}", f"ZeRO stage {plan.zero}: replicas shard {DIVIDED[plan.zero]}"
    if plan.shard_group:
        yield f"/{plan.shard_group}", "replicas that share one sharded copy; all where it is not stated"
    if plan.micro_batch:
        yield f"mb{plan.micro_batch}", "sequences of a micro-batch"
    word, meaning = KEPT.get(plan.recomputation, (plan.recomputation, "what is recomputed in the backward"))
    yield word, meaning
    if plan.recomputed:
        yield f"{word}{plan.recomputed.word}", RECOMPUTE_METHODS.get(plan.recomputed.method).summary
    if plan.activation_store:
        yield f"a:{plan.activation_store}", "the type of stored activations"
    if plan.offload_layers:
        yield f"off{plan.offload_layers}", "layers whose activations are offloaded to the host"
    if OFFLOAD_FROM in plan.options:
        yield f"from{plan.options[OFFLOAD_FROM]}", "least tokens of a sequence whose activations are offloaded"
    if plan.offload_weights:
        yield f"hw{plan.offload_weights}", "layers whose weights are on the host"
    if "deal" in plan.options:
        yield plan.options["deal"], "the quantity that replicas get even shares of"
    if plan.sequence_regions:
        yield "sr", "sequence parallelism: between GEMMs each tensor shard has a part of the tokens"
    if plan.overlap:
        yield "ov", "communication runs beside compute, in slices"
    for choice in choices_of(plan):
        if choice.word(plan):
            yield choice.word(plan), choice.sentence(plan)
    for part, meaning in ((plan.order, "pipeline order"), (plan.dispatch, "dispatch"), (plan.hiding, "expert overlap")):
        if part.word:
            yield part.word, f"{meaning}: {part.name}"
    if plan.expert_pieces > 1:
        yield f"xc{plan.expert_pieces}", "chunks of dispatch, experts and combine that overlap"
    if plan.expert_shards is not None:
        yield f"xr{plan.expert_shards}", "tensor-parallel ranks of an expert; 0: all experts are gathered"
    if plan.expert_balance != BUSIEST:
        policy = plan.expert_balance.policy
        yield policy, f"balance of experts: {BALANCES.get(policy).summary}"
    if plan.rail_axes:
        yield "@" + "+".join(plan.rail_axes), "axes laid across nodes"
