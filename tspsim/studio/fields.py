"""A form from the JSON Schema: what stands at a place of a question, and which keys may.

Nothing here knows a key of a scenario. A level is one place (a section, a list, a mapping of free keys), a field a key
of it; both come from walking the schema along the place's parts, and where a value may be one of several kinds along
what the question says there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..api import schema, sort_of
from . import quantities, values
from .levels import CATALOGS, Field, Level

Schema = Mapping[str, Any]


class Form:
    """The form of one kind of file.

    Parameters
    ----------
    schema
        As :func:`tspsim.api.schema` gives it.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._definitions: Schema = schema.get("$defs", {})

    # --- the schema -------------------------------------------------------------------------------------------

    def resolved(self, schema: Schema) -> Schema:
        """Without a reference; what stands beside it wins."""
        while "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            schema = {**self._definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def alternatives(self, schema: Schema) -> list[Schema]:
        """Everything that may stand at a place, in the schema's order; nothing itself is left out."""
        schema = self.resolved(schema)
        told = [each for word in ("anyOf", "oneOf") for each in schema.get(word, ())]
        if not told:
            return [schema]
        found = [deeper for each in told for deeper in self.alternatives(each)]
        return [each for each in found if each.get("type") != "null"]

    def sections(self, schema: Schema) -> list[Schema]:
        """Alternatives that have keys or entries."""
        return [each for each in self.alternatives(schema) if _structured(each)]

    def chosen(self, schema: Schema, value: Any) -> Schema | None:
        """The alternative that a section or list is; the first one where nothing tells them apart."""
        if isinstance(value, list):
            fitting = [each for each in self.sections(schema) if each.get("type") == "array"]
        else:
            fitting = [each for each in self.sections(schema) if each.get("type") == "object"]
        if isinstance(value, Mapping):
            told = [each for each in fitting if _kind(each) is not None and _kind(each) == value.get("kind")]
            known = [each for each in fitting if _kind(each) is None and set(value) <= set(each.get("properties", ()))]
            fitting = told or known or fitting
        elif isinstance(value, list) and value:
            fitting.sort(key=lambda each: not self._takes(each.get("items", {}), value[0]))
        return fitting[0] if fitting else None

    def _takes(self, schema: Schema, value: Any) -> bool:
        """Whether a value is of a kind that may stand there, as far as that is told without checking it."""
        structured = isinstance(value, Mapping | list)
        return any(_structured(each) == structured for each in self.alternatives(schema))

    def below(self, schema: Schema, part: str, value: Any) -> Schema | None:
        """The schema one part deeper, where ``value`` stands now; None where no such key may be."""
        section = self.chosen(schema, value)
        if section is None:
            return None
        if section.get("type") == "array":
            items = section.get("items")
            if items is None and "prefixItems" in section:
                entries = section["prefixItems"]
                items = entries[min(int(part), len(entries) - 1)] if part.isdecimal() else None
            return items if isinstance(items, Mapping) else {}
        if part in section.get("properties", ()):
            found: Schema = section["properties"][part]
            return found
        more = section.get("additionalProperties")
        return more if isinstance(more, Mapping) else {} if more is True else None

    # --- a place ----------------------------------------------------------------------------------------------

    def level(self, data: Any, path: str) -> Level:
        """What stands at a place of a question; the nearest place above it where there is none."""
        schema: Schema = self.schema
        above: list[tuple[str, str]] = [("", "question")]
        value, here = data, list[str]()
        for part in values.parts(path):
            deeper = self.below(schema, part, value)
            inside = values.get(value, [part])
            if deeper is None or not (isinstance(inside, Mapping | list) or self.sections(deeper)):
                break
            schema, value = deeper, inside
            here.append(part)
            named = value.get("name") if isinstance(value, Mapping) else None
            above.append((values.path(here), str(named or part)))
        return self._level(schema, value, here, above)

    def _level(self, schema: Schema, value: Any, here: list[str], above: list[tuple[str, str]]) -> Level:
        told = self.resolved(schema)
        sections = self.sections(schema)
        standing = value if isinstance(value, Mapping | list) else _begin(sections[0]) if sections else {}
        section = self.chosen(schema, standing) or {}
        kinds = tuple((self._called(each), _begin(each)) for each in sections) if len(sections) > 1 else ()
        doc = str(told.get("description") or "")
        own = str(section.get("description") or "")
        level = Level(
            path=values.path(here),
            title=above[-1][1],
            doc=doc if own in ("", doc) else ". ".join(each.rstrip(".") for each in (doc, own) if each),
            kinds=kinds,
            kind=self._called(section) if kinds else "",
            above=tuple(above[:-1]),
        )
        if section.get("type") == "array":
            return self._list(level, section, value if isinstance(value, list) else [], here)
        return self._section(level, section, value if isinstance(value, Mapping) else {}, here)

    def _section(self, level: Level, section: Schema, value: Mapping[str, Any], here: list[str]) -> Level:
        required = set(section.get("required", ()))
        properties = dict(section.get("properties", {}))
        fields = [
            self._field(name, each, value, here, name in required)
            for name, each in properties.items()
            if not (name == "kind" and "const" in self.resolved(each))
        ]
        more = section.get("additionalProperties")
        free = isinstance(more, Mapping) or more is True
        further = more if isinstance(more, Mapping) else {}
        names = [name for name in value if name not in properties and isinstance(name, str)]
        fields += [self._field(name, further, value, here, False) for name in names]
        return replace(level, fields=tuple(fields), free=free)

    def _list(self, level: Level, section: Schema, value: list[Any], here: list[str]) -> Level:
        items = section.get("items", {})
        fields = tuple(
            self._field(str(index), self.below(section, str(index), value) or {}, value, here, False)
            for index in range(len(value))
        )
        full = len(value) >= section.get("maxItems", 1000)
        inside = self.sections(items)
        entry = None if full else _begin(inside[0], len(value)) if inside else 1
        return replace(level, fields=fields, entry=entry)

    def _field(self, name: str, schema: Schema, within: Any, here: list[str], required: bool) -> Field:
        told = self.resolved(schema)
        every = self.alternatives(schema)
        flat = [each for each in every if not _structured(each)]
        sections = [each for each in every if _structured(each)]
        of = [*here, name]
        value = values.get(within, [name])
        stated = values.stated(within, [name])
        choices = tuple(dict.fromkeys(choice for each in flat for choice in _choices(each)))
        open_ended = any(not _choices(each) for each in flat)
        texts = bool(flat) and all(each.get("type") == "string" and "pattern" not in each for each in flat)
        example = next((str(word) for each in flat for word in each.get("examples", ())), "")
        named = value.get("name") if isinstance(value, Mapping) else None
        default = told.get("default")
        return Field(
            key=name,
            path=values.path(of),
            title=str(named or name),
            doc=""
            if name.isdecimal() and isinstance(within, list)
            else str(told.get("description") or (every[0].get("description") if len(every) == 1 else "") or ""),
            default="" if default in (None, "", [], {}) else values.shown(quantities.written(default, example)),
            example=example,
            around=next((str(word) for each in flat for word in reversed(each.get("examples", ()))), ""),
            usual="0.5" if any(each.get("maximum", each.get("exclusiveMaximum", 2)) <= 1 for each in flat) else "1",
            required=required,
            choices=() if open_ended else choices,
            catalogs=CATALOGS.get(name, ()) if texts and open_ended else (),
            plain=texts,
            sections=tuple((self._called(each), _begin(each)) for each in sections),
            typed=bool(flat) or not sections or (stated and not isinstance(value, Mapping | list)),
            value=value,
            stated=stated,
        )

    def _called(self, section: Schema) -> str:
        """What a kind of section is called."""
        kind = _kind(section)
        if kind is not None:
            return kind
        if section.get("type") == "array":
            return "list"
        return "keys"

    # --- all of it --------------------------------------------------------------------------------------------

    def keys(self, data: Any) -> Iterator[tuple[str, str]]:
        """Every place that the form has of a question as it stands, with its documentation: what a search looks in."""
        yield from self._keys(self.schema, data, [], 0)

    def _keys(self, schema: Schema, value: Any, here: list[str], depth: int) -> Iterator[tuple[str, str]]:
        if depth > DEEPEST:
            return
        standing = value if isinstance(value, Mapping | list) else None
        sections = self.sections(schema)
        if standing is None:
            section = sections[0] if sections and sections[0].get("type") == "object" else None
        else:
            section = self.chosen(schema, standing)
        if section is None:
            return
        if section.get("type") == "array":
            for each in (standing or ())[:1]:  # the others have the same
                yield from self._keys(section.get("items", {}), each, [*here, "0"], depth + 1)
            return
        for name, each in section.get("properties", {}).items():
            yield values.path([*here, name]), str(self.resolved(each).get("description") or "")
            yield from self._keys(each, values.get(standing, [name]), [*here, name], depth + 1)


#: Levels that a search looks into.
DEEPEST = 6


def _structured(schema: Schema) -> bool:
    return schema.get("type") in ("object", "array")


def _kind(section: Schema) -> str | None:
    """The kind that a section says itself."""
    kind = section.get("properties", {}).get("kind", {})
    return str(kind["const"]) if "const" in kind else None


def _choices(schema: Schema) -> tuple[str, ...]:
    if "const" in schema:
        return (values.shown(schema["const"]),)
    if "enum" in schema:
        return tuple(values.shown(each) for each in schema["enum"])
    return ("true", "false") if schema.get("type") == "boolean" else ()


def _begin(section: Schema, number: int = 0) -> Any:
    """What a new section begins with: its kind, and a name where entries have names."""
    if section.get("type") == "array":
        return []
    kind = _kind(section)
    begun: dict[str, Any] = {} if kind is None else {"kind": kind}
    if "name" in section.get("required", ()):
        begun["name"] = f"new-{number + 1}"
    return begun


class Forms:
    """The forms of all sorts of question, each made when it is first wanted; they are the same for every tab."""

    def __init__(self) -> None:
        self._forms: dict[str, Form] = {}
        self._lock = threading.Lock()

    def of(self, data: Mapping[str, Any]) -> Form:
        """The form of a question as it stands."""
        sort = sort_of(data)
        with self._lock:
            if sort not in self._forms:
                self._forms[sort] = Form(schema(sort))
            return self._forms[sort]
