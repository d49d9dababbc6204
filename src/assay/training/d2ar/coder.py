"""A binary range coder whose probabilities adapt, and whole numbers in it.

A number is told as: is it zero, its sign, then its size in unary up to a few and in Elias' gamma code beyond; every
decision has a probability of its own by the number's context. Contexts can start from what the archive taught, so that
a file of fifty bytes pays nothing for learning. The last bytes are the shortest that still fall into the last interval:
the reader takes zeros for what is not there.

Compiled by numba where it is installed; plain Python otherwise (slow, and the same bytes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from assay.sim.compiled import njit as njit  # for `wavelet`, too
except ImportError:  # standing alone

    def njit(**options: Any) -> Any:  # type: ignore[misc]
        """Leave a function as it is."""
        return lambda function: function


ONE = 1 << 16  # probabilities are shares of this
TOP = 1 << 24
UNARY = 14  # sizes told one by one; beyond them by gamma code
SLOTS = 2 + UNARY + 20  # decisions of a context: zero, sign, unary, gamma's length
RATE = 5  # a probability moves by 1/32 of what it was off


def fresh(contexts: int) -> NDArray[np.int64]:
    """Probabilities of nothing known: every decision even, small numbers a little likelier."""
    return np.full((contexts, SLOTS), ONE // 2, np.int64)


@njit(cache=True, nogil=True)
def put(out, state, model, context, slot, bit):  # type: ignore[no-untyped-def]
    """Tell one decision. `state` is low, range, bytes written; `out` has room."""
    chance = model[context, slot]  # of a 1
    bound = (state[1] >> 16) * chance
    if bit:
        state[1] = bound
        model[context, slot] += (ONE - 64 - chance) >> RATE
    else:
        state[0] += bound
        state[1] -= bound
        model[context, slot] -= (chance - 64) >> RATE
    while state[1] < TOP:
        state[1] <<= 8
        _shift(out, state)


@njit(cache=True, nogil=True)
def _shift(out, state):  # type: ignore[no-untyped-def]
    """The top byte of low leaves; a carry goes back into bytes that have left."""
    low, at = state[0], state[2]
    if low >= 1 << 32:
        k = at - 1
        while out[k] == 255:
            out[k] = 0
            k -= 1
        out[k] += 1
        low -= 1 << 32
    out[at] = low >> 24
    state[0] = (low & (TOP - 1)) << 8
    state[2] = at + 1


@njit(cache=True, nogil=True)
def finish(out, state):  # type: ignore[no-untyped-def]
    """The fewest bytes that name a number in the last interval; how many bytes there are in all."""
    low, high = state[0], state[0] + state[1] - 1
    for zeros in (32, 24, 16, 8, 0):
        value = ((low + (1 << zeros) - 1) >> zeros) << zeros
        if value <= high:
            break
    state[0] = value
    for _ in range(4):
        _shift(out, state)
    end = state[2]
    while end > 0 and out[end - 1] == 0:
        end -= 1
    return end


@njit(cache=True, nogil=True)
def get(data, state, model, context, slot):  # type: ignore[no-untyped-def]
    """Read one decision. `state` is code less low, range, bytes read."""
    chance = model[context, slot]
    bound = (state[1] >> 16) * chance
    if state[0] < bound:
        state[1] = bound
        model[context, slot] += (ONE - 64 - chance) >> RATE
        bit = 1
    else:
        state[0] -= bound
        state[1] -= bound
        model[context, slot] -= (chance - 64) >> RATE
        bit = 0
    while state[1] < TOP:
        state[1] <<= 8
        byte = np.int64(data[state[2]]) if state[2] < len(data) else np.int64(0)
        state[0] = (state[0] << 8) | byte
        state[2] += 1
    return bit


@njit(cache=True, nogil=True)
def start(data, state):  # type: ignore[no-untyped-def]
    """Read the first four bytes."""
    state[0], state[1], state[2] = 0, (1 << 32) - 1, 4
    for k in range(4):
        state[0] = (state[0] << 8) | (np.int64(data[k]) if k < len(data) else np.int64(0))


@njit(cache=True, nogil=True)
def put_number(out, state, model, context, value):  # type: ignore[no-untyped-def]
    """Tell a whole number."""
    put(out, state, model, context, 0, 1 if value else 0)
    if value == 0:
        return
    put(out, state, model, context, 1, 1 if value < 0 else 0)
    size = abs(value) - 1
    for k in range(UNARY):
        put(out, state, model, context, 2 + k, 1 if size > k else 0)
        if size <= k:
            return
    rest = size - UNARY + 1
    length = 0
    while rest >> (length + 1):
        length += 1
    for k in range(length + 1):
        put(out, state, model, context, min(2 + UNARY + k, SLOTS - 2), 1 if k < length else 0)
    for k in range(length - 1, -1, -1):
        model[context, SLOTS - 1] = ONE // 2
        put(out, state, model, context, SLOTS - 1, (rest >> k) & 1)


@njit(cache=True, nogil=True)
def get_number(data, state, model, context):  # type: ignore[no-untyped-def]
    """Read a whole number."""
    if not get(data, state, model, context, 0):
        return 0
    sign = -1 if get(data, state, model, context, 1) else 1
    for k in range(UNARY):
        if not get(data, state, model, context, 2 + k):
            return sign * (k + 1)
    length = 0
    while length < 30 and get(data, state, model, context, min(2 + UNARY + length, SLOTS - 2)):
        length += 1
    rest = 1
    for _ in range(length):
        model[context, SLOTS - 1] = ONE // 2
        rest = (rest << 1) | get(data, state, model, context, SLOTS - 1)
    return sign * (rest + UNARY)


@njit(cache=True, nogil=True)
def _encode(values, contexts, model, out):  # type: ignore[no-untyped-def]
    state = np.array([0, (1 << 32) - 1, 0], np.int64)
    for i in range(len(values)):
        put_number(out, state, model, contexts[i], values[i])
    return finish(out, state)


@njit(cache=True, nogil=True)
def _decode(data, contexts, model, values):  # type: ignore[no-untyped-def]
    state = np.zeros(3, np.int64)
    start(data, state)
    for i in range(len(contexts)):
        values[i] = get_number(data, state, model, contexts[i])


def encode(values: NDArray[np.int64], contexts: NDArray[np.int64], model: NDArray[np.int64]) -> bytes:
    """Whole numbers as bytes; `model` says what is likely in each context, and is left as it was.

    >>> told = encode(np.array([0, 0, -3, 40]), np.zeros(4, np.int64), fresh(1))
    >>> decode(told, np.zeros(4, np.int64), fresh(1)).tolist()
    [0, 0, -3, 40]
    """
    values = np.ascontiguousarray(values, np.int64)
    out = np.zeros(16 + 16 * len(values), np.uint8)
    end = _encode(values, np.ascontiguousarray(contexts, np.int64), model.copy(), out)
    return out[:end].tobytes()


def decode(data: bytes, contexts: NDArray[np.int64], model: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many numbers as there are contexts."""
    values = np.zeros(len(contexts), np.int64)
    _decode(np.frombuffer(data, np.uint8), np.ascontiguousarray(contexts, np.int64), model.copy(), values)
    return values
