"""The decision memo: the content of one sheet of paper, and that sheet as HTML.

A :class:`Memo` is text alone. :func:`section` makes it a part of a longer page; :func:`sheet` is a page of its own,
without scripts, that prints on one sheet of A4 or Letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tspsim._version import __version__
from tspsim.report.page import _asset, _environment

#: Limits of the sheet: rows of the table, sentences below the verdict, characters of a sentence.
ROWS, REASONS, LENGTH = 8, 3, 180
#: Lines of the two columns below a full table, and characters of a line of each, on the narrower and the shorter paper.
LINES, LEFT, RIGHT = 13, 60, 46
#: Further lines of the columns for each row that the table is short of full.
LINES_A_ROW = 2

MEMO = r"""
<div class="memo">
<p class="kicker">{{ memo.kicker }}</p>
<{{ top }} class="memo-title">{{ memo.title }}</{{ top }}>
{% if memo.question %}<p class="description">{{ memo.question }}</p>{% endif %}
<div class="verdict {{ memo.standing }}"><p class="headline">{{ memo.verdict }}</p>
{% for sentence in memo.reasons %}<p>{{ sentence|prose }}</p>{% endfor %}</div>
{% if memo.tiles %}<dl class="tiles">{% for what, value, more in memo.tiles %}
<div><dt>{{ what }}</dt><dd>{{ value }}</dd><dd class="small">{{ more }}</dd></div>{% endfor %}</dl>{% endif %}
<table class="memo-table"><caption class="hidden">{{ memo.what }}</caption>
<thead><tr>{% for column in memo.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in memo.rows %}<tr{% if loop.first and memo.standing in ("sure", "likely") %} class="best"{% endif %}>
<th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ memo.columns[loop.index] }}"><span>{% for line in cell.split("\n") %}
{% if loop.first %}{{ line }}{% else %}<span class="small">{{ line }}</span>{% endif %}
{% endfor %}</span></td>{% endfor %}</tr>{% endfor %}</tbody></table>
{% if memo.note %}<p class="small">{{ memo.note }}</p>{% endif %}
<div class="memo-pair"><div>
{% for heading, sentences in memo.lists %}<h3>{{ heading }}</h3>
<ul>{% for sentence in sentences %}<li>{{ sentence|prose }}</li>{% endfor %}</ul>{% endfor %}
</div><div><h3>Basis</h3>
<dl class="memo-terms">{% for term, text in memo.terms %}<dt>{{ term }}</dt><dd>{{ text|prose }}</dd>{% endfor %}</dl>
</div></div>
<div class="signature"><div>Decided by</div><div>Approved by</div><div>Date</div></div>
<p class="small">{{ foot }}</p>
</div>
"""

BUTTON = """<p class="controls"><button type="button" id="print-memo">Print the memo alone</button></p>"""

_SHEET = """<!DOCTYPE html>
<html lang="en" data-theme="light" class="sheet">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} · decision memo</title>
<style>{{ style }}</style>
</head>
<body><main>{{ body }}</main></body>
</html>
"""


@dataclass(frozen=True)
class Memo:
    """Content of one sheet; ``standing`` is ``sure``, ``likely``, ``tie`` or ``open``."""

    title: str
    kicker: str
    question: str
    verdict: str
    standing: str
    #: Sentences below the verdict.
    reasons: Sequence[str]
    #: Name, value and range.
    tiles: Sequence[tuple[str, str, str]]
    #: Caption of the table; the first cell of a row is its name, and the second line of a cell is small.
    what: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Heading and sentences: what would change the decision, what to know.
    lists: Sequence[tuple[str, Sequence[str]]]
    #: Precision, stack, plan, prices and the like.
    terms: Sequence[tuple[str, str]]
    note: str = ""
    #: Meaning of ranges and probabilities.
    foot: str = field(default="Ranges hold nine times of ten.")

    def fitted(self) -> Memo:
        """The part of the memo that fits the sheet; a note counts the rows that are left out."""
        from dataclasses import replace

        left = len(self.rows) - ROWS
        note = f"{self.note} {left} more: on the page (--html).".strip() if left > 0 else self.note
        columns, rows = _filled(self.columns, self.rows[:ROWS])
        lines = LINES + LINES_A_ROW * (ROWS - len(rows))
        return replace(
            self,
            question=shortened(self.question, 2 * LENGTH),
            reasons=[shortened(sentence) for sentence in self.reasons[:REASONS]],
            columns=columns,
            rows=rows,
            note=note,
            lists=list(_lists(self.lists, lines)),
            terms=_terms([(what, text) for what, text in self.terms if text], lines),
        )


def _filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without empty columns."""
    kept = [index for index in range(len(columns)) if index == 0 or any(row[index] not in ("", "–") for row in rows)]
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _lists(lists: Sequence[tuple[str, Sequence[str]]], lines: int) -> Iterator[tuple[str, list[str]]]:
    """The sentences that fit the left column's lines, with a share for every list; headings take two lines."""
    filled = [(heading, sentences) for heading, sentences in lists if sentences]
    left = lines - 2 * (len(filled) - 1)
    for place, (heading, sentences) in enumerate(filled):
        room = left // (len(filled) - place)  # lines that a list leaves are for the next ones
        left -= room
        kept: list[str] = []
        for sentence in map(shortened, sentences):
            room -= _lines(sentence, LEFT)
            if room < 0 and kept:
                room += _lines(sentence, LEFT)
                break
            kept.append(sentence)
        left += max(0, room)
        yield heading, kept


def _terms(terms: Sequence[tuple[str, str]], lines: int) -> list[tuple[str, str]]:
    """Terms, all shortened to the same length, so that they fit the right column's lines."""
    for most in range(3 * LENGTH, RIGHT, -RIGHT // 2):
        cut = [(what, shortened(text, most)) for what, text in terms]
        if sum(_lines(text, RIGHT) for _, text in cut) <= lines:
            return cut
    return [(what, shortened(text, RIGHT)) for what, text in terms[:lines]]


def _lines(text: str, width: int) -> int:
    return -(-len(text) // width)


def shortened(text: str, most: int = LENGTH) -> str:
    """A text of at most ``most`` characters, cut between words.

    >>> shortened("one two three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rpartition(' ')[0]} …"


def values(memo: Memo, top: str) -> dict[str, Any]:
    """Values for :data:`MEMO`; ``top`` is the element of the heading."""
    foot = f"tspsim {__version__}, a simulation. {memo.foot} The page (--html) has every number with its source."
    return {"memo": memo.fitted(), "foot": foot, "top": top}


def section(memo: Memo) -> tuple[str, str, str, dict[str, Any]]:
    """The memo as a part of a longer page, with a button that prints it alone."""
    return "memo", "Decision memo", BUTTON + MEMO, {**values(memo, "h3"), "short": "Memo"}


def sheet(memo: Memo) -> str:
    """The memo as a page of its own."""
    from markupsafe import Markup

    environment = _environment()
    body = Markup(environment.from_string(MEMO).render(values(memo, "h1")))
    style = Markup("".join(map(_asset, ("page.css", "memo.css"))))
    return environment.from_string(_SHEET).render(title=memo.title, style=style, body=body)
