"""docs/ladder-decoding.md: published rates of residual streams, and what max-plus makes of them."""

from __future__ import annotations

from statistics import median
from types import ModuleType

import pytest
from helpers import documents

pytestmark = pytest.mark.skipif(not documents.DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_ladder")


def test_parallel_attention_is_within_four_per_cent_on_all_twenty_rows(script: ModuleType) -> None:
    errors = [row.error("parallel") for row in script.rows()]
    assert len(errors) == 20
    assert max(map(abs, errors)) <= 0.04
    assert median(map(abs, errors)) == pytest.approx(0.018, abs=0.003)


def test_two_nodes_of_the_405b_are_within_four_per_cent(script: ModuleType) -> None:
    for bound, parallel in script.LARGE.values():
        assert 2.0 / (1.0 + 1.0 / bound) == pytest.approx(parallel, rel=0.04)


def test_what_a_ladder_leaves_is_stated_and_never_taken_up(script: ModuleType) -> None:
    errors = [row.error("ladder") for row in script.rows()]
    assert (min(errors), max(errors)) == (pytest.approx(-0.039, abs=0.002), pytest.approx(0.131, abs=0.002))
    assert 3 * script.attention_share() < 1.0  # attention's matrices are fewer than the 1 : 3 of other accounts


@pytest.mark.parametrize("table", ["decoding", "large"])
def test_the_page_says_what_the_package_says(script: ModuleType, table: str) -> None:
    (stands,) = script.pages.block(table).findall(script.PAGE.read_text(encoding="utf-8"))
    assert stands.strip() == getattr(script, table)().strip(), "python docs/generate_ladder.py"


def test_a_simulated_ladder_lies_between_parallel_and_the_bound(script: ModuleType) -> None:
    found = script.simulated(4)
    assert 1.0 < found["parallel"] < found["ladder"] <= found["desync"] * (1 + 1e-9)
