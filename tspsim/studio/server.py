"""The studio's server: one process that hands pages out and asks others to work."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import socket
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from .processes import begin

if TYPE_CHECKING:
    from .desks import Desks

#: Where it listens if nobody says otherwise and nobody else does: a page that is open finds it again after a restart.
USUAL_PORT = 8787
MISSING = "the studio needs the extra `studio`: pip install 'tspsim[studio]'"


@dataclass
class Studio:
    """A server that listens; :meth:`run` until it is stopped."""

    address: str
    #: To be opened in a browser; with the token, where there is one.
    url: str
    desks: Desks
    _server: Any

    def run(self) -> None:
        """Answer until Ctrl-C or :meth:`stop`."""
        try:
            self._server.serve_forever(poll_interval=0.5)
        finally:
            self.desks.close()
            self._server.server_close()

    def stop(self) -> None:
        """End :meth:`run`, which another thread runs."""
        self._server.shutdown()


def opened(
    folder: Path, start: str | None = None, *, host: str = "127.0.0.1", port: int | None = None, token: str = ""
) -> Studio:
    """A studio of a folder that listens, and answers once it runs.

    Parameters
    ----------
    folder
        What is read and written lies below it.
    start
        The question that a new page begins with: a catalog name, or a file of the folder.
    host, port
        Where to listen; port 0: any that is free, None: the usual one, else any.
    token
        What a page has to know. Somewhere else than on this machine one is made where none is stated.

    Raises
    ------
    InputError
        The extra is not installed, there is no such folder, or the address is taken.
    """
    if importlib.util.find_spec("dash") is None:
        raise InputError(MISSING)
    folder = folder.resolve()
    if not folder.is_dir():
        raise InputError("is no folder", file=str(folder))
    local = host in ("127.0.0.1", "localhost", "::1")
    if not local and not token:
        token = secrets.token_urlsafe(24)
    listening = _listening(host, port)
    begin()  # it imports beside this process
    import werkzeug.serving

    from .app import made
    from .desks import Desks
    from .guard import LOOPBACK, Guard

    at = int(listening.getsockname()[1])
    desks = Desks(folder)
    threading.Thread(target=_look, args=(desks,), daemon=True).start()
    app = made(desks, start)
    hosts = (*LOOPBACK, *(() if local else (host, socket.gethostname())))
    if host in ("0.0.0.0", "::"):
        hosts = (*hosts, *_addresses())
    guard = Guard(app.server, hosts, at, token, tuple(app.csp_hashes()))

    class Quiet(werkzeug.serving.WSGIRequestHandler):  # type: ignore[misc, unused-ignore]
        """Answers without a line a request."""

        def log(self, *_: object) -> None: ...

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                super().handle()

    server = werkzeug.serving.make_server(host, at, guard, threaded=True, request_handler=Quiet, fd=listening.fileno())
    server.daemon_threads = True
    listening.close()  # the server has one of its own, which ends with it
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{at}/"
    return Studio(address, address + (f"?token={token}" if token else ""), desks, server)


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = (USUAL_PORT, 0) if port is None else (port,)
    for number in tried:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, number))
            made.listen(128)
        except (OSError, OverflowError) as error:
            made.close()
            if number == tried[-1]:
                reason = getattr(error, "strerror", None) or str(error)
                raise InputError(f"cannot listen: {reason}; state another --port", file=f"{host}:{number}") from None
            continue
        return made
    raise AssertionError


def _look(desks: Desks) -> None:
    """Have the catalogs listed before a page asks."""
    with contextlib.suppress(InputError):  # who asks is told
        desks.catalogs(described=True)


def _addresses() -> tuple[str, ...]:
    """Numbers by which this machine is called in its networks."""
    with contextlib.suppress(OSError):
        return tuple({str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})
    return ()


def show(studio: Studio) -> None:
    """Open the page in the user's browser, without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(studio.url,), daemon=True).start()
