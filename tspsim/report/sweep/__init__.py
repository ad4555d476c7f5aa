"""The page of a sweep: what moves what, in words and as lines, a heat map or parallel coordinates.

:mod:`.view` reads a table of :mod:`tspsim.studies`, :mod:`.effects` says what its axes do, :mod:`.figures` draws.
"""

from .page import page, write_page

__all__ = ["page", "write_page"]
