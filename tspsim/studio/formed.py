"""A level of the form as components; every control is one that keyboards and screen readers know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dash_bootstrap_components as dbc
from dash import dcc, html

from . import values
from .levels import CATALOGS, Field, Level

#: Levels of so many keys show all of them at once.
FEW = 9
#: Keys of a section that are shown in the level above it.
MOST_WITHIN = 12
#: Kind of catalog → its entries and files: name, what it is.
Offered = Mapping[str, Sequence[tuple[str, str]]]


def identifier(kind: str, **more: str) -> str:
    """The id of a component that is found by a pattern, as it stands in the page."""
    return json.dumps({"type": kind, **more}, sort_keys=True, separators=(",", ":"))


def level(shown: Level, offered: Offered, below: Callable[[str], Level]) -> list[Any]:
    """Everything of a level: where it is, what it is, its keys.

    Parameters
    ----------
    below
        The level of a section or list that stands in this one: what is stated there is shown at once.
    """
    parts: list[Any] = [_crumbs(shown)]
    if shown.doc and shown.path:
        parts.append(html.P(_sentence(_plain(shown.doc)), className="doc"))
    if shown.kinds:
        parts.append(_kinds(shown))
    first = [each for each in shown.fields if each.required or each.stated or shown.entry is not None]
    more = [each for each in shown.fields if each not in first]
    if len(shown.fields) <= FEW:
        first, more = list(shown.fields), []
    for each in first:
        parts.append(_row(each, offered))
        if each.opened and each.value:
            parts.append(_within(below(each.path), offered))
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
        rows = [_row(each, offered) for each in more]
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
    told = {"aria-label": label} if label else {}
    if pressed is not None:
        told["aria-pressed"] = "true" if pressed else "false"
    return html.Button(words, id={"type": kind, **identity}, className=name, type="button", **told)


def _within(shown: Level, offered: Offered) -> Any:
    """What a section states, or the entries of a list, below the key that they stand under."""
    rows = [_row(each, offered) for each in shown.fields if each.stated][:MOST_WITHIN]
    if shown.entry is not None:
        rows.append(
            _button("add", f"Add to {shown.title}", "put", path=shown.path, what=f"add {json.dumps(shown.entry)}")
        )
    return html.Div(rows, className="within", role="group", **{"aria-label": shown.title})


def _row(field: Field, offered: Offered) -> Any:
    """A key: its name, its control, its documentation, and what can be done with it."""
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
    """What the entry is that a field names."""
    for kind in field.catalogs if isinstance(field.value, str) else ():
        what = dict(offered.get(kind, ())).get(field.value)
        if what:
            return f"{field.value}: {_sentence(what)}"
    return ""


def _about(field: Field) -> str:
    told = [_plain(field.doc)]
    if field.default:
        told.append(f"Default: {field.default}.")
    if field.example and field.number:
        told.append(f"Such as {field.example}.")
    return " ".join(filter(None, (_sentence(each) for each in told)))


def _plain(text: str) -> str:
    """Documentation without the marks of the program's own."""
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
        return chooser(name, [(each, each) for each in field.choices], now, nothing)
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
    """The browser's own list of choices, each ``(value, words)``; ``nothing`` is said of the choice of none."""
    told = [{"value": value, "label": words} for value, words in options]
    if nothing or not now:
        told.insert(0, {"value": "", "label": nothing or "choose"})
    if now and all(value != now for value, _ in options):
        told.append({"value": now, "label": now})
    return dbc.Select(id=name, options=told, value=now or "", className="input")


def list_of(catalogs: Sequence[str]) -> str:
    """The name of the list that offers the entries of some catalogs."""
    return "-".join(("offered", *catalogs))


def lists(offered: Offered) -> list[Any]:
    """What fields offer while somebody types: entries and files with what they are."""
    told = []
    for kinds in dict.fromkeys(CATALOGS.values()):
        entries = dict(entry for kind in kinds for entry in offered.get(kind, ()))
        told.append(html.Datalist([html.Option(what, value=name) for name, what in entries.items()], id=list_of(kinds)))
    return told


def _doors(field: Field) -> list[Any]:
    """What leads into a section or list, and out of the question again."""
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
    told = [f"{key}: {values.shown(value)}" for key, value in field.value.items() if key != "name"]
    words = ", ".join(told[:4])
    return (words[:57] + "…") if len(words) > 58 else words or "open"
