"""`assay feed`: what of an arXiv answer the record has, and what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record import feed
from assay.record.catalogue import papers
from assay.record.errors import BadInput


@click.command(epilog="Example:  curl -s 'https://export.arxiv.org/api/query?search_query=cat:cs.DC' | assay feed -")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--toml", "as_toml", is_flag=True, help="Print entries for papers.toml of what the record lacks.")
@json_option
def command(file: Path, as_toml: bool, as_json: bool) -> None:
    """Read an arXiv API answer (Atom XML, a FILE or - for standard input) beside the record."""
    matches = feed.match(_entries(file), papers().values())
    if as_toml:
        click.echo("\n".join(feed.as_toml([m for m in matches if m.key is None], papers())))
        return
    if as_json:
        rows = [(m.entry, {"known": m.key is not None, "key": m.key, "room": m.room, "closeness": m.closeness})
                for m in matches]  # fmt: skip
        print_json([{"arxiv": e.arxiv, "title": e.title, "published": e.published} | rest for e, rest in rows])
        return
    _print(matches)


def _entries(file: Path) -> list[feed.Entry]:
    if str(file) == "-":
        return feed.read(sys.stdin.buffer, "standard input")
    try:
        with file.open("rb") as stream:
            return feed.read(stream, str(file))
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error


def _print(matches: list[feed.Match]) -> None:
    table = quiet_table()
    for name in ("arXiv", "in the record", "room", "closeness", "title"):
        table.add_column(name, no_wrap=name != "title", justify="right" if name == "closeness" else "left")
    for m in matches:
        table.add_row(m.entry.arxiv, m.key or "", m.room, f"{m.closeness:.2f}", m.entry.title)
    screen = console()
    screen.print(table)
    known = sum(m.key is not None for m in matches)
    screen.print(f"\n{len(matches)} entries: {known} in the record, {len(matches) - known} not.")
