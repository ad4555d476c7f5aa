"""One budget of tokens a step: those that run first, in order of admission, then those that wait, in order of arrival.

This is how engines batch whose steps mix prompts and decodes (Yu et al. 2022, Orca; Agrawal et al. 2024, Sarathi-Serve,
arXiv:2403.02310): the steps of vLLM and TensorRT-LLM differ from each other in who is admitted and what is kept free.
"""

from __future__ import annotations

from ..blocks import Match
from ..lane import Lane, StepPlan
from ..sequence import Sequence


class BudgetLane(Lane):
    """Every running request goes on by a token, or by as much of its prompt as the budget allows; one without a block
    takes it from the last; then, if none was preempted, waiting ones are admitted up to the first that has no room.
    """

    #: Tokens of a step.
    budget = 8192
    #: Requests that run at once.
    seats = 256
    #: Tokens of a prompt in a step.
    most = 8192
    #: Whether a prompt may be computed in several steps.
    chunked = True
    #: Tokens that a piece of a prompt, but for the last, is a multiple of.
    unit = 1
    #: Prompts stand still in the next step.
    still = False

    def has_room(self, sequence: Sequence, tokens: int, match: Match) -> bool:
        """Whether a waiting sequence may be admitted, of which ``tokens`` are in the cache after its first step."""
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
        """Tokens of a prompt in a step, of which ``computed`` are in the cache already."""
        if self.still:
            return 0
        rest = sequence.target - computed
        tokens = min(rest, self.most, budget)
        if tokens < rest:
            tokens -= tokens % self.unit
        return tokens if self.chunked or tokens == rest else 0

    def _all_go_on(self, plan: StepPlan) -> int | None:
        """All that run go on, if the budget and the blocks last for all: what is left of the budget; else None."""
        decoders = self.decoders
        budget = self.budget - decoders.count * self.queries
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
        """Whether nothing that decodes was admitted behind a prompt that is not computed."""
        left = len(self.prefilling)
        for sequence in reversed(self.running.values()):
            if left == 0:
                return True
            if sequence.decoding:
                return False
            left -= not sequence.ended
        return True

    def _one_by_one(self, plan: StepPlan) -> int:
        """All that run go on in order, while budget and blocks last: what is left of the budget."""
        order = [sequence for sequence in self.running.values() if not sequence.ended]
        budget, free, index = self.budget, self.pool.free, 0
        while index < len(order) and budget > 0:
            sequence = order[index]
            if sequence.decoding:
                tokens, blocks = self.queries, self.decoders.blocks_of(sequence)
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
        """The last of those that run is preempted: blocks that it frees."""
        before = self.pool.used
        self.preempt(order.pop())
        return before - self.pool.used

    def _commit(self, plan: StepPlan, stalled: list[Sequence]) -> None:
        for sequence, tokens in plan.chunks:
            self._hold(sequence, sequence.computed + tokens)
        self.decode(plan, stalled)

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """It is computed up to there in the step that is planned."""
        self.hold(sequence, tokens)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Waiting requests, while there are budget, seats and blocks."""
        while self.waiting and budget > 0 and len(self.running) < self.seats:
            sequence = self.waiting[0]
            match = self.find(sequence)
            computed = self.computed_by(sequence, match)
            tokens = self._piece(sequence, computed, budget)
            if tokens == 0:
                break
            if not self.has_room(sequence, computed + tokens, match):
                # What a step takes may be forgotten of its beginning: its first piece then ends earlier, and may fit.
                plan.again = plan.again and not (match.idle and computed + tokens < sequence.target)
                break
            self.admit(sequence, match)
            self._hold(sequence, computed + tokens)
            budget -= tokens
            plan.chunks.append((sequence, tokens))
