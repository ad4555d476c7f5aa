"""The studio's server: one process that serves pages, with workers for everything else."""

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

#: The default port, if it is free: an open page finds the server there again after a restart.
USUAL_PORT = 8787
MISSING = "the studio needs the extra `studio`: pip install 'tspsim[studio]'"


@dataclass
class Studio:
    """A listening server; :meth:`run` serves until it is stopped."""

    address: str
    #: The address for a browser; with the token, where there is one.
    url: str
    desks: Desks
    _server: Any

    def run(self) -> None:
        """Serve until Ctrl-C or :meth:`stop`."""
        try:
            self._server.serve_forever(poll_interval=0.5)
        finally:
            self.desks.close()
            self._server.server_close()

    def stop(self) -> None:
        """End :meth:`run`, which runs in another thread."""
        self._server.shutdown()


def opened(
    folder: Path, start: str | None = None, *, host: str = "127.0.0.1", port: int | None = None, token: str = ""
) -> Studio:
    """A listening studio of a folder, which answers once it runs.

    Parameters
    ----------
    folder
        The folder that it reads and writes.
    start
        The first question of a new page: a catalog name, or a file of the folder.
    host, port
        The address to listen on; port 0: any free one, None: the default one, else any.
    token
        The secret of every client. On another address than this machine's one is generated where none is stated.

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

    from .app import studio_app
    from .desks import Desks
    from .guard import LOOPBACK, Guard

    at = int(listening.getsockname()[1])
    desks = Desks(folder)
    threading.Thread(target=_look, args=(desks,), daemon=True).start()
    app = studio_app(desks, start)
    hosts = (*LOOPBACK, *(() if local else (host, socket.gethostname())))
    if host in ("0.0.0.0", "::"):
        hosts = (*hosts, *_addresses())
    guard = Guard(app.server, hosts, at, token, tuple(app.csp_hashes()))

    class Quiet(werkzeug.serving.WSGIRequestHandler):  # type: ignore[misc, unused-ignore]
        """Without a log line per request."""

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
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            if number == tried[-1]:
                reason = getattr(error, "strerror", None) or str(error)
                raise InputError(f"cannot listen: {reason}; state another --port", file=f"{host}:{number}") from None
            continue
        return listener
    raise AssertionError


def _look(desks: Desks) -> None:
    """List the catalogs before a page asks for them."""
    with contextlib.suppress(InputError):  # a request for them reports the error
        desks.catalogs(described=True)


def _addresses() -> tuple[str, ...]:
    """IP addresses of this machine."""
    with contextlib.suppress(OSError):
        return tuple({str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})
    return ()


def show(studio: Studio) -> None:
    """Open the page in the user's browser, without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(studio.url,), daemon=True).start()
