"""The nodes of a cluster in use, beside a plain account of each node by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.base.errors import TspsimError
from tspsim.fleet.nodes import Nodes

#: Leaves of unequal size, of which one has nodes that are not neighbours in number.
LEAVES = [[0, 1, 2, 3], [4, 7, 8], [5], [6, 9, 10, 11, 12]]


@given(
    st.lists(
        st.tuples(st.sampled_from(("take", "give", "fail", "mend")), st.permutations(range(13)), st.integers(1, 13)),
        max_size=20,
    )
)
def test_nodes_given_and_taken_together_are_those_given_and_taken_one_by_one(
    steps: list[tuple[str, list[int], int]],
) -> None:
    """In any order and number, with nodes that fail meanwhile; what is empty stands ascending by leaf."""
    nodes, taken, down = Nodes(LEAVES, 8), set[int](), set[int]()
    for what, order, count in steps:
        if what == "take":
            chosen = [node for node in order if node not in taken | down][:count]
            nodes.take(sorted(chosen) if count % 2 else chosen)
            taken |= {*chosen}
        elif what == "give":
            chosen = [node for node in order if node in taken][:count]
            nodes.give(tuple(chosen))
            taken -= {*chosen}
        elif what == "fail":
            nodes.fail(order[0])
            down.add(order[0])
        else:
            nodes.mend(order[0]) if order[0] in down else None
            down.discard(order[0])
        assert nodes.empty == [[node for node in leaf if node not in taken | down] for leaf in LEAVES]
        assert nodes.empty_count == sum(map(len, nodes.empty)) and nodes.taken == taken and nodes.down == down


@pytest.mark.parametrize(("chosen", "wrong"), [([1, 2, 2], 2), ([5, 5], 5), ([0, 4, 99], 99), ([0, 3], 3)])
def test_a_node_that_is_not_empty_is_named(chosen: list[int], wrong: int) -> None:
    nodes = Nodes(LEAVES, 8)
    nodes.take((3,))
    with pytest.raises(TspsimError, match=f"node {wrong} was given to a job and is not empty"):
        nodes.take(chosen)
