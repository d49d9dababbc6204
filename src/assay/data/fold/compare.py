"""`assay compare data --job dedup`: FOLD beside its rivals on the user's own documents."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.fold import BATCH, installed, judged, side_by_side
from assay.data.fold.corpus import documents, files
from assay.data.fold.rivals import TAU, contenders
from assay.data.fold.sketch import sketched
from assay.data.fold.truth import exact
from assay.record.errors import BadInput
from assay.sim.scratch import scratch


@click.command(epilog="Example:  assay compare data --job dedup --input examples/news.jsonl")
@click.option(
    "--input", "inputs", required=True, multiple=True, type=click.Path(path_type=Path),
    help="Documents: txt, jsonl, jsonl.gz, parquet, folders of them; may be given again.",
)  # fmt: skip
@click.option("--field", help="Where the text is in JSON lines and parquet.  [text, contents, content]")
@click.option("--lines", is_flag=True, help="Text files hold a document a line.")
@click.option("--most", type=click.IntRange(2), default=20_000, show_default=True, help="Documents to compare on.")
@click.option("--methods", default="", help="Some of them, with commas.  [all that are installed]")
def command(inputs: tuple[Path, ...], field: str | None, lines: bool, most: int, methods: str) -> dict[str, Any]:
    """Near-duplicate removal on your own documents: what each method finds of what is really there, and how fast."""
    found = (doc.text for path in files(inputs) for doc in documents(path, field, lines=lines))
    texts = list(islice(found, most))
    if len(texts) < 2:
        raise BadInput("fewer than two documents with text; nothing to compare")
    docs = sketched(texts)
    of, _ = exact(docs.counts, docs.shingles, TAU)
    with scratch() as folder:
        chosen = _chosen(methods, folder / "measured")
        warm = _chosen(methods, folder / "warm")
        for make in warm.values():
            make().observe(texts[:64])  # what has to be compiled is compiled now
        batch = max(1, min(BATCH, len(texts) // 4))
        ran = side_by_side(texts, chosen, batch, click.get_current_context().obj)
    table = [
        {
            "method": name, "kept": int(one["keep"].sum()), **judged(one["keep"], of >= 0),
            "documents_s": 1 / float(np.median(one["seconds"])), "durable": "yes" if name.startswith("fold") else "no",
        }
        for name, one in ran.items()
    ]  # fmt: skip
    table.sort(key=lambda row: (-(row["recall"] or 0), -row["documents_s"]))
    seconds = {name: one["seconds"] for name, one in ran.items()}
    facts: dict[str, Any] = {"documents": len(texts), "duplicates": int((of >= 0).sum()), "similarity": TAU}
    return {"corpus": facts, "table": table, "why": _why(table, seconds, facts["duplicates"])}


def _chosen(methods: str, folder: Path) -> dict[str, Any]:
    known = contenders(folder)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if strange := [name for name in names if name not in known]:
        raise BadInput(f"no method is called '{strange[0]}'; there are {', '.join(known)}")
    return {name: known[name] for name in names} if names else installed(known)


def _why(table: list[dict[str, Any]], seconds: dict[str, list[float]], duplicates: int) -> str:
    """Who is fastest of those that find most; a tie where it was not faster on every batch."""
    if not duplicates:
        return f"No two documents are alike by {TAU} or more: there is nothing to find."
    top = max(row["recall"] for row in table)
    best, *others = sorted((r for r in table if r["recall"] >= top - 0.005), key=lambda row: -row["documents_s"])
    said = f"{best['method']} finds {best['recall']:.1%} of the duplicates at {best['documents_s']:,.0f} documents/s"
    tied = [row["method"] for row in others if _tie(seconds[best["method"]], seconds[row["method"]])]
    said += f", a tie with {' and '.join(tied)}" if tied else ", faster than all that find as many"
    kept = next((row for row in others if row["durable"] == "yes"), None)
    if best["durable"] == "no" and kept and kept["method"] not in tied:
        ratio = best["documents_s"] / kept["documents_s"]
        said += f", and {ratio:.1f} times as fast as {kept['method']}, whose index is on disk and survives being killed"
    return f"{said}."


def _tie(quick: list[float], slow: list[float]) -> bool:
    return any(one >= other for one, other in zip(quick, slow, strict=True))
