"""What the wheel holds beside the package and its catalogs: the pages that ``tspsim docs`` searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface):
    """Every page of ``docs``, without their scripts, pictures and tables."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # read where they lie
            return
        pages = sorted(Path(self.root, "docs").glob("*.md"))
        build_data["force_include"] |= {str(page): f"tspsim/_docs/{page.name}" for page in pages}
