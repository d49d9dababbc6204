"""What a caller hands over as the array that a kernel computes with, or one line that says why it is none.

NumPy drops a mask without a word where an array is asked for, and so it does with an imaginary part and a gradient.
"""

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np

from assay.record.errors import BadInput

KINDS = {"b": "bool", "i": "whole numbers", "u": "whole numbers", "f": "floats", "c": "complex numbers"}


def plain(x: Any, name: str, kinds: str = "") -> np.ndarray[Any, Any]:
    """The array in this machine's byte order; `kinds` are NumPy's letters for what its entries may be.

    >>> plain([1, 2], "x").tolist()
    [1, 2]
    >>> plain(np.ma.array([1, 2], mask=[True, False]), "x")
    Traceback (most recent call last):
    assay.record.errors.BadInput: x is masked, and masks are not looked at here: .filled(value) or .compressed() it
    >>> plain(np.ones(2) * 1j, "x", "iuf")
    Traceback (most recent call last):
    assay.record.errors.BadInput: x: whole numbers or floats expected, not complex128
    """
    if isinstance(x, np.ma.MaskedArray):
        raise BadInput(f"{name} is masked, and masks are not looked at here: .filled(value) or .compressed() it")
    if getattr(x, "requires_grad", False):
        raise BadInput(f"{name} wants gradients, which there are none of here: give {name}.detach()")
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} is no array of numbers: {str(error).splitlines()[0]}") from None
    if kinds and array.dtype.kind not in kinds:
        wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
        raise BadInput(f"{name}: {wanted} expected, not {array.dtype}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def singles(x: Any, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Floats in single precision, side by side in memory: finite ones, also once they are rounded.

    >>> singles(np.array([1e300]), "x")
    Traceback (most recent call last):
    assay.record.errors.BadInput: x: an entry is not finite in single precision, in which it is computed with here
    """
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(plain(x, name, "f"), np.float32)
    if not np.isfinite(made).all():
        raise BadInput(f"{name}: an entry is not finite in single precision, in which it is computed with here")
    return made


def number(x: Any, name: str, least: int) -> int:
    """A whole number that is no less than `least`.

    >>> number(np.int64(3), "rows", 1)
    3
    >>> number(1.5, "rows", 1)
    Traceback (most recent call last):
    assay.record.errors.BadInput: rows: a whole number from 1 on expected, not 1.5
    """
    try:
        found = operator.index(x)
    except TypeError:
        found = least - 1
    if found < least:
        raise BadInput(f"{name}: a whole number from {least} on expected, not {x!r}")
    return found


def team(threads: Any) -> int:
    """How many threads: as many as are asked for, or all of Numba's."""
    return number(threads, "threads", 0) if threads else numba.get_num_threads()
