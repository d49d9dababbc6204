"""`assay data shuffle`: repartition files by key through a store, and see what each design would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from assay.data.blobshuffle import files
from assay.data.blobshuffle.jobs import repartition
from assay.data.blobshuffle.planning import full_blobs
from assay.data.blobshuffle.shuffle import DESIGNS, Placement
from assay.data.blobshuffle.simulate import counted
from assay.record.errors import BadInput
from assay.sim.ledger import LIST_PRICES
from assay.sim.memory import parse_size

SHOWN = ("native", "blob", "blob + cache")
SAMPLE = 256 << 20  # bytes of the input on which the designs are counted


@click.command(epilog="Example:  assay data shuffle --from examples/visits.jsonl --key user --parts 8 --out parts")
@click.option("--from", "sources", multiple=True, required=True, help="JSON lines, .gz or parquet; may be repeated.")
@click.option("--key", required=True, help="The field whose value decides the partition; a.b for a field inside one.")
@click.option("--parts", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Partitions.")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for partitions.")
@click.option("--store", default="", help="Where blobs lie: a folder, s3://bucket/x.  [default: OUT/.shuffle]")
@click.option("--broker", default="", help="Who carries the notes: nats:// or redis://HOST:PORT.  [default: the store]")
@click.option("--bootstrap", default="", help="A Kafka of yours that carries them: HOST:PORT.")
@click.option("--blob", default="16Mi", show_default=True, help="Bytes of a blob, at most about.")
@click.option(
    "--bad", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
    help="At a line or file that cannot be read: stop, or list it in OUT/bad.jsonl and go on, with exit code 1.",
)  # fmt: skip
@click.option("--costs/--no-costs", default=True, show_default=True, help="Count what each design would cost.")
def command(
    sources: tuple[str, ...], key: str, parts: int, out: Path, store: str, broker: str, bootstrap: str, blob: str,
    bad: str, costs: bool,
) -> dict[str, Any]:  # fmt: skip
    """Bring all records of a key together: OUT/part-00000.jsonl, …, each file's records in their order.

    Run it again after a crash and it goes on. Keys go where Kafka's clients put them. The costs are dollars per TiB at
    list prices, from requests and zone crossings counted on your records.
    """
    try:
        size = parse_size(blob)
    except ValueError as error:
        raise BadInput(str(error)) from error
    design = DESIGNS["blob + cache"].sized(size)
    if broker and bootstrap:
        raise BadInput("one broker carries the notes: give --broker or --bootstrap")
    carrier, progress = f"kafka://{bootstrap}" if bootstrap else broker, click.get_current_context().obj
    wrong: list[dict[str, str]] = []
    some = {"bad": lambda where, why: wrong.append({"bad": where + why})} if bad == "skip" else {}
    done = repartition(
        sources, key, out, parts=parts, store=store, design=design, broker=carrier, progress=progress, **some
    )
    if wrong:
        with (out / "bad.jsonl").open("ab" if store else "wb") as file:
            file.writelines(msgspec.json.encode(one) + b"\n" for one in wrong)
    most = max(done.partitions, default=0)
    facts = {
        "records": done.records, "bytes": done.bytes, "committed_before": done.before, "partitions": parts,
        "largest": most, "puts": done.ledger.requests("put"), "gets": done.ledger.requests("get"),
    }  # fmt: skip
    answer: dict[str, Any] = {"shuffled": facts | {"bad": len(wrong) or None}, "fails": bool(wrong)}
    if costs and done.bytes and not wrong:
        table = priced(sources, key, Placement(parts), size)
        answer |= {"table": table, "prices": {"are": LIST_PRICES.name, "as_of": LIST_PRICES.as_of}}
        return answer | {"why": _why(table, size, parts)}
    return answer | {
        "why": f"{out} holds {sum(done.partitions):,} records in {parts} partitions."
        + (f" {len(wrong):,} lines or files were left out: {out}/bad.jsonl." if wrong else "")
    }


def priced(sources: Sequence[str | Path], key: str, placement: Placement, size: int) -> list[dict[str, Any]]:
    """Each design on the same records, in memory: what it asked of a store and sent across zones."""
    rows = []
    for name in SHOWN:
        found = counted(DESIGNS[name].sized(size), _batches(sources, key, placement.parts), placement)
        rows.append({"design": name, **{column: found[column] for column in (
            "usd_per_TiB", "puts", "gets", "crossings", "blob_MiB", "bytes"
        )}})  # fmt: skip
    return rows


def _batches(sources: Sequence[str | Path], key: str, parts: int) -> Iterator[tuple[str, list[int], list[bytes]]]:
    """The input's beginning, batch by batch."""
    left = SAMPLE
    for number, source in enumerate(sources):
        for batch in files.read(Path(source), key, parts):
            yield f"file-{number}", batch.partitions, batch.records
            left -= sum(map(len, batch.records))
            if left < 0:
                return


def _why(table: list[dict[str, Any]], size: int, parts: int) -> str:
    native, plain, ours = table
    first = min(table, key=lambda row: row["usd_per_TiB"])
    told = (
        f"{first['design']} is cheapest at ${first['usd_per_TiB']:.2f} a TiB; native ${native['usd_per_TiB']:.2f}, "
        f"without the cache ${plain['usd_per_TiB']:.2f}."
    )
    if ours["blob_MiB"] < 0.5 * size / (1 << 20):
        full = full_blobs(size, parts)
        told += (
            f" Your input fills a blob only to {ours['blob_MiB'] * (1 << 20):,.0f} bytes; a stream that fills blobs of "
            f"{size:,} bytes pays about ${full:.2f}."
        )
    return told
