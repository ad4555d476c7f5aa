"""Failures as files state them: which components, how often, and at what cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base import catalog
from ..base.errors import InputError
from ..base.units import Count, PositiveNumber, Quantity, Seconds
from ..scenario.section import Name, Prose, Section, refuse

PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("30 days", "4 h"))]
#: Failures per 1,000 node-days, as operators publish them.
Rate = Annotated[float, Field(ge=0, le=1e6)]


class Component(Section):
    """A component of a node that fails, or one that several nodes share."""

    rate: Rate = Field(description="failures per 1,000 node-days")
    repair: Seconds = Field(86_400.0, description="until the node is back; a day, assumed")
    leaf: bool = Field(False, description="takes all nodes of a leaf switch with it")


class FailureEntry(Section):
    """An entry of the catalog: an operator's published failure rates."""

    name: Name
    description: Prose = ""
    components: Annotated[dict[Name, Component], Field(min_length=1, max_length=100)]
    gpus_per_node: PositiveNumber = Field(8, description="of the nodes that were counted")
    source: Prose


class Lemons(Section):
    """Nodes that fail more often than others, at an unchanged mean over all nodes."""

    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="of all nodes")
    factor: Annotated[float, Field(ge=1, le=1e6)] = Field(description="their rate over that of the others")
    retire: PositiveNumber | None = Field(
        None, description="failures after which it is replaced by a sound node; default: never"
    )


class Checkpoints(Section):
    """A job's checkpoints."""

    every: PositiveSeconds = Field(description="work between two checkpoints")
    write: Seconds = Field(0.0, description="time that one stops the job")
    read: Seconds = Field(0.0, description="time to read one back")


class FailureKeys(Section):
    """Failures of a fleet: rates from the catalog or stated, and their consequences."""

    like: Name | None = Field(None, description="rates of an entry of the catalog of failures: llama-3, meta-rsc-1")
    components: Annotated[dict[Name, Component], Field(max_length=100)] = Field(
        {}, description="components that replace the entry's of the same name, or are added"
    )
    detection: Seconds = Field(0.0, description="time until a failure is noticed; the job hangs")
    eviction: Seconds = Field(0.0, description="time from then until its node is taken out and the job waits again")
    restart: Seconds = Field(
        600.0, description="time from new nodes to the first step, without reading; 10 min, assumed"
    )
    spares: Count = Field(0, description="nodes kept free to replace failed ones")
    spare_start: Seconds = Field(0.0, description="time until a spare works; 0 for warm spares")
    lemons: Lemons | None = Field(None, description="nodes that fail more often")
    checkpoint: Checkpoints | None = Field(
        None, description="for jobs that state none and whose plan writes none; without checkpoints they begin anew"
    )

    @model_validator(mode="after")
    def _something_fails(self) -> FailureKeys:
        if self.like is None and not self.components:
            raise refuse("needs what fails: like: an entry of the catalog, or components: {gpu: {rate: …}}")
        return self

    def all_components(self) -> dict[str, Component]:
        """Components of the entry, and its own. Raises InputError where there is no such entry."""
        if self.like is None:
            return dict(self.components)
        try:
            entry = load_failures(self.like)
        except InputError as error:
            raise error.at(key="failures.like") from None
        return {**entry.components, **self.components}


class Maintenance(Section):
    """Planned outages, block after block in the order of nodes."""

    every: PositiveSeconds = Field(description="time between the begins of two windows")
    takes: PositiveSeconds = Field(description="how long the nodes are out")
    nodes: PositiveNumber = Field(description="nodes at once; their jobs wait again, from their last checkpoint")
    first: Seconds | None = Field(None, description="begin of the first window; default: after `every`")


def load_failures(name: str) -> FailureEntry:
    """An entry of the catalog of failures. Raises InputError where there is none, or it is wrong."""
    return catalog.load("failures", name, FailureEntry)


def in_words(keys: FailureKeys) -> tuple[str, ...]:
    """Assumptions about failures, as sentences."""
    components = keys.all_components()
    rate = sum(component.rate for component in components.values())
    sentences: list[str] = [
        f"{rate:.3g} failures per 1,000 node-days ({', '.join(components)}); a job hangs until one is noticed, waits "
        "again, and begins at its last checkpoint (`failures`)."
    ]
    if keys.spares:
        sentences.append(f"{keys.spares:,} nodes are kept free to replace failed ones (`failures.spares`).")
    return tuple(sentences)
