"""`gemm(a, b)`: a product by whichever scheme pays here, or by the vendor where none does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.kernels.engine.arrays import number, plain
from assay.kernels.falcongemm import cpu
from assay.kernels.falcongemm.decision import VENDOR, Choice, blocks, choose
from assay.kernels.falcongemm.schemes import Scheme, named
from assay.record.errors import BadInput

SMALL = 512  # of the shortest side: below, no scheme pays on any machine we know, and nothing is asked
KINDS = {"float32": "f32", "float64": "f64"}
_SPACE = cpu.Workspace()


@dataclass(frozen=True)
class Weights:
    """A right operand whose combinations were made before, for products with many left ones."""

    b: Any
    scheme: Scheme | None
    combined: list[Any] | None
    why: str


def _torch(x: Any) -> bool:
    return type(x).__module__.split(".")[0] == "torch"


def _shape(a: Any, b: Any) -> tuple[int, int, int]:
    """m, k, n of two matrices that can be multiplied here, or one line that says why not."""
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, np.ma.MaskedArray):
            plain(x, name)
        if not isinstance(x, np.ndarray) or x.ndim != 2:
            told = f"{x.ndim} dimensions" if isinstance(x, np.ndarray) else type(x).__name__
            raise BadInput(f"{name}: a matrix of two dimensions (NumPy, or torch) expected, not {told}")
        if x.dtype.name not in KINDS:
            raise BadInput(f"{name}: {x.dtype} is not multiplied here; cast to float32 or float64 (GPU: bfloat16, too)")
        if not x.size:
            raise BadInput(f"{name}: {x.shape[0]} x {x.shape[1]} is empty: there is nothing to multiply")
    if a.dtype != b.dtype:
        raise BadInput(f"a is {a.dtype} and b {b.dtype}: cast one of them")
    if a.shape[1] != b.shape[0]:
        raise BadInput(f"a has {a.shape[1]} columns and b {b.shape[0]} rows: they must be as many")
    return a.shape[0], a.shape[1], b.shape[1]


def needed(shape: tuple[int, int, int], scheme: Scheme, size: int) -> int:
    """Bytes that a scheme's sums and products take beside operands and result."""
    high, deep, wide = blocks(shape, scheme)
    return size * scheme.rank * (high * deep + deep * wide + high * wide)


def decide_gemm(shape: tuple[int, int, int], dtype: str = "f32", static: bool = False) -> Choice:
    """What `gemm` would do on this machine's processor with a shape (m, k, n), and why.

    >>> decide_gemm((64, 64, 64)).why
    'a side of 64 is short of 512: no scheme can pay'
    """
    if dtype not in KINDS.values():
        raise BadInput(f"no products of '{dtype}' are decided on here: {', '.join(KINDS.values())}")
    if len(shape) != 3:
        raise BadInput(f"shape: three whole numbers (m, k, n) expected, not {shape}")
    shape = number(shape[0], "m", 1), number(shape[1], "k", 1), number(shape[2], "n", 1)
    if min(shape) < SMALL:
        return Choice(None, {VENDOR: 0.0}, 0.0, f"a side of {min(shape)} is short of {SMALL}: no scheme can pay")
    from assay.kernels.falcongemm.profiles import here

    return choose(here(dtype), shape, static=static)


def free_bytes() -> float:
    """Bytes of memory that nobody uses, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _fitting(shape: tuple[int, int, int], size: int, scheme: Scheme | None) -> Scheme | None:
    """The scheme if its room is free, else the vendor; one line where not even the result would fit."""
    free = free_bytes()
    if (result := shape[0] * shape[2] * size) > free:
        raise BadInput(
            f"the product takes {result / 1e9:.1f} GB and {free / 1e9:.1f} are free: multiply a part at once"
        )
    return scheme if scheme and result + needed(shape, scheme, size) <= 0.8 * free else None


def gemm(a: Any, b: Any, scheme: str = "auto") -> Any:
    """The matrix product a @ b, by a scheme with fewer multiplications where that is predicted to be faster.

    NumPy arrays of float32 or float64, in any order in memory; torch tensors on a CPU or a GPU (there float16 and
    bfloat16, too; gradients are torch's). `scheme` is `auto`, `vendor`, or a scheme's name. The first product of a
    dtype measures the machine, for some seconds. Entries that are not finite come out as in the vendor's product: a
    scheme would spread them to other entries, so what it gives is checked on the way and such products are done again.
    A scheme rounds differently: the largest error grows to a few times that of the vendor's product.

    >>> gemm(np.eye(2), np.array([[1.0, np.nan], [3.0, 4.0]])).tolist()
    [[1.0, nan], [3.0, nan]]
    """
    if _torch(a) or _torch(b):
        return _of_tensors(a, b, scheme)
    if isinstance(b, Weights):
        _shape(a, b.b)
        return _by(plain(a, "a"), b.b, b.scheme, b.combined)
    shape = _shape(a, b)
    a, b = plain(a, "a"), plain(b, "b")
    wanted = decide_gemm(shape, KINDS[a.dtype.name]).scheme if scheme == "auto" else None
    if scheme not in ("auto", VENDOR):
        wanted = named(scheme)
    return _by(a, b, _fitting(shape, a.itemsize, wanted), None)


def _of_tensors(a: Any, b: Any, scheme: str) -> Any:
    """The same of torch's tensors, on a GPU if `a` lies there; gradients come by products of the same kind."""
    import torch

    others = [name for name, x in (("a", a), ("b", b)) if not (_torch(x) or (name == "b" and isinstance(x, tuple)))]
    if others and not isinstance(b, Weights):
        raise BadInput(f"{others[0]} is no tensor of torch's, and the other is: give two of a kind")
    if any(_torch(x) and torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in (a, b)):
        raise BadInput("derivatives are not carried forward here, only backward: torch.matmul(a, b) has both")
    if torch.is_grad_enabled() and (a.requires_grad or getattr(b, "requires_grad", False)):
        if not _torch(b):
            raise BadInput("a wants gradients, and combined weights have none: give b itself, or torch.no_grad()")
        return _differentiable().apply(a, b, scheme)
    if getattr(a, "is_cuda", False):
        from assay.kernels.falcongemm import gpu

        return gpu.gemm(a, b, scheme)
    return torch.from_numpy(gemm(_numpy(a, "a"), b if isinstance(b, Weights) else _numpy(b, "b"), scheme))


@cache
def _differentiable() -> Any:
    import torch

    class Product(torch.autograd.Function):
        """a @ b, whose gradients are g @ b^T and a^T @ g."""

        @staticmethod
        def forward(ctx: Any, a: Any, b: Any, scheme: str) -> Any:
            ctx.save_for_backward(a, b)
            ctx.scheme = scheme
            return gemm(a, b, scheme)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (a, b), wanted = ctx.saved_tensors, ctx.needs_input_grad
            to_a = gemm(grad, b.mT, ctx.scheme) if wanted[0] else None
            return to_a, gemm(a.mT, grad, ctx.scheme) if wanted[1] else None, None

    return Product


def _numpy(x: Any, name: str) -> Any:
    try:
        return x.detach().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        raise BadInput(
            f"{name}: {x.dtype} {'' if str(x.layout) == 'torch.strided' else f'{x.layout} '}on {x.device} is not "
            "multiplied here; cast to float32 or float64 (GPU: bfloat16, too), dense and where the other matrix lies"
        ) from None


def _by(a: Any, b: Any, scheme: Scheme | None, weights: list[Any] | None) -> Any:
    if scheme is None:
        return np.matmul(a, b)
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = cpu.multiply(a, b, scheme, out, _SPACE, weights)
    return out if finite else np.matmul(a, b, out=out)


def gemm_weights(b: Any, rows: int, scheme: str = "auto") -> Any:
    """A right operand for many products with about `rows` rows on the left: combined once, where a scheme pays.

    Of a matrix on a GPU, what pays is tried there at once; `scheme` is for processors.

    >>> gemm(np.eye(3), gemm_weights(np.ones((3, 3)), rows=3)).sum()
    np.float64(9.0)
    """
    rows = number(rows, "rows", 1)
    if _torch(b) and getattr(b, "is_cuda", False):
        from assay.kernels.falcongemm import gpu

        return gpu.weights(b, rows)
    if _torch(b):
        if b.requires_grad:
            raise BadInput("b wants gradients, and weights combined once have none: give b.detach()")
        b = _numpy(b, "b")
    _shape(b.T[:1] if isinstance(b, np.ndarray) and b.ndim == 2 else b, b)
    b, shape = plain(b, "b"), (rows, *b.shape)
    choice = decide_gemm(shape, KINDS[b.dtype.name], static=True) if scheme == "auto" else None
    wanted = choice.scheme if choice else None if scheme == VENDOR else named(scheme)
    fits = _fitting(shape, b.itemsize, wanted)
    made = cpu.combined(b, fits.v, fits.k, fits.n, lambda size: np.empty(size, b.dtype)) if fits else None
    return Weights(b, fits, made, choice.why if choice else "as asked")
