"""`tspsim plan` of a serving step for which no plan has room: the fewest layers' weights on the hosts."""

from __future__ import annotations

from typing import Any

import tspsim
from tspsim.studies.planner.serving import ServingPlanner


def asked(model: str, gpus: int, plans: Any = ({"name": "P"},)) -> Any:
    cluster = {"node": "hgx-h100-8", "gpus_per_node": gpus}
    work = {"model": model, "pass": "prefill", "sequence": 2048}
    return tspsim.load({"name": "away", "cluster": cluster, "workload": work, "plans": list(plans)})


def test_where_nothing_fits_weights_come_from_the_hosts_and_no_more_than_have_to() -> None:
    answer = ServingPlanner(asked("llama-3.1-70b", 1), stated=False).run()
    best = answer.best[0]
    layers = best.keys["offload_weights"]
    assert 0 < layers < 80 and best.result.ran
    fewer = [{"name": "P", "offload_weights": layers - 1}]
    assert not tspsim.simulate(asked("llama-3.1-70b", 1, fewer)).plans[0].ran


def test_where_something_fits_nothing_changes() -> None:
    answer = ServingPlanner(asked("llama-3.1-8b", 1), stated=False).run()
    assert all("offload_weights" not in each.keys for each in answer.best)
