"""Tasks whose calls a scenario or a file lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...base import catalog
from ...base.errors import InputError, shorten
from ...base.units import Count, Seconds
from .base import Prefixes
from .drawn import MOST_CALLS, Draws, Number, Times, Tokens
from .trees import Call, Shape, Trees


class ListedCalls(BaseModel):
    """A call: ``after`` names those that it needs, ``goes_on`` the one of them whose text it continues, ``reads`` those
    whose answers it reads (default: all that it needs but does not continue)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="by which others name it")
    after: tuple[str, ...] = Field((), description="calls that it needs")
    goes_on: str | None = Field(None, description="the one of them whose text it continues")
    reads: tuple[str, ...] | None = Field(
        None, description="those whose answers it reads; default: all that it needs but does not continue"
    )
    tool: bool = Field(False, description="whether a tool runs behind it, on a worker")
    memory: Tokens = Field(0, description="tokens that it fetches")
    new: Annotated[Count, Field(ge=0)] | None = Field(None, description="tokens of its own; default: of the prompt")
    times: Times = Field(1, description="calls that it stands for, beside each other")


class Calls(Trees):
    """The calls of a task by name, each behind those that it needs; one with ``times`` stands for as many beside each
    other, and who needs it needs all of them."""

    name = "calls"
    listed: Annotated[tuple[ListedCalls, ...], Field(max_length=MOST_CALLS)] = Field(
        (), alias="calls", description="by name"
    )
    file: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="YAML with `calls`, in their place"
    )
    tool: Seconds = Field(0.0, description="that a call takes on a worker, mean")

    @model_validator(mode="after")
    def _stated(self) -> Calls:
        if bool(self.listed) == bool(self.file):
            what = "stand in the file or here, not both" if self.file else "are required"
            raise ValueError(f"calls {what}: a list of {{name, after, goes_on, reads, tool, memory, new, times}}")
        if self.listed:
            _ = self._calls
        return self

    def beside(self, folder: Path | None) -> Self:
        """With the calls of its file, which may stand beside the scenario's.

        Raises
        ------
        InputError
            There is no such file, or its calls are wrong.
        """
        if self.file is None:
            return self
        places = [Path(self.file), *([folder / self.file] if folder is not None else [])]
        path = next((each for each in places if each.is_file()), None)
        if path is None:
            raise InputError(f"there is no file '{shorten(self.file)}'; a YAML file with calls is needed")
        found = catalog.read_yaml(path)
        if set(found) != {"calls"}:
            raise InputError("has the key calls and no other", file=str(path))
        listed = catalog.validate(found, type(self), file=str(path)).listed
        return self.model_copy(update={"file": None, "listed": listed})

    @property
    def numbers(self) -> tuple[Number, ...]:
        return tuple(number for each in self.listed for number in (each.times, each.memory))

    @property
    def most_calls(self) -> int:
        return sum(each.times for each in self.listed if isinstance(each.times, int))

    def shape(self, draws: Draws) -> Shape:
        places: dict[str, tuple[int, ...]] = {}
        drawn = {each.name for each in self.listed if not isinstance(each.times, int)}
        found: list[Call] = []
        for each in self.listed:
            if each.name in places:
                raise ValueError(f"two calls are called '{each.name}'")
            for name in (*each.after, *(each.reads or ()), *([each.goes_on] if each.goes_on else [])):
                if name not in places:
                    known = ", ".join(places) or "none"
                    raise ValueError(f"call '{each.name}' needs '{name}', which does not stand before it ({known})")
            stated = dict.fromkeys((*each.after, *(each.reads or ()), *([each.goes_on] if each.goes_on else [])))
            after = tuple(place for name in stated for place in places[name])
            goes_on = places[each.goes_on] if each.goes_on else ()
            if goes_on and (len(goes_on) > 1 or each.goes_on in drawn):
                many = "drawn" if each.goes_on in drawn else len(goes_on)
                raise ValueError(f"call '{each.name}' goes on with '{each.goes_on}', of which there are {many}")
            read = [name for name in each.after if name != each.goes_on] if each.reads is None else each.reads
            reads = tuple(place for name in read for place in places[name])
            times = draws.of(each.times, "calls.times", 1, MOST_CALLS)
            draws.further(times)
            places[each.name] = tuple(range(len(found), len(found) + times))
            for _ in range(times):
                fetched = draws.of(each.memory, "calls.memory")
                found.append(Call(each.name, after, next(iter(goes_on), None), reads, each.tool, fetched, each.new))
        return tuple(found)

    def in_words(self) -> str:
        return f"tasks of {self.shape_in_words()}, {self.tools_in_words()}"


Prefixes.registry.register(Calls)
