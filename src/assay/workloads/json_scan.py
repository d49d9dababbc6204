"""JSON walked as bytes, compiled: find where a value ends, read a number exactly, give a string a number.

A decoder makes an object of every key and value; a trace has millions of them and needs few. These functions only move
a position. What they return is the position behind the value, or a negative answer: `MORE` if the
bytes end within it, `-(p + 2)` if the byte at `p` cannot stand there.

>>> text = np.frombuffer(b'{"a": [1, "x]"]} ', np.uint8)
>>> skip_value(text, 0, len(text))
16
>>> wrong = np.frombuffer(b'{"a": [1, 2}', np.uint8)
>>> at_fault(skip_value(wrong, 0, len(wrong)))
11
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit

MORE = -1
DEEPEST = 60
"""Brackets within brackets; one bit each says whether it is an object."""
MISSING = -(1 << 62)
"""In place of a number that is not there, or is none."""
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_QUOTE, _BACK, _COMMA, _COLON = 0x22, 0x5C, 0x2C, 0x3A
_OPEN, _CLOSE, _LEFT, _RIGHT = 0x7B, 0x7D, 0x5B, 0x5D
_LARGEST = 9_000_000_000_000_000  # of a number's whole part: times 1000 it still fits

JIT: dict[str, Any] = {"cache": True, "nogil": True}


def at_fault(answer: int) -> int:
    """The position of the byte that a negative answer complains about.

    >>> at_fault(-7)
    5
    """
    return -answer - 2


@njit(**JIT)
def white(text: Any, p: int, end: int) -> Any:
    """The next position that is no white space."""
    while p < end and (text[p] == 0x20 or text[p] == 0x0A or text[p] == 0x0D or text[p] == 0x09):
        p += 1
    return p


@njit(**JIT)
def string_end(text: Any, p: int, end: int) -> Any:
    """Behind the closing quote of the string whose opening quote is at `p`.

    Profilers write names with odd escapes, which are let through; a control character means that a quote was lost.
    """
    p += 1
    while p < end:
        c = text[p]
        if c == _QUOTE:
            return p + 1
        if c == _BACK:
            p += 2
        elif c < 0x20:
            return -(p + 2)
        else:
            p += 1
    return MORE


@njit(**JIT)
def _scalar_end(text: Any, p: int, end: int) -> Any:
    """Behind a number or a word: true, false, null, and NaN and Infinity, which profilers write too."""
    start = p
    while p < end:
        c = text[p]
        digit = (c >= 0x30 and c <= 0x39) or c == 0x2D or c == 0x2B or c == 0x2E
        letter = (c >= 0x61 and c <= 0x7A) or (c >= 0x41 and c <= 0x5A)
        if not (digit or letter):
            return p if p > start else -(p + 2)
        p += 1
    return MORE


@njit(**JIT)
def key_end(text: Any, p: int, end: int) -> Any:
    """Behind the colon of the key whose opening quote is at `p`."""
    if p >= end:
        return MORE
    if text[p] != _QUOTE:
        return -(p + 2)
    p = string_end(text, p, end)
    if p < 0:
        return p
    p = white(text, p, end)
    if p >= end:
        return MORE
    return p + 1 if text[p] == _COLON else -(p + 2)


@njit(**JIT)
def skip_value(text: Any, p: int, end: int) -> Any:
    """Behind the value that begins at `p`, whatever it is; brackets, commas and colons are checked."""
    depth, objects = 0, np.int64(0)
    while True:
        p = white(text, p, end)
        if p >= end:
            return MORE
        c = text[p]
        if c in (_OPEN, _LEFT):
            after = white(text, p + 1, end)
            if after >= end:
                return MORE
            if text[after] == c + 2:  # the closing bracket of either kind is two further
                p = after + 1
            else:
                if depth == DEEPEST:
                    return -(p + 2)
                depth += 1
                objects = (objects << 1) | (1 if c == _OPEN else 0)
                p = after if c == _LEFT else key_end(text, after, end)
                if p < 0:
                    return p
                continue
        else:
            p = string_end(text, p, end) if c == _QUOTE else _scalar_end(text, p, end)
            if p < 0:
                return p
        while depth > 0:  # a value has ended: leave what it was the last of
            p = white(text, p, end)
            if p >= end:
                return MORE
            inside = objects & 1
            if text[p] == _COMMA:
                p = p + 1 if inside == 0 else key_end(text, white(text, p + 1, end), end)
                if p < 0:
                    return p
                break
            if text[p] != (_CLOSE if inside else _RIGHT):
                return -(p + 2)
            p, depth, objects = p + 1, depth - 1, objects >> 1
        if depth == 0:
            return p


@njit(**JIT)
def thousandths(text: Any, p: int, end: int) -> Any:
    """The number at `p` (perhaps in quotes) in thousandths, rounded half up; MISSING where there is none.

    Microseconds become nanoseconds without passing through a float, which has no room for both a date and a fraction.
    """
    if p < end and text[p] == _QUOTE:
        p += 1
    sign = 1
    if p < end and text[p] == 0x2D:
        sign, p = -1, p + 1
    begin, whole, digits = p, 0, 0
    while p < end and text[p] >= 0x30 and text[p] <= 0x39:
        whole, digits, p = whole * 10 + (text[p] - 0x30), digits + 1, p + 1
        if whole > _LARGEST:
            return MISSING
    part, scale, up = 0, 100, 0
    if p < end and text[p] == 0x2E:
        p += 1
        while p < end and text[p] >= 0x30 and text[p] <= 0x39:
            if scale == 0 and up == 0:
                up = 2 if text[p] >= 0x35 else 1  # the fourth digit decides
            part, scale, digits, p = part + (text[p] - 0x30) * scale, scale // 10, digits + 1, p + 1
    if digits == 0:
        return MISSING
    value = whole * 1000 + part + (1 if up == 2 else 0)
    if p < end and (text[p] == 0x65 or text[p] == 0x45):
        value = _with_exponent(text, begin, p, end)
    return MISSING if value == MISSING else sign * value


@njit(**JIT)
def _with_exponent(text: Any, p: int, mark: int, end: int) -> Any:
    """The same for a number whose exponent begins at `mark`: its digits as one integer, moved by the power of ten."""
    value, power, behind = 0, 3, False
    for i in range(p, mark):
        if text[i] == 0x2E:
            behind = True
        elif value < 10**17:
            value, power = value * 10 + (text[i] - 0x30), power - (1 if behind else 0)
        elif not behind:
            power += 1
    sign, exponent, digits, p = 1, 0, 0, mark + 1
    if p < end and (text[p] == 0x2D or text[p] == 0x2B):
        sign, p = (-1 if text[p] == 0x2D else 1), p + 1
    while p < end and text[p] >= 0x30 and text[p] <= 0x39 and exponent < 100:
        exponent, digits, p = exponent * 10 + (text[p] - 0x30), digits + 1, p + 1
    if digits == 0:
        return MISSING
    power += sign * exponent
    while power > 0 and value > 0:
        if value > 100 * _LARGEST:
            return MISSING
        value, power = value * 10, power - 1
    while power < -1 and value > 0:
        value, power = value // 10, power + 1
    return (value + 5) // 10 if power == -1 else value


@njit(**JIT)
def string_hash(text: Any, p: int, end: int) -> Any:
    """Fowler, Noll and Vo's hash of the bytes from `p` to `end`."""
    h = _OFFSET
    for i in range(p, end):
        h = (h ^ np.uint64(text[i])) * _PRIME
    return h


@njit(**JIT)
def intern(text: Any, p: int, end: int, slots: Any, bounds: Any, letters: Any) -> Any:
    """The number of the string in `text[p:end]`, a new one if it was never seen; -1 if the tables are full.

    `slots` is an open hash table of numbers + 1, `letters[bounds[i]:bounds[i + 1]]` the bytes of string i, and
    `bounds[-1]` counts them.
    """
    size, mask = end - p, np.uint64(len(slots) - 1)
    at = string_hash(text, p, end) & mask
    while slots[at] != 0:
        i = slots[at] - 1
        begin = bounds[i]
        if bounds[i + 1] - begin == size:
            same = True
            for j in range(size):
                if letters[begin + j] != text[p + j]:
                    same = False
                    break
            if same:
                return i
        at = (at + np.uint64(1)) & mask
    count = bounds[-1]
    if 2 * count >= len(slots) or count + 3 > len(bounds) or bounds[count] + size > len(letters):
        return -1
    for j in range(size):
        letters[bounds[count] + j] = text[p + j]
    bounds[count + 1] = bounds[count] + size
    slots[at] = count + 1
    bounds[-1] = count + 1
    return count
