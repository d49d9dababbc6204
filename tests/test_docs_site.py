"""The documentation's site leaves no page out: `make docs` would stop at one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from assay.record.types import ROOMS

ROOT = Path(__file__).parents[1]


def leaves(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)}


def test_every_page_and_every_rooms_names_are_in_the_menu() -> None:
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")
    listed = leaves(yaml.safe_load(text)["nav"])
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    names = {f"api/{room}.md" for room in ROOMS if (ROOT / "src" / "assay" / room / "__init__.pyi").exists()}
    made = {"index.md", "contributing.md", "changelog.md", "commands.md", "gallery.md"}
    assert listed == pages | names | made
