"""What tests of the workbench in a browser share: marks, waiting for answers, dropping files, pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.record.doctor import browser as find_browser
from tests.web.conftest import until

BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine; apt-get install chromium"),
]
Open = Callable[..., Any]


def shot(page: Any, name: str, width: int = 900, height: int = 560) -> None:
    """A small picture for the documentation, where they are asked for."""
    if folder := os.environ.get("ASSAY_SHOTS"):
        before = page.viewport_size
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=Path(folder) / f"{name}.png")
        page.set_viewport_size(before)


def at_rest(page: Any) -> None:
    page.wait_for_selector(".result[aria-busy=false]")


def answers(page: Any, at_least: int) -> None:
    """Wait until so many answers have been shown."""
    until(lambda: int(page.get_attribute(".told", "data-answers") or 0) >= at_least)
    at_rest(page)


def drop(page: Any, path: Path) -> None:
    """Drop a file onto the page, as from a folder's window."""
    data = page.evaluate_handle(
        """([name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name));
            return data;
        }""",
        [path.name, path.read_text()],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
