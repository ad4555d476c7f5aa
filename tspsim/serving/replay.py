"""Requests through one engine, with any function as the cost of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from ..base.errors import InputError, TspsimError
from .clock import ScheduledEvent
from .engine import Engine
from .replica import Replica
from .requests import Request
from .work import CalledCost, StepCost, StepFunction

if TYPE_CHECKING:
    import pandas as pd

#: Priority before a step that begins at the same time.
ON_TIME = EventPriority(1)


def replay(
    requests: pd.DataFrame,
    step_s: StepFunction | StepCost,
    engine: Engine | None = None,
    *,
    every_step: bool = False,
    dp_size: int = 1,
    ignore_eos: bool = False,
) -> pd.DataFrame:
    """Serve requests on one engine.

    A step begins when the one before has ended and something can run; it sees arrivals up to its begin. Running
    requests come first, then waiting ones in order (``vllm``; other schedulers have their own order). The step that
    computes a prompt's last token emits the first output.

    Parameters
    ----------
    requests
        Columns ``arrival_s``, ``prompt_tokens``, ``output_tokens``, in any order of time.
    step_s
        Seconds of a step: a function of its :class:`~tspsim.steps.Batch`, whose ``rows`` are (query tokens, tokens in
        the cache before them, count); or a :class:`StepCost`.
    engine
        Scheduler, options, cache; None: ``Engine("vllm")``.
    every_step
        Simulate every step as an event of its own: slower, with the same answer.
    dp_size
        Attention replicas that step together.
    ignore_eos
        Whether every answer takes its longest length, as benchmarks of random tokens request.

    Returns
    -------
    One row per request in their order: ``arrival_s``, ``first_token_s``, ``end_s``, ``preemptions``.

    Raises
    ------
    InputError
        A column is missing, a length is not a positive whole number, a time is not finite, or a request can never fit.
    TspsimError
        The scheduler left a request without an answer.

    Examples
    --------
    >>> import pandas as pd
    >>> requests = pd.DataFrame({"arrival_s": [0.0, 0.0], "prompt_tokens": [100, 50], "output_tokens": [3, 1]})
    >>> replay(requests, lambda batch: 0.25).end_s.tolist()
    [0.75, 0.25]
    """
    import pandas as pd

    arrivals, prompts, outputs = _checked(requests)
    engine = Engine() if engine is None else engine
    cost = step_s if isinstance(step_s, StepCost) else CalledCost(step_s)
    first, ends = np.full(len(arrivals), np.nan), np.full(len(arrivals), np.nan)
    preemptions = np.zeros(len(arrivals), dtype=np.int64)

    def keep(request: Request) -> None:
        first[request.number], ends[request.number] = request.first_token_s, request.end_s
        preemptions[request.number] = request.preemptions

    order = np.argsort(arrivals, kind="stable")
    env = simpy.Environment(float(arrivals[order[0]]) if len(order) else 0.0)
    replica = Replica(env, engine, cost, dp_size=dp_size, on_end=keep, every_step=every_step)
    position = 0

    def arrive() -> None:
        nonlocal position
        while position < len(order) and arrivals[order[position]] <= env.now:
            number = int(order[position])
            request = Request(number, float(arrivals[number]), int(prompts[number]), int(outputs[number]))
            request.ignore_eos = ignore_eos
            try:
                replica.submit(request)
            except InputError as error:
                raise error.at(key=f"requests, row {number}") from None
            position += 1
        if position < len(order):
            ScheduledEvent(env, float(arrivals[order[position]]), arrive, ON_TIME)

    arrive()
    env.run()
    if np.isnan(ends).any():
        raise TspsimError(f"{int(np.isnan(ends).sum())} requests never ended: the scheduler does not admit them")
    answer = {"arrival_s": arrivals, "first_token_s": first, "end_s": ends, "preemptions": preemptions}
    return pd.DataFrame(answer, index=requests.index)


def _checked(requests: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Times, prompts and outputs, one per request."""
    columns = ("arrival_s", "prompt_tokens", "output_tokens")
    missing = [name for name in columns if name not in requests.columns]
    if missing:
        raise InputError(f"has no column {' or '.join(missing)}; requests have {', '.join(columns)}", key="requests")
    values = {}
    for name in columns:
        try:
            values[name] = requests[name].to_numpy(dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("holds something that is not a number", key=f"requests.{name}") from None
        wrong = ~np.isfinite(values[name])
        if name != "arrival_s":
            wrong |= (values[name] < 1) | (values[name] != np.floor(values[name])) | (values[name] > 2**31)
        if wrong.any():
            row = int(np.argmax(wrong))
            what = "a time in seconds" if name == "arrival_s" else "a whole number of tokens, at least 1"
            raise InputError(f"{values[name][row]:g} in row {row} is not {what}", key=f"requests.{name}")
    prompts, outputs = (values[name].astype(np.int64) for name in columns[1:])
    return values["arrival_s"], prompts, outputs
