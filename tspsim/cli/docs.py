"""``tspsim docs``: search the documentation that is installed with the package; no network is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import click

from ..base.errors import InputError, nearest, printable

#: Sections that a search shows, and characters of each.
MOST_SECTIONS, MOST_CHARACTERS = 6, 700
#: Weight of a word in a heading, against one in the text.
OF_A_HEADING = 8

_HEADING = re.compile(r"(?m)^(#{1,4}) +(.+?)\s*$")
_FENCE = re.compile(r"(?ms)^```.*?^```\s*$")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MOVED = re.compile(r'<a id="[\w-]+"></a>')


@dataclass(frozen=True)
class PageSectionText:
    """A section of a page, or the text before its first heading."""

    page: str
    heading: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor of links to it: lower case, blanks as dashes, other signs left out.

        >>> PageSectionText("a.md", "Dead links, slow GPUs", "").anchor
        'dead-links-slow-gpus'
        """
        return re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")

    @property
    def place(self) -> str:
        return f"{self.page}#{self.anchor}" if self.heading else self.page

    def weight(self, words: list[str]) -> float:
        """How much the section says of the words; zero where it lacks one."""
        heading, text = self.heading.lower(), self.text.lower()
        page = Path(self.page).stem
        counts = [
            OF_A_HEADING * heading.count(word) + OF_A_HEADING * (word == page) + text.count(word) for word in words
        ]
        return 0.0 if 0 in counts else sum(counts) / (len(self.text) + 400.0)

    def about(self, words: list[str]) -> str:
        """Its paragraph with most of the words."""
        paragraphs = [part.strip() for part in re.split(r"\n\s*\n", self.text) if part.strip()] or [""]
        best = max(paragraphs, key=lambda part: sum(word in part.lower() for word in words))
        if best.startswith("|"):  # of a table, the rows with the words
            rows = best.splitlines()
            best = "\n".join([rows[0], *(row for row in rows[2:] if any(word in row.lower() for word in words))])
        return best if len(best) <= MOST_CHARACTERS else best[:MOST_CHARACTERS].rsplit(" ", 1)[0] + " …"


def folder() -> Path:
    """Where the pages lie: in the installed package, else in the checkout."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_docs"
    return shipped if shipped.is_dir() else package.parent / "docs"


def pages() -> dict[str, str]:
    """Name → text of every page written by hand or generated, in order of names."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder().glob("*.md"))}


def parts(page: str, text: str) -> list[PageSectionText]:
    """A page cut at its headings; a line of code that begins with # is no heading."""
    hidden = _FENCE.sub(lambda fence: re.sub(r"(?m)^#", "\0", fence[0]), text)
    headings = list(_HEADING.finditer(hidden))
    ends = [heading.start() for heading in headings[1:]] + [len(hidden)]
    cut = [PageSectionText(page, "", hidden[: headings[0].start()] if headings else hidden)]
    cut += [
        PageSectionText(page, match[2], hidden[match.end() : end]) for match, end in zip(headings, ends, strict=True)
    ]
    whole = [PageSectionText(part.page, part.heading, part.text.replace("\0", "#").strip()) for part in cut]
    return [part for part in whole if part.heading or part.text]


def search(words: list[str]) -> list[PageSectionText]:
    """Sections that have every word, in order of weight."""
    lower = [word.lower() for word in words]
    weighted = [(part.weight(lower), part) for name, text in pages().items() for part in parts(name, text)]
    return [part for weight, part in sorted(weighted, key=lambda pair: -pair[0]) if weight > 0.0]


def section(place: str) -> str:
    """A page, or its section with an anchor (``stacks.md#engines``); raises InputError where there is none."""
    name, _, anchor = place.removeprefix("docs/").partition("#")
    every = pages()
    if name not in every:
        near = nearest(name, every)
        raise InputError(f"no such page{f' (did you mean {near}?)' if near else ''}", file=name)
    if not anchor:
        return every[name]
    for part in parts(name, every[name]):
        if part.anchor == anchor or f'<a id="{anchor}"></a>' in part.text:
            return f"## {part.heading}\n\n{part.text}"
    raise InputError(f"has no section '{anchor}'", file=name)


def plain(text: str) -> str:
    """Markdown as a terminal shows it: links as their words, without anchors of moved sections."""
    return _MOVED.sub("", _LINK.sub(r"\1", text))


def _contents() -> str:
    """Every page with its title."""
    titles = {
        name: next((part.heading for part in parts(name, text) if part.heading), "") for name, text in pages().items()
    }
    width = max(map(len, titles), default=0)
    return "\n".join(f"{name:<{width}}  {plain(title)}" for name, title in titles.items())


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD...]")
def docs(words: tuple[str, ...]) -> None:
    """Search the documentation for WORDs, or print a page (PAGE.md) or a section of one (PAGE.md#SECTION).

    Without words the pages are listed. Everything ships with the package.
    """
    if not words:
        click.echo(_contents())
        return
    if len(words) == 1 and (words[0].endswith(".md") or ".md#" in words[0]):
        _echo(section(words[0]))
        return
    sections = search(list(words))
    if not sections:
        vocabulary = {word.lower() for text in pages().values() for word in re.findall(r"[\w-]{4,}", text)}
        near = [
            match
            for word in words
            if word.lower() not in vocabulary and (match := nearest(word, vocabulary)) is not None
        ]
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise InputError(f"nothing in the documentation{hint}", file=" ".join(words))
    lower = [word.lower() for word in words]
    for part in sections[:MOST_SECTIONS]:
        click.echo(click.style(f"{part.place}", bold=True) + (f"  {plain(part.heading)}" if part.heading else ""))
        _echo(part.about(lower), "  ")
        click.echo("")
    more = len(sections) - MOST_SECTIONS
    click.echo(f"{f'{more:,} sections more; ' if more > 0 else ''}tspsim docs {sections[0].place} prints the first")


def _echo(text: str, indent: str = "") -> None:
    for line in plain(text).splitlines():
        click.echo(f"{indent}{printable(line)}")
