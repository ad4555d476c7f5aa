"""The page of a sweep: effects of the swept paths, in words and as lines, a heat map or parallel coordinates.

:mod:`.view` reads a table of :mod:`tspsim.studies`, :mod:`.effects` describes its axes, :mod:`.figures` draws.
"""

from .page import page, write_page

__all__ = ["page", "write_page"]
