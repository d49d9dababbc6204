"""Sparse matrix times vector: `spmv`, and on the CPU MERBIT's descriptor walked by threads, and its rivals.

Each thread takes an equal piece of the merge list, whatever the rows are; row ends come from bits, 64 items a word: a
word without one is a plain run of nonzeros, summed in vector code.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numba import prange
from numba.cpython.unsafe.numbers import trailing_zeros
from numpy.typing import NDArray

from assay.kernels.engine.arrays import plain, team
from assay.kernels.engine.cuda import missing
from assay.kernels.merbit import gpu, layout
from assay.record.errors import BadInput
from assay.sim.compiled import njit

WORD = 64
SINGLE_DOUBLE = (np.float32, np.float64)  # what a GPU multiplies


class Walk(NamedTuple):
    """A matrix for threads that walk bits: the row ends, and where each thread's piece begins."""

    bits: NDArray[np.uint64]
    cuts: NDArray[np.int64]  # items
    row: NDArray[np.int64]  # the first row of each piece
    col: NDArray[np.uint32]  # unsigned: compiled code then asks of none whether it counts from the end
    val: NDArray[Any]
    shape: tuple[int, int]


def checked(matrix: Any) -> Any:
    """The matrix in CSR form with sorted, summed entries, real numbers of at most 64 bits, or one clear complaint.

    >>> checked(np.eye(2))
    Traceback (most recent call last):
    assay.record.errors.BadInput: a SciPy sparse matrix expected, got ndarray; scipy.sparse.csr_array(a) makes one
    """
    shape = getattr(matrix, "shape", ())
    if not scipy.sparse.issparse(matrix):
        kind = type(matrix).__name__
        raise BadInput(f"a SciPy sparse matrix expected, got {kind}; scipy.sparse.csr_array(a) makes one")
    if len(shape) != 2:
        raise BadInput(f"a matrix of two dimensions expected, not of shape {shape}")
    csr: Any = scipy.sparse.csr_array(matrix)  # type: ignore[call-overload]
    if csr.dtype.kind not in "biuf" or csr.dtype.itemsize > 8:
        raise BadInput(f"values must be real numbers of at most 64 bits, these are {csr.dtype}")
    if not csr.dtype.isnative:
        csr = csr.astype(csr.dtype.newbyteorder("="))
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if csr.nnz + csr.shape[0] >= 2**31:
        raise BadInput(f"{csr.nnz} nonzeros and {csr.shape[0]} rows: at most 2^31 in all; cut the matrix by rows")
    if csr.nnz and not np.isfinite(csr.data).all():
        raise BadInput(f"nonzero {int(np.flatnonzero(~np.isfinite(csr.data))[0])} is not finite")
    return csr


def walk(matrix: Any, threads: int | None = None) -> Walk:
    """The descriptor of a matrix for some threads, each with as many items as any other, within a word."""
    csr, cores = checked(matrix), team(threads)
    start = csr.indptr.astype(np.int64)
    made = layout.tiles(np, start, csr.nnz, 2)  # one tile is a word
    bits = made.bits[: 2 * made.tiles].view(np.uint64)
    cuts = np.minimum(np.arange(cores + 1) * -(-len(bits) // cores), len(bits)) * WORD
    ends = start[1:] + np.arange(csr.shape[0])
    return Walk(bits, cuts, np.searchsorted(ends, cuts), csr.indices.astype(np.uint32), csr.data, csr.shape)


@njit(cache=True, parallel=True)
def _walked(bits, cuts, rows, col, val, x, y, carry):
    """Each thread's rows, and what it leaves open: the sum so far of the row that goes on in the next piece."""
    for t in prange(len(cuts) - 1):
        r, j = rows[t], cuts[t] - rows[t]
        total = x.dtype.type(0)
        for w in range(cuts[t] // WORD, cuts[t + 1] // WORD):
            word, item = bits[w], 0
            while word != 0:
                zeros = np.int64(trailing_zeros(word))
                for i in range(np.uint64(j), np.uint64(j + zeros)):
                    total += val[i] * x[col[i]]
                y[r] = total
                total = x.dtype.type(0)
                r, j, item = r + 1, j + zeros, item + zeros + 1
                word = word >> np.uint64(zeros) >> np.uint64(1)
            last = min(j + WORD - item, len(col))
            if item == 0 and last - j == WORD:  # no row ends here: four sums side by side
                a = b = c = d = x.dtype.type(0)
                for i in range(np.uint64(j), np.uint64(last), np.uint64(4)):
                    a += val[i] * x[col[i]]
                    b += val[i + np.uint64(1)] * x[col[i + np.uint64(1)]]
                    c += val[i + np.uint64(2)] * x[col[i + np.uint64(2)]]
                    d += val[i + np.uint64(3)] * x[col[i + np.uint64(3)]]
                total += (a + b) + (c + d)
            else:
                for i in range(np.uint64(j), np.uint64(last)):
                    total += val[i] * x[col[i]]
            j = last
        carry[t] = total


def multiply(a: Walk, x: NDArray[Any]) -> NDArray[Any]:
    """The matrix times a vector."""
    y = np.zeros(a.shape[0], a.val.dtype)
    carry = np.empty(len(a.cuts) - 1, a.val.dtype)
    _walked(a.bits, a.cuts, a.row, a.col, a.val, x, y, carry)
    for t in range(len(carry) - 1):  # a row may go on over several pieces: in order, one after the other
        if a.row[t + 1] < a.shape[0]:
            y[a.row[t + 1]] += carry[t]
    return y


class Spmv:
    """A matrix that will be multiplied many times: `Spmv(csr) @ x`. `why` says where, and for what reason.

    >>> import scipy.sparse
    >>> a = Spmv(scipy.sparse.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]])), where="cpu")
    >>> (a @ np.array([1.0, 1.0])).tolist()
    [3.0, 3.0]
    >>> a.why
    'on the CPU, as asked'
    """

    def __init__(self, matrix: Any, threads: int | None = None, where: Any = "auto", products: int = 1000) -> None:
        device, self.why = _where(matrix, threads, where, products)
        if device is None:
            made = walk(matrix, threads)
            self.shape, self.dtype = made.shape, made.val.dtype
            self.walks = {made.val.dtype: made}  # by the type of products: values are turned into it once
            return
        csr = matrix if _on_gpu(matrix) else checked(matrix)
        if csr.dtype not in SINGLE_DOUBLE:
            raise BadInput(f"{csr.dtype} is not multiplied on a GPU; cast to float32 or float64, or where='cpu'")
        self.product = gpu.Product(device, csr, products)
        self.shape, self.dtype = csr.shape, np.dtype(csr.dtype)
        self.why += f"; {self.product.way.name} {self.product.way.detail}".rstrip()

    def __matmul__(self, x: Any) -> Any:
        there = hasattr(x, "__cuda_array_interface__")
        vector = x if there and hasattr(self, "product") else plain(x.get() if there else x, "the vector", "biufc")
        if vector.shape != (self.shape[1],):
            raise BadInput(f"the matrix has {self.shape[1]} columns, the vector shape {vector.shape}")
        kind = np.result_type(self.dtype, vector.dtype)
        if not hasattr(self, "product"):
            return self._on_cores(vector, kind)
        if kind != self.dtype:
            raise BadInput(f"the matrix on the GPU is {self.dtype}, the vector {vector.dtype}: cast one of them")
        return self.product @ (vector if there else np.ascontiguousarray(vector, self.dtype))

    def _on_cores(self, x: Any, kind: Any) -> Any:
        """The product in the type that NumPy has for it; whole numbers as whole ones, modulo 2^64 as there."""
        if kind.kind == "c":
            real = np.result_type(self.dtype, x.real.dtype)
            both = np.empty(self.shape[0], kind)
            both.real, both.imag = self._on_cores(x.real, real), self._on_cores(x.imag, real)
            return both
        inner = kind if kind.kind == "f" else np.dtype(np.int64)
        if kind.kind not in "biuf" or inner.itemsize not in (4, 8):
            raise BadInput(f"a matrix of {self.dtype} times a vector of {x.dtype} is {kind}: not multiplied here")
        if inner not in self.walks:
            made = self.walks[self.dtype]
            self.walks[inner] = made._replace(val=made.val.astype(inner))
        return multiply(self.walks[inner], np.ascontiguousarray(x, inner)).astype(kind, copy=False)


def _on_gpu(matrix: Any) -> bool:
    """Whether it is a CSR matrix of CuPy's."""
    return type(matrix).__module__.startswith("cupyx.") and getattr(matrix, "format", "") == "csr"


def _where(matrix: Any, threads: int | None, where: Any, products: int) -> tuple[gpu.Device | None, str]:
    """The GPU, or None for this machine's cores, and the reason."""
    if isinstance(where, gpu.Device):
        return where, "on the device given"
    if where not in ("auto", "cpu", "gpu"):
        raise BadInput(f"where must be auto, cpu or gpu, not {where!r}")
    if where == "cpu":
        return None, "on the CPU, as asked"
    if where == "gpu":
        return gpu.gpu(), "on the GPU, as asked"
    if _on_gpu(matrix):
        return gpu.gpu(), "on the GPU, where the matrix lies"
    if why := missing():
        return None, f"on the CPU: {why}"
    csr, cores = checked(matrix), team(threads)
    if csr.dtype not in SINGLE_DOUBLE:
        return None, f"on the CPU: {csr.dtype} is not multiplied on a GPU"
    here, there = gpu.estimate(csr.nnz, csr.shape, csr.dtype.itemsize, cores, products)
    told = f"{1e3 * there:.3g} ms a product on the GPU, copies of vectors included, {1e3 * here:.3g} on {cores} cores"
    return (gpu.gpu(), f"on the GPU: {told}") if there < here else (None, f"on the CPU: {told}")


def spmv(matrix: Any, threads: int | None = None, where: Any = "auto", products: int = 1000) -> Spmv:
    """The matrix, ready to be multiplied again and again, some `products` times.

    On a machine with a GPU (extra gpu) it goes there if that is faster with vectors copied each time, or if it is a
    matrix of CuPy's already; vectors of CuPy's then stay there. From 300 products on two ways are
    tried first, from 1,600 on all. A product has NumPy's type: a vector of float64 or of complex numbers makes it so.

    >>> import scipy.sparse
    >>> (spmv(scipy.sparse.eye_array(3, format="csr")) @ [1.0, 2.0, 3.0]).tolist()
    [1.0, 2.0, 3.0]
    """
    return Spmv(matrix, threads, where, products)


# --------------------------------------------------------------------------------------------------- rivals


@njit(cache=True, parallel=True)
def by_rows(start, col, val, x, y):
    """Rows shared out in equal numbers: whoever gets the long ones is waited for."""
    for r in prange(len(y)):
        total = x.dtype.type(0)
        for i in range(start[r], start[r + 1]):
            total += val[i] * x[col[i]]
        y[r] = total


@njit(cache=True, parallel=True)
def by_merge(start, col, val, x, y, cuts, rows, carry):
    """The same equal pieces, row ends read from the row pointers (Merrill and Garland)."""
    for t in prange(len(cuts) - 1):
        r, j, end = rows[t], cuts[t] - rows[t], min(cuts[t + 1] - rows[t + 1], len(col))
        while r < rows[t + 1]:
            total = x.dtype.type(0)
            for i in range(j, start[r + 1]):
                total += val[i] * x[col[i]]
            y[r] = total
            j = start[r + 1]
            r += 1
        total = x.dtype.type(0)
        for i in range(j, end):
            total += val[i] * x[col[i]]
        carry[t] = total
