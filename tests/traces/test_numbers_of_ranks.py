"""A profile's own words about ranks and groups may be of any type and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import decode_step, kineto, written

from tspsim import traces
from tspsim.traces.scenario_text import lines

ODD = (None, True, -1, 2**70, 1e308, "3", [], {})


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_odd_ranks_sizes_and_groups_are_not_stated(odd: Any, tmp_path: Path) -> None:
    document = kineto([("step 1", decode_step(2))])
    document["distributedInfo"] = {"rank": odd, "world_size": odd, "pg_config": odd}
    trace = traces.read([written(tmp_path / "a.json", document)])
    assert trace.ranks == (0,) and trace.world_size <= 1 and trace.groups == ()
    assert any("rank" in text for text in trace.missing)
    assert any(line.startswith("cluster:") for line in lines(trace))
    document["distributedInfo"] = {"rank": 0, "world_size": 2, "pg_config": [{"pg_size": odd, "ranks": [0, odd, 1]}]}
    (group,) = traces.read([written(tmp_path / "b.json", document)]).groups
    assert group.size == 2 and group.ranks == (0, 1)
