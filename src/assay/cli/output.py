"""How answers look: JSON for machines, tables for people. Rich is imported when a table is drawn, not before."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from assay.record.fold import folded
from assay.record.types import Answer, Paper, Result, Verdict
from assay.record.wording import SIGNS, interval_text, number, share_text, with_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.record.lab import Progress

COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.EXCEEDED: "magenta",
    Verdict.DIRECTION: "yellow",
    Verdict.NOT_REPRODUCED: "red",
    Verdict.NOT_MEASURED: "bright_black",
    Verdict.BY_CONSTRUCTION: "bright_black",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead.")
wide_option = click.option("--wide", is_flag=True, help="Show every column and row.")

WIDEST = 48  # characters of a cell that people still read


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


def claim_text(answer: Answer, *asides: str) -> Text:
    """A claim's sentence, and below it what is to be said of its answer."""
    from rich.text import Text

    text = Text(answer.text + ("" if answer.stated else " (assay's own question)"))
    for aside in filter(None, asides):
        label = "exceeded: " if aside is answer.exceeds else ""
        text.append(f"\n{label}{aside}", style="bright_black")
    return text


def claims_table(answers: Iterable[Answer], wide: bool = False) -> Table:
    """Claims with the paper's value, ours with its interval, and the verdict; `wide` adds the share and the count."""
    table = quiet_table()
    table.add_column("claim", ratio=1, overflow="fold")
    for name in ("paper", "measured", "interval", *(("share of effect", "n") if wide else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("verdict", "evidence"):
        table.add_column(name, no_wrap=True)
    for answer in answers:
        table.add_row(
            claim_text(answer, answer.cases, answer.construction, answer.exceeds, answer.note),
            with_unit(answer.paper, answer.unit), with_unit(answer.measured, answer.unit),
            interval_text(answer.low, answer.high, answer.unit),
            *((share_text(answer), number(answer.n)) if wide else ()),
            verdict_text(answer.verdict),
            "–" if answer.verdict is Verdict.NOT_MEASURED else answer.evidence.value,
        )  # fmt: skip
    return table


def claims_plot(answers: Iterable[Answer], width: int) -> list[str]:
    """The claims drawn, in what this terminal can show."""
    from assay.record import dots

    return dots.lines(answers, width, dots.signs(sys.stdout.encoding))


def full_size_lines(result: Result) -> list[str]:
    """Where the study at full size, run once, came to another verdict than this result."""
    from assay.record import full_size

    kept = full_size.runs().get(result.key)
    return [
        f"At full size ({kept.where}) '{answer.id}' is {answer.verdict.value}: "
        f"{with_unit(answer.measured, answer.unit)} ({interval_text(answer.low, answer.high, answer.unit)})"
        f"{f'; {answer.exceeds}' if answer.exceeds else '.'}"
        for answer in full_size.contradictions(result).values()
        if kept is not None
    ]


def headline_tables(result: Result, about: frozenset[Any]) -> Iterator[tuple[Table, str]]:
    """The part of each table that people read first, and a line that says what was left out.

    `about` is what the claims name: it decides which columns and cases come first.
    """
    from assay.record.headline import ROWS, headline

    for name, table in folded(result).items():
        first = headline(table, about)
        rows = [dict(zip(first.columns, row, strict=True)) for row in first.rows[:ROWS]]
        left_out = []
        if first.everywhere:
            same = (f"{column.replace('_', ' ')} {number(value)}" for column, value in first.everywhere.items())
            left_out.append(f"everywhere: {', '.join(same)}")
        if first.over:
            left_out.append(f"means over {', '.join(first.over).replace('_', ' ')}")
        more = [f"all {first.cases} rows"] if first.cases > len(rows) else []
        more += [f"{first.hidden} more column{'s' if first.hidden > 1 else ''}"] if first.hidden else []
        if more:
            left_out.append(f"--wide has {' and '.join(more)}")
        yield plain_table(rows, first.columns, name), "; ".join(left_out)


def wide_tables(result: Result) -> Iterator[Table]:
    """All of a study's tables with the seeds folded: one line a case, means of what was measured."""
    for name, table in folded(result).items():
        columns = (*table.case, "seeds", *table.measured)
        rows = [dict(zip(columns, (*row.case, row.seeds, *row.means), strict=True)) for row in table.rows]
        yield plain_table(rows, columns, name)


def print_whole(table: Table) -> None:
    """Print a table as wide as it is: squeezed into the screen, names of many columns could not be read."""
    from rich.console import Console

    Console(width=10_000, highlight=False).print(table, crop=False)


def plain_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], name: str = "", units: Mapping[str, str] | None = None
) -> Table:
    """Rows as a table: words to the left, numbers to the right, long texts cut; units below the names of columns."""
    from rich.markup import escape

    table, below = quiet_table(), {name: unit for name, unit in (units or {}).items() if name in columns}
    table.title, table.title_justify = (escape(name.replace("-", " ")) or None), "left"
    for column in columns:
        words = any(isinstance(row[column], str) for row in rows)
        head = column.replace("_", " ") + (f"\n{escape(below.get(column, ''))}" if below else "")
        table.add_column(head, justify="left" if words else "right")
    for row in rows:
        cells = (number(row[column]) for column in columns)
        table.add_row(*(escape(cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…") for cell in cells))
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
