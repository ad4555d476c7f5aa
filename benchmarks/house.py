"""How large the house is, in the figures that a newcomer pays for: ``python benchmarks/house.py [--json FILE]``.

Read from the source: lines, classes, class names that stand for two or more things, ways of remembering, circles of
imports (those for types included), variables that are no nouns. Read from a run: files and functions that one decode
step of an 8B model enters, without those that are only read while a module is imported on the way, and with them.
Classes are counted by kind too. Nothing here has a bar of its own; the table of two commits side by side says whether a
change made the house smaller.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import networkx as nx

import tspsim

PACKAGE = Path(tspsim.__file__).parent
#: What remembers, by the name that the code calls it.
REMEMBERS = (
    *("once", "remembered", "BoundedCache"),
    *("lru_cache", "cache", "cached_property", "memo", "Recent", "WeakKeyDictionary"),
)


def modules() -> dict[str, ast.Module]:
    """All modules of the package, by their dotted name."""
    trees: dict[str, ast.Module] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["tspsim", *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports(name: str, tree: ast.Module, names: set[str], is_package: bool) -> Iterator[str]:
    """The package's modules that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                if inner in names:
                    yield inner
                elif origin in names and origin != name:
                    yield origin


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Modules that import each other, the largest circle first."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    packages = {path.parent for path in PACKAGE.rglob("__init__.py")}
    for name, tree in trees.items():
        is_package = PACKAGE.joinpath(*name.split(".")[1:]) in packages
        graph.add_edges_from((name, other) for other in imports(name, tree, set(trees), is_package) if other != name)
    parts = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    return sorted(parts, key=len, reverse=True)


def remembering(trees: dict[str, ast.Module]) -> Counter[str]:
    """How often each way of remembering is used: decorators and objects made, by name, outside of where they are
    defined."""
    uses: Counter[str] = Counter()
    for tree in (tree for name, tree in trees.items() if name != "tspsim.base.memo"):
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            for part in [*([called] if called else []), *(d for d in decorators if not isinstance(d, ast.Call))]:
                name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
                # A method of another thing may be called so too; the decorator is a plain name.
                uses[name] += name in REMEMBERS and not (name == "cache" and part is called)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                kept = node.value
                uses["__dict__"] += isinstance(kept, ast.Attribute) and kept.attr == "__dict__"
    return +uses


def readers(trees: dict[str, ast.Module]) -> list[str]:
    """Modules that follow the instructions of programs themselves: that unroll them, or tell what repeats from what
    does not. Those that write programs, and the room where programs are defined, are not among them."""
    reading: list[str] = []
    for name, tree in trees.items():
        if name.startswith(("tspsim.program", "tspsim.parallel.")):
            continue
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            unrolls = isinstance(called, ast.Attribute) and called.attr == "unrolled"
            asks = isinstance(called, ast.Name) and called.id == "isinstance" and isinstance(node, ast.Call)
            tells = asks and any(isinstance(part, ast.Name) and part.id == "Repeat" for part in ast.walk(node.args[1]))
            if unrolls or tells:
                reading.append(name)
                break
    return reading


#: Kinds of classes, each by what a class of it derives from; the first that fits.
KINDS: dict[str, set[str]] = {
    "exceptions": {"Exception", "KeyboardInterrupt"},
    "enumerations": {"Enum", "StrEnum", "IntEnum"},
    "sections of files": {"BaseModel"},
    "operators": {"Operator"},
    "contracts (protocols)": {"typing.Protocol"},
    "records (named tuples)": {"NamedTuple"},
}


def kinds_of_classes(trees: dict[str, ast.Module]) -> Counter[str]:
    """How many classes are of each kind: by what they derive from, by their registry, or as dataclasses."""
    classes = {n.name: n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    calls = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.Call)]
    registries = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Registry"]
    # Traffic has a class of this name too.
    typed = [
        tree
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing" and "Protocol" in {a.name for a in node.names}
    ]
    of_typing = {node.name for tree in typed for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    contracts = {ast.unparse(part).split("[")[0] for call in registries for part in call.args[2:]}

    def bases_of(name: str) -> set[str]:
        """A class and all that it derives from, as far as the package defines it."""
        direct = [ast.unparse(base).split("[")[0].split(".")[-1] for base in classes[name].bases]
        if "Protocol" in direct and name in of_typing:
            return {name, "typing.Protocol"}
        return {name, *direct}.union(*(bases_of(base) for base in direct if base in classes and base != name))

    kinds: Counter[str] = Counter()
    for name, node in classes.items():
        bases, methods = bases_of(name), any(isinstance(part, ast.FunctionDef) for part in node.body)
        derived = (kind for kind, parents in KINDS.items() if bases & parents)
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            other = "dataclasses with methods" if methods else "records (dataclasses)"
        else:
            other = "objects with state"
        kinds[next(derived, "registered kinds" if bases & contracts else other)] += 1
    return kinds


def no_nouns(trees: dict[str, ast.Module]) -> int:
    """Variables and parameters whose names say that somebody found or was told a thing, and not what it is."""
    words = {"each", "found", "told", "known", "asked", "made"}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return sum(name in words for name in (*stored, *(node.arg for node in nodes if isinstance(node, ast.arg))))


#: A function of the package: its file, name and line.
Entered = set[tuple[str, str, int]]


def decode_step() -> tuple[Entered, Entered]:
    """Functions of the package that one decode step of an 8B model enters, answered from nothing: those that it calls,
    and those that modules call while they are imported on the way, class bodies among them."""
    question: dict[str, Any] = {
        "name": "house",
        "cluster": {"device": "h100", "nodes": 1, "fabric": "rails-400g"},
        "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 64, "context": "4Ki"},
        "plans": [{"name": "TP8", "tp": 8}],
    }
    scenario = tspsim.load(question)
    called: Entered = set()
    imported: Entered = set()
    modules_being_imported = 0

    def enter(frame: FrameType, event: str, _: object) -> None:
        nonlocal modules_being_imported
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            modules_being_imported += 1 if event == "call" else -1
        elif event == "call" and code.co_filename.startswith(str(PACKAGE)) and code.co_name[0] != "<":
            (imported if modules_being_imported else called).add((code.co_filename, code.co_name, code.co_firstlineno))

    sys.setprofile(enter)
    try:
        tspsim.simulate(scenario)
    finally:
        sys.setprofile(None)
    return called, imported - called


def files_of(entered: Entered) -> int:
    """How many files functions stand in."""
    return len({path for path, *_ in entered})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same figures as JSON")
    arguments = parser.parse_args()
    trees = modules()
    classes = Counter(n.name for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    rings = circles(trees)
    called, imported = decode_step()
    memos, reading = remembering(trees), readers(trees)
    figures: dict[str, Any] = {
        "modules": len(trees),
        "lines": sum(len(p.read_text(encoding="utf-8").splitlines()) for p in PACKAGE.rglob("*.py")),
        "classes": sum(classes.values()),
        "class_names_used_twice": sum(count > 1 for count in classes.values()),
        "variables_that_are_no_nouns": no_nouns(trees),
        "functions": sum(isinstance(n, ast.FunctionDef) for tree in trees.values() for n in ast.walk(tree)),
        "modules_at_the_root": len(list(PACKAGE.glob("*.py"))),
        "ways_of_remembering": len(memos),
        "readers_of_programs": len(reading),
        "modules_in_circles": sum(map(len, rings)),
        "largest_circle": max(map(len, rings), default=0),
        "files_of_a_decode_step": files_of(called),
        "functions_of_a_decode_step": len(called),
        "files_with_its_imports": files_of(called | imported),
    }
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):28} {value:8,}")
    kinds = kinds_of_classes(trees)
    print("\nclasses by kind:", ", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    print("remembering:", ", ".join(f"{name} {count}" for name, count in memos.most_common()))
    print("readers of programs:", ", ".join(reading))
    print("names used twice:", ", ".join(sorted(name for name, count in classes.items() if count > 1)))
    for ring in rings:
        print(f"circle of {len(ring)}:", ", ".join(ring))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({**figures, "classes_by_kind": kinds, "remembering": memos, "circles": rings}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
