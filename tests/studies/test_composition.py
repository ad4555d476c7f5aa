"""Many models on one machine: what fits, what misses (simulated, approximated, at least), what a switch takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from tspsim.base.errors import InputError
from tspsim.studies.composition import composition, miss_share, popularity


def by_che(shares: np.ndarray[tuple[int], np.dtype[np.float64]], resident: int) -> float:
    """Miss share by the approximation of Che, Tung and Wang (2002): a model stays for one time, the same for all."""
    time = brentq(lambda t: float(np.sum(-np.expm1(-shares * t))) - resident, 1e-9, 1e9)
    return 1.0 - float(np.sum(shares * -np.expm1(-shares * time)))


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("resident", [10, 60, 120])
def test_misses_are_those_of_the_approximation_and_no_fewer_than_at_best(skew: float, resident: int) -> None:
    shares = popularity(150, skew)
    missed = miss_share(shares, resident, 40_000)
    assert missed == pytest.approx(by_che(shares, resident), abs=0.008)
    assert missed >= float(shares[resident:].sum()) - 3 * math.sqrt(missed / 40_000)
    if not skew:
        assert missed == pytest.approx(1 - resident / 150, abs=0.008)
    assert miss_share(shares, resident, 1000, seed=3) == miss_share(shares, resident, 1000, seed=3)


def test_150_models_of_14_gb_fit_eight_mi355x_and_neither_eight_b200_nor_eight_mi300x() -> None:
    names = ("mi355x-8", "hgx-b200-8", "mi300x-8")
    mi355x, b200, mi300x = (composition(name, 150, 14e9, requests=2000) for name in names)
    assert mi355x.resident == 150 and mi355x.mean_switch_s == 0.0 and 0.2e12 < mi355x.left_bytes < 0.4e12
    assert b200.resident < mi300x.resident < 150
    assert b200.miss_share > mi300x.miss_share > 0.0


def test_a_switch_is_its_bytes_over_the_tier_by_hand() -> None:
    """14 GB over eight sockets of 200 GB/s are 9 ms (SN40L's capacity tier), over PCIe 5 to one GPU 0.27 s."""
    tier = composition("mi300x-8", 150, 14e9, tier_bytes_per_s=200e9, requests=100)
    assert tier.switch_s == pytest.approx(8.75e-3)
    host = composition("mi300x-8", 150, 14e9, requests=100)
    assert 8 * host.switch_s == pytest.approx(14e9 / (0.83 * 63e9)) == pytest.approx(0.268, abs=1e-3)
    assert host.mean_switch_s == host.miss_share * host.switch_s


def test_more_set_aside_is_never_fewer_misses() -> None:
    found = [composition("mi300x-8", 150, 14e9, set_aside_bytes=gb * 1e9, requests=5000) for gb in (0, 400, 800)]
    assert [each.resident for each in found] == sorted([each.resident for each in found], reverse=True)
    assert [each.miss_share for each in found] == sorted(each.miss_share for each in found)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"models": 0}, "models: 0 is not allowed"),
        ({"weight_bytes": 9e12}, "one model of 9000 GB does not fit"),
        ({"skew": -1.0}, "skew, seed and set_aside_bytes are 0 or more"),
    ],
    ids=str,
)
def test_wrong_numbers_are_refused(asked: dict[str, float], said: str) -> None:
    with pytest.raises(InputError) as error:
        composition("mi300x-8", **({"models": 150, "weight_bytes": 14e9} | asked))  # type: ignore[arg-type]
    assert said in str(error.value)
