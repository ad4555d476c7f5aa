"""Who stands above ``parallel/`` and ``network/`` asks objects, and names none: read off the syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import tspsim
from tspsim.network import ALGORITHMS
from tspsim.parallel import CONTEXT_METHODS, DECODE_EXCHANGES, SCHEMES, WEIGHT_TRANSPORTS
from tspsim.program import COLLECTIVE_KINDS

PACKAGE = Path(tspsim.__file__).parent
#: Rooms that own the objects.
OWNERS = ("parallel", "network")
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in OWNERS)
#: A kind of collective is no algorithm, though one context method has the name of the kind it uses.
NAMES = {*SCHEMES.names(), *CONTEXT_METHODS.names(), *DECODE_EXCHANGES.names(), *WEIGHT_TRANSPORTS.names(), *ALGORITHMS}
NAMES -= {*COLLECTIVE_KINDS, "dispatch", "combine"}
#: Axes of one scheme alone: whether there are several ranks on one is the scheme's business.
AXES = {axis for scheme in SCHEMES.values() if not scheme.usual for axis in scheme.axes}
#: Facts of a plan that only a name can be compared with.
NAMED = ("exchange", "weight_transport", "context_transport", "algorithm", "scheme")


def decisions(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Expressions that something is decided by: both sides of comparisons, keys, members of collections, cases."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from node.elts
        elif isinstance(node, ast.MatchValue):
            yield node.value
        elif isinstance(node, ast.Subscript):
            yield node.slice


@cache
def read(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Offences, names of classes and verbs for variables of a module, which is parsed and walked through once."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return offences(nodes), [node.name for node in nodes if isinstance(node, ast.ClassDef)], verbs(nodes)


def offences_of(text: str) -> list[str]:
    return offences([*ast.walk(ast.parse(text))])


def offences(nodes: Sequence[ast.AST]) -> list[str]:
    found = [
        f"line {each.lineno}: '{each.value}'"
        for each in decisions(nodes)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in NAMES
    ]
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            attributes = {side.attr for side in sides if isinstance(side, ast.Attribute)}
            words = [side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)]
            found += [f"line {node.lineno}: {attributes} against '{word}'" for word in words if attributes & {*NAMED}]
            found += [f"line {node.lineno}: degree of {axis}" for axis in attributes & AXES]
    return found


def verbs(nodes: Sequence[ast.AST]) -> list[str]:
    """Variables and fields that are called by how they came."""
    found = []
    for node in nodes:
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if name in VERBS:
            found.append(f"line {node.lineno}: {name}")
    return found


def test_no_module_above_names_a_scheme_a_context_method_or_an_algorithm() -> None:
    wrong = {str(path.relative_to(PACKAGE)): read(path)[0] for path in MODULES}
    assert len(wrong) > 100 and {path: lines for path, lines in wrong.items() if lines} == {}


def test_the_reader_finds_what_it_looks_for() -> None:
    compared = 'if plan.exchange == "ulysses" or plan.exchange == "all_gather":\n    pass'
    assert len(offences_of(compared)) == 3
    assert offences_of('word = {"folded": 1}') and offences_of("if plan.tsp > 1:\n    pass")
    assert offences_of("x: Literal['ring']") and not offences_of('sentence = "round one ring"')


def test_what_an_object_found_is_written_in_one_place() -> None:
    """Frozen objects are handed what others found by ``knowing``, and nobody else writes into their ``__dict__``."""
    written = re.compile(r"__dict__(\[[^\]]*\] = |\.update)")
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if written.search(path.read_text("utf-8"))
    }
    assert found == {"base/memo.py"}


def test_a_class_name_stands_for_one_thing() -> None:
    """A name that two classes have makes its reader look up which one is meant."""
    defined: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in read(path)[1]:
            defined.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")
#: Words for how something came to be known, which say not what it is.
VERBS = {"each", "found", "told", "known", "asked", "made"}


@pytest.mark.parametrize("room", ROOMS)
def test_variables_are_nouns(room: str) -> None:
    """A variable has the noun of its content, not a verb of its origin; so has a field, whatever its key in a file."""
    wrong = {path.name: read(path)[2] for path in (PACKAGE / room).rglob("*.py") if read(path)[2]}
    assert not wrong
