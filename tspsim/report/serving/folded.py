"""The table below a figure, folded."""

from __future__ import annotations

#: A template: ``rows`` are ``(name, cells)``, ``columns`` their headings.
FOLDED = """
<details><summary>The same as a table</summary><div class="scroll"><table class="plans tight">
  <thead><tr><th scope="col">{}</th>{{% for column in columns %}}<th scope="col">{{{{ column }}}}</th>{{% endfor %}}
  </tr></thead>
  <tbody>{{% for name, cells in rows %}}<tr><th scope="row">{{{{ name }}}}</th>{{% for cell in cells %}}
  <td data-label="{{{{ columns[loop.index0] }}}}">{{{{ cell }}}}</td>{{% endfor %}}</tr>{{% endfor %}}</tbody>
</table></div></details>
"""


def folded(what: str) -> str:
    """The template of a table with ``what`` as the heading of its rows."""
    return FOLDED.format(what)
