"""Orders of nodes: searched on unequal links, and judged by simulation (Pipette, arXiv 2405.18093)."""

from .closed_form import MappingForm, form_of
from .search import Mapping, annealed, mapped

__all__ = ["Mapping", "MappingForm", "annealed", "form_of", "mapped"]
