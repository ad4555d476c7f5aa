"""Groups of one axis that cannot lie in each other are refused, not a bug."""

from __future__ import annotations

import pytest

from tspsim.errors import InputError
from tspsim.parallel import Plan, build_mesh


def test_groups_of_contexts_and_experts_that_do_not_fit_are_refused() -> None:
    plan = Plan("P", {"tp": 36, "sp": 2, "ep": 2}, options={"kvp": 9})
    with pytest.raises(InputError, match=r"plans\.P: groups of 9 ranks of tp do not fit"):
        build_mesh(plan, 72, 72)
