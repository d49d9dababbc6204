"""`assay compare kernels --sort keys.npy`: sorts side by side on the user's own keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numba
import numpy as np

from assay.kernels.engine import asking, machine, runner
from assay.kernels.fractalsort import KERNEL, OURS, contenders, cost, sort_file
from assay.kernels.fractalsort.keys import keys_of
from assay.record import reading
from assay.record.errors import BadInput


@click.command(epilog="Example:  assay compare kernels --sort examples/keys.npy --out sorted.npy --memory 256")
@click.option("--sort", "path", required=True, type=click.Path(path_type=Path), help="One row of keys, .npy.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the sorted keys, in bounded memory.")
@click.option("--memory", type=click.IntRange(1), default=256, show_default=True, help="Megabytes for --out.")
@asking.options
def command(
    path: Path, out: Path | None, memory: int, rounds: int, where: str, plot: Path | None
) -> dict[str, Any]:  # fmt: skip
    """Sorts on your own keys: who is fastest, and how near to one read and one write of memory."""
    try:
        x = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadInput(f"{path}: {reading.no_array(error)}; a .npy file of one row of keys expected") from None
    if not isinstance(x, np.ndarray) or not x.size:
        raise BadInput(f"{path}: one row of keys expected, in .npy")
    words = keys_of(x)  # complains about what has no order of bits
    if out is not None:
        sort_file(path, out, memory << 20)
    here = machine.here()
    outcome = runner.measure(KERNEL, x, contenders(numba.get_num_threads(), x.dtype), here, rounds)
    facts = {"file": str(path), "keys": len(x), "dtype": str(x.dtype), "bits": words.bits}
    return asking.answer(outcome, here, cost(x), facts, OURS, where, plot)
