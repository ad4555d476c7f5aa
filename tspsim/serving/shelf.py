"""Records of a fixed size, as many as there are: the first of them in memory, all of them in a file once they are many.

A run of a million requests writes three million rows of steps and reads them a few times at its end. In memory they
would be the most of it; a file without a name in the folder for such files (``TMPDIR``) holds them as well, and is gone
with the run. What is read comes back page by page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

#: Records of a page, and pages that are in memory at once.
PAGE, MOST_PAGES = 4096, 32


class Shelf:
    """Pages of records by their number.

    Parameters
    ----------
    kind
        Type of a record: a packed one of NumPy, with names.
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self.kind = kind
        #: How many there are.
        self.pages = 0
        #: In memory: all while they are few, else those used last, each with whether it was changed since.
        self._near: dict[int, NDArray[Any]] = {}
        self._file: IO[bytes] | None = None

    def append(self, page: NDArray[Any]) -> None:
        """A further page; all but the last have as many records as the first."""
        self._near[self.pages] = page
        self.pages += 1
        self._make_room()

    def page(self, number: int) -> NDArray[Any]:
        """One of them, to be read and changed before the next is asked for."""
        found = self._near.get(number)
        if found is None:
            found = self._near[number] = self._read(number)
            self._make_room()
        elif self._file is not None:
            # Used last, let go last.
            self._near[number] = self._near.pop(number)
        return found

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """All in order, as they are now."""
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
        """For another process: its pages, whatever holds them here."""
        return {"kind": self.kind, "all": list(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["kind"])  # type: ignore[misc]
        for page in state["all"]:
            self.append(page)
