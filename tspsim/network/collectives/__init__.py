"""Collectives: kinds and algorithms that register themselves, one file each, and the cheapest of them."""

from .algorithm import ALGORITHMS, CollectiveAlgorithm
from .exchange import MULTIPROCESSORS, ExpertExchange, places_reached
from .kinds import KINDS, CollectiveKind
from .library import collective, exchange_experts, point_to_point
from .multi_ring import hamiltonian_cycles
from .schedule import Group, Schedule, scheduled
from .traffic import Traffic

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "MULTIPROCESSORS",
    "CollectiveAlgorithm",
    "CollectiveKind",
    "ExpertExchange",
    "Group",
    "Schedule",
    "Traffic",
    "collective",
    "exchange_experts",
    "hamiltonian_cycles",
    "places_reached",
    "point_to_point",
    "scheduled",
]
