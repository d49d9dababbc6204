"""`assay compare snowveil`: finding the winner of the user's own ballots by polls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.protocols.snowveil import SAMPLE, answer


@click.command(epilog="Example:  assay compare snowveil --ballots examples/election.soc --rule chb --sample 21")
@click.option("--ballots", required=True, type=click.Path(path_type=Path), help="A PrefLib file.")
@click.option("--rule", default="chb", show_default=True, help="How a poll is counted.")
@click.option("--sample", type=click.IntRange(1), default=SAMPLE, show_default=True, help="Voters in a poll.")
@click.option("--replicas", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(ballots: Path, **options: Any) -> dict[str, Any]:
    """Ways to find a winner by polls, on your own ballots: how often it is the full count's, after how many polls."""
    return answer(ballots, **options)
