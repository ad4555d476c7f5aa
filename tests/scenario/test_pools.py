"""Pools of a plan: what may be stated, where their replicas stand, and what is said of what does not fit."""

from __future__ import annotations

import pytest

from tspsim.base.errors import InputError
from tspsim.scenario import Scenario, load


def scenario(pools: object, **keys: object) -> Scenario:
    return load(
        {
            "name": "pools",
            "cluster": {"device": "h200", "nodes": 2, "fabric": "rails-400g"},
            "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": 1000},
            "plans": [{"name": "split", "pools": pools, **keys}],
        }
    )


def placed(pools: object, gpus: int = 16) -> dict[str, range]:
    found = scenario(pools).plans[0].pools
    assert found is not None
    return found.placed(gpus, 8, "split")


def test_pools_stand_one_after_the_other_on_the_cluster():
    assert placed({"prefill": {"replicas": 2, "tp": 4}, "decode": {"replicas": 1, "tp": 8}}) == {
        "decode": range(8),
        "prefill": range(8, 16),
    }


def test_a_pool_without_replicas_takes_the_gpus_that_are_left():
    assert placed({"prefill": {"replicas": 1, "tp": 4}, "decode": {"tp": 4}})["decode"] == range(4, 16)


def test_a_replica_of_attention_replicas_takes_them_all():
    pools = {"prefill": {"replicas": 1, "tp": 8}, "decode": {"replicas": 1, "dp": 8, "ep": 8}}
    assert placed(pools)["decode"] == range(8, 16)


def test_a_pool_on_a_cluster_of_its_own_counts_from_zero_there():
    own = {"device": "mi355x", "nodes": 2, "fabric": "rails-400g"}
    assert placed({"prefill": {"tp": 8}, "decode": {"replicas": 2, "tp": 8, "cluster": own}}) == {
        "prefill": range(16),
        "decode": range(16),
    }


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (
            {"prefill": {"replicas": 3, "tp": 4}, "decode": {"replicas": 1, "tp": 8}},
            r"plans\.split\.pools: pools take 20 GPUs \(prefill 12 and decode 8\), but the cluster has 16",
        ),
        ({"prefill": {"replicas": 1, "tp": 4}, "decode": {"replicas": 1, "tp": 8}}, "leave 4 of the cluster's 16 GPUs"),
        ({"prefill": {"tp": 3, "replicas": 4}, "decode": {"tp": 4}}, "GPUs 7 to 9 would stand on two nodes of 8"),
        ({"prefill": {"tp": 4}, "decode": {"tp": 8}}, "leave `replicas` out; state one"),
        (
            {"prefill": {"tp": 8}, "decode": {"tp": 8, "cluster": {"device": "mi355x"}}},
            r"plans\.split\.pools\.decode\.replicas: is required",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_numbers(pools, said):
    with pytest.raises(InputError, match=said):
        placed(pools)


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ({"prefill": {"tpp": 4}, "decode": {"tp": 8}}, r"pools\.prefill\.tpp: unknown key \(did you mean 'tp'\?\)"),
        ({"prefil": {"tp": 4}, "decode": {"tp": 8}}, r"pools\.prefil: unknown key \(did you mean 'prefill'\?\)"),
        ({"prefill": {"tp": 4}}, r"pools\.decode: is required"),
        ({"prefill": {"tp": 4, "name": "x"}, "decode": {}}, "a pool has no name of its own"),
        ({"prefill": {"tp": 4, "replicas": 0}, "decode": {}}, r"prefill\.replicas: '0' must be more than zero"),
        ({"prefill": {}, "decode": {}, "transfer": "psh"}, "use push or pull"),
        ({"prefill": {"cluster": {"device": "h20"}}, "decode": {}}, r"prefill\.cluster\.device: unknown device 'h20'"),
        ({"prefill": {}, "decode": {}, "fabric": "rails"}, r"pools\.fabric: unknown fabric 'rails'"),
    ],
)
def test_wrong_keys_are_told_where_they_stand(pools, said):
    with pytest.raises(InputError, match=said):
        scenario(pools)


def test_degrees_beside_pools_are_refused():
    with pytest.raises(InputError, match=r"plans\.split: tp stands beside pools; state it of each pool"):
        scenario({"prefill": {}, "decode": {}}, tp=4)


def test_a_plan_with_pools_reads_back_from_its_plain_data():
    asked = scenario({"prefill": {"replicas": 1, "tp": 8, "engine": {"max_num_seqs": 4}}, "decode": {"cp": 2, "tp": 4}})
    (plan,) = asked.to_dict()["plans"]
    assert scenario(plan["pools"]).plans == asked.plans
    assert set(plan) <= {"name", "pools", "recomputation"}


def test_plans_without_pools_have_no_keys_of_serving_in_their_plain_data():
    plain = load(
        {
            "name": "plain",
            "cluster": {"device": "h200"},
            "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": 1000},
            "plans": [{"name": "TP8", "tp": 8}],
        }
    )
    assert not {"pools", "router", "engine"} & set(plain.to_dict()["plans"][0])
