"""The traffic of a scenario: requests to a service, and bounds on latency.

A scenario with traffic asks about serving; :mod:`tspsim.serving` answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt, model_validator

from ..base.errors import InputError
from ..base.units import PositiveCount, PositiveNumber, Quantity, duration
from ..model import Architecture
from ..traffic import (
    ARRIVALS,
    LENGTHS,
    PREFIXES,
    PROTOCOLS,
    Arrivals,
    DrawnRequests,
    Lengths,
    OneKind,
    Prefixes,
    Protocol,
    locate_trace,
)
from ..traffic import draw as drawn
from ..traffic import lengths as lengths_
from ..traffic import prefixes as prefixes_
from ..traffic import protocols as protocols_
from .published import PublishedRuns
from .section import Section, refuse

PositiveSeconds = Annotated[float, Quantity("s", positive=True)]
Share = Annotated[float, Field(gt=0, le=1)]
MOST_REQUESTS = 10_000_000
#: Default share of requests within the bounds at which a rate counts as served (DistServe, OSDI 2024, §6).
USUAL_SHARE = 0.9


class Slo(Section):
    """Bounds on a request's latencies; goodput counts the requests that keep all of them."""

    ttft: PositiveSeconds | None = Field(None, description="time to the first token")
    tpot: PositiveSeconds | None = Field(None, description="time per output token after the first, mean of a request")
    e2e: PositiveSeconds | None = Field(None, description="time to the last token")
    share: Share | None = Field(
        None,
        description="share of requests that must keep them for a rate to be served; default: the protocol's, else 0.9",
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Slo:
        if not self.bounds:
            raise refuse("states no bound; state ttft, tpot or e2e")
        return self

    @property
    def bounds(self) -> dict[str, float]:
        """Stated bounds by name, in seconds."""
        stated = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        return {name: seconds for name, seconds in stated.items() if seconds is not None}


class TrafficSpec(Section):
    """Requests: arrivals, lengths, shared prefixes, and how they are counted."""

    arrivals: Annotated[Arrivals, OneKind(ARRIVALS)] = Field(description="when requests arrive")
    prompt: Annotated[Lengths, OneKind(LENGTHS, lengths_.shorthand)] | None = Field(
        None, description="tokens of a prompt; default: those of the arrivals' trace"
    )
    output: Annotated[Lengths, OneKind(LENGTHS, lengths_.shorthand)] | None = Field(
        None, description="tokens of an output; default: those of the arrivals' trace"
    )
    requests: Annotated[PositiveCount, Field(le=MOST_REQUESTS)] | None = Field(
        None,
        description="number of requests that count; warm-up comes on top (plain: all that are sent, skipped ones too); "
        "default: the protocol's number; ten per client of a closed loop, at least 100; a whole trace",
    )
    prefix: Annotated[Prefixes, OneKind(PREFIXES, prefixes_.shorthand)] = Field(
        prefixes_.NOTHING, description="what prompts share, for a prefix cache"
    )
    slo: Slo | None = Field(None, description="bounds on latency; default: those of the protocol")
    protocol: Annotated[Protocol, OneKind(PROTOCOLS, protocols_.shorthand)] = Field(
        protocols_.plain.Plain(),
        description="the benchmark client: what it sends beside the requests that count, and which count",
    )
    seed: Annotated[StrictInt, Field(ge=0)] = Field(0, description="seed of the first draw of the requests")
    seeds: Annotated[PositiveNumber, Field(le=100)] = Field(
        1, description="draws of the requests, from `seed` on: the first is reported, the others widen its ranges"
    )
    published: Annotated[tuple[PublishedRuns, ...], Field(max_length=20)] = Field(
        (), description="published measurements of the same question, drawn beside the answer; they do not change it"
    )

    @model_validator(mode="after")
    def _together(self) -> TrafficSpec:
        for name in ("prompt", "output"):
            if getattr(self, name) is None and not self.arrivals.replays:
                raise refuse(f"{name} is required: state its lengths, such as {name}: {{kind: fixed, of: 1Ki}}")
        refused = self.protocol.refuses(self.arrivals)
        if refused is not None:
            raise refuse(refused)
        lacking = None if self.arrivals.replays else self.prefix.needs(None)
        if lacking is not None:
            raise refuse(lacking)
        if self.arrivals.searches and not (self.slo or self.protocol.share):
            raise refuse("the highest rate needs bounds; state slo: {ttft: …, tpot: …}")
        wrong = "rate" if self.arrivals.closed else "concurrency"
        if any(getattr(point, wrong) is not None for figures in self.published for point in figures.points):
            loads = "clients (concurrency)" if self.arrivals.closed else "requests/s (rate)"
            raise refuse(f"published points are of a {wrong}, and these arrivals are of so many {loads}")
        return self

    def bounds(self, model: str) -> dict[str, float]:
        """Bounds by name that a good request keeps, in seconds: stated, else the protocol's for a model."""
        return self.slo.bounds if self.slo is not None else dict(self.protocol.bounds(model))

    @property
    def share(self) -> float:
        """Share of requests that must keep the bounds for a rate to be served."""
        stated = self.slo.share if self.slo is not None else None
        return stated or self.protocol.share or USUAL_SHARE

    def points(self) -> tuple[TrafficSpec, ...]:
        """One traffic per point of a curve; usually this one alone."""
        return tuple(self.model_copy(update={"arrivals": arrivals}) for arrivals in self.arrivals.points())

    def draw(self, model: Architecture | None = None) -> DrawnRequests:
        """Draw the requests; of a curve, each point is drawn on its own.

        Parameters
        ----------
        model
            The served model: its positions bound a prompt and its output together, and a benchmark may send as many
            requests as its data set for the model has.

        Raises
        ------
        InputError
            A trace is wrong or too short, or a request is longer than the model's positions.
        """
        problem = self.prefix.needs(self.arrivals.trace())
        if problem is not None:
            raise InputError(problem, key="traffic.prefix")
        try:
            requests = drawn(
                self.arrivals,
                self.prompt,
                self.output,
                self.prefix,
                self.protocol,
                requests=self.requests,
                seed=self.seed,
                model=model.name if model else None,
            )
        except InputError as error:
            raise error.at(key="traffic") from None
        if model is not None and model.max_context:
            _check_lengths(requests, model.max_context)
        return requests

    @property
    def files(self) -> tuple[str, ...]:
        """Trace files that it reads."""
        named = (getattr(getattr(self, key), "file", None) for key in ("arrivals", "prompt", "output"))
        return tuple(dict.fromkeys(file for file in named if file is not None))

    def at_rate(self, rate: float) -> TrafficSpec:
        """The same traffic at ``rate`` requests/s."""
        return self.model_copy(update={"arrivals": self.arrivals.at(rate)})

    def with_files(self, folder: Path | None) -> TrafficSpec:
        """The same traffic with the paths of traces beside the scenario's file resolved.

        Raises
        ------
        InputError
            A trace does not exist; the message offers the nearest name.
        """
        update: dict[str, Any] = {}
        for key in ("arrivals", "prompt", "output"):
            file = getattr(getattr(self, key), "file", None)
            if file is None:
                continue
            try:
                path = locate_trace(file, folder)
            except InputError as error:
                raise error.at(key=f"traffic.{key}.file") from None
            if "/" in file or file.endswith(path.suffix):
                update[key] = getattr(self, key).model_copy(update={"file": str(path)})
        try:
            update["prefix"] = self.prefix.beside(folder)
        except InputError as error:
            raise error.at(key="traffic.prefix.file") from None
        return self.model_copy(update=update)

    def in_words(self, model: str) -> Iterator[str]:
        """Sentences on the requests and on how they are counted."""
        yield f"{_upper(self.arrivals.in_words())} (`traffic.arrivals`, seed {self.seed})."
        if self.seeds > 1:
            yield f"Requests are drawn {self.seeds} times; ranges hold what the draw does (`traffic.seeds`)."
        if self.prompt is not None or self.output is not None:
            sentences = [f"{what}s {lengths.in_words()}" for what, lengths in self._lengths().items()]
            yield f"{_upper('; '.join(sentences))} (`traffic.prompt`, `traffic.output`)."
        yield f"{_upper(self.prefix.in_words())} (`traffic.prefix`)."
        yield f"{_upper(self.protocol.in_words())} (`traffic.protocol`)."
        bounds = self.bounds(model)
        if bounds:
            bounds_in_words = [f"{name.upper()} ≤ {duration(seconds)}" for name, seconds in bounds.items()]
            yield f"A request is good with {', '.join(bounds_in_words)} (`traffic.slo`)."

    def _lengths(self) -> Mapping[str, Lengths]:
        both = {"prompt": self.prompt, "output": self.output}
        return {name: lengths for name, lengths in both.items() if lengths is not None}


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _check_lengths(requests: DrawnRequests, longest: int) -> None:
    whole = requests.prompt_tokens + requests.output_tokens
    worst = int(whole.argmax())
    if whole[worst] > longest:
        prompt, output = int(requests.prompt_tokens[worst]), int(requests.output_tokens[worst])
        raise InputError(
            f"request {worst + 1:,} has {prompt:,} prompt and {output:,} output tokens, {prompt + output:,} in all, "
            f"but the model has {longest:,} positions; shorten them, or state a cap",
            key="traffic.prompt",
        )
