"""The option with which every command that reads requests is told the unit of their times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.workloads.requests import Requests

UNITS = ("s", "ms", "us", "ns")
TIME_UNIT = click.option(
    "--time-unit", type=click.Choice(UNITS),
    help="What numbers in the trace's arrival column count. Without it: as it says itself, else as the rows suggest.",
)  # fmt: skip


def read_decided(trace: str | Path, limit: int | None, time_unit: str | None) -> Requests:
    """A trace from a file, for an answer that needs the unit of its times: where two are plausible it is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.csv")
    ...     _ = file.write_text("timestamp,prompt_tokens,completion_tokens\\n1000,100,5\\n3000,20,7\\n")
    ...     read_decided(file, None, "ms").arrival.tolist()
    [0.0, 2.0]
    """
    from assay.workloads.request_files import read  # NumPy, Numba, Polars: not for a list of options

    requests = read(trace, limit=limit, time_unit=time_unit)
    if requests.source.units:
        raise BadInput(in_doubt(requests, "the answer hangs on it"))
    return requests


def in_doubt(requests: Requests, why: str) -> str:
    """The line for a trace whose times may be in one unit or another, where that matters."""
    return f"{requests.source.name}: its times are {requests.source.times} ({' or '.join(UNITS)}), as {why}"
