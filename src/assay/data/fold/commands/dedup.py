"""`assay dedup`: remove near-duplicates from a corpus that keeps growing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from assay.data.fold.decide import BY, VERIFY
from assay.data.fold.job import USUAL, deduplicate
from assay.data.store.blocking import wait


@click.command(epilog="Example:  assay dedup examples/news.jsonl --out clean --index index")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for what is kept.")
@click.option("--index", required=True, help="Folder, or s3://…, that remembers everything kept so far.")
@click.option("--tau", type=click.FloatRange(0, 1, min_open=True), help="Similarity that makes a duplicate.  [0.7]")
@click.option("--verify", type=click.Choice(VERIFY), help="What decides on candidates: shingles, or less.  [exact]")
@click.option("--by", type=click.Choice(BY), help="Candidates from tables of bands, or from FOLD's graph.  [bands]")
@click.option("--field", help="Where the text is in JSON lines and parquet.  [text, contents, content]")
@click.option(
    "--bad", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
    help="At a row or file that cannot be read: stop, or list it in OUT/bad and go on, with exit code 1.",
)  # fmt: skip
@click.option("--growing", is_flag=True, help="Files are written on: hold a last line without an end back.")
@click.option("--lines", is_flag=True, help="Text files hold a document a line.")
def command(
    inputs: tuple[Path, ...], out: Path, index: str, tau: float | None, verify: str | None, by: str | None,
    field: str | None, bad: str, growing: bool, lines: bool,
) -> dict[str, Any]:  # fmt: skip
    """Keep the first of near-duplicates among the documents of IN: txt, jsonl, csv, parquet, folders of them.

    Files may be packed by gzip, bzip2, xz or zstd, and be UTF-16 where their first bytes say so. A last line of CSV, or
    of text by --lines, that has no end is held back, with exit code 1, while some process has its file open to write.

    Two documents are near-duplicates if their word 5-grams have a Jaccard similarity of tau or more. Next week the same
    command goes on with new files: what is in the index is not read again. OUT/kept has the documents as they came,
    OUT/duplicates has of which kept document each other one is a duplicate, and how much alike.
    """
    given: dict[str, Any] = {
        name: value for name, value in (("tau", tau), ("verify", verify), ("by", by)) if value is not None
    }
    if verify == "none":  # bands only say who might be alike; the graph says how much
        given.setdefault("by", "graph")
    settings = msgspec.structs.replace(USUAL, **given) if given else None
    progress = click.get_current_context().obj
    done = wait(
        deduplicate(
            inputs, out, index, settings=settings, text_field=field, lines=lines, skip=bad == "skip", growing=growing,
            progress=progress,
        )
    )  # fmt: skip
    gone = done.documents - done.kept
    facts = {
        "documents": done.documents, "kept": done.kept, "duplicates": gone,
        "files_read_before": done.skipped_files or None, "files_without_text": done.without_text or None,
        "bad": done.bad or None, "held_back": len(done.unended.files) or None,
        "seconds": round(done.seconds, 1), "documents_per_second": round(done.documents / max(done.seconds, 1e-9)),
    }  # fmt: skip
    rows = [{"most copied": name, "copies": copies} for name, copies in done.families.most_common(5)]
    if not done.documents:
        why = "Nothing new: these files hold no document, or none that is not in the index already."
    else:
        share = f"{gone / done.documents:.1%} were near-duplicates."
        why = f"{share} What stays is in {out}/kept, what went and of what it is a copy in {out}/duplicates."
    if done.bad:
        why += f" {done.bad:,} rows or files could not be read and were left out: {out}/bad lists them."
    if done.unended.files:
        why += " " + done.unended.said()
    return {
        "dedup": facts,
        **({"table": rows} if rows else {}),
        "why": why,
        "fails": bool(done.bad or done.unended.files),
    }
