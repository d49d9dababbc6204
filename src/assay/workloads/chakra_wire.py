"""Protobuf's wire, as far as Chakra needs it, compiled: a file of a million nodes is read in about a second.

A Chakra execution trace is a stream of messages, each behind its length: first a `GlobalMetadata`, then `Node`s. A
message is a row of fields, each a tag (number and wire type) and a payload. The columns that analysis needs are read
into arrays; everything else of a node (inputs, outputs, attributes, fields that this version does not know) stays as
the bytes that were read, one slice a node: its *tail*. So nothing is lost, and nothing is paid for what nobody asks.

Nothing here allocates by what a length claims: a length is believed only once the bytes are there.

- Protocol Buffers, "Encoding": https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit

Bytes = npt.NDArray[np.uint8]
Word = Any  # uint64 or int64 in compiled code, int outside

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5  # the wire types; 3 and 4 are groups, which Chakra never had
ID, NAME, TYPE, CTRL, DATA, START, DURATION, INPUTS, OUTPUTS, ATTR = range(1, 11)  # the fields of a node

CUT, LONG, SHORT, SPILL, WIRE, NUMBER, HUGE, MANY = range(1, 9)
WHY = {
    CUT: "a number breaks off",
    LONG: "a number has more than ten bytes",
    SHORT: "a message is longer than what is left of the file",
    SPILL: "a field is longer than the message it is in",
    WIRE: "a field has a wire type that Chakra does not use (groups, 6 or 7)",
    NUMBER: "a field has a number that protobuf does not allow",
    HUGE: "a message claims more than 2 GiB, which protobuf does not allow",
    MANY: "there are more nodes than can be held",
}
_LARGEST_MESSAGE = 2**31 - 1
_LARGEST_FIELD = 2**29 - 1


@njit(cache=True, nogil=True)
def varint(buf: Bytes, pos: int, end: int) -> tuple[Word, int]:
    """The number at `pos` and the position behind it; a negative position is minus the reason why there is none."""
    value, shift = np.uint64(0), np.uint64(0)
    for _ in range(10):
        if pos >= end:
            return value, -CUT
        byte = np.uint64(buf[pos])
        pos += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return value, pos
        shift += np.uint64(7)
    return value, -LONG


@njit(cache=True, nogil=True)
def field(buf: Bytes, pos: int, end: int) -> tuple[Any, Any, Word, Any, Any]:
    """One field: number (or minus the reason of a failure), wire type, value or length, payload and end positions."""
    tag, body = varint(buf, pos, end)
    if body < 0:
        return body, 0, tag, pos, pos
    number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
    if number < 1 or number > _LARGEST_FIELD:
        return -NUMBER, wire, tag, pos, pos
    if wire == VARINT:
        value, after = varint(buf, body, end)
        if after < 0:
            return after, wire, value, pos, pos
        return number, wire, value, body, after
    if wire == SIZED:
        length, body = varint(buf, body, end)
        if body < 0:
            return body, wire, length, pos, pos
        if length > np.uint64(end - body):
            return -SPILL, wire, length, pos, pos
        return number, wire, length, body, body + np.int64(length)
    if wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
        if body + size > end:
            return -SPILL, wire, np.uint64(size), pos, pos
        return number, wire, np.uint64(size), body, body + size
    return -WIRE, wire, tag, pos, pos


@njit(cache=True, nogil=True)
def check(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Whether a message's fields fill it exactly: 0, or the reason and where."""
    while pos < end:
        number, _, _, _, after = field(buf, pos, end)
        if number < 0:
            return -number, pos
        pos = after
    return 0, pos


@njit(cache=True, nogil=True)
def _is_column(number: int, wire: int) -> bool:
    if number in (CTRL, DATA):
        return wire in (VARINT, SIZED)
    if number == NAME:
        return wire == SIZED
    return wire == VARINT and (number in (ID, TYPE, START, DURATION))


@njit(cache=True, nogil=True)
def _count_packed(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    """How many numbers stand in a packed list; minus the reason where they do not fill it."""
    count = 0
    while pos < end:
        _, after = varint(buf, pos, end)
        if after < 0:
            return after, pos
        pos = after
        count += 1
    return count, pos


@njit(cache=True, nogil=True)
def frame(buf: Bytes, pos: int) -> tuple[Any, Any, Any]:
    """The message behind the length at `pos`: 0 and where it begins and ends, or the reason why not."""
    length, body = varint(buf, pos, len(buf))
    if body < 0:
        return -body, pos, pos
    if length > np.uint64(_LARGEST_MESSAGE):
        return HUGE, pos, pos
    if length > np.uint64(len(buf) - body):
        return SHORT, pos, pos
    return 0, body, body + np.int64(length)


@njit(cache=True, nogil=True)
def measure(buf: Bytes, pos: int, most: int) -> tuple[int, int, int, int, int, int]:
    """Walk all nodes from `pos` on: 0, the end, and how many nodes, dependencies of both kinds and tail bytes."""
    nodes, ctrl, data, tail = 0, 0, 0, 0
    while pos < len(buf):
        code, body, end = frame(buf, pos)
        if code:
            return code, pos, nodes, ctrl, data, tail
        if nodes >= most:
            return MANY, pos, nodes, ctrl, data, tail
        nodes += 1
        pos = body
        while pos < end:
            number, wire, _, payload, after = field(buf, pos, end)
            if number < 0:
                return -number, pos, nodes, ctrl, data, tail
            if not _is_column(number, wire):
                tail += after - pos
                if wire == SIZED and (number in (INPUTS, OUTPUTS, ATTR)):
                    code, at = check(buf, payload, after)
                    if code:
                        return code, at, nodes, ctrl, data, tail
            elif number in (CTRL, DATA):
                count, at = (1, pos) if wire == VARINT else _count_packed(buf, payload, after)
                if count < 0:
                    return -count, at, nodes, ctrl, data, tail
                ctrl += count if number == CTRL else 0
                data += count if number == DATA else 0
            pos = after
    return 0, pos, nodes, ctrl, data, tail


@njit(cache=True, nogil=True)
def _place(number: int, wire: int) -> int:
    """Where a field of the tail is written: as protobuf's own libraries do, by number, and what is unknown last."""
    return number if wire == SIZED and INPUTS <= number <= ATTR else ATTR + 1


@njit(cache=True, nogil=True)
def _copy_tail(buf: Bytes, body: int, end: int, out: Bytes, at: int) -> int:
    for place in range(INPUTS, ATTR + 2):
        pos = body
        while pos < end:
            number, wire, _, _, after = field(buf, pos, end)
            if not _is_column(number, wire) and _place(number, wire) == place:
                out[at : at + after - pos] = buf[pos:after]
                at += after - pos
            pos = after
    return at


@njit(cache=True, nogil=True)
def _numbers(buf: Bytes, wire: int, value: Word, pos: int, end: int, out: npt.NDArray[np.uint64], at: int) -> int:
    if wire == VARINT:
        out[at] = value
        return at + 1
    while pos < end:
        out[at], pos = varint(buf, pos, end)
        at += 1
    return at


@njit(cache=True, nogil=True)
def fill(
    buf: Bytes, pos: int, id_: Any, kind: Any, start: Any, duration: Any, name: Any,
    ctrl_at: Any, ctrl: Any, data_at: Any, data: Any, tail_at: Any, tail: Any,
) -> None:  # fmt: skip
    """Lay out into columns what `measure` has walked and found sound; `name` gets the slices of the buffer."""
    node = 0
    while pos < len(buf):
        _, body, end = frame(buf, pos)
        pos = body
        c, d = ctrl_at[node], data_at[node]
        while pos < end:
            number, wire, value, payload, after = field(buf, pos, end)
            if _is_column(number, wire):
                if number == ID:
                    id_[node] = value
                elif number == NAME:
                    name[node, 0], name[node, 1] = payload, after
                elif number == TYPE:
                    kind[node] = np.int32(np.int64(value))
                elif number == START:
                    start[node] = value
                elif number == DURATION:
                    duration[node] = value
                elif number == CTRL:
                    c = _numbers(buf, wire, value, payload, after, ctrl, c)
                else:
                    d = _numbers(buf, wire, value, payload, after, data, d)
            pos = after
        ctrl_at[node + 1], data_at[node + 1] = c, d
        tail_at[node + 1] = _copy_tail(buf, body, end, tail, tail_at[node])
        node += 1


@njit(cache=True, nogil=True)
def intern(buf: Bytes, slices: Any, secret: Word) -> tuple[Any, Any]:
    """Numbers for slices, equal bytes getting equal numbers in order of first appearance; and who appeared first.

    The hash is keyed by a secret, so that no file can be made that hits one bucket all the time.
    """
    size = 16
    while size < 2 * len(slices):
        size *= 2
    table = np.full(size, -1, np.int64)
    codes = np.empty(len(slices), np.int32)
    firsts = np.empty(len(slices), np.int64)
    found = 0
    odd = np.uint64(secret) | np.uint64(1)
    for i in range(len(slices)):
        low, high = slices[i, 0], slices[i, 1]
        mixed = np.uint64(secret) ^ np.uint64(high - low)
        for position in range(low, high):
            mixed = (mixed ^ np.uint64(buf[position])) * odd
            mixed ^= mixed >> np.uint64(29)
        slot = np.int64(mixed & np.uint64(size - 1))
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = found
                firsts[found] = i
                codes[i] = found
                found += 1
                break
            a, b = slices[firsts[other], 0], slices[firsts[other], 1]
            same = b - a == high - low
            offset = 0
            while same and offset < high - low:
                same = buf[a + offset] == buf[low + offset]
                offset += 1
            if same:
                codes[i] = other
                break
            slot = (slot + 1) & (size - 1)
    return codes, firsts[:found]
