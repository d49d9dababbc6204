"""The events of a Kineto or Chrome trace as rows of numbers, straight from the bytes of the file.

Every event becomes one row of `FIELDS`; strings (names, categories, process groups) become numbers of a
:class:`Strings`. Nothing else of an event is kept, and no Python object is made for it. Times come out in integer
nanoseconds.

>>> strings, rows = Strings(), np.empty((4, len(FIELDS)), np.int64)
>>> text = b'{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.5, "dur": 2, "args": {"stream": 7}}, {"ph": "i"}]'
>>> found = scan(np.frombuffer(text, np.uint8), 0, len(text), rows, 0, strings)
>>> found.rows, found.ended, [int(rows[0, FIELDS.index(name)]) for name in ("ts", "dur", "stream")]
(2, True, [1500, 2000, 7])
>>> strings.text(rows[0, FIELDS.index("name")])
'gemm'
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.workloads.json_scan import (
    JIT,
    MISSING,
    MORE,
    intern,
    key_end,
    skip_value,
    string_end,
    string_hash,
    thousandths,
    white,
)  # fmt: skip

FIELDS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "correlation", "external", "stream", "seq", "group", "collective",
    "dtype", "sent", "received", "bytes", "label", "ranks", "record", "wait_on", "recorded_by", "given", "grid",
)  # fmt: skip
DETAILS = FIELDS[-5:]
"""Fields that are read only where they are asked for: few need them, and the text of arguments is long."""
_LETTER, _TEXT, _WHOLE, _TIME, _EITHER, _SHAPES, _FIRST = range(7)  # how a value is read
_AT = {field: at for at, field in enumerate(FIELDS)}
_EVENT = {
    "ph": _LETTER, "cat": _TEXT, "name": _TEXT, "pid": _EITHER, "tid": _EITHER, "ts": _TIME, "dur": _TIME,
}  # fmt: skip
_ARGS = {
    "correlation": ("correlation", _WHOLE), "connection_id": ("correlation", _WHOLE),  # the latter is Ascend's
    "External id": ("external", _WHOLE), "external id": ("external", _WHOLE),
    "stream": ("stream", _EITHER), "Seq": ("seq", _WHOLE), "Process Group Name": ("group", _EITHER),
    "Collective name": ("collective", _TEXT), "dtype": ("dtype", _TEXT), "Data Type": ("dtype", _TEXT),
    "In msg nelems": ("sent", _WHOLE), "Out msg nelems": ("received", _WHOLE), "bytes": ("bytes", _WHOLE),
    "name": ("label", _TEXT), "labels": ("label", _TEXT), "Process Group Ranks": ("ranks", _TEXT),
    "Input Dims": ("sent", _SHAPES), "Input type": ("dtype", _FIRST),  # of gloo's collectives nothing else is told
}  # fmt: skip
_OF_DETAILS = {
    "Record function id": ("record", _WHOLE), "wait_on_stream": ("wait_on", _EITHER),
    "wait_on_cuda_event_record_corr_id": ("recorded_by", _WHOLE), "Concrete Inputs": ("given", _TEXT),
    "grid": ("grid", _TEXT),
}  # fmt: skip
_ARGS_CODE = len(FIELDS)  # of the key `args` of an event
_MANY = 1 << 50  # elements: more than any message has
_SLOTS = 1 << 12  # many, lest two of the keys share one
WORDS = MISSING >> 1
"""Process and thread ids may be words: string i is written as `WORDS - i`, below every number that is an id."""


def _hash(key: str) -> int:
    value = 0xCBF29CE484222325
    for byte in key.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def _keys(codes: dict[str, tuple[int, int]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """By the low bits of a key's hash: the hash, and (field, how it is read); -1 where there is no key."""
    hashes, table = np.zeros(_SLOTS, np.uint64), np.full((_SLOTS, 2), -1, np.int64)
    for key, code in codes.items():
        at = _hash(key) % _SLOTS
        assert table[at, 0] == -1, f"the keys of a trace need more than {_SLOTS} slots: {key}"
        hashes[at], table[at] = _hash(key), code
    return hashes, table


_OF_EVENT = _keys({key: (_AT[key], how) for key, how in _EVENT.items()} | {"args": (_ARGS_CODE, 0)})
_OF_ARGS = _keys({key: (_AT[field], how) for key, (field, how) in _ARGS.items()})
_OF_ALL_ARGS = _keys({key: (_AT[field], how) for key, (field, how) in (_ARGS | _OF_DETAILS).items()})
_HASHES, _CODES = (np.stack(both) for both in zip(_OF_EVENT, _OF_ARGS, strict=True))
_ALL_HASHES, _ALL_CODES = (np.stack(both) for both in zip(_OF_EVENT, _OF_ALL_ARGS, strict=True))


class Strings:
    """Strings that were seen, each once, numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self.slots = np.zeros(1 << 13, np.int32)
        self.bounds = np.zeros(1 << 12, np.int64)
        self.letters = np.empty(1 << 18, np.uint8)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def grow(self, room: int) -> None:
        """Make room for as many strings again, and at least `room` more bytes."""
        count = len(self)
        bounds = np.zeros(2 * len(self.bounds), np.int64)
        bounds[: count + 1], bounds[-1] = self.bounds[: count + 1], count
        letters = np.empty(2 * len(self.letters) + room, np.uint8)
        letters[: bounds[count]] = self.letters[: bounds[count]]
        self.bounds, self.letters, self.slots = bounds, letters, np.zeros(2 * len(self.slots), np.int32)
        _refill(self.slots, self.bounds, self.letters)

    def text(self, i: int) -> str:
        """String i, unescaped."""
        import msgspec

        raw = self.letters[self.bounds[i] : self.bounds[i + 1]].tobytes()
        if b"\\" in raw:
            try:
                return str(msgspec.json.decode(b'"' + raw + b'"', type=str))
            except msgspec.MsgspecError:
                pass  # an escape that JSON does not have: the bytes as they are
        return raw.decode("utf-8", "replace")

    def all(self) -> list[str]:
        """Every string, by number."""
        return [self.text(i) for i in range(len(self))]


@njit(**JIT)
def _refill(slots: Any, bounds: Any, letters: Any) -> None:
    mask = np.uint64(len(slots) - 1)
    for i in range(bounds[-1]):
        at = string_hash(letters, bounds[i], bounds[i + 1]) & mask
        while slots[at] != 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = i + 1


class Found(NamedTuple):
    """What one call of :func:`scan` came to."""

    position: int  # behind the last whole event
    rows: int
    ended: bool  # the closing bracket was met
    fault: int | None  # the position of a byte that cannot stand there
    full: bool  # no room for another row: call again


def scan(
    text: NDArray[np.uint8], p: int, end: int, rows: NDArray[np.int64], row: int, strings: Strings,
    detailed: bool = False,
) -> Found:  # fmt: skip
    """Read events from `p`, where one or the closing bracket begins, into `rows` from `row` on."""
    hashes, codes = (_ALL_HASHES, _ALL_CODES) if detailed else (_HASHES, _CODES)
    while True:
        p, row, answer = _events(text, p, end, rows, row, strings.slots, strings.bounds, strings.letters, hashes, codes)
        if answer != _CROWDED:
            break
        strings.grow(end - p)
    fault = -answer - 2 if answer <= -2 else None
    return Found(int(p), int(row), answer == _ENDED, fault, answer == _FULL)


_ENDED, _FULL, _CROWDED = 1, 2, 3
_NO_ROOM = MISSING


@njit(**JIT)
def _events(
    text: Any, p: int, end: int, rows: Any, row: int, slots: Any, bounds: Any, letters: Any, hashes: Any, codes: Any
) -> Any:  # fmt: skip
    """(behind the last whole event, rows now, why it stopped)."""
    while True:
        p = white(text, p, end)
        if p >= end:
            return p, row, MORE
        if text[p] == 0x5D:
            return p + 1, row, _ENDED
        if text[p] != 0x7B:
            return p, row, -(p + 2)
        if row >= len(rows):
            return p, row, _FULL
        for field in range(rows.shape[1]):
            rows[row, field] = MISSING
        after = _event(text, p, end, rows, row, slots, bounds, letters, hashes, codes)
        if after == _NO_ROOM:
            return p, row, _CROWDED
        if after < 0:
            return p, row, after
        after = white(text, after, end)
        if after >= end:
            return p, row, MORE
        if text[after] == 0x2C:
            after += 1
        elif text[after] != 0x5D:
            return p, row, -(after + 2)
        phase = rows[row, 0]
        if not (phase == 0x73 or phase == 0x74 or phase == 0x66):  # flows (s, t, f) repeat what correlations say
            row += 1
        p = after


@njit(**JIT)
def _event(
    text: Any, p: int, end: int, rows: Any, row: int, slots: Any, bounds: Any, letters: Any, hashes: Any, codes: Any
) -> Any:  # fmt: skip
    """Read the object at `p` into a row, and the object `args` within it: row 1 of `hashes` holds its keys."""
    inside, p, fresh = 0, p + 1, True
    while True:
        p = white(text, p, end)
        if p >= end:
            return MORE
        if text[p] == 0x7D:
            p += 1
            if inside == 0:
                return p
            inside, fresh = 0, False
        elif not fresh and text[p] != 0x2C:
            return -(p + 2)
        else:
            begin = p if fresh else white(text, p + 1, end)
            p = key_end(text, begin, end)
            if p < 0:
                return p
            field, how = _field(text, begin, p, hashes[inside], codes[inside])
            p = white(text, p, end)
            if field == _ARGS_CODE and p < end and text[p] == 0x7B:
                inside, p, fresh = 1, p + 1, True
                continue
            value, p, fresh = p, skip_value(text, p, end), False
            if p < 0:
                return p
            if 0 <= field < _ARGS_CODE and not _take(text, value, p, rows, row, field, how, slots, bounds, letters):
                return _NO_ROOM


@njit(**JIT)
def _field(text: Any, begin: int, p: int, hashes: Any, codes: Any) -> Any:
    """The field that the key whose colon is before `p` belongs to, and how it is read; -1 where nobody wants it."""
    close = p - 2  # back from the colon to the closing quote
    while text[close] != 0x22:
        close -= 1
    h = string_hash(text, begin + 1, close)
    at = h & np.uint64(len(hashes) - 1)
    if hashes[at] != h:
        return -1, 0
    return codes[at, 0], codes[at, 1]


@njit(**JIT)
def _take(
    text: Any, p: int, end: int, rows: Any, row: int, field: int, how: int, slots: Any, bounds: Any, letters: Any
) -> Any:  # fmt: skip
    """Put the value in `text[p:end]` into its field; False if there is no room for its string."""
    if how == _FIRST:
        p, end = _first_text(text, p, end)
        how = _TEXT
        if p == end:
            return True
    quoted = text[p] == 0x22
    number = MISSING
    if how == _LETTER:
        if quoted and end - p == 3:
            number = text[p + 1]
    elif how == _SHAPES:
        number = _elements(text, p, end)
    elif how != _TEXT and not (how == _EITHER and quoted):
        number = thousandths(text, p, end)
        if how != _TIME and number != MISSING:
            number = MISSING if number % 1000 else number // 1000
    if how == _TEXT or (how == _EITHER and number == MISSING):
        inner = 1 if quoted else 0
        i = intern(text, p + inner, end - inner, slots, bounds, letters)
        if i < 0:
            return False
        number = i if how == _TEXT else WORDS - i
    rows[row, field] = number
    return True


@njit(**JIT)
def _first_text(text: Any, p: int, end: int) -> Any:
    """Where the first string in `text[p:end]` lies, its quotes included; nowhere (twice `end`) if there is none."""
    while p < end and text[p] != 0x22:
        p += 1
    return p, (string_end(text, p, end) if p < end else end)


@njit(**JIT)
def _elements(text: Any, p: int, end: int) -> Any:
    """How many numbers tensors of these shapes hold: `[[8, 4], []]` is 33; MISSING where no shape is told."""
    depth, total, product, lengths, shapes = 0, 0, 1, 0, 0
    while p < end:
        c = text[p]
        if c == 0x5B:
            depth, product, lengths = depth + 1, 1, 0
        elif c == 0x5D:
            if depth > 1 and (lengths > 0 or text[p - 1] == 0x5B):  # not the end of a list of shapes
                total, shapes = total + product, shapes + 1
            depth, lengths = depth - 1, 0
        elif c >= 0x30 and c <= 0x39:
            length = 0
            while p < end and text[p] >= 0x30 and text[p] <= 0x39:
                length, p = min(length * 10 + (text[p] - 0x30), _MANY), p + 1
            if length > 0 and product > _MANY // length:
                return MISSING
            product, lengths, p = product * length, lengths + 1, p - 1
        elif c != 0x2C and c != 0x20:
            return MISSING
        p += 1
    return total if shapes > 0 and total <= _MANY else MISSING
