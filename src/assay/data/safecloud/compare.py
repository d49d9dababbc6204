"""`assay compare safecloud`: ways to encrypt a file in chunks, on the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.data.safecloud.chunks import CHUNK
from assay.data.safecloud.designs import side_by_side
from assay.record.errors import BadInput, unreadable


@click.command(epilog="Example:  assay compare data --job vault --input examples/chats.jsonl --chunk 4096")
@click.option("--input", "path", required=True, type=click.Path(path_type=Path), help="A file of yours.")
@click.option("--chunk", type=click.IntRange(64, 64 << 20), default=CHUNK, show_default=True, help="Bytes of a chunk.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns; the fastest counts.")
def command(path: Path, chunk: int, rounds: int) -> dict[str, Any]:
    """Speed, what is stored, and what sharing a tenth of your file takes and opens, for each way to encrypt it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, "give a file of yours") from None
    if not data:
        raise BadInput(f"{path} is empty; give a file of yours with something in it")
    rows = side_by_side(data, bytes(32), chunk=chunk, rounds=rounds)
    ours, table = rows["safecloud"], rows["a table of keys"]
    why = (
        f"Sharing a tenth takes {ours['handed']:,} bytes of secrets with the tree and {table['handed']:,} with a table "
        f"of keys; one key for the file would open {rows['one key a file']['opened_beyond']:,} chunks more. By "
        f"content, {rows['safecloud, by content']['stored_ratio']:.2f} of the file's bytes are stored, by position "
        f"{ours['stored_ratio']:.2f}."
    )
    return {
        "input": {"file": str(path), "bytes": len(data)},
        "table": [{"design": name, **row} for name, row in rows.items()],
        "shown": ["design", "MB_per_s", "stored_ratio", "handed", "opened_beyond"],
        "why": why,
    }
