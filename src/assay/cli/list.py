"""`assay list`: every paper of the record."""

from __future__ import annotations

import click

from assay.cli.output import console, json_option, print_json, verdict_text
from assay.record.catalogue import is_built, papers
from assay.record.store import latest
from assay.record.types import ROOMS, Paper


@click.command(epilog="Example:  assay list --room kernels --built")
@click.option("--room", type=click.Choice(ROOMS), help="Only this room.")
@click.option("--built", is_flag=True, help="Only papers that can be run.")
@json_option
def command(room: str | None, built: bool, as_json: bool) -> None:
    """Every paper: key, room, title, whether it is built, its latest verdict and evidence."""
    chosen = [p for p in papers().values() if room in (None, p.room) and (not built or is_built(p))]
    rows = [_row(paper) for paper in chosen]
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("key", "room", "title", "built", "verdict", "evidence"):
        table.add_column(name, no_wrap=name != "title", overflow="ellipsis" if name == "title" else "fold")
    for row in rows:
        table.add_row(
            str(row["key"]), str(row["room"]), str(row["title"]), "yes" if row["built"] else "",
            verdict_text(row["verdict"]) if row["built"] else "", str(row["evidence"] or ""),
        )  # fmt: skip
    screen = console()
    screen.print(table)
    screen.print(f"\n{len(rows)} papers, {sum(bool(r['built']) for r in rows)} built. 'assay show KEY' explains one.")


def _row(paper: Paper) -> dict[str, object]:
    built = is_built(paper)
    newest = latest(paper.key) if built else None
    result = newest[1] if newest else None
    headline = result.headline if result else None
    return {
        "key": paper.key,
        "room": paper.room,
        "title": paper.title,
        "arxiv": paper.arxiv,
        "built": built,
        "line": paper.line,
        "verdict": headline.verdict if headline else None,
        "evidence": result.evidence if result else None,
        "tally": result.tally if result else {},
    }
