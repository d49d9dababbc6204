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
    _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    """Plain aligned columns: laying out 134 rows with Rich takes longer than everything else together."""
    width = get_terminal_size((140, 24)).columns
    keys = max((len(row["key"]) for row in rows), default=3)
    titles = max(20, width - keys - 11 - 7 - 20 - 10)
    header = f"{'key':<{keys}}  {'room':<9}  {'title':<{titles}}  {'built':<5}  {'reproduced':<19}  evidence"
    click.secho(header, bold=True)
    for row in rows:
        title = row["title"] if len(row["title"]) <= titles else f"{row['title'][: titles - 1]}…"
        verdicts = [Verdict(word) for word, count in row["tally"].items() for _ in range(count)]
        signs = "".join(click.style(SIGNS[verdict], fg=COLOURS[verdict]) for verdict in verdicts)
        said = (row["headline"] or "").ljust(7) + signs + " " * (12 - len(verdicts))
        line = f"{row['key']:<{keys}}  {row['room']:<9}  {title:<{titles}}  {'yes' if row['built'] else '':<5}  {said}"
        click.echo(f"{line}  {row['evidence'] or ''}".rstrip())
    click.echo(f"\n{len(rows)} papers, {sum(row['built'] for row in rows)} built. 'assay show KEY' explains one.")
