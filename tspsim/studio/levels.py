"""What the form shows: a level of a question, and the fields of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Keys whose values are names of a catalog; where a catalog's name is a section's too, the section is no text.
CATALOGS: dict[str, tuple[str, ...]] = {
    "cluster": ("clusters", "nodes"),
    "device": ("devices",),
    "fabric": ("fabrics",),
    "node": ("nodes",),
    "transport": ("transports",),
    "model": ("models",),
    "stack": ("stacks",),
    "like": ("failures",),
}


@dataclass(frozen=True)
class Field:
    """A key of a level."""

    key: str
    path: str
    title: str
    #: Its documentation, as the schema has it.
    doc: str = ""
    #: What holds where nothing is stated; empty where that is nothing.
    default: str = ""
    #: How a value may be written, with its unit.
    example: str = ""
    #: Another, around which a number that is not stated may slide.
    around: str = ""
    #: A number of the usual size where no example is told.
    usual: str = "1"
    required: bool = False
    #: What may be chosen; empty: anything may be typed.
    choices: tuple[str, ...] = ()
    #: Catalogs whose entries may be named.
    catalogs: tuple[str, ...] = ()
    #: Whether a text is a text though it looks like a number.
    plain: bool = False
    #: Kinds of section or list that may stand here: what each is called, and what it begins with.
    sections: tuple[tuple[str, Any], ...] = ()
    #: Whether a value without keys of its own may stand here.
    typed: bool = True
    value: Any = None
    stated: bool = False

    @property
    def opened(self) -> bool:
        """Whether a section or list stands here now."""
        return isinstance(self.value, Mapping | list)

    @property
    def number(self) -> bool:
        """Whether a number may be stated."""
        return self.typed and not self.choices and not self.catalogs and not self.plain


@dataclass(frozen=True)
class Level:
    """A place of a question, and what may be stated there."""

    path: str
    title: str
    doc: str = ""
    fields: tuple[Field, ...] = ()
    #: Kinds that may stand here, and which one does.
    kinds: tuple[tuple[str, Any], ...] = ()
    kind: str = ""
    #: What one more entry of a list begins with (None: no list, or it is full).
    entry: Any = None
    #: Whether keys of any name may be added.
    free: bool = False
    above: tuple[tuple[str, str], ...] = field(default=())
