"""Records of fixed size, spilled from memory to a file once they are many.

A run of a million requests writes three million rows of steps and reads them a few times at its end. They would
dominate memory; an unnamed temporary file (``TMPDIR``) holds them instead, and is gone with the run. Reads return page
by page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

#: Records of a page, and most pages in memory.
PAGE, MOST_PAGES = 4096, 32


class SpillPages:
    """Pages of records by their number.

    Parameters
    ----------
    kind
        Type of a record: a packed one of NumPy, with names.
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self.kind = kind
        #: Number of pages.
        self.pages = 0
        #: Pages in memory: all while they are few, else the most recently used.
        self._near: dict[int, NDArray[Any]] = {}
        self._file: IO[bytes] | None = None

    def append(self, page: NDArray[Any]) -> None:
        """Appends a page; all but the last have the same number of records."""
        self._near[self.pages] = page
        self.pages += 1
        self._make_room()

    def page(self, number: int) -> NDArray[Any]:
        """A page, to be read and changed before the next one is fetched."""
        page = self._near.get(number)
        if page is None:
            page = self._near[number] = self._read(number)
            self._make_room()
        elif self._file is not None:
            # Most recently used, evicted last.
            self._near[number] = self._near.pop(number)
        return page

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """All pages in order, as they are now."""
        for number in range(self.pages):
            near = self._near.get(number)
            yield self._read(number) if near is None else near

    def _make_room(self) -> None:
        while len(self._near) > MOST_PAGES:
            number = next(iter(self._near))
            self._write(number, self._near.pop(number))

    def _write(self, number: int, page: NDArray[Any]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it is open as long as the shelf
        self._file.seek(number * PAGE * self.kind.itemsize)
        self._file.write(page.tobytes())

    def _read(self, number: int) -> NDArray[Any]:
        assert self._file is not None
        self._file.seek(number * PAGE * self.kind.itemsize)
        return np.frombuffer(bytearray(self._file.read(PAGE * self.kind.itemsize)), dtype=self.kind)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: all pages, wherever they are stored."""
        return {"kind": self.kind, "all": list(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["kind"])  # type: ignore[misc]
        for page in state["all"]:
            self.append(page)
