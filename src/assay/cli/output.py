"""How answers look: JSON for machines, tables for people. Rich is imported when a table is drawn, not before."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from assay.record.fold import Folded, folded
from assay.record.types import Answer, Paper, Result, Verdict
from assay.record.wording import SIGNS, interval_text, number, share_text, with_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.record.lab import Progress

COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.DIRECTION: "yellow",
    Verdict.NOT_REPRODUCED: "red",
    Verdict.NOT_MEASURED: "bright_black",
    Verdict.BY_CONSTRUCTION: "bright_black",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead.")


LONGEST = 30  # rows of a table that people still read


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def console() -> Console:
    """The screen; a pipe gets lines wide enough to be read or searched."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def paper_row(paper: Paper, built: bool, result: Result | None) -> dict[str, Any]:
    """A paper and its latest verdict, as JSON rows of `list` and `record` begin."""
    return {
        "key": paper.key,
        "room": paper.room,
        "title": paper.title,
        "arxiv": paper.arxiv,
        "built": built,
        "line": paper.line,
        "headline": result.headline if result else None,
        "evidence": result.evidence if result else None,
        "tally": result.tally if result else {},
    }


def quiet_table() -> Table:
    """A table without lines: alignment is enough."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold")


def verdict_text(verdict: Verdict | str | None) -> Text:
    """A verdict with its sign and colour."""
    from rich.text import Text

    if verdict is None:
        return Text("–", style="bright_black")
    found = Verdict(verdict)
    return Text(f"{SIGNS[found]} {found.value}", style=COLOURS[found])


def claims_table(answers: Iterable[Answer]) -> Table:
    """Claims with the paper's value, ours with its interval, and the verdict."""
    from rich.text import Text

    table = quiet_table()
    table.add_column("claim", ratio=1, overflow="fold")
    for name in ("paper", "measured", "interval", "share of effect", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    for answer in answers:
        text = Text(answer.text + ("" if answer.stated else " (assay's own question)"))
        for aside in (answer.cases, answer.construction, answer.note):
            if aside:
                text.append(f"\n{aside}", style="bright_black")
        table.add_row(
            text, with_unit(answer.paper, answer.unit), with_unit(answer.measured, answer.unit),
            interval_text(answer.low, answer.high, answer.unit), share_text(answer), number(answer.n),
            verdict_text(answer.verdict),
            "–" if answer.verdict is Verdict.NOT_MEASURED else answer.evidence.value,
        )  # fmt: skip
    return table


def full_size_lines(result: Result) -> list[str]:
    """Where the study at full size, run once, came to another verdict than this result."""
    from assay.record import full_size

    kept = full_size.runs().get(result.key)
    return [
        f"At full size ({kept.started[:10]}, {kept.machine}) '{answer.id}' is {answer.verdict.value}: "
        f"{with_unit(answer.measured, answer.unit)} ({interval_text(answer.low, answer.high, answer.unit)})."
        for answer in full_size.contradictions(result).values()
        if kept is not None
    ]


def summary_tables(result: Result) -> list[Table]:
    """A study's tables with the seeds folded: one line a case, means of what was measured.

    Long ones are cut; the JSON output has all.
    """
    return [_summary(name, table) for name, table in folded(result).items()]


def _summary(name: str, folded: Folded) -> Table:
    from rich.markup import escape

    table = quiet_table()
    table.title, table.title_justify = (escape(name.replace("-", " ")) or None), "left"
    for column in folded.case:
        table.add_column(column.replace("_", " "))
    for column in ("seeds", *folded.measured):
        table.add_column(column.replace("_", " "), justify="right")
    for row in folded.rows[:LONGEST]:
        shown = [escape(number(value)) for value in (*row.case, row.seeds, *row.means)]  # a name may hold brackets
        table.add_row(*shown)
    if len(folded.rows) > LONGEST:
        table.add_row(f"… {len(folded.rows) - LONGEST} more: --json")
    return table


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """A bar on the error stream, so that standard output stays clean; silent where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (*rich_progress.Progress.get_default_columns(), rich_progress.TimeElapsedColumn())
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
