"""A level of the form as components; keyboards and screen readers reach every control."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dash_bootstrap_components as dbc
from dash import dcc, html

from . import values
from .levels import CATALOGS, Field, Level

#: A level of at most as many keys shows all of them at once.
FEW = 9
#: Most keys of a section that the level above shows.
MOST_WITHIN = 12
#: Kind of catalog → its entries and files: name, description.
Offered = Mapping[str, Sequence[tuple[str, str]]]


def identifier(kind: str, **more: str) -> str:
    """The id of a component with a pattern, as it is written in the page."""
    return json.dumps({"type": kind, **more}, sort_keys=True, separators=(",", ":"))


def level(shown: Level, offered: Offered, below: Callable[[str], Level]) -> list[Any]:
    """All components of a level: its place, its documentation, its keys.

    Parameters
    ----------
    below
        The level of a section or list within this one, whose stated keys are shown at once.
    """
    parts: list[Any] = [_crumbs(shown)]
    if shown.doc and shown.path:
        parts.append(html.P(_sentence(_plain(shown.doc)), className="doc"))
    if shown.kinds:
        parts.append(_kinds(shown))
    first = [one for one in shown.fields if one.required or one.stated or shown.entry is not None]
    more = [one for one in shown.fields if one not in first]
    if len(shown.fields) <= FEW:
        first, more = list(shown.fields), []
    for one in first:
        parts.append(_row(one, offered))
        if one.opened and one.value:
            parts.append(_within(below(one.path), offered))
    if shown.entry is not None:
        parts.append(_button("add", "Add one", "put", path=shown.path, what=f"add {json.dumps(shown.entry)}"))
    if shown.free:
        parts.append(
            html.Div(
                [
                    html.Label("A key of any name", htmlFor=identifier("free", path=shown.path)),
                    dcc.Input(
                        id={"type": "free", "path": shown.path},
                        type="text",
                        debounce=True,
                        className="input",
                        autoComplete="off",
                    ),
                ],
                className="row",
            )
        )
    if more:
        rows = [_row(one, offered) for one in more]
        parts.append(html.Details([html.Summary(f"{len(more)} more keys"), *rows], open=not first, className="more"))
    return parts


def _crumbs(shown: Level) -> Any:
    """The way to this level; each step back is a button."""
    steps = [_button("crumb", title, "go", path=path) for path, title in shown.above]
    return html.Nav(
        [*steps, html.H2(shown.title, id="level-title", tabIndex=-1)], **{"aria-label": "Place in the question"}
    )


def _kinds(shown: Level) -> Any:
    return html.Div(
        [
            html.Span("kind", className="label"),
            *(
                _button(
                    "kind on" if name == shown.kind else "kind",
                    name,
                    "put",
                    pressed=name == shown.kind,
                    path=shown.path,
                    what=f"kind {json.dumps(begun)}",
                )
                for name, begun in shown.kinds
            ),
        ],
        className="kinds",
        role="group",
        **{"aria-label": "Kind"},
    )


def _button(name: str, words: str, kind: str, *, label: str = "", pressed: bool | None = None, **identity: str) -> Any:
    attributes = {"aria-label": label} if label else {}
    if pressed is not None:
        attributes["aria-pressed"] = "true" if pressed else "false"
    return html.Button(words, id={"type": kind, **identity}, className=name, type="button", **attributes)


def _within(shown: Level, offered: Offered) -> Any:
    """The stated keys of a section, or the entries of a list, below its own key."""
    rows = [_row(one, offered) for one in shown.fields if one.stated][:MOST_WITHIN]
    if shown.entry is not None:
        rows.append(
            _button("add", f"Add to {shown.title}", "put", path=shown.path, what=f"add {json.dumps(shown.entry)}")
        )
    return html.Div(rows, className="within", role="group", **{"aria-label": shown.title})


def _row(field: Field, offered: Offered) -> Any:
    """A key: its name, control and documentation, and its buttons."""
    state = "row stated" if field.stated else "row"
    control: list[Any] = []
    if field.typed and not field.opened:
        control.append(_control(field))
    control += _doors(field)
    needed = [html.Span("required", className="tag")] if field.required else []
    head: Any
    if field.typed and not field.opened:
        head = html.Label([field.title, *needed], htmlFor=identifier("field", path=field.path))
    else:
        head = html.Span([field.title, *needed], className="label")
    about = " ".join(filter(None, (_about(field), _named(field, offered))))
    return html.Div(
        [head, html.Div(control, className="control"), *([html.P(about, className="doc")] if about else [])],
        className=state,
        **{"data-path": field.path},
    )


def _named(field: Field, offered: Offered) -> str:
    """The description of the entry that a field names."""
    for kind in field.catalogs if isinstance(field.value, str) else ():
        what = dict(offered.get(kind, ())).get(field.value)
        if what:
            return f"{field.value}: {_sentence(what)}"
    return ""


def _about(field: Field) -> str:
    texts = [_plain(field.doc)]
    if field.default:
        texts.append(f"Default: {field.default}.")
    if field.number and field.example not in ("", field.default):
        texts.append(f"Such as {field.example}.")
    return " ".join(filter(None, (_sentence(text) for text in texts)))


def _plain(text: str) -> str:
    """Documentation without markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "").replace("`", "")


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    text = text[:1].upper() + text[1:] if not text.startswith("--") else text
    return text if text.endswith((".", ":", "…")) else f"{text}."


def _control(field: Field) -> Any:
    name = {"type": "field", "path": field.path}
    now = values.shown(field.value)
    if field.choices:
        nothing = "" if field.required else f"default: {field.default}" if field.default else "not stated"
        return chooser(name, [(choice, choice) for choice in field.choices], now, nothing)
    return dcc.Input(
        id=name,
        type="text",
        value=now,
        className="input",
        placeholder=field.default or ("type to search" if field.catalogs else ""),
        autoComplete="off",
        spellCheck="false",
        list=list_of(field.catalogs) if field.catalogs else None,
    )


def chooser(name: Any, options: Sequence[tuple[str, str]], now: str | None, nothing: str = "") -> Any:
    """The browser's own list of choices, each ``(value, words)``; ``nothing`` is the text of the empty choice."""
    choices = [{"value": value, "label": words} for value, words in options]
    if nothing or not now:
        choices.insert(0, {"value": "", "label": nothing or "choose"})
    if now and all(value != now for value, _ in options):
        choices.append({"value": now, "label": now})
    return dbc.Select(id=name, options=choices, value=now or "", className="input")


def list_of(catalogs: Sequence[str]) -> str:
    """The id of the list with the entries of some catalogs."""
    return "-".join(("offered", *catalogs))


def lists(offered: Offered) -> list[Any]:
    """Suggestions for fields: entries and files with descriptions."""
    datalists = []
    for kinds in dict.fromkeys(CATALOGS.values()):
        entries = dict(entry for kind in kinds for entry in offered.get(kind, ()))
        datalists.append(
            html.Datalist([html.Option(what, value=name) for name, what in entries.items()], id=list_of(kinds))
        )
    return datalists


def _doors(field: Field) -> list[Any]:
    """Buttons into a section or list, and for its removal."""
    doors: list[Any] = []
    if field.opened:
        count = len(field.value)
        words = f"{count} {'entry' if count == 1 else 'entries'}" if isinstance(field.value, list) else _summary(field)
        doors.append(_button("open", words, "go", label=f"Open {field.title}: {words}", path=field.path))
    elif field.sections:
        words = "as a section" if field.typed else "open"
        doors.append(_button("open", words, "go", label=f"Open {field.title}", path=field.path))
    if field.stated and (field.opened or not field.typed) and not field.required:
        doors.append(_button("remove", "remove", "put", label=f"Remove {field.title}", path=field.path, what="remove"))
    return doors


def _summary(field: Field) -> str:
    """The first keys of a section in a line."""
    stated = [f"{key}: {values.shown(value)}" for key, value in field.value.items() if key != "name"]
    words = ", ".join(stated[:4])
    return (words[:57] + "…") if len(words) > 58 else words or "open"
