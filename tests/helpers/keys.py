"""The keys of a question, from its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tspsim.studio import values


def _resolved(whole: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        told = whole["$defs"][node["$ref"].rpartition("/")[2]]
        node = {**told, **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def walked(whole: Mapping[str, Any]) -> Iterator[tuple[list[str], str, Any]]:
    """Every key of a schema with a question in which it may stand: path of its section, its name, the question."""
    yield from _walked(whole, whole, {}, [], ())


def _walked(
    whole: Mapping[str, Any], node: Mapping[str, Any], data: Any, path: list[str], inside: tuple[str, ...]
) -> Iterator[tuple[list[str], str, Any]]:
    reference = node.get("$ref", "")
    if inside.count(reference) and reference:
        return
    inside = (*inside, reference) if reference else inside
    node = _resolved(whole, node)
    for word in ("anyOf", "oneOf"):
        for each in node.get(word, ()):
            yield from _walked(whole, each, data, path, inside)
    if node.get("type") == "array" and isinstance(node.get("items"), Mapping):
        yield from _walked(whole, node["items"], values.put(data, path, [None]), [*path, "0"], inside)
    if node.get("type") == "object":
        properties = node.get("properties", {})
        begun = {"kind": properties["kind"]["const"]} if "const" in properties.get("kind", {}) else {}
        told = data if not path else values.put(data, path, begun)
        for name, each in properties.items():
            if name == "kind" and begun:
                continue
            stated = told if begun else values.put(told, [*path, name], None)
            yield path, name, stated
            yield from _walked(whole, each, stated, [*path, name], inside)
