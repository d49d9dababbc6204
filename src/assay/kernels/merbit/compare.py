"""`assay compare kernels --matrix my.mtx`: sparse products side by side on the user's own matrix."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import click
import numba
import numpy as np
import scipy.io
import scipy.sparse

from assay.kernels.engine import asking, machine, runner
from assay.kernels.merbit import KERNEL, OURS, contenders, cost
from assay.kernels.merbit.spmv import SINGLE_DOUBLE, checked
from assay.record.errors import BadInput
from assay.sim.random import stream


def read_matrix(path: Path) -> Any:
    """A sparse matrix from MatrixMarket (.mtx, .mtx.gz) or SciPy's .npz."""
    try:
        if path.name.endswith((".mtx", ".mtx.gz")):
            made = checked(scipy.sparse.csr_array(scipy.io.mmread(path)))
            return made if made.dtype in SINGLE_DOUBLE else made.astype(np.float64)
        if path.suffix == ".npz":
            made = checked(scipy.sparse.load_npz(path))
            return made if made.dtype in SINGLE_DOUBLE else made.astype(np.float64)
    except (ValueError, TypeError, KeyError, EOFError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise BadInput(
            f"{path}: {str(error).splitlines()[0]}; a MatrixMarket coordinate file or SciPy's .npz expected"
        ) from None
    raise BadInput(f"{path}: give a matrix as .mtx, .mtx.gz or SciPy's .npz")


@click.command(epilog="Example:  assay compare kernels --matrix examples/matrix.mtx --dtype f32 --machine h200")
@click.option("--matrix", "path", required=True, type=click.Path(path_type=Path), help="MatrixMarket, or SciPy's .npz.")
@click.option("--dtype", type=click.Choice(["f32", "f64"]), default="f64", show_default=True, help="Precision.")
@asking.options
def command(path: Path, dtype: str, rounds: int, where: str, plot: Path | None) -> dict[str, Any]:
    """Sparse products on your own matrix: who is fastest, and from how many products on preparing pays."""
    a = read_matrix(path).astype(np.float32 if dtype == "f32" else np.float64)
    if not a.nnz:
        raise BadInput(f"{path}: the matrix has no nonzeros")
    x = stream(0, "vector", a.shape[1]).random(a.shape[1]).astype(a.dtype)
    here = machine.here()
    outcome = runner.measure(KERNEL, (a, x), contenders(numba.get_num_threads()), here, rounds)
    lengths = np.diff(a.indptr)
    facts = {"file": str(path), "rows": a.shape[0], "columns": a.shape[1], "nonzeros": a.nnz,
             "longest": int(lengths.max()), "empty": int((lengths == 0).sum())}  # fmt: skip
    return asking.answer(outcome, here, cost((a, x)), facts, OURS, where, plot)
