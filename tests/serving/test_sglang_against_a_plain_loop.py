"""SGLang's steps against a second, plain simulator: its scheduler's loop, pass by pass, every request looked at."""

from __future__ import annotations

from collections import deque

from helpers.plain_requests import Plain, assert_replayed_alike, lengths, step_s
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.serving import Engine

FIRST_RATIO, LEAST_RATIO, DECAY_STEPS, ROOM_STEPS = 0.7, 0.14, 600, 20


class PlainSglang:
    """event_loop_normal of scheduler.py with PrefillAdder; ``running`` has who ended until a decode batch is made."""

    def __init__(self, requests, *, chunk, most, seats, kv_tokens, careful, interval, mixed, fixed):
        self.coming = deque(sorted(requests, key=lambda r: r.arrival_s))
        self.chunk, self.most, self.seats, self.interval, self.mixed = chunk, most, seats, interval, mixed
        self.free = float("inf") if kv_tokens is None else kv_tokens
        self.first_ratio = self.ratio = min(1.0, FIRST_RATIO * careful)
        self.waiting, self.running, self.last, self.cut, self.full = [], [], [], None, False
        self.now, self.polled = 0.0, 0
        #: Requests ignore ends: what they will put out is known.
        self.fixed = fixed

    def receive(self):
        self.polled = 0
        while self.coming and self.coming[0].arrival_s <= self.now:
            self.waiting.append(self.coming.popleft())

    def run(self):
        idle = True
        while idle or self.coming or self.waiting or self.running or self.last or self.cut:
            if idle or self.polled >= self.interval:
                self.receive()
            self.merge()
            rows = self.prompts() or self.decodes()
            idle = not rows
            if idle:  # all is as at the beginning
                self.ratio = self.first_ratio
                if not self.waiting and self.coming:
                    self.now = max(self.now, self.coming[0].arrival_s)
                elif not self.waiting:
                    return

    def merge(self):
        """The last prompts' batch joins those that run, without who ended in it and who was cut."""
        stay = [r for r in self.last if r.end_s is None and r is not self.cut]
        if len(stay) < len(self.last) or (stay and not self.running):
            self.full = False
        self.running, self.last = self.running + stay, []

    def prompts(self):
        """get_new_batch_prefill: what runs, as rows; empty where it is nobody's turn."""
        if (self.full or not self.waiting) and not self.cut:
            return []
        if len(self.running) >= self.seats and not self.cut:
            self.full = True
            return []
        beside = len(self.running) if self.mixed else 0
        ratio = 1.0 if self.fixed else self.ratio
        kept = beside + sum(ratio * (r.outputs - r.made) for r in self.running)
        left, chunk, batch = self.most - beside, None if self.chunk is None else self.chunk - beside, []

        def add(request, tokens):
            nonlocal kept, left, chunk
            whole = request.computed + tokens == request.known
            batch.append((request, tokens))
            kept += tokens + (request.outputs - request.made if whole else 0)
            left, chunk = left - tokens, None if chunk is None else chunk - tokens
            self.cut = None if whole else request

        if self.cut:
            add(self.cut, min(self.cut.known - self.cut.computed, chunk))
        for request in list(self.waiting):
            if left <= 0 or (chunk is not None and chunk <= 0):
                break
            self.full = len(self.running) + len(batch) >= self.seats
            self.full = self.full or not self.has_room(request, batch, kept, beside)
            if self.full or (chunk is None and batch and request.known >= left):
                break
            self.waiting.remove(request)
            add(request, request.known if chunk is None else min(request.known, chunk))
        return self.step(batch) if batch else []

    def has_room(self, request, batch, kept, beside):
        """add_one_req and add_one_req_ignore_eos."""
        if not self.fixed:
            return request.known + request.outputs - request.made < self.free - kept
        free = self.free - beside - sum(tokens for _, tokens in batch)
        if request.known > min(free, self.free - kept):
            return False
        free -= request.known
        everybody = [request] + self.running + [r for r, _ in batch]
        states = sorted((r.outputs - r.made, r.prompt + r.made) for r in everybody if r.made < r.outputs)
        for place, (left, occupied) in enumerate(states):
            going = len(states) - place
            if free - left * going <= going:
                return False
            free += occupied
        return True

    def decodes(self):
        """update_running_batch: who ended leaves; where the pool is full, those with fewest outputs do."""
        before, self.running = len(self.running), [r for r in self.running if r.end_s is None]
        if self.running and len(self.running) > self.free:
            left = sorted(self.running, key=lambda r: (r.made, -r.prompt), reverse=True)
            while True:
                victim = left.pop()
                self.free += victim.computed
                victim.computed, victim.preemptions = 0, victim.preemptions + 1
                self.waiting.append(victim)
                if len(left) == 1 or self.free >= len(left) * ROOM_STEPS:
                    break
            self.running = [r for r in self.running if r in left]
            outputs = sum(r.outputs for r in left)
            self.ratio = min(1.0, (sum(r.made for r in left) + ROOM_STEPS * len(left)) / outputs)
        elif self.running:
            decay = self.first_ratio * (1.0 - LEAST_RATIO) / DECAY_STEPS
            self.ratio = max(self.ratio - decay, self.first_ratio * LEAST_RATIO)
        if len(self.running) < before:
            self.full = False
        return self.step([]) if self.running else []

    def step(self, batch):
        beside = [r for r in self.running if r.end_s is None] if self.mixed or not batch else []
        rows = [(n, r.computed, 1) for r, n in batch] + [(1, r.computed, 1) for r in beside]
        self.now += step_s(rows)
        for request, tokens in batch + [(r, 1) for r in beside]:
            request.computed += tokens
            self.free -= tokens
            if request.computed == request.known:
                request.made += 1
                request.first_s = self.now if request.first_s is None else request.first_s
            if request.made == request.outputs:
                request.end_s, self.free = self.now, self.free + request.computed
        if batch:
            self.last = [r for r, _ in batch] + beside
            self.running = [] if self.mixed else self.running
        self.polled = self.interval if batch else self.polled + 1
        return rows


@settings(max_examples=80)
@given(
    requests=lengths,
    chunk=st.sampled_from([None, 40, 64]),
    most=st.sampled_from([40, 128, 16384]),
    seats=st.integers(1, 12),
    spare=st.none() | st.integers(1, 60),
    careful=st.sampled_from([0.3, 1.0, 1.4]),
    interval=st.sampled_from([1, 1, 3, 7]),
    mixed=st.booleans(),
    fixed=st.booleans(),
)
def test_sglang_is_the_plain_loop(requests, chunk, most, seats, spare, careful, interval, mixed, fixed):
    kv_tokens = None if spare is None else max(prompt + outputs for _, prompt, outputs in requests) + 1 + spare
    asked = [Plain(i, a / 16, prompt, outputs) for i, (a, prompt, outputs) in enumerate(requests)]
    mixed = mixed and chunk is not None
    kept = {"chunk": chunk, "most": most, "seats": seats, "kv_tokens": kv_tokens}
    PlainSglang(asked, careful=careful, interval=interval, mixed=mixed, fixed=fixed, **kept).run()
    engine = Engine(
        "sglang",
        kv_tokens=kv_tokens,
        chunked_prefill_size=-1 if chunk is None else chunk,
        max_prefill_tokens=most,
        max_running_requests=seats,
        schedule_conservativeness=careful,
        scheduler_recv_interval=interval,
        enable_mixed_chunk=mixed,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
    )
    assert_replayed_alike(asked, engine, ignore_eos=fixed)
