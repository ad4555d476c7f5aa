"""One token budget per step: first for running requests in order of admission, then for waiting ones in order of
arrival.

Engines whose steps mix prompts and decodes batch this way (Yu et al. 2022, Orca; Agrawal et al. 2024, Sarathi-Serve,
arXiv:2403.02310). vLLM and TensorRT-LLM differ in admission and in reserved memory.
"""

from __future__ import annotations

from ..blocks import Match
from ..rank_scheduler import RankScheduler, StepPlan
from ..sequence import Sequence


class BudgetScheduler(RankScheduler):
    """Every running request advances by one token, or by a chunk of its prompt within the budget; one without a block
    preempts the last. Then, without preemption, waiting requests are admitted up to the first that does not fit."""

    #: Tokens of a step.
    budget = 8192
    #: Requests that run at once.
    max_num_seqs = 256
    #: Tokens of a prompt in a step.
    most = 8192
    #: Whether a prompt may be computed in several steps.
    chunked = True
    #: A chunk that is not a prompt's last has a multiple of this number of tokens.
    unit = 1
    #: Whether prompts pause in the next step.
    still = False

    def has_room(self, sequence: Sequence, tokens: int, match: Match) -> bool:
        """Whether a waiting sequence fits, with ``tokens`` in the cache after its first step."""
        raise NotImplementedError

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        left = self._all_go_on(plan)
        if left is None:
            left = self._one_by_one(plan)
        if plan.again:
            self._admit(plan, left)
        return plan

    def _piece(self, sequence: Sequence, computed: int, budget: int) -> int:
        """Tokens of a prompt in a step, with ``computed`` in the cache already."""
        if self.still:
            return 0
        rest = sequence.target - computed
        tokens = min(rest, self.most, budget)
        if tokens < rest:
            tokens -= tokens % self.unit
        return tokens if self.chunked or tokens == rest else 0

    def _all_go_on(self, plan: StepPlan) -> int | None:
        """All running requests advance, if budget and blocks last: returns the rest of the budget; else None."""
        decoders = self.decoders
        budget = self.budget - decoders.count * self.query_len
        blocks = decoders.blocks() if decoders.limited else 0
        if self.prefilling:
            if budget < 0 or not self._decoders_come_first():
                return None
            for sequence in self.prefilling.values():
                tokens = self._piece(sequence, sequence.computed, budget)
                if tokens == 0:
                    break
                budget -= tokens
                blocks += self.blocks_to(sequence, sequence.computed + tokens)
                plan.chunks.append((sequence, tokens))
        if budget < 0 or blocks > self.pool.free:
            plan.chunks.clear()
            return None
        self._commit(plan, [])
        return budget

    def _decoders_come_first(self) -> bool:
        """Whether no decoding sequence was admitted after an incomplete prompt."""
        left = len(self.prefilling)
        for sequence in reversed(self.running.values()):
            if left == 0:
                return True
            if sequence.decoding:
                return False
            left -= not sequence.ended
        return True

    def _one_by_one(self, plan: StepPlan) -> int:
        """Running requests advance in order while budget and blocks last: returns the rest of the budget."""
        order = [sequence for sequence in self.running.values() if not sequence.ended]
        budget, free, index = self.budget, self.pool.free, 0
        while index < len(order) and budget > 0:
            sequence = order[index]
            if sequence.decoding:
                tokens, blocks = self.query_len, self.decoders.blocks_of(sequence)
            else:
                tokens = self._piece(sequence, sequence.computed, budget)
                blocks = self.blocks_to(sequence, sequence.computed + tokens) if tokens else 0
            while blocks > free and index < len(order):
                free += self._preempt_last(order)
                plan.again = False
            if index == len(order):
                break
            free -= blocks
            budget -= tokens
            if tokens and not sequence.decoding:
                plan.chunks.append((sequence, tokens))
            index += 1
        self._commit(plan, [sequence for sequence in order[index:] if sequence.decoding])
        return max(0, budget)

    def _preempt_last(self, order: list[Sequence]) -> int:
        """Preempts the last running sequence; returns the blocks that it frees."""
        before = self.pool.used
        self.preempt(order.pop())
        return before - self.pool.used

    def _commit(self, plan: StepPlan, stalled: list[Sequence]) -> None:
        for sequence, tokens in plan.chunks:
            self._hold(sequence, sequence.computed + tokens)
        self.decode(plan, stalled)

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """A planned step computes the sequence up to ``tokens``."""
        self.hold(sequence, tokens)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Admits waiting requests while there are budget, places and blocks."""
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            match = self.find(sequence)
            computed = self.computed_by(sequence, match)
            tokens = self._piece(sequence, computed, budget)
            if tokens == 0:
                break
            if not self.has_room(sequence, computed + tokens, match):
                # A step may evict part of its cached prefix: its first chunk then ends earlier, and may fit.
                plan.again = plan.again and not (match.idle and computed + tokens < sequence.target)
                break
            self.admit(sequence, match)
            self._hold(sequence, computed + tokens)
            budget -= tokens
            plan.chunks.append((sequence, tokens))
