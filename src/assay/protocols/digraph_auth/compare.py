"""`assay compare digraph-auth`: which agreement the user's own one-way links allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.protocols.digraph_auth import answer, digraphs


@click.command(epilog="Example:  assay compare digraph-auth --digraph examples/links.txt --f 1")
@click.option("--digraph", required=True, type=click.Path(path_type=Path), help="One-way links: lines 'from to'.")
@click.option("--f", type=click.IntRange(0, 8), default=1, show_default=True, help="Traitors.")
def command(digraph: Path, f: int) -> dict[str, Any]:
    """Agreement over your own one-way links: what is possible with signatures, and without."""
    return answer(digraphs.read(digraph), f)
