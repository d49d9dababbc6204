"""Commands that judge one file of the user's and are no comparisons: a history, a profiler's trace.

Each is run as on the command line with `--json`, and what it prints is laid out like a comparison's answer.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from assay.record.errors import BadInput

LINES = {
    "check": "Which consistency models your history of operations keeps, and the few operations that break the others.",
    "trace": "Where the time of your profiler's trace goes: compute, exposed communication, copies, idle; who is late.",
}
ROOMS = {"check": "protocols", "trace": "observe"}
_SHOWN = {
    "check": ["model", "verdict", "reason"],
    "trace": ["rank", "step", "total", "compute", "exposed", "memcpy", "idle"],
}
_TABLES = {"check": "models", "trace": "breakdown"}


def found(name: str) -> click.Command:
    """The click command of this name."""
    command: click.Command = importlib.import_module(f"assay.cli.{name}").command
    return command


def answered(name: str, command: click.Command, words: list[str]) -> dict[str, Any]:
    """What the command says, as facts, a table and a sentence."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            context = command.make_context(name, [*words, "--json"])
            with context:
                command.invoke(context)
        except click.exceptions.Exit:
            pass  # 1: the check failed, which is an answer
        except click.ClickException as error:
            raise BadInput(error.format_message()) from error
    answer: dict[str, Any] = msgspec.json.decode(said.getvalue())
    rows = answer.pop(_TABLES[name])
    facts = {key: value for key, value in answer.items() if isinstance(value, str | int | float)}
    others = {key: value for key, value in answer.items() if _rows(value)}
    told: dict[str, Any] = {"input": facts} if facts else {}
    return told | others | {"table": rows, "shown": _SHOWN[name], "why": _why(name, rows, answer)}


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _why(name: str, rows: list[Mapping[str, Any]], answer: Mapping[str, Any]) -> str:
    if name == "check":
        holds = [row["model"] for row in rows if row["verdict"] == "holds"]
        first = next((row for row in rows if row["verdict"] == "violated"), None)
        kept = f"It keeps {', '.join(holds)}." if holds else "It keeps none of these models."
        return f"{kept} {first['model']} is violated: {first['reason']}." if first else kept
    whole = [row for row in rows if row["step"] is None] or rows
    exposed, total = (sum(row[key] for row in whole) for key in ("exposed", "total"))
    late = max(answer.get("stragglers") or [{"cost": 0.0, "rank": ""}], key=lambda row: row["cost"])
    held = f" Rank {late['rank']} costs the others {late['cost']:.3g} s by coming last." if late["cost"] else ""
    return f"{exposed / max(total, 1e-12):.0%} of the time is communication that nothing hides.{held}"
