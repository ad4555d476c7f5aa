"""Lists of what serving engines' commands accept, from their packages' own sources: nothing of them is imported.

    pip download --no-deps --only-binary :all: vllm sglang -d FOLDER
    python benchmarks/engine_options.py FOLDER/vllm-*.whl FOLDER/sglang-*.whl

Writes ``workloads/launch/NAME.json``: version, commit where the package says it, and of every flag what its value is,
which values it takes, its default, and the line that says so. ``tests/studies/test_launch_words.py`` holds what
``tspsim plan --emit`` prints against them, and ``docs/generate_stacks.py`` prints defaults from them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "workloads" / "launch"
#: What ``ast.literal_eval`` does not know.
UNKNOWN = object()


@dataclass
class Sources:
    """Modules of a wheel, and what their top levels say.

    Attributes
    ----------
    classes
        Name → field → (annotation, default, place) of its annotated assignments.
    values
        Name → value of assignments of the top level: lists of choices, aliases of types.
    """

    texts: dict[str, str]
    classes: dict[str, dict[str, tuple[ast.expr, ast.expr | None, str]]] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)

    @classmethod
    def of(cls, wheel: Path, wanted: Callable[[str], bool]) -> Sources:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py") and wanted(name)]
            found = cls({name: archive.read(name).decode("utf-8") for name in sorted(names)})
        for name in found.texts:
            found._read(name)
        return found

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self.texts[name])

    def _read(self, name: str) -> None:
        for node in self.tree(name).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values.setdefault(node.target.id, node.value)
            elif isinstance(node, ast.ClassDef):
                fields = {
                    each.target.id: (each.annotation, each.value, f"{name}:{each.lineno}")
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
                if fields:
                    self.classes.setdefault(node.name, fields)

    # --- types ----------------------------------------------------------------------------------------------

    def choices(self, annotation: ast.expr | None) -> list[Any] | None:
        """Values of the literals in a type; None: other values are taken too."""
        found: list[Any] = []
        return found if annotation is not None and self._literals(annotation, found) and found else None

    def _literals(self, node: ast.expr, found: list[Any]) -> bool:
        """Whether a type is made of literals alone, None aside; adds them."""
        if isinstance(node, ast.Constant):
            return node.value is None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = [self._literals(node.left, found), self._literals(node.right, found)]
            return all(sides)
        if isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value).split(".")[-1]
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer == "Literal":
                found += [each.value for each in parts if isinstance(each, ast.Constant)]
                inner = [self._literals(each, found) for each in parts if not isinstance(each, ast.Constant)]
                return all(inner)
            if outer in ("Optional", "Union"):
                sides = [self._literals(each, found) for each in parts]
                return all(sides)
            return outer in ("A", "Annotated") and self._literals(parts[0], found)
        if isinstance(node, ast.Name) and node.id in self.values:
            return self._literals(self.values[node.id], found)
        return False

    def known(self, annotation: ast.expr) -> list[Any] | None:
        """Values of the literals in a type that takes other values too."""
        found: list[Any] = []
        self._literals(annotation, found)
        return found or None

    def listed(self, node: ast.expr | None) -> list[Any] | None:
        """Choices that are stated as a list, or as the name of one."""
        if isinstance(node, ast.Name) and node.id in self.values:
            node = self.values[node.id]
        value = UNKNOWN if node is None else _value(node)
        return list(value) if isinstance(value, list | tuple) else None


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def words(annotation: ast.expr) -> set[str]:
    """Names in a type."""
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def kind_of(annotation: ast.expr) -> str:
    """What a value of a type is written as."""
    names = words(annotation)
    for kind, types in (("whole", {"int"}), ("number", {"float"}), ("text", {"str"})):
        if names & types:
            return kind
    return "json" if names & {"dict", "Dict"} or any(name.endswith("Config") for name in names) else "text"


def option(kind: str, choices: list[Any] | None, default: Any, at: str, **more: Any) -> dict[str, Any]:
    """An entry of the list."""
    told: dict[str, Any] = {"kind": kind}
    if choices is not None:
        told["choices"] = choices
    if default is not UNKNOWN:
        told["default"] = default
    return told | {"at": at} | {key: value for key, value in more.items() if value}


def calls_of(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def flags_of(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and str(each.value).startswith("--")]


def deprecated(call: ast.Call) -> bool:
    text = ast.unparse(call)
    return "Deprecated" in text or "DEPRECATED" in text or "eprecated" in text


# --- vLLM --------------------------------------------------------------------------------------------------------


class Vllm:
    """``vllm serve``: a flag a field of the configuration's classes, in ``vllm/engine/arg_utils.py``."""

    name = "vllm"
    arguments = "vllm/engine/arg_utils.py"

    def __init__(self, wheel: Path) -> None:
        self.sources = Sources.of(wheel, lambda name: name.startswith("vllm/config/") or name == self.arguments)

    def options(self) -> dict[str, Any]:
        sources = self.sources
        tree = sources.tree(self.arguments)
        own = {
            node.targets[0].id: ast.unparse(node.value.args[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "get_kwargs"
        }
        found: dict[str, Any] = {}
        for call in calls_of(tree, "add_argument"):
            flags = flags_of(call)
            if flags:
                found |= {flag: self._option(call, flags[0], own) for flag in flags}
        return found

    def _option(self, call: ast.Call, flag: str, own: Mapping[str, str]) -> dict[str, Any]:
        line = f"{self.arguments}:{call.lineno}"
        text = ast.unparse(call)
        default, at = self._default(flag.removeprefix("--").replace("-", "_"), line)
        source = re.search(r"(\w+_kwargs)\['(\w+)'\]", text)
        if source is None or source[1] not in own:
            switch = "store_true" in text
            boolean = "BooleanOptionalAction" in text
            kind = "switch" if switch else "negatable" if boolean else "whole" if "type=int" in text else "text"
            return option(kind, None, default, at, deprecated=deprecated(call))
        annotation, _, place = self.sources.classes[own[source[1]]][source[2]]
        names = words(annotation)
        choices = None if "str" in names else self.sources.choices(annotation)
        kind = "negatable" if "bool" in names else "choice" if choices else kind_of(annotation)
        inner = next((name for name in names if name in self.sources.classes), None)
        fields = self._fields(inner) if inner and kind not in ("negatable", "choice") else None
        known = None if choices else self.sources.known(annotation)
        told = option("json" if fields else kind, choices, default, at, fields=fields, known=known)
        return told | ({"deprecated": True} if deprecated(call) else {}) | ({} if at != line else {"at": place})

    def _fields(self, name: str) -> dict[str, list[Any] | None]:
        """Keys of a section that a flag takes as JSON, and their choices where only some values are taken."""
        fields = self.sources.classes[name].items()
        return {key: self.sources.known(annotation) for key, (annotation, _, _) in fields if not key.startswith("_")}

    def _default(self, name: str, line: str) -> tuple[Any, str]:
        """Of a field of ``EngineArgs``, followed to the class that it names, and where it stands."""
        known = self.sources.classes["EngineArgs"].get(name)
        if known is None:
            return UNKNOWN, line
        _, node, at = known
        return self._resolved(node, at)

    def _resolved(self, node: ast.expr | None, at: str) -> tuple[Any, str]:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = self.sources.classes.get(node.value.id, {}).get(node.attr)
            return (UNKNOWN, at) if known is None else self._resolved(known[1], known[2])
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function == "get_field":
                known = self.sources.classes.get(ast.unparse(node.args[0]), {}).get(str(_value(node.args[1])))
                return (UNKNOWN, at) if known is None else self._resolved(known[1], known[2])
            if function == "Field":
                stated = next((each.value for each in node.keywords if each.arg == "default"), None)
                return self._resolved(stated or (node.args[0] if node.args else None), at)
        return (UNKNOWN if node is None else _value(node)), at


# --- SGLang ------------------------------------------------------------------------------------------------------


class Sglang:
    """``python -m sglang.launch_server``: a flag a field of ``srt/arg_groups/fields``, and some in
    ``server_args.py``."""

    name = "sglang"
    fields = "sglang/srt/arg_groups/fields/"
    arguments = "sglang/srt/server_args.py"

    def __init__(self, wheel: Path) -> None:
        kept = (self.fields, "sglang/srt/arg_groups/choices.py", self.arguments)
        self.sources = Sources.of(wheel, lambda name: name.startswith(kept))

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for fields in self.sources.classes.values():
            for name, (annotation, default, at) in fields.items():
                if at.startswith(self.fields):
                    found |= self._options(name, annotation, default, at)
        for call in calls_of(self.sources.tree(self.arguments), "add_argument"):
            listed = next((each.value for each in call.keywords if each.arg == "choices"), None)
            switch = any(word in ast.unparse(call) for word in ("store_true", "StoreTrueAction"))
            told = option("switch" if switch else "text", self.sources.listed(listed), UNKNOWN,
                          f"{self.arguments}:{call.lineno}", deprecated=deprecated(call))  # fmt: skip
            found |= dict.fromkeys(flags_of(call), told)
        return found

    def _options(self, name: str, annotation: ast.expr, default: ast.expr | None, at: str) -> dict[str, Any]:
        if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
            return {}
        assert isinstance(annotation.slice, ast.Tuple)
        type_, told = annotation.slice.elts[:2]
        about = {each.arg: each.value for each in told.keywords} if isinstance(told, ast.Call) else {}
        if "no_cli" in about:
            return {}
        aliases = self.sources.listed(about.get("aliases")) or []
        choices = self.sources.listed(about.get("choices")) or self.sources.choices(type_)
        negatable = "action" in about and "BooleanOptional" in ast.unparse(about["action"])
        boolean = "switch" if "bool" in words(type_) else ""
        kind = "negatable" if negatable else boolean or ("choice" if choices else kind_of(type_))
        value = UNKNOWN if default is None else _value(default)
        flag = _value(about["cli_name"]) if "cli_name" in about else f"--{name.replace('_', '-')}"
        return {each: option(kind, choices, value, at) for each in (flag, *aliases)}


ENGINES: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}


def written(wheel: Path) -> Path:
    """The list of one package, written."""
    name, version = wheel.name.split("-")[:2]
    engine = ENGINES[name](wheel)
    options = engine.options()
    with zipfile.ZipFile(wheel) as archive:
        own = f"{name}/_version.py"
        text = archive.read(own).decode("utf-8") if own in archive.namelist() else ""
    commit = re.search(r"commit_id = 'g?([0-9a-f]+)'", text)
    head = {"package": name, "version": version, "commit": commit[1] if commit else ""}
    lines = [f"  {json.dumps(flag)}: {json.dumps(told, default=str)}" for flag, told in sorted(options.items())]
    path = TARGET / f"{name}.json"
    begun = json.dumps(head, indent=1)[:-2]
    path.write_text(f'{begun},\n "options": {{\n' + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    for wheel in parser.parse_args().wheels:
        print(written(wheel))


if __name__ == "__main__":
    main()
