"""A form from the JSON Schema: the value at a place of a question, and the keys that may stand there.

Nothing here names a key of a scenario. A level is one place (a section, a list, a mapping of free keys), a field a key
of it. Both follow from the schema along the parts of the place, and where several kinds of value are allowed from the
question's present value.
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
        """The schema without a reference; keys beside the reference win."""
        while "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            schema = {**self._definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def alternatives(self, schema: Schema) -> list[Schema]:
        """All values that may stand at a place, in the schema's order, without null."""
        schema = self.resolved(schema)
        stated = [option for word in ("anyOf", "oneOf") for option in schema.get(word, ())]
        if not stated:
            return [schema]
        options = [deeper for option in stated for deeper in self.alternatives(option)]
        return [option for option in options if option.get("type") != "null"]

    def sections(self, schema: Schema) -> list[Schema]:
        """The alternatives with keys or entries."""
        return [option for option in self.alternatives(schema) if _structured(option)]

    def chosen(self, schema: Schema, value: Any) -> Schema | None:
        """The alternative of a section or list; the first one where the value does not decide."""
        if isinstance(value, list):
            fitting = [option for option in self.sections(schema) if option.get("type") == "array"]
        else:
            fitting = [option for option in self.sections(schema) if option.get("type") == "object"]
        if isinstance(value, Mapping):
            of_kind = [option for option in fitting if _kind(option) is not None and _kind(option) == value.get("kind")]
            by_keys = [
                option
                for option in fitting
                if _kind(option) is None and set(value) <= set(option.get("properties", ()))
            ]
            fitting = of_kind or by_keys or fitting
        elif isinstance(value, list) and value:
            fitting.sort(key=lambda option: not self._takes(option.get("items", {}), value[0]))
        return fitting[0] if fitting else None

    def _takes(self, schema: Schema, value: Any) -> bool:
        """Whether a value may be of a kind that may stand there, without validation."""
        structured = isinstance(value, Mapping | list)
        return any(_structured(option) == structured for option in self.alternatives(schema))

    def below(self, schema: Schema, part: str, value: Any) -> Schema | None:
        """The schema one part deeper, where ``value`` stands now; None where the key is not allowed."""
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
            inner: Schema = section["properties"][part]
            return inner
        more = section.get("additionalProperties")
        return more if isinstance(more, Mapping) else {} if more is True else None

    # --- a place ----------------------------------------------------------------------------------------------

    def level(self, data: Any, path: str) -> Level:
        """The level at a place of a question; the nearest level above where there is none."""
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
        resolved = self.resolved(schema)
        sections = self.sections(schema)
        standing = value if isinstance(value, Mapping | list) else _begin(sections[0]) if sections else {}
        section = self.chosen(schema, standing) or {}
        kinds = tuple((self._called(option), _begin(option)) for option in sections) if len(sections) > 1 else ()
        doc = str(resolved.get("description") or "")
        own = str(section.get("description") or "")
        level = Level(
            path=values.path(here),
            title=above[-1][1],
            doc=doc if own in ("", doc) else ". ".join(text.rstrip(".") for text in (doc, own) if text),
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
            self._field(name, inner, value, here, name in required)
            for name, inner in properties.items()
            if not (name == "kind" and "const" in self.resolved(inner))
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
        resolved = self.resolved(schema)
        every = self.alternatives(schema)
        flat = [option for option in every if not _structured(option)]
        sections = [option for option in every if _structured(option)]
        of = [*here, name]
        value = values.get(within, [name])
        stated = values.stated(within, [name])
        choices = tuple(dict.fromkeys(choice for option in flat for choice in _choices(option)))
        open_ended = any(not _choices(option) for option in flat)
        texts = bool(flat) and all(option.get("type") == "string" and "pattern" not in option for option in flat)
        example = next((str(word) for option in flat for word in option.get("examples", ())), "")
        named = value.get("name") if isinstance(value, Mapping) else None
        default = resolved.get("default")
        return Field(
            key=name,
            path=values.path(of),
            title=str(named or name),
            doc=""
            if name.isdecimal() and isinstance(within, list)
            else str(resolved.get("description") or (every[0].get("description") if len(every) == 1 else "") or ""),
            default="" if default in (None, "", [], {}) else values.shown(quantities.written(default, example)),
            example=example,
            around=next((str(word) for option in flat for word in reversed(option.get("examples", ()))), ""),
            usual="0.5"
            if any(option.get("maximum", option.get("exclusiveMaximum", 2)) <= 1 for option in flat)
            else "1",
            required=required,
            choices=() if open_ended else choices,
            catalogs=CATALOGS.get(name, ()) if texts and open_ended else (),
            plain=texts,
            sections=tuple((self._called(option), _begin(option)) for option in sections),
            typed=bool(flat) or not sections or (stated and not isinstance(value, Mapping | list)),
            value=value,
            stated=stated,
        )

    def _called(self, section: Schema) -> str:
        """The name of a kind of section."""
        kind = _kind(section)
        if kind is not None:
            return kind
        if section.get("type") == "array":
            return "list"
        return "keys"

    # --- all of it --------------------------------------------------------------------------------------------

    def keys(self, data: Any) -> Iterator[tuple[str, str]]:
        """Every place of the form for the present question, with its documentation, for the search for keys."""
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
            for entry in (standing or ())[:1]:  # the other entries have the same keys
                yield from self._keys(section.get("items", {}), entry, [*here, "0"], depth + 1)
            return
        for name, inner in section.get("properties", {}).items():
            yield values.path([*here, name]), str(self.resolved(inner).get("description") or "")
            yield from self._keys(inner, values.get(standing, [name]), [*here, name], depth + 1)


#: Levels that the search covers.
DEEPEST = 6


def _structured(schema: Schema) -> bool:
    return schema.get("type") in ("object", "array")


def _kind(section: Schema) -> str | None:
    """The kind in a section's schema."""
    kind = section.get("properties", {}).get("kind", {})
    return str(kind["const"]) if "const" in kind else None


def _choices(schema: Schema) -> tuple[str, ...]:
    if "const" in schema:
        return (values.shown(schema["const"]),)
    if "enum" in schema:
        return tuple(values.shown(choice) for choice in schema["enum"])
    return ("true", "false") if schema.get("type") == "boolean" else ()


def _begin(section: Schema, number: int = 0) -> Any:
    """The first content of a new section: its kind, and a name where entries have names."""
    if section.get("type") == "array":
        return []
    kind = _kind(section)
    begun: dict[str, Any] = {} if kind is None else {"kind": kind}
    if "name" in section.get("required", ()):
        begun["name"] = f"new-{number + 1}"
    return begun


class Forms:
    """The forms of all sorts of question, each made on first use; all tabs share them."""

    def __init__(self) -> None:
        self._forms: dict[str, Form] = {}
        self._lock = threading.Lock()

    def of(self, data: Mapping[str, Any]) -> Form:
        """The form of a question's sort."""
        sort = sort_of(data)
        with self._lock:
            if sort not in self._forms:
                self._forms[sort] = Form(schema(sort))
            return self._forms[sort]
