"""Streams: each stream of a rank is a SimPy process, which yields its kernels and collectives as events.

As on a GPU a stream runs its instructions in order, one at a time. Before each it waits for the instructions of other
streams that it needs.

    kernels     of a compute stream hold the device: a kernel is a timeout, shared with all that ends at that time
    transfers   of a communication stream begin when the other ranks have arrived too: all yield one event
    launches    of the host take their time
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import inf

import simpy

from .ranks import Machine, Rank, ReadyInstruction, RunningKernel

#: What SimPy resumes with the time of the event that was yielded.
Process = Generator[simpy.Event, float, None]


def process_of(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """The generator of a stream, by what stands on it."""
    if stream[0].is_compute:
        return kernels(machine, rank, stream)
    return (launches if any(step.duration_s > 0.0 for step in stream) else transfers)(machine, rank, stream)


def kernels(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Run the kernels of one stream, each as soon as what it waits for has ended."""
    now, kernel, end_of = machine.env.now, RunningKernel(machine, rank), machine.end_of
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, alone_s, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if alone_s > 0.0:
            now = yield kernel.begin(now, alone_s)
            kernel.end()
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)


def transfers(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Arrive for the collectives and messages of one stream, and wait for each until its data has moved."""
    now, end_of, arrive = machine.env.now, machine.end_of, machine.fluid.arrive
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    channels, first_use = rank.device.channels, rank.first_use
    for number, after, _, meets, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        # Of a message there may be two, sending and receiving; what happened first is not waited for again.
        moving = []
        for key, use in meets:
            if key in channels:
                moving.append(arrive(channels[key], first_use + use))
        begin_s = inf if moving else now
        for transfer in moving:
            ended_s = yield transfer
            if ended_s > now:
                now = ended_s
            if transfer.start_s < begin_s:
                begin_s = transfer.start_s
        start_s[number], end_s[number], done[number] = begin_s, now, 1
        if number in awaited:
            awaited.pop(number).happen(now)


def launches(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Let the host issue what its launches stand for, ahead of the device until something makes it wait."""
    now, end_of, at = machine.env.now, machine.end_of, machine.calendar.at
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, host_s, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if host_s > 0.0:
            now = yield at(now, host_s)
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)
