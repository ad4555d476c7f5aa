"""A launch command, as lines for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """A command with its files, and what it cannot express."""

    #: Words of the command.
    words: Sequence[str]
    #: Parts of the plan that the command cannot express.
    cannot: Sequence[str] = ()
    #: Name → text of files that are written before.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Variables of the environment, and their values.
    exports: Mapping[str, str] = field(default_factory=dict)
    #: Notes for whoever starts the command.
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Comments, files and the command, one flag per line."""
        lines = [f"# cannot be said here: {part}" for part in self.cannot]
        lines += [f"# {note}" for note in self.notes]
        for file, text in self.files.items():
            lines += [f"cat > {file} <<'EOF'", text.rstrip(), "EOF"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.exports.items()]
        return lines + wrapped(self.words)


def degree_flags(*pairs: tuple[str, int]) -> list[str]:
    """Flags of the degrees above one."""
    return [word for flag, degree in pairs if degree > 1 for word in (flag, str(degree))]


def wrapped(words: Sequence[str]) -> list[str]:
    """A command over several lines, one flag or script per line.

    >>> print("\\n".join(wrapped(["serve", "MODEL", "--size", "8"])))
    serve MODEL \\
      --size 8
    """
    lines: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if not lines or word.startswith("--") or word.endswith(".py"):
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    first, *rest = lines
    return " \\\n  ".join([first, *rest]).split("\n")
