"""`assay compare serving` in this process, where the engine is compiled already."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

import pytest

from assay.cli.main import main


def run(*arguments: object, code: int = 0) -> str:
    """What the command prints: its output, or its error stream where it is to fail."""
    out, err = io.StringIO(), io.StringIO()
    old = sys.argv
    sys.argv = ["assay", "compare", "serving", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = old
    assert (ended.value.code or 0) == code, out.getvalue() + err.getvalue()
    return err.getvalue() if code else out.getvalue()


def answer(*arguments: object) -> dict[str, Any]:
    """The same as JSON."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def one_line(text: str) -> str:
    """The only line there is."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]
