"""How answers look: JSON for machines, tables for people. Rich is imported when a table is drawn, not before."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from assay.record.fold import fold
from assay.record.types import Answer, Paper, Result, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.record.lab import Progress

VERDICTS = {
    Verdict.REPRODUCED: ("✓", "green"),
    Verdict.DIRECTION: ("~", "yellow"),
    Verdict.NOT_REPRODUCED: ("✗", "red"),
    Verdict.NOT_MEASURED: ("·", "bright_black"),
    Verdict.BY_CONSTRUCTION: ("=", "bright_black"),
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead.")


WIDEST, LONGEST = 14, 30  # columns and rows of a table that people still read


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
    sign, colour = VERDICTS[Verdict(verdict)]
    return Text(f"{sign} {Verdict(verdict).value}", style=colour)


def number(value: Any) -> str:
    """A value for a person: four significant digits, thousands apart.

    >>> number(12345.678), number(0.000123456), number(True), number(None)
    ('12,346', '0.0001235', 'yes', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


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
            text, *map(str, (with_unit(answer.paper, answer.unit), with_unit(answer.measured, answer.unit))),
            _interval(answer.low, answer.high, answer.unit), share_text(answer), number(answer.n),
            verdict_text(answer.verdict),
            "–" if answer.verdict is Verdict.NOT_MEASURED else answer.evidence.value,
        )  # fmt: skip
    return table


def with_unit(value: float | None, unit: str) -> str:
    """A value of a claim for a person: changes and shares in per cent, ratios as factors, the rest with its unit.

    >>> with_unit(-0.92, "change"), with_unit(2.5, "ratio"), with_unit(0.935, "share"), with_unit(0.1, "s")
    ('−92 %', '2.5×', '93.5 %', '0.1 s')
    """
    if value is None:
        return "–"
    if unit in ("change", "share"):
        percent = f"{100 * value:{'+' if unit == 'change' else ''}.3g} %" if abs(value) < 10 else f"{100 * value:,.0f} %"
        return percent.replace("-", "−").removeprefix("+" if value == 0 else "")
    text = number(value).replace("-", "−")
    if unit == "ratio":
        return f"{text}×"
    return text if unit in ("", "exponent", "count") else f"{text} {unit}"


def _interval(low: float | None, high: float | None, unit: str) -> str:
    if low is None and high is None:
        return "–"
    ends = [with_unit(end, unit) if end is not None else sign for end, sign in ((low, "−∞"), (high, "∞"))]
    tail = next((tail for tail in (" %", "×", f" {unit}") if unit and all(end.endswith(tail) for end in ends)), "")
    return f"{ends[0].removesuffix(tail)} … {ends[1]}"


def share_text(answer: Answer) -> str:
    """The share of the effect in per cent with its interval; a dash where the sentence has no number."""
    if answer.share is None or not answer.stated:
        return "–"
    ends = ["?" if end is None else f"{100 * end:.0f}" for end in (answer.share_low, answer.share_high)]
    return f"{100 * answer.share:.0f} % ({ends[0]} … {ends[1]})".replace("-", "−")


def seeds_text(seeds: Sequence[int] | int) -> str:
    """Which seeds a result stands on.

    >>> seeds_text((0, 1, 2)), seeds_text((3, 17)), seeds_text((5,)), seeds_text(4), seeds_text(())
    ('seeds 0–2', 'seeds 3, 17', 'seed 5', '4 seeds', 'no seeds')
    """
    if isinstance(seeds, int):
        return f"{seeds} seeds"
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else "no seeds"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]}–{seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def summary_tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """A study's table with the seeds folded: one line a case, means of what was measured.

    A study of several experiments fills other columns in each: where they would not fit side by side, every set of
    filled columns is a table of its own. Long ones are cut; the JSON output has all.
    """
    case, measured, folded = fold(rows)
    parts: dict[tuple[bool, ...], list[Any]] = {}
    for row in folded:
        filled = tuple(value is not None for value in (*row.case, *row.means))
        parts.setdefault(filled if len(case) + len(measured) > WIDEST else (True,) * len(filled), []).append(row)
    return [_summary(case, measured, filled, part) for filled, part in parts.items()]


def _summary(case: Sequence[str], measured: Sequence[str], filled: Sequence[bool], rows: Sequence[Any]) -> Table:
    from rich.markup import escape

    table = quiet_table()
    names = [name for name, there in zip(case, filled, strict=False) if there]
    figures = [name for name, there in zip(measured, filled[len(case) :], strict=True) if there]
    for name in names:
        table.add_column(name.replace("_", " "))
    for name in ("seeds", *figures):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows[:LONGEST]:
        values = [value for value, there in zip((*row.case, *row.means), filled, strict=True) if there]
        shown = [escape(number(value)) for value in values]  # a name may hold brackets
        table.add_row(*shown[: len(names)], str(row.seeds), *shown[len(names) :])
    if len(rows) > LONGEST:
        table.add_row(f"… {len(rows) - LONGEST} more: --json")
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
