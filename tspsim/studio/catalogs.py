"""Names that a page may use: entries of catalogs, files of the folder."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, html
from dash.exceptions import PreventUpdate

from ..base.errors import InputError
from . import formed
from .desks import TabProcesses
from .part import StudioPart


class Choices(StudioPart):
    """Suggestions for fields."""

    def join(self, app: Dash) -> None:
        """Bind the lists to the page's opening and to saved files."""
        app.callback(Output("offered", "children"), Input("saved", "children"), State("tab", "data"))(self.choices)

    def choices(self, saved: Any, tab: str) -> list[Any]:
        """The lists, made anew when a page opens or a file was saved."""
        if ctx.triggered_id is not None and not str(saved).startswith("saved"):
            raise PreventUpdate
        desk = self.desks.of(tab)
        with desk.listing:
            desk.own = None
        entries = offered(desk, described=True)
        scenarios = [html.Option(what, value=name) for name, what in dict(entries.get("scenarios", ())).items()]
        return [*formed.lists(entries), html.Datalist(scenarios, id="offered-scenarios")]


def offered(desk: TabProcesses, described: bool = False) -> dict[str, list[tuple[str, str]]]:
    """Entries of catalogs and files of the folder, by kind, with name and description (``described``: with figures as
    well, which may take a moment)."""
    with desk.listing:
        try:
            if desk.own is None:
                desk.own = desk.done("list", "folder")
            own = desk.own
        except InputError:
            return {}
    try:
        entries = desk.catalogs(described)
    except InputError:
        return {}
    return {kind: [*own[kind], *listed] for kind, listed in entries.items()}
