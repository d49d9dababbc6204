"""`assay compare blobshuffle`: ways to repartition a stream, on the user's own records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.blobshuffle import files
from assay.data.blobshuffle.planning import plan
from assay.data.blobshuffle.shuffle import DESIGNS, GROUPS, Placement
from assay.data.blobshuffle.simulate import cluster, counted
from assay.record.errors import BadInput
from assay.sim.ledger import LIST_PRICES
from assay.sim.memory import parse_size

SAMPLE = 32 << 20  # bytes of the input that are read
RIVALS = (
    "native", "native, follower fetch", "a blob a partition", "blob", "blob + cache", "blob + cache, all zones",
)  # fmt: skip
COLUMNS = ("usd_per_TiB", "p50", "p95", "p99", "crossings", "blob_MiB", "gets_per_blob", "refused")
TRUST = (
    "Dollars are counted requests and crossings times public list prices, without a broker's disks; latencies are "
    "approximate public figures of S3 Standard, in virtual time, and nothing limits processors."
)


@click.command(epilog="Example:  assay compare data --job shuffle --input examples/visits.jsonl --key user")
@click.option("--input", "path", required=True, type=click.Path(path_type=Path), help="JSON lines, .gz or parquet.")
@click.option("--key", default="key", show_default=True, help="The field whose value decides the partition.")
@click.option("--parts", type=click.IntRange(1, 1024), default=64, show_default=True, help="Partitions.")
@click.option("--rate", default="256Mi", show_default=True, help="Bytes a second that your stream has in all.")
@click.option("--tasks", type=click.IntRange(1, 256), default=16, show_default=True, help="Tasks that send it.")
@click.option("--p95", type=click.FloatRange(0.2, 60.0), default=2.0, show_default=True, help="Seconds to arrive in.")
def command(path: Path, key: str, parts: int, rate: str, tasks: int, p95: float) -> dict[str, Any]:
    """Dollars per TiB and latency of each design, with your records' keys and sizes at the rate that you say.

    Blobs get the size and age that are planned for --p95; whoever arrives later than that does not win.
    """
    try:
        speed = parse_size(rate)
    except ValueError as error:
        raise BadInput(str(error)) from error
    nbytes, records = _shape(path, key, parts)
    plans = {group: plan(speed, p95, tasks=tasks, parts=parts, by_zone=group != "all") for group in GROUPS}
    found = plans["zone"]
    total = int(nbytes.sum())
    seconds = min(6.0, 3.0 * max(1.0, found.age))
    rows, progress = [], click.get_current_context().obj
    for number, name in enumerate(RIVALS):
        design = DESIGNS[name]
        if design.blobs:  # each with what suits it
            design = design.sized(plans[design.group].size, plans[design.group].age)
        seen = cluster(
            design, speed, tasks=tasks, parts=parts, seconds=seconds if design.blobs else 1.0, seed=0,
            shares=nbytes / total,
        )  # fmt: skip
        rows.append({"design": name, **{column: seen[column] for column in COLUMNS}})
        progress(number + 1, len(RIVALS) + 1)
    rows.append({"design": "claim check"} | dict.fromkeys(COLUMNS) | _pointers(path, key, parts))
    facts = {"file": str(path), "records": records, "bytes": total, "largest_share": float(nbytes.max() / total)}
    chosen = {"blob_bytes": found.size, "age": found.age, "expected_p95": found.p95}
    return {
        "input": facts, "plan": chosen, "table": rows, "why": _why(rows, p95), "trust": TRUST,
        "shown": ["design", "usd_per_TiB", "p95", "crossings", "blob_MiB", "gets_per_blob"],
    }  # fmt: skip


def _shape(path: Path, key: str, parts: int) -> tuple[np.ndarray[Any, Any], int]:
    """The bytes that each partition gets of the input's beginning, and of how many records."""
    found, records = np.zeros(parts), 0
    for batch in files.read(path, key, parts):
        np.add.at(found, batch.partitions, [len(record) for record in batch.records])
        records += len(batch.records)
        if found.sum() > SAMPLE:
            break
    if not records:
        raise BadInput(f"{path} has no records; JSON lines or parquet expected")
    return found, records


def _pointers(path: Path, key: str, parts: int) -> dict[str, Any]:
    """An object a record: counted on a thousand of them."""
    batch = next(files.read(path, key, parts))
    some = [("input", batch.partitions[:1000], batch.records[:1000])]
    found = counted(DESIGNS["claim check"], some, Placement(parts))
    return {column: found[column] for column in ("usd_per_TiB", "crossings", "blob_MiB", "gets_per_blob")}


def _why(rows: list[dict[str, Any]], p95: float) -> str:
    """The cheapest that arrives in time; within 2 % of each other is a tie."""
    fits = sorted((row for row in rows if row["p95"] and row["p95"] <= p95), key=lambda row: row["usd_per_TiB"])
    if not fits:
        return f"No design arrives within {p95:g} s at this rate; allow more, or give it more tasks."
    first, ties = fits[0], [row for row in fits[1:] if row["usd_per_TiB"] <= 1.02 * fits[0]["usd_per_TiB"]]
    native = min(row["usd_per_TiB"] for row in rows if row["design"].startswith("native"))
    names = " and ".join(row["design"] for row in (first, *ties))
    told = f"{names} {'tie' if ties else 'is cheapest'} at ${first['usd_per_TiB']:.2f} a TiB, p95 {first['p95']:.2f} s"
    if first["design"].startswith("native"):
        return f"{told}: at this rate blobs stay so small that their requests cost more than crossing zones."
    told += f"; native at its best ${native:.2f}, {native / first['usd_per_TiB']:.0f} times as much"
    crossed = max(row["crossings"] for row in rows if row["design"].startswith("native"))
    late = [row["design"] for row in rows if row["p95"] and row["p95"] > p95]
    why = f" A request a blob of {first['blob_MiB']:.1f} MiB is cheaper than {crossed:.1f} crossings."
    return f"{told}.{why}" + (f" Too late: {', '.join(late)}." if late else "") + f" Prices: {LIST_PRICES.name}."
