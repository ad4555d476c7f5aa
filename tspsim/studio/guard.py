"""Who may talk to the studio: this machine's own pages, and whoever knows the token.

A page from elsewhere can make a browser send requests to 127.0.0.1, and can give a name of its own that address. So
every request has to name the address that the studio listens at (``Host``), to come from one of its own pages
(``Origin``, ``Sec-Fetch-Site``), and to be of a size that a question may have. Answers tell the browser to load nothing
from elsewhere and to show the page in no frame.
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
    """Stands before an application.

    Parameters
    ----------
    inside
        The application.
    hosts
        Names and addresses by which it may be called, without the port.
    port
        Where it listens.
    token
        What who asks has to know; empty: nothing, for what only this machine reaches.
    scripts
        Hashes of the scripts in the page itself, as its policy names them.
    """

    inside: Application
    hosts: tuple[str, ...]
    port: int
    token: str = ""
    scripts: tuple[str, ...] = ()
    _names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = frozenset(f"{host}:{self.port}".lower() for host in self.hosts)

    def __call__(self, asked: Mapping[str, Any], start: Any) -> Iterable[bytes]:
        problem = self.problem(asked)
        if problem is not None:
            return _say(start, *problem)
        if self.token and not self._knows(asked):
            given = parse_qs(asked.get("QUERY_STRING", "")).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _say(start, 403, "state the token that the studio printed when it began: /?token=…")
            # The browser keeps the part of the address behind #, in which the question stands.
            cookie = f"{_COOKIE}-{self.port}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return _say(start, 303, "", [("Location", "/"), ("Set-Cookie", cookie)])
        return self.inside(asked, self._with_headers(start))

    def problem(self, asked: Mapping[str, Any]) -> tuple[int, str] | None:
        """Why a request is refused: a status and a line; None where it is not."""
        if asked.get("HTTP_HOST", "").lower() not in self._names:
            return 403, "this address is not the studio's"
        origin = asked.get("HTTP_ORIGIN")
        if origin is not None:
            plain, name = origin.lower().startswith("http://"), urlsplit(origin).netloc.lower()
            if not plain or name not in self._names:
                return 403, "only pages of the studio may ask this"
        method, site = asked.get("REQUEST_METHOD", ""), asked.get("HTTP_SEC_FETCH_SITE")
        opens = method == "GET" and asked.get("HTTP_SEC_FETCH_DEST") == "document"  # a link that somebody followed
        if site not in (None, "same-origin", "none") and not opens:
            return 403, "only pages of the studio may ask this"
        if method not in ("GET", "HEAD") and origin is None and site is None:
            return 403, "only pages of the studio may ask this"
        try:
            size = int(asked.get("CONTENT_LENGTH") or 0)
        except ValueError:
            return 400, "no such length"
        if size > LARGEST_BYTES or size < 0 or asked.get("HTTP_TRANSFER_ENCODING"):
            return 413, f"a request may have {LARGEST_BYTES / 2**20:.0f} MiB"
        return None

    def _knows(self, asked: Mapping[str, Any]) -> bool:
        try:
            cookies = SimpleCookie(asked.get("HTTP_COOKIE", ""))
        except CookieError:
            return False
        found = cookies.get(f"{_COOKIE}-{self.port}")
        return found is not None and hmac.compare_digest(found.value.encode(), self.token.encode())

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

        def told(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, *more], *rest)

        return told


def _say(start: Any, status: int, line: str, headers: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    body = f"tspsim studio: {line}\n".encode() if line else b""
    words = f"{status} {http.HTTPStatus(status).phrase}"
    start(words, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
    return [body]
