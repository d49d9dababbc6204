"""`assay feed`: which papers of a listing the record holds, which are new, and a draft of entries for those."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click

from assay.cli.output import COLOURS, json_option, print_json
from assay.record import feed
from assay.record.catalogue import is_built, papers
from assay.record.errors import BadInput, unreadable
from assay.record.store import latest, write_whole
from assay.record.types import Verdict
from assay.record.wording import SIGNS


@click.command(epilog="Example:  assay feed examples/listing.bib")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--draft",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write entries for papers.toml of the papers that are new to FILE; - prints them instead of the table.",
)
@json_option
def command(files: tuple[Path, ...], draft: Path | None, as_json: bool) -> None:
    """Say which papers of a listing the record holds, with their verdicts, and which are new.

    FILES are what people have: the arXiv API's Atom, RSS, a saved listing page as HTML or as plain text, BibTeX, a
    list of arXiv numbers; - is standard input. The content tells the format. Nothing is downloaded.
    """
    if draft is not None and str(draft) != "-" and draft.exists():
        raise BadInput(f"--draft {draft}: the file exists; name another")
    listings = [_listing(file) for file in files]
    found = feed.match(feed.distinct(e for listing in listings for e in listing.entries), papers().values())
    new = [match for match in found if match.key is None]
    drafted = "\n".join(feed.as_toml(new, papers()))
    if draft is not None and str(draft) == "-":
        click.echo(drafted, nl=False)
        return
    rows = [_row(match) for match in found]
    if as_json:
        print_json(rows)
    else:
        _print(listings, rows)
    if draft is not None and new:
        write_whole(draft, drafted.encode())
        click.echo(f"{draft}: a draft of {_papers(len(new))}; write the lines and the claims", err=as_json)


def _listing(file: Path) -> feed.Listing:
    if str(file) == "-":
        return feed.read(sys.stdin.buffer, "standard input")
    try:
        with file.open("rb") as stream:
            return feed.read(stream, str(file))
    except OSError as error:
        raise unreadable(file, error) from error


def _row(match: feed.Match) -> dict[str, Any]:
    """A paper of the listing and what the record says of it."""
    entry, known = match.entry, papers().get(match.key or "")
    newest = latest(known.key) if known and is_built(known) else None
    return {
        "arxiv": entry.arxiv or (known.arxiv if known else None) or None,
        "title": entry.title or (known.title if known else None),
        "published": entry.published or None,
        "known": known is not None,
        "key": match.key,
        "room": match.room if known or match.closeness else None,
        "closeness": match.closeness,
        "built": known is not None and is_built(known),
        "headline": newest[1].headline if newest else None,
        "tally": newest[1].tally if newest else {},
    }


def _print(listings: list[feed.Listing], rows: list[dict[str, Any]]) -> None:
    """Plain aligned columns, as `assay list` has them: those of the record first, then the new ones, closest first."""
    for listing in listings:
        click.echo(f"{listing.name}: {listing.format}, {_papers(len(listing.entries))}")
    width = get_terminal_size((140, 24)).columns
    keys = max([len(row["key"] or "") for row in rows] + [3])
    titles = max(20, width - keys - 14 - 11 - 19 - 4)
    click.secho(f"\n{'arXiv':<12}  {'key':<{keys}}  {'room':<9}  {'reproduced':<17}  title", bold=True)
    for row in rows:
        verdicts = [Verdict(word) for word, count in row["tally"].items() for _ in range(count)]
        signs = "".join(click.style(SIGNS[verdict], fg=COLOURS[verdict]) for verdict in verdicts)
        said = f"{row['headline'] or '':<7}" + signs + " " * max(0, 10 - len(verdicts))
        if row["key"] is None:
            said = f"{'new':<17}"
        elif row["headline"] is None:
            said = f"{'not run yet' if row['built'] else 'not built yet':<17}"
        title = row["title"] or "(only the number is known)"
        title = title if len(title) <= titles else f"{title[: titles - 1]}…"
        where = f"{row['arxiv'] or '':<12}  {row['key'] or '':<{keys}}  {row['room'] or '':<9}"
        click.echo(f"{where}  {said}  {title}".rstrip())
    known, built, run = (sum(bool(row[name]) for row in rows) for name in ("known", "built", "headline"))
    new = len(rows) - known
    click.echo(f"\n{_papers(len(rows))}: {known} in the record ({built} built, {run} measured here), {new} new.")
    if new:
        click.echo("'--draft new.toml' writes entries for the new ones; the room is the closest by its words.")


def _papers(count: int) -> str:
    return f"{count} paper{'' if count == 1 else 's'}"
