"""A gallery of bad input: every message is one line with place, value, what is allowed and the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InfeasibleError, InputError, TspsimError, UnknownNameError, did_you_mean, shorten
from tspsim.scenario import load

HEAD = """\
name: gallery
cluster: {device: mi300x, nodes: 1}
workload: {model: tsp-8b, pass: forward, sequence: 8Ki}
plans:
  - {name: TSP8, tsp: 8}
  - {name: TP8, tp: 8}
"""

# (what is replaced, by what, the whole message after the file's name)
FILES = [
    ("name: gallery\n", "", "name: is required"),
    ("name: gallery", "nmae: gallery", "nmae: unknown key (did you mean 'name'?)"),
    ("name: gallery", "name: 8", "name: '8' is read by YAML as a number, but text is needed; quote it"),
    ("name: gallery", "name: no", "name: false is read by YAML as a boolean, but text is needed; quote it"),
    ("name: gallery", "name: ''", "name: an empty text is not allowed"),
    ("device: mi300x", "device: mi300xx", "cluster.device: unknown device 'mi300xx' (did you mean 'mi300x'?)"),
    ("device: mi300x", "devise: mi300x", "cluster.devise: unknown key (did you mean 'device'?)"),
    ("nodes: 1", "nodes: 0", "cluster.nodes: '0' must be more than zero, such as '1' or '8'"),
    (
        "nodes: 1",
        "nodes: 4",
        "cluster: 4 nodes need a fabric between them, such as fabric: rails-400g",
    ),
    (
        "nodes: 1",
        "oversubscription: 0.5",
        "cluster.oversubscription: '0.5' is not allowed; it must be at least 1.0",
    ),
    ("model: tsp-8b", "model: tsp8b", "workload.model: unknown model 'tsp8b' (did you mean 'tsp-8b'?)"),
    (
        "pass: forward",
        "pass: forwrd",
        "workload.pass: 'forwrd' is not allowed; use decode, forward, mixed, prefill, training or verify "
        "(did you mean 'forward'?)",
    ),
    (
        "pass: forward",
        "pass: decode",
        "workload.sequence: is of forward, mixed, prefill, training; a decode step takes batch, context, streams",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8 GB",
        "workload.sequence: '8 GB' measures bytes; a plain count is needed here, such as '128Ki' or '8'",
    ),
    (
        "sequence: 8Ki",
        "sequence: -8",
        "workload.sequence: '-8' must be more than zero, such as '128Ki' or '8'",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8Ki, runtime_reserve: 2",
        "workload.runtime_reserve: '2' has no unit; write one such as '192 GB' or '191.98 GiB'",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8Ki, runtime_reserve: 2 gb",
        "workload.runtime_reserve: unknown unit 'gb' in '2 gb' (did you mean 'GB' or 'Gb'?)",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8Ki, optimizer: adam",
        "workload.optimizer: unknown optimizer 'adam' (did you mean 'adamw'?)",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8Ki, optimizer: {weights: 2, gradients: 2, stat: 12}",
        "workload.optimizer.stat: unknown key (did you mean 'state'?)",
    ),
    (
        "sequence: 8Ki",
        "sequence: 8Ki, precision: bf61",
        "workload.precision: 'bf61' is not allowed; use bf16, fp8, fp8_block, mxfp8, mxfp6, mxfp4 or nvfp4 "
        "(did you mean 'bf16'?)",
    ),
    ("tsp: 8", "tsp: 8.5", "plans.TSP8.tsp: '8.5' is not a whole number; write one such as '1' or '8'"),
    (
        "tsp: 8",
        "tsp: 8, tp: 2",
        "plans.TSP8: tsp: 8 folds tp and sp onto one axis; leave tp and sp out beside it",
    ),
    ("tsp: 8", "tsp: 8, exchnge: ring", "plans.TSP8.exchnge: unknown key (did you mean 'exchange'?)"),
    (
        "tsp: 8",
        "tsp: 8, exchange: rings",
        "plans.TSP8.exchange: 'rings' is not allowed; use all_gather, ring, token_ring or ulysses "
        "(did you mean 'ring'?)",
    ),
    ("tsp: 8", "tsp: 8, overlap: maybe", "plans.TSP8.overlap: 'maybe' is neither true nor false"),
    ("tsp: 8", "tsp: 8, zero: 4", "plans.TSP8.zero: '4' is not allowed; it must be at most 3"),
    (
        "tsp: 8",
        "tsp: 8, algorithms: {all_gater: ring}",
        "plans.TSP8.algorithms.all_gater: 'all_gater' is not allowed; use all_gather, reduce_scatter, "
        "all_reduce, broadcast, all_to_all, ring_shift, to_pool or from_pool (did you mean 'all_gather'?)",
    ),
    (
        "tsp: 8",
        "tsp: 8, placement: {node: [tsp], rails: [tsp]}",
        "plans.TSP8.placement: axis 'tsp' is placed twice; name each axis once, in node or in rails",
    ),
    ("name: TP8", "name: TSP8", "plans: two plans are named 'TSP8'; give each its own name"),
    (
        "name: TP8",
        "name: " + "x" * 61,
        "plans." + "x" * 59 + "….name: '" + "x" * 61 + "' is not allowed; a name has 1 to 60 printable characters",
    ),
    ("name: TP8", "name: [TP8]", "plans.1.name: a list is not text"),
    ("name: TP8, tp", "tp", "plans.1.name: is required"),
    (HEAD[HEAD.index("plans:") :], "plans: []\n", "plans: needs at least 1 entry"),
    (HEAD[HEAD.index("plans:") :], "plans: TSP8\n", "plans: 'TSP8' is not a list"),
]


@pytest.mark.parametrize(("old", "new", "message"), FILES, ids=[message[:40] for *_, message in FILES])
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(HEAD.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"{path}: {message}"
    assert error.value.exit_code == 2


def test_the_gallery_starts_from_a_scenario_that_is_right(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(HEAD)
    assert load(path).name == "gallery"


OVERRIDES = [
    ("workload.sequence", "--set workload.sequence: is not of the form path=value"),
    ("=8", "--set =8: is not of the form path=value"),
    ("a..b=8", "--set a..b=8: is not of the form path=value"),
    ("workload.sequence=[", "--set workload.sequence=[: is not valid YAML"),
    ("workload.sequence=fast", "--set: workload.sequence: 'fast' does not begin with a number"),
    ("plans.TSP9.tp=8", "--set plans.TSP9.tp=8: unknown plan 'TSP9' (did you mean 'TSP8'?)"),
    ("plans.TSP8.tsp.x=8", "--set plans.TSP8.tsp.x=8: '8' has no keys; 'x' cannot be set in it"),
    ("plans.TSP8.exchange=rng", "--set: plans.TSP8.exchange: 'rng' is not allowed"),
    (
        "workloda.pass=forward",
        "FILE with --set workloda.pass: workloda: unknown key (did you mean 'workload'?)",
    ),
    ("plans.TSP8.tp=2", "FILE with --set plans.TSP8.tp: plans.TSP8: tsp: 8 folds tp and sp"),
    ("cluster=mi300x-9", "--set: cluster: unknown cluster 'mi300x-9'"),
    ("cluster=8", "--set: cluster: '8' is read by YAML as a number"),
]


@pytest.mark.parametrize(("override", "begins"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_a_wrong_override_is_blamed_on_the_override(tmp_path: Path, override: str, begins: str) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(HEAD)
    with pytest.raises(InputError, match="^" + re.escape(begins.replace("FILE", str(path)))):
        load(path, [override])


def test_unknown_scenario_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown scenario 'tsp-vs-tpsp-1024-mi300' \(did you mean 'tsp-vs"):
        load("tsp-vs-tpsp-1024-mi300")


@pytest.mark.parametrize("value", [{1: 2}, {"name": {}}, {"plans": {"a": 1}}, {"cluster": []}, {}])
def test_strange_data_is_an_input_error(value: dict[Any, Any]) -> None:
    with pytest.raises(InputError):
        load(value)


def test_the_tree_and_its_exit_codes() -> None:
    assert issubclass(UnknownNameError, InputError)
    assert issubclass(InputError, TspsimError)
    assert (InputError.exit_code, InfeasibleError.exit_code, TspsimError.exit_code) == (2, 3, 1)


def test_an_error_is_placed_once() -> None:
    error = InputError("is wrong\nand long", key="a.b")
    assert str(error) == "a.b: is wrong and long"
    assert str(error.at(file="f.yaml", key="other")) == "f.yaml: a.b: is wrong and long"


def test_suggestions_and_short_values() -> None:
    assert did_you_mean("H100", ["h100", "h200"]) == " (did you mean 'h100'?)"
    assert did_you_mean("zzz", ["a", "b"]) == " (known: a, b)"
    assert did_you_mean("zzz", []) == ""
    assert shorten("x" * 100) == "x" * 79 + "…"
