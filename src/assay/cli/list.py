"""`assay list`: every paper of the record."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import Any

import click

from assay.cli.output import COLOURS, json_option, paper_row, print_json
from assay.record.catalogue import is_built, papers
from assay.record.store import latest
from assay.record.types import ROOMS, Verdict
from assay.record.wording import SIGNS


@click.command(epilog="Example:  assay list --room kernels --built")
@click.option("--room", type=click.Choice(ROOMS), help="Only this room.")
@click.option("--built", is_flag=True, help="Only papers that can be run.")
@json_option
def command(room: str | None, built: bool, as_json: bool) -> None:
    """Every paper: key, room, title, whether it is built, how many of its claims were reproduced, evidence."""
    chosen = [p for p in papers().values() if room in (None, p.room) and (not built or is_built(p))]
    rows = []
    for paper in chosen:
        newest = latest(paper.key) if is_built(paper) else None
        rows.append(paper_row(paper, is_built(paper), newest[1] if newest else None))
    if as_json:
        print_json(rows)
        return
    _print(rows, built)


def _print(rows: list[dict[str, Any]], only_built: bool) -> None:
    """Plain aligned columns: laying out 134 rows with Rich takes longer than everything else together.

    A column that would be empty, or say the same of all, is left out.
    """
    measured = any(row["headline"] for row in rows)
    keys = max((len(row["key"]) for row in rows), default=3)
    after = ([] if only_built else [("built", 5)]) + ([("reproduced", 19), ("evidence", 8)] if measured else [])
    width = get_terminal_size((140, 24)).columns
    titles = max(20, width - keys - 13 - sum(2 + wide for _, wide in after))
    head = [("key", keys), ("room", 9), ("title", titles), *after]
    click.secho("  ".join(f"{name:<{wide}}" for name, wide in head).rstrip(), bold=True)
    for row in rows:
        title = row["title"] if len(row["title"]) <= titles else f"{row['title'][: titles - 1]}…"
        cells = {"built": f"{'yes' if row['built'] else '':<5}", "evidence": row["evidence"] or ""}
        cells["reproduced"] = _signs(row)
        said = [f"{row['key']:<{keys}}", f"{row['room']:<9}", f"{title:<{titles}}", *(cells[name] for name, _ in after)]
        click.echo("  ".join(said).rstrip())
    then = ", 'assay run KEY' measures it." if measured else "; none was measured here yet: 'assay run KEY' does."
    built = sum(row["built"] for row in rows)
    click.echo(f"\n{len(rows)} papers, {built} built. 'assay show KEY' explains one{then}")
    if measured:
        click.echo(f"A sign for each claim: {', '.join(f'{sign} {verdict.value}' for verdict, sign in SIGNS.items())}.")


def _signs(row: dict[str, Any]) -> str:
    """How many claims were reproduced, and a sign for the verdict on each."""
    verdicts = [Verdict(word) for word, count in row["tally"].items() for _ in range(count)]
    signs = "".join(click.style(SIGNS[verdict], fg=COLOURS[verdict]) for verdict in verdicts)
    return (row["headline"] or "").ljust(7) + signs + " " * (12 - len(verdicts))
