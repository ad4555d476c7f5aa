"""What registers itself is asked, and not told by its name: no module compares the name of a registered object."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tspsim
from tspsim.base.registry import Registry

PACKAGE = Path(tspsim.__file__).parent
#: Where plans, scenarios and runs hold the name of a registered object; ``name`` is the object's own.
HOLDERS = (
    *("name", "policy", "scheduler", "router", "precision", "pass_", "intra", "schedule", "residual", "checkpoint"),
    *("deal", "draft", "expert_dispatch", "expert_overlap", "expert_balance", "index_exchange", "decode_form"),
    *("autoscaler", "placement", "routing", "way"),
)
#: A line that may compare one of them.
COMPARES = re.compile(
    r"\.(?:{0})\s*(?:==|!=|in\b|not in\b)|(?:==|!=)\s*[\w.]*\.(?:{0})\b|\[[\w.]*\.(?:{0})\]|match .*\.(?:{0}):".format(
        "|".join(HOLDERS)
    )
)
#: (module, word): why it may be compared.
EXCEPTIONS = {
    ("studies/contract/fleets.py", "wide"): "a job of the contract's own, not an activation store",
    ("studies/launch/megatron.py", "nvfp4"): "a flag of another program, which has one for this type and no other",
    ("studies/launch/megatron.py", "bf16"): "the type for which another program takes no flag",
    ("studies/launch/torchtitan.py", "bf16"): "the type for which another program takes no flag",
}


@cache
def registered() -> frozenset[str]:
    """Names in all registries but those of keys that a search tries: keys are compared as keys."""
    names: set[str] = set()
    for module in pkgutil.walk_packages([str(PACKAGE)], "tspsim."):
        if ".studio" in module.name or module.name.endswith("__main__"):
            continue
        for thing in vars(importlib.import_module(module.name)).values():
            if isinstance(thing, Registry) and thing.group != "tspsim.searched_keys":
                names |= {*thing.names()}
    return frozenset(names)


def words_of(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from words_of(element)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from words_of(key) if key is not None else ()


def compared(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of every comparison of a holder with a registered name, and of every choice by one among a table
    that is written there."""
    if not COMPARES.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            sides = [node.value, node.slice]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(n.value for n in ast.walk(node) if isinstance(n, ast.MatchValue))]
        if any(isinstance(side, ast.Attribute) and side.attr in HOLDERS for side in sides):
            yield from ((node.lineno, word) for side in sides for word in words_of(side) if word in registered())


def test_no_module_compares_the_name_of_a_registered_object() -> None:
    met: set[tuple[str, str]] = set()
    offences = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for line, word in compared(path.read_text(encoding="utf-8")):
            met.add((module, word))
            if (module, word) not in EXCEPTIONS:
                offences.append(f"{module}:{line} '{word}'")
    assert offences == []
    assert met == {*EXCEPTIONS}  # none is left that nobody needs


def test_the_reader_sees_what_it_looks_for() -> None:
    lines = [
        'if run.policy == "sglang":\n    pass',
        'x = self.arrivals.name != "trace"',
        'x = {"atom": 1, "vllm": 2}[run.policy]',
        'x = work.precision in ("bf16", "fp8")',
        'match plan.schedule:\n    case "1f1b":\n        pass',
    ]
    assert all(list(compared(source)) for source in lines)
    assert not list(compared('x = run.policy == other.policy or name == "sglang" or plan.name == "TP8"'))
