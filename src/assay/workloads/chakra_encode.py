"""Columns back to protobuf's wire: as its own libraries write it, byte for byte.

Fields by number, defaults left out, dependencies packed, and behind them the node's tail as it was read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.workloads.chakra_wire import CTRL, DATA, DURATION, ID, NAME, SIZED, START, TYPE, VARINT, Bytes, Word


@njit(cache=True, nogil=True)
def _width(value: Word) -> int:
    width = 1
    rest = np.uint64(value) >> np.uint64(7)
    while rest:
        width += 1
        rest >>= np.uint64(7)
    return width


@njit(cache=True, nogil=True)
def _put(out: Bytes, at: int, value: Word) -> int:
    rest = np.uint64(value)
    while rest > np.uint64(127):
        out[at] = np.uint8(rest & np.uint64(127) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@njit(cache=True, nogil=True)
def _width_of_all(values: Any, low: int, high: int) -> int:
    width = 0
    for i in range(low, high):
        width += _width(values[i])
    return width


@njit(cache=True, nogil=True)
def _put_field(out: Bytes, at: int, number: int, value: Word) -> int:
    if np.uint64(value) == np.uint64(0):
        return at
    return _put(out, _put(out, at, number << 3 | VARINT), value)


@njit(cache=True, nogil=True)
def _put_packed(out: Bytes, at: int, number: int, values: Any, low: int, high: int) -> int:
    if low == high:
        return at
    at = _put(out, at, number << 3 | SIZED)
    at = _put(out, at, _width_of_all(values, low, high))
    for i in range(low, high):
        at = _put(out, at, values[i])
    return at


@njit(cache=True, nogil=True)
def _put_bytes(out: Bytes, at: int, source: Bytes, low: int, high: int) -> int:
    out[at : at + high - low] = source[low:high]
    return at + high - low


@njit(cache=True, nogil=True)
def sizes(
    id_: Any, kind: Any, start: Any, duration: Any, name: Any, name_at: Any,
    ctrl_at: Any, ctrl: Any, data_at: Any, data: Any, tail_at: Any,
) -> Any:  # fmt: skip
    """How many bytes each node's message has, its length in front not counted."""
    out = np.empty(len(id_), np.int64)
    for i in range(len(id_)):
        size = tail_at[i + 1] - tail_at[i]
        for value in (id_[i], np.uint64(np.int64(kind[i])), start[i], duration[i]):
            size += 1 + _width(value) if value else 0  # these fields' tags have one byte
        letters = name_at[name[i] + 1] - name_at[name[i]]
        size += 1 + _width(letters) + letters if letters else 0
        for at, values in ((ctrl_at, ctrl), (data_at, data)):
            if at[i + 1] > at[i]:
                width = _width_of_all(values, at[i], at[i + 1])
                size += 1 + _width(width) + width
        out[i] = size
    return out


@njit(cache=True, nogil=True)
def total(sized: Any) -> int:
    """The bytes of all messages behind their lengths."""
    out = 0
    for size in sized:
        out += _width(size) + size
    return out


@njit(cache=True, nogil=True)
def emit(
    out: Bytes, at: int, sized: Any, id_: Any, kind: Any, start: Any, duration: Any, name: Any, name_at: Any,
    names: Bytes, ctrl_at: Any, ctrl: Any, data_at: Any, data: Any, tail_at: Any, tail: Bytes,
) -> int:  # fmt: skip
    """Write all nodes, each behind its length; where it ended."""
    for i in range(len(id_)):
        at = _put(out, at, sized[i])
        at = _put_field(out, at, ID, id_[i])
        low, high = name_at[name[i]], name_at[name[i] + 1]
        if high > low:
            at = _put(out, _put(out, at, NAME << 3 | SIZED), high - low)
            at = _put_bytes(out, at, names, low, high)
        at = _put_field(out, at, TYPE, np.uint64(np.int64(kind[i])))
        at = _put_packed(out, at, CTRL, ctrl, ctrl_at[i], ctrl_at[i + 1])
        at = _put_packed(out, at, DATA, data, data_at[i], data_at[i + 1])
        at = _put_field(out, at, START, start[i])
        at = _put_field(out, at, DURATION, duration[i])
        at = _put_bytes(out, at, tail, tail_at[i], tail_at[i + 1])
    return at


@njit(cache=True, nogil=True)
def join(codes: Any, record_at: Any, record: Bytes, first: Any) -> tuple[Any, Any]:
    """Tails from records: node i gets record `first[c] + codes[c, i]` of every column c in which its code is not -1."""
    columns, n = codes.shape
    tail_at = np.zeros(n + 1, np.int64)
    for i in range(n):
        size = 0
        for c in range(columns):
            if codes[c, i] >= 0:
                which = first[c] + codes[c, i]
                size += record_at[which + 1] - record_at[which]
        tail_at[i + 1] = tail_at[i] + size
    tail = np.empty(tail_at[n], np.uint8)
    at = 0
    for i in range(n):
        for c in range(columns):
            if codes[c, i] >= 0:
                which = first[c] + codes[c, i]
                at = _put_bytes(tail, at, record, record_at[which], record_at[which + 1])
    return tail_at, tail
