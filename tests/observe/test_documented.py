"""The commands of this room that pages and papers show run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented import check, commands, place

__all__ = ["place"]  # a fixture


@pytest.mark.parametrize("command", commands("observe"))
def test_it_runs_as_it_is_written(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(command, place, monkeypatch)
