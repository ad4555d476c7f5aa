"""The data of the form: a level of a question, and its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Keys whose values name catalog entries, and the catalogs. Where a key may also be a section, that is no text.
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
    #: Its documentation, from the schema.
    doc: str = ""
    #: The default value; empty where there is none.
    default: str = ""
    #: An example of a value, with its unit.
    example: str = ""
    #: Another example, the centre of the slider for a number that is not stated.
    around: str = ""
    #: A number of the usual size where there is no example.
    usual: str = "1"
    required: bool = False
    #: The allowed choices; empty: anything may be typed.
    choices: tuple[str, ...] = ()
    #: Catalogs whose entries may be named.
    catalogs: tuple[str, ...] = ()
    #: Whether a text stays text though it looks like a number.
    plain: bool = False
    #: Kinds of section or list that may stand here: name, and first content.
    sections: tuple[tuple[str, Any], ...] = ()
    #: Whether a plain value may stand here.
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
    """A place of a question, and the keys that may be stated there."""

    path: str
    title: str
    doc: str = ""
    fields: tuple[Field, ...] = ()
    #: Kinds that may stand here, and the present one.
    kinds: tuple[tuple[str, Any], ...] = ()
    kind: str = ""
    #: The first content of a further entry of a list (None: it is no list, or full).
    entry: Any = None
    #: Whether keys of any name may be added.
    free: bool = False
    above: tuple[tuple[str, str], ...] = field(default=())
