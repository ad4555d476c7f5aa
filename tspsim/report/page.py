"""The page: its sections, with data, style, scripts and the plotly bundle inline."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from importlib import resources
from typing import TYPE_CHECKING, Any

from tspsim.step.result import Result

from ..base.memo import remembered
from .sections import SECTIONS
from .view import View

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: Name of the file whose question the page answers. The page has it in a ``meta`` element, so that another question of
#: the same name writes a page of its own.
QUESTION: ContextVar[str] = ContextVar("QUESTION", default="")
#: The page loads nothing; pictures that plotly makes of its own figures are data and blob.
_POLICY = "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"


def render(result: Result, plotly_js: str = "inline") -> str:
    """The whole page of a step (see :func:`tspsim.report.render`)."""
    view = View(result, ranked=True)
    figures: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    sections: list[tuple[str, str, str, Mapping[str, Any]]] = []
    for section in SECTIONS:
        values = section.build(view)
        if values is None:
            continue
        figures |= values.get("figures", {})
        payload |= values.get("payload", {})
        sections.append((section.key, section.title, section.template, {**values, "short": section.short}))
    return render_sections(
        sections,
        figures,
        title=view.name,
        plotly_js=plotly_js,
        styles=("page.css",),
        scripts=("timeline.js",),
        payload=payload,
    )


def render_sections(
    sections: Sequence[tuple[str, str, str, Mapping[str, Any]]],
    figures: dict[str, Any],
    *,
    title: str,
    plotly_js: str,
    styles: Sequence[str] = ("page.css", "comparison.css"),
    scripts: Sequence[str] = (),
    payload: Mapping[str, Any] | None = None,
) -> str:
    """A page of ``(key, heading, template, values)`` sections with their figures.

    ``styles`` are assets, ``scripts`` assets that run after the page's own; ``payload`` is data for them.
    ``plotly_js`` is as in :func:`render`.
    """
    from markupsafe import Markup

    environment = _environment()
    place = _placer(environment.get_template("figure.html").module, figures)
    bodies = [
        {
            "key": key,
            "title": heading,
            "short": values.get("short") or heading,
            "body": Markup(environment.from_string(text).render(values, figure=place)),
        }
        for key, heading, text, values in sections
    ]
    inline = plotly_js == "inline"
    return environment.get_template("page.html").render(
        title=title,
        question=QUESTION.get(),
        policy=_POLICY.format(scripts="'unsafe-inline'" if inline else "'self' file: 'unsafe-inline'"),
        sections=bodies,
        style=Markup("".join(map(_asset, styles))),
        scripts=[Markup(_asset(name)) for name in ("page.js", *scripts)],
        plotly=Markup(_bundle()) if inline else None,
        plotly_url=plotly_js,
        data=Markup(script_json({"figures": figures} | dict(payload or {}))),
    )


def script_json(data: Any) -> str:
    """JSON for a script element: without ``<``, ``>`` and ``&``, whatever the texts are.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def prose(text: object) -> Markup:
    """A sentence with the words between backticks as code.

    >>> prose("see `<plan>`")
    Markup('see <code>&lt;plan&gt;</code>')
    >>> prose("more with --budget.")
    Markup('more with <span style="white-space:nowrap">--budget</span>.')
    """
    from markupsafe import Markup, escape

    pieces = str(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    code = Markup("<code>{}</code>")
    parts = [_options(piece) for piece in pieces]
    return Markup("").join(code.format(part) if index % 2 else part for index, part in enumerate(parts))


def _options(text: str) -> Markup:
    """Text with unbreakable options of the command, which a browser breaks after their first hyphen."""
    from markupsafe import Markup, escape

    whole = Markup('<span style="white-space:nowrap">{}</span>')
    pieces = re.split(r"(?<![\w-])(--[a-z][a-z-]*)", text)
    return Markup("").join(whole.format(piece) if index % 2 else escape(piece) for index, piece in enumerate(pieces))


_LINKS = re.compile(
    r"https?://[^\s,;)]+"
    r"|arXiv:(?P<paper>[0-9]{4}\.[0-9]{4,5})"
    r"|(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@(?P<commit>[0-9a-f]{7,40})\b"
)


def sourced(text: object) -> Markup:
    """A source with links for its addresses, arXiv numbers and repositories at a commit.

    >>> sourced("arXiv:2407.21783, <3.3>")
    Markup('<a href="https://arxiv.org/abs/2407.21783" rel="noreferrer">arXiv:2407.21783</a>, &lt;3.3&gt;')
    """
    from markupsafe import Markup

    link, pieces, end = Markup('<a href="{}" rel="noreferrer">{}</a>'), Markup(), 0
    for match in _LINKS.finditer(plain := str(text)):
        address = match[0]
        if match["paper"]:
            address = f"https://arxiv.org/abs/{match['paper']}"
        elif match["repository"]:
            address = f"https://github.com/{match['repository']}/tree/{match['commit']}"
        pieces += plain[end : match.start()]
        pieces += link.format(address, match[0])
        end = match.end()
    return pieces + plain[end:]


def _placer(macros: Any, figures: dict[str, Any]) -> Any:
    """The macro ``figure(key, caption, chooser)``; empty for figures that do not exist."""

    def place(key: str, caption: str, chooser: str = "") -> Any:
        if key not in figures:
            return ""
        labels = [choice["label"] for choice in figures[key].get("choices", ())]
        return macros.figure(key, caption, chooser, labels)

    return place


@remembered(1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tspsim.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"prose": prose, "sourced": sourced}
    return environment


@remembered(16)
def _asset(name: str) -> str:
    return resources.files("tspsim.report").joinpath("assets", name).read_text(encoding="utf-8")


@remembered(1)
def _bundle() -> str:
    """The plotly bundle; it must not be able to end its own script element."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")
