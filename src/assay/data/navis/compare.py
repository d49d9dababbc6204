"""`assay compare navis`: your vectors inserted into and searched in each layout on disk, and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.navis import trials
from assay.data.vectors.files import read_vectors
from assay.record.errors import BadInput

NOISE = 0.1  # by which turns of one and the same index differ on a machine that does other things, too


@click.command(epilog="Example:  assay compare data --job vec --input examples/vectors.fvecs --inserts 200")
@click.option("--input", "path", required=True, type=click.Path(path_type=Path), help="Vectors, in their order.")
@click.option("--inserts", type=click.IntRange(8), default=1000, show_default=True, help="The last so many rows.")
@click.option("--queries", type=click.IntRange(8), default=100, show_default=True, help="Drawn from all rows.")
@click.option("--limit", type=click.IntRange(100), default=20_000, show_default=True, help="Rows taken of the input.")
def command(path: Path, inserts: int, queries: int, limit: int) -> dict[str, Any]:
    """Insert the last rows of your vectors into an index of the others, in each design, and search.

    All designs begin with the same graph and have the same memory: for a twentieth of the edges.
    """
    rows = np.ascontiguousarray(read_vectors(path)[-limit:], np.float32)
    if len(rows) < 2 * inserts or len(rows) < 100 or not np.isfinite(rows).all():
        raise BadInput(f"{path}: {len(rows)} rows; 100 or more, and twice --inserts, of finite numbers expected")
    asked = rows[np.linspace(0, len(rows) - 1, queries).astype(int)] * np.float32(1.001)
    trials.warm(rows.shape[1])
    begun = trials.begin(rows[:-inserts], 0)
    found = trials.grown(rows, asked, begun, tuple(trials.DESIGNS), _usearch(), seed=0)
    columns = dict.fromkeys(column for row in found.values() for column in row)  # memory alone reads no pages
    table = [{"design": name, **{column: row.get(column) for column in columns}} for name, row in found.items()]
    return {
        "input": {"file": str(path), "rows": len(rows), "width": rows.shape[1], "inserts": inserts},
        "table": table,
        "shown": ["design", "inserts_per_s", "searches_per_s", "recall", "kib_read_per_insert", "reads_per_insert"],
        "why": why({name: row for name, row in found.items() if name in trials.DESIGNS}),
    }


def _usearch() -> bool:
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        return False
    return True


def why(found: dict[str, dict[str, Any]]) -> str:
    """Who inserts fastest on disk, and what that comes from; a tie where turns of one would differ as much.

    >>> row = {"kib_read_per_insert": 80.0, "recall": 0.97, "searches_per_s": 5.0}
    >>> why({"navis": {"inserts_per_s": 10.0, **row}, "packed": {"inserts_per_s": 9.8, **row}})[:48]
    'A tie on disk: navis, packed insert equally fast'
    """
    best = max(found, key=lambda name: float(found[name]["inserts_per_s"]))
    most = found[best]["inserts_per_s"]
    near = sorted(name for name, row in found.items() if row["inserts_per_s"] >= (1 - NOISE) * most)
    ours, packed = found[trials.OURS], found[trials.PACKED]
    read = (
        f"An insertion reads {ours['kib_read_per_insert']:.0f} KiB with edges apart (navis) and "
        f"{packed['kib_read_per_insert']:.0f} KiB from packed nodes, at recall {ours['recall']:.3f} and "
        f"{packed['recall']:.3f}."
    )
    if len(near) > 1:
        return f"A tie on disk: {', '.join(near)} insert equally fast, to a tenth. {read}"
    return f"{best} inserts fastest on disk, {most / packed['inserts_per_s']:.2f} times as fast as packed nodes. {read}"
