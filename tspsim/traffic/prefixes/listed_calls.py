"""Tasks whose calls a scenario or a file lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...base import catalog, dialect
from ...base.errors import InputError, shorten
from ...base.units import Count, Seconds
from .base import Prefixes
from .drawn import MOST_CALLS, Draws, Number, Times, Tokens
from .trees import Call, Shape, Trees


class ListedCalls(BaseModel):
    """A call. ``after`` names the calls that it needs, ``goes_on`` the one whose text it continues, ``reads`` the calls
    whose answers it reads (default: all of ``after`` but ``goes_on``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="name that other calls use")
    after: tuple[str, ...] = Field((), description="calls that it needs")
    goes_on: str | None = Field(None, description="the one of them whose text it continues")
    reads: tuple[str, ...] | None = Field(
        None, description="calls whose answers it reads; default: all that it needs but does not continue"
    )
    tool: bool = Field(False, description="whether a tool runs behind it, on a worker")
    memory: Tokens = Field(0, description="tokens that it fetches")
    new: Annotated[Count, Field(ge=0)] | None = Field(None, description="tokens of its own; default: of the prompt")
    times: Times = Field(1, description="calls that it stands for, beside each other")


class Calls(Trees):
    """The calls of a task by name, each after the calls that it needs. A call with ``times`` runs that often in
    parallel; a call that needs it needs all copies."""

    name = "calls"
    listed: Annotated[tuple[ListedCalls, ...], Field(max_length=MOST_CALLS)] = Field(
        (), alias="calls", description="by name"
    )
    file: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="YAML with `calls`, in their place"
    )
    tool: Seconds = Field(0.0, description="mean time of a call on a worker")

    @model_validator(mode="after")
    def _stated(self) -> Calls:
        if bool(self.listed) == bool(self.file):
            what = "stand in the file or here, not both" if self.file else "are required"
            raise ValueError(f"calls {what}: a list of {{name, after, goes_on, reads, tool, memory, new, times}}")
        if self.listed:
            _ = self._calls
        return self

    def beside(self, folder: Path | None) -> Self:
        """The same prefixes with the calls of their file, which may stand in the scenario's folder.

        Raises
        ------
        InputError
            There is no such file, or its calls are wrong.
        """
        if self.file is None:
            return self
        places = [Path(self.file), *([folder / self.file] if folder is not None else [])]
        file = next((path for path in places if path.is_file()), None)
        if file is None:
            raise InputError(f"there is no file '{shorten(self.file)}'; a YAML file with calls is needed")
        data = dialect.read_yaml(file)
        if set(data) != {"calls"}:
            raise InputError("has the key calls and no other", file=str(file))
        listed = catalog.validate(data, type(self), file=str(file)).listed
        return self.model_copy(update={"file": None, "listed": listed})

    @property
    def numbers(self) -> tuple[Number, ...]:
        return tuple(number for call in self.listed for number in (call.times, call.memory))

    @property
    def most_calls(self) -> int:
        return sum(call.times for call in self.listed if isinstance(call.times, int))

    def shape(self, draws: Draws) -> Shape:
        places: dict[str, tuple[int, ...]] = {}
        drawn = {call.name for call in self.listed if not isinstance(call.times, int)}
        calls: list[Call] = []
        for call in self.listed:
            if call.name in places:
                raise ValueError(f"two calls are called '{call.name}'")
            for name in (*call.after, *(call.reads or ()), *([call.goes_on] if call.goes_on else [])):
                if name not in places:
                    earlier = ", ".join(places) or "none"
                    raise ValueError(f"call '{call.name}' needs '{name}', which does not stand before it ({earlier})")
            stated = dict.fromkeys((*call.after, *(call.reads or ()), *([call.goes_on] if call.goes_on else [])))
            after = tuple(place for name in stated for place in places[name])
            goes_on = places[call.goes_on] if call.goes_on else ()
            if goes_on and (len(goes_on) > 1 or call.goes_on in drawn):
                many = "drawn" if call.goes_on in drawn else len(goes_on)
                raise ValueError(f"call '{call.name}' goes on with '{call.goes_on}', of which there are {many}")
            read = [name for name in call.after if name != call.goes_on] if call.reads is None else call.reads
            reads = tuple(place for name in read for place in places[name])
            times = draws.of(call.times, "calls.times", 1, MOST_CALLS)
            draws.further(times)
            places[call.name] = tuple(range(len(calls), len(calls) + times))
            for _ in range(times):
                fetched = draws.of(call.memory, "calls.memory")
                calls.append(Call(call.name, after, next(iter(goes_on), None), reads, call.tool, fetched, call.new))
        return tuple(calls)

    def in_words(self) -> str:
        return f"tasks of {self.shape_in_words()}, {self.tools_in_words()}"


Prefixes.registry.register(Calls)
