"""Whatever stands in a scenario, loading it gives a Scenario or one InputError line, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from helpers.texts import texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tspsim.base import dialect
from tspsim.base.errors import InputError
from tspsim.scenario import Scenario, load

VALID: dict[str, Any] = {
    "name": "fuzz",
    "description": "",
    "cluster": {"device": "mi300x", "nodes": 2, "fabric": "rails-400g", "oversubscription": 1.0},
    "workload": {
        "model": "tsp-8b",
        "pass": "training",
        "sequence": "8Ki",
        "optimizer": {"weights": 2, "gradients": 2, "state": 12, "temporaries": 8},
        "runtime_reserve": "2 GiB",
    },
    "plans": [
        {"name": "A", "tsp": 8, "overlap": False, "algorithms": {"all_gather": "ring"}},
        {"name": "B", "tp": 4, "sp": 2, "placement": {"node": ["tp", "sp"], "rails": ["dp"]}, "dp": 2},
    ],
    "prices": {"gpu_hour": "1.12 USD/h"},
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts(12)
    | st.sampled_from(["8Ki", "64 GB/s", "mi300x", "tsp-8b", "forward", "ring", "A", "../x", "a.yaml", "1e999", "\0"])
)
keys = texts(8) | st.sampled_from(["name", "plans", "tsp", "workload", "pass", "cluster", "device"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key path inside ``data``."""
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, inner in steps for place in ((*path, key), *_places(inner, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A valid scenario in which one to three places were replaced, renamed, removed or doubled."""
    data = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(data)
        if not places:
            break
        *outer, last = draw(st.sampled_from(places))
        target: Any = data
        for step in outer:
            target = target[step]
        change = draw(st.sampled_from(["replace", "remove", "rename", "double"]))
        if change == "replace":
            target[last] = draw(values)
        elif change == "remove":
            del target[last]
        elif isinstance(target, dict):
            target[draw(keys)] = target[last] if change == "double" else target.pop(last)
        else:
            target.append(copy.deepcopy(target[last]))
    return data


def _check(source: Any, overrides: tuple[str, ...] = ()) -> None:
    try:
        scenario = load(source, overrides)
    except InputError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) < 1000
    else:
        assert isinstance(scenario, Scenario)
        json.dumps(scenario.to_dict(), allow_nan=False)


FUZZ = settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(FUZZ, max_examples=25)  # data of no scenario's shape is refused at its first key; mutated ones go deeper
@given(st.dictionaries(keys | st.integers(), values, max_size=6))
def test_arbitrary_nested_data(data: dict[Any, Any]) -> None:
    _check(data)


@FUZZ
@given(mutated())
def test_mutated_scenarios(data: dict[str, Any]) -> None:
    _check(data)


@FUZZ
@given(mutated())
def test_mutated_scenarios_written_as_yaml(data: dict[str, Any]) -> None:
    try:
        read = dialect.parse_yaml(yaml.safe_dump(data, allow_unicode=True))
    except InputError:
        return
    _check(read)


@FUZZ
@given(
    texts(40)
    | st.builds(
        "{}={}".format,
        st.sampled_from([".".join(map(str, place)) for place in _places(VALID)] + ["plans.A.tsp", "plans.B", "x.y"]),
        texts(20),
    )
)
def test_arbitrary_overrides(override: str) -> None:
    _check(VALID, (override,))


@FUZZ
@given(texts(60))
def test_arbitrary_names(name: str) -> None:
    _check(name)


@FUZZ
@given(st.binary(max_size=400) | st.text(alphabet="{}[]:,&*!-?<>|'\"# \nplans1.e", max_size=200).map(str.encode))
def test_arbitrary_files(tmp_path_factory: Any, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(raw)
    _check(path)
