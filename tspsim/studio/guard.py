"""Access to the studio: only this machine's own pages, and whoever has the token.

A page from elsewhere can make a browser send requests to 127.0.0.1, and can give that address a name of its own. So
every request must name the studio's address (``Host``), come from one of its own pages (``Origin``,
``Sec-Fetch-Site``), and be no larger than a question may be. Answers tell the browser to load nothing from elsewhere
and to show the page in no frame.
"""

from __future__ import annotations

import hmac
import http
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: Bytes of the largest request: a question of 1 MiB, and pins.
LARGEST_BYTES = 16 * 2**20
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_COOKIE = "tspsim-studio"

Application = Callable[[Mapping[str, Any], Any], Iterable[bytes]]


@dataclass
class Guard:
    """A WSGI application that checks requests before another one.

    Parameters
    ----------
    inside
        The application behind it.
    hosts
        Allowed names and addresses of the server, without the port.
    port
        Port of the server.
    token
        The secret of every client; empty: none is needed, for a server that only this machine reaches.
    scripts
        Hashes of the scripts in the page itself, for its policy.
    """

    inside: Application
    hosts: tuple[str, ...]
    port: int
    token: str = ""
    scripts: tuple[str, ...] = ()
    _names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = frozenset(f"{host}:{self.port}".lower() for host in self.hosts)

    def __call__(self, environ: Mapping[str, Any], start: Any) -> Iterable[bytes]:
        problem = self.problem(environ)
        if problem is not None:
            return _say(start, *problem)
        if self.token and not self._knows(environ):
            given = parse_qs(environ.get("QUERY_STRING", "")).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _say(start, 403, "state the token that the studio printed when it began: /?token=…")
            # The browser keeps the part of the address behind #, in which the question stands.
            cookie = f"{_COOKIE}-{self.port}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return _say(start, 303, "", [("Location", "/"), ("Set-Cookie", cookie)])
        return self.inside(environ, self._with_headers(start))

    def problem(self, environ: Mapping[str, Any]) -> tuple[int, str] | None:
        """Status and reason of a refused request; None where it is allowed."""
        if environ.get("HTTP_HOST", "").lower() not in self._names:
            return 403, "this address is not the studio's"
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None:
            plain, name = origin.lower().startswith("http://"), urlsplit(origin).netloc.lower()
            if not plain or name not in self._names:
                return 403, "only pages of the studio may ask this"
        method, site = environ.get("REQUEST_METHOD", ""), environ.get("HTTP_SEC_FETCH_SITE")
        opens = method == "GET" and environ.get("HTTP_SEC_FETCH_DEST") == "document"  # a followed link
        if site not in (None, "same-origin", "none") and not opens:
            return 403, "only pages of the studio may ask this"
        if method not in ("GET", "HEAD") and origin is None and site is None:
            return 403, "only pages of the studio may ask this"
        try:
            size = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            return 400, "the length is not a number"
        if size > LARGEST_BYTES or size < 0 or environ.get("HTTP_TRANSFER_ENCODING"):
            return 413, f"a request has at most {LARGEST_BYTES / 2**20:.0f} MiB"
        return None

    def _knows(self, environ: Mapping[str, Any]) -> bool:
        try:
            cookies = SimpleCookie(environ.get("HTTP_COOKIE", ""))
        except CookieError:
            return False
        cookie = cookies.get(f"{_COOKIE}-{self.port}")
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.token.encode())

    def _with_headers(self, start: Any) -> Any:
        scripts = " ".join(self.scripts)
        policy = (
            f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        more = [
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ]

        def respond(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, *more], *rest)

        return respond


def _say(start: Any, status: int, line: str, headers: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    body = f"tspsim studio: {line}\n".encode() if line else b""
    words = f"{status} {http.HTTPStatus(status).phrase}"
    start(words, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
    return [body]
