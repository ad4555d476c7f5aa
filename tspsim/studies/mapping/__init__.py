"""Which node does what: placements searched on unequal links, and judged by simulation (Pipette, arXiv 2405.18093)."""

from .closed_form import Form, form_of
from .search import Mapping, annealed, mapped

__all__ = ["Form", "Mapping", "annealed", "form_of", "mapped"]
