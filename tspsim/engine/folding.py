"""Which ranks need to be run: classes derived from programs, costs and surroundings.

Two ranks may stand for each other when no sequence of observations tells them apart: same program at the same
costs, groups of the same composition, transfers that take the same shares of links of the same kind that are
shared with the same others. That is the coarsest equitable partition of the graph of ranks, channels and links,
found by colour refinement (Weisfeiler and Leman 1968; McKay and Piperno 2014, §2). A max-min fair allocation is
unique, so it is constant on such classes (the argument of Grohe et al. 2014 for linear programs): running one
rank a class, with multiplicities on links, gives every rank's times. A slow link or an unequal share of work
splits the classes by itself; nothing is declared.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def refine(colours: Sequence[Hashable], edges: Sequence[Sequence[tuple[Hashable, int]]]) -> list[int]:
    """Coarsest equitable partition that respects ``colours``.

    Parameters
    ----------
    colours
        Initial colour of every vertex.
    edges
        ``(label, neighbour)`` of every vertex; give both directions of an edge.

    Returns
    -------
    list of int
        Class of every vertex, numbered in order of first appearance (so the result does not depend on hashing).

    Examples
    --------
    A path of four vertices: the ends are alike, and so are the middles.

    >>> refine("aaaa", [[("", 1)], [("", 0), ("", 2)], [("", 1), ("", 3)], [("", 2)]])
    [0, 1, 1, 0]
    """
    classes = number(colours)
    count = len(set(classes))
    while True:
        labels: dict[Hashable, int] = {}
        views = [
            (
                classes[vertex],
                tuple(sorted((labels.setdefault(label, len(labels)), classes[other]) for label, other in around)),
            )
            for vertex, around in enumerate(edges)
        ]
        classes = number(views)
        refined = max(classes, default=-1) + 1
        if refined == count:
            return classes
        count = refined


def number(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys to equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
