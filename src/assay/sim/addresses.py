"""How compiled code reaches an array by its address: for records that hold addresses instead of arrays.

A tuple of arrays costs a copy and a reference count for each in every call; one record of addresses costs nothing.
Whoever keeps an address keeps the array alive.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from numba import types  # type: ignore[attr-defined,unused-ignore]
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(typingctx, address):
    """An address as a pointer, for `numba.carray`."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen
