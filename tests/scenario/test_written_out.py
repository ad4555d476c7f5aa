"""A scenario written out in Python is read back to the same question."""

from __future__ import annotations

import json

import pytest
from helpers.shipped import SCENARIOS

import tspsim
from tspsim.base.errors import InputError


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_scenario_writes_out_loads_to_the_same_scenario(name: str) -> None:
    written = tspsim.load(name).to_dict()
    assert tspsim.load(written).to_dict() == written


def test_amounts_of_other_steps_are_not_written_and_json_has_plain_numbers() -> None:
    written = tspsim.load("tsp-memory-8x-mi300x").to_dict()
    assert "cached" not in written["workload"] and "batch" not in written["workload"]
    text = json.dumps(written)
    assert '"runtime_reserve": 2147483648.0' in text
    with pytest.raises(InputError, match="has no unit"):  # a file states its units
        tspsim.load(json.loads(text))
