"""The attributes of a Chakra node: typed values by name, found in a million tails without unpacking any of them.

An `AttributeProto` holds a name and one value of fifteen scalar types or a list of them. :func:`encode` and
:func:`decode` turn one into Python and back; the compiled functions look one name up in all nodes at once.

>>> decode(encode("comm_size", 4096))
Attribute(name='comm_size', kind='int64', value=4096, doc='')
>>> decode(encode("involved_dim", [True, False])).value
[True, False]
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.compiled import njit
from assay.workloads.chakra_wire import ATTR, FIXED32, FIXED64, SIZED, VARINT, Bytes, field, varint

_NAME, _DOC = 1, 2
SCALARS = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15, "sint64": 17,
    "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27, "string": 29, "bytes": 31,
}  # fmt: skip
KINDS = {number: kind for kind, number in SCALARS.items()}  # a list of a kind has the next number
_PACKED = {
    "double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q",
}  # fmt: skip
_WIRES = dict.fromkeys(("double", "fixed64", "sfixed64"), FIXED64) | dict.fromkeys(
    ("float", "fixed32", "sfixed32"), FIXED32
)
_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute; `kind` is protobuf's word for its type, with `_list` for lists, empty where it has no value."""

    name: str
    kind: str
    value: Any
    doc: str = ""


def number(value: int) -> bytes:
    """A number as a varint; negative ones as protobuf writes them, in ten bytes.

    >>> number(300).hex(), len(number(-1))
    ('ac02', 10)
    """
    value %= _WORD
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(field_number: int, content: bytes) -> bytes:
    """A field whose payload has a length: text, bytes, a message, a packed list."""
    return number(field_number << 3 | SIZED) + number(len(content)) + content


def encode(name: str, value: Any, kind: str | None = None, doc: str = "") -> bytes:
    """An attribute as a message; without a kind, the one that Python's type suggests (int64, double, string, ...)."""
    kind = kind or _kind_of(value)
    out = sized(_NAME, _octets(name)) if name else b""
    out += sized(_DOC, _octets(doc)) if doc else b""
    if kind.endswith("_list"):
        base = kind.removesuffix("_list")
        if base in ("string", "bytes"):
            content = b"".join(sized(1, _octets(item)) for item in value)
        else:
            content = b"".join(_payload(item, base) for item in value)
            content = sized(1, content) if content else b""
        return out + sized(SCALARS[base] + 1, content)
    if kind in ("string", "bytes"):
        return out + sized(SCALARS[kind], _octets(value))
    return out + (number(SCALARS[kind] << 3 | _WIRES.get(kind, VARINT)) + _payload(value, kind) if kind else b"")


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int64" if -(2**63) <= value < 2**63 else "uint64"
        case float():
            return "double"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case [first, *_] if len({type(item) for item in value}) == 1:
            return f"{_kind_of(first)}_list"
        case []:
            return "int64_list"
    raise BadInput(f"chakra: an attribute cannot hold a {type(value).__name__}")


def _octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def text_of(octets: bytes) -> str:
    """Text as it was read; bytes that are no UTF-8 survive in it and are written back as they were."""
    return octets.decode("utf-8", "surrogateescape")


def _payload(value: Any, kind: str) -> bytes:
    if kind in _PACKED:
        return struct.pack(_PACKED[kind], value)
    if kind in ("sint32", "sint64"):
        return number(value << 1 if value >= 0 else (-value << 1) - 1)
    return number(int(value))


def _signed(word: int, kind: str) -> int | bool:
    if kind in ("sint32", "sint64"):
        return word >> 1 if word % 2 == 0 else -(word + 1 >> 1)
    if kind == "bool":
        return word != 0
    if kind in ("uint32", "uint64"):
        return word % 2**32 if kind == "uint32" else word
    word = word % 2**32 if kind == "int32" else word
    half = 2**31 if kind == "int32" else 2**63
    return word - 2 * half if word >= half else word


def fields(message: bytes) -> list[tuple[int, int, int, bytes]]:
    """The fields of a message: number, wire type, value or length, payload.

    >>> fields(bytes.fromhex("0896011202c3a9"))
    [(1, 0, 150, b'\\x96\\x01'), (2, 2, 2, b'\\xc3\\xa9')]
    """
    buf = np.frombuffer(message, np.uint8)
    out, pos = [], 0
    while pos < len(buf):
        found, wire, value, low, high = field(buf, pos, len(buf))
        if found < 0:
            raise BadInput(f"chakra: a message of {len(buf)} bytes is broken at its byte {pos}")
        out.append((int(found), int(wire), int(value), message[low:high]))
        pos = int(high)
    return out


def decode(message: bytes) -> Attribute:
    """One attribute from its message."""
    name, doc, kind, value = "", "", "", None
    for found, wire, word, payload in fields(message):
        if found == _NAME and wire == SIZED:
            name = text_of(payload)
        elif found == _DOC and wire == SIZED:
            doc = text_of(payload)
        elif found in KINDS:
            kind = KINDS[found]
            value = _scalar(kind, wire, word, payload)
        elif found - 1 in KINDS and wire == SIZED:
            kind = f"{KINDS[found - 1]}_list"
            value = _list(KINDS[found - 1], payload)
    return Attribute(name, kind, value, doc)


def _scalar(kind: str, wire: int, word: int, payload: bytes) -> Any:
    if wire == SIZED:
        return payload if kind == "bytes" else text_of(payload)
    if kind in _PACKED:
        return struct.unpack(_PACKED[kind], payload)[0] if len(payload) == struct.calcsize(_PACKED[kind]) else None
    return _signed(word, kind)


def _list(kind: str, message: bytes) -> list[Any]:
    out: list[Any] = []
    for _, wire, word, payload in fields(message):
        if kind in ("string", "bytes") or wire != SIZED:
            out.append(_scalar(kind, wire, word, payload))
        elif kind in _PACKED:
            whole = len(payload) // struct.calcsize(_PACKED[kind]) * struct.calcsize(_PACKED[kind])
            out += [value for (value,) in struct.iter_unpack(_PACKED[kind], payload[:whole])]
        else:
            buf, pos = np.frombuffer(payload, np.uint8), 0
            while pos < len(buf):
                item, pos = varint(buf, pos, len(buf))
                if pos < 0:
                    raise BadInput("chakra: a list of numbers breaks off in an attribute")
                out.append(_signed(int(item), kind))
    return out


# ------------------------------------------------------------------------------------- one name, all nodes


@njit(cache=True, nogil=True)
def find(tail_at: Any, tail: Bytes, wanted: Bytes, among: Any) -> Any:
    """Where each node's first attribute of this name begins and ends in the tails; -1 where it has none.

    Only the nodes marked in `among` are looked at.
    """
    n = len(tail_at) - 1
    where = np.full((n, 2), -1, np.int64)
    for node in range(n):
        if not among[node]:
            continue
        pos, end = tail_at[node], tail_at[node + 1]
        while pos < end and where[node, 0] < 0:
            found, wire, _, low, high = field(tail, pos, end)
            if found < 0:
                break
            if found == ATTR and wire == SIZED and _is_named(tail, low, high, wanted):
                where[node, 0], where[node, 1] = low, high
            pos = high
    return where


@njit(cache=True, nogil=True)
def find_all(tail_at: Any, tail: Bytes, names_at: Any, names: Bytes) -> Any:
    """The same for several names in one pass, as bytes from the node's own beginning to that of the attribute."""
    n, many = len(tail_at) - 1, len(names_at) - 1
    offset = np.full((many, n), -1, np.int32)
    for node in range(n):
        begin = pos = tail_at[node]
        end = tail_at[node + 1]
        while pos < end:
            found, wire, _, low, high = field(tail, pos, end)
            if found < 0:
                break
            if found == ATTR and wire == SIZED:
                first, last = _name(tail, low, high)
                for k in range(many):
                    if offset[k, node] < 0 and _same(tail, first, last, names, names_at[k], names_at[k + 1]):
                        offset[k, node] = pos - begin
                        break
            pos = high
    return offset


@njit(cache=True, nogil=True)
def located(tail_at: Any, tail: Bytes, offset: Any, among: Any) -> Any:
    """What `find` gives, from the offsets."""
    where = np.full((len(offset), 2), -1, np.int64)
    for node in range(len(offset)):
        if among[node] and offset[node] >= 0:
            _, _, _, low, high = field(tail, tail_at[node] + offset[node], tail_at[node + 1])
            where[node, 0], where[node, 1] = low, high
    return where


@njit(cache=True, nogil=True)
def _is_named(tail: Bytes, pos: int, end: int, wanted: Bytes) -> bool:
    first, last = _name(tail, pos, end)
    return bool(_same(tail, first, last, wanted, 0, len(wanted)))


@njit(cache=True, nogil=True)
def _name(tail: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Where an attribute's name lies; an empty one where it has none, and (0, -1) where it breaks off."""
    while pos < end:
        found, wire, _, low, high = field(tail, pos, end)
        if found < 0:
            return 0, -1
        if found == _NAME and wire == SIZED:
            return low, high
        pos = high
    return end, end


@njit(cache=True, nogil=True)
def _same(one: Bytes, first: int, last: int, other: Bytes, begin: int, end: int) -> bool:
    if last - first != end - begin:
        return False
    for i in range(end - begin):  # noqa: SIM110 - compiled
        if one[first + i] != other[begin + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def whole_numbers(tail: Bytes, where: Any, default: int) -> Any:
    """The integer (or boolean) value of each attribute found; the default where there is none."""
    out = np.full(len(where), default, np.int64)
    for node in range(len(where)):
        if where[node, 0] >= 0:
            out[node] = _whole_number(tail, where[node, 0], where[node, 1], default)
    return out


@njit(cache=True, nogil=True)
def whole_numbers_at(tail_at: Any, tail: Bytes, offset: Any, among: Any, default: int) -> Any:
    """The same from the offsets that `find_all` gives."""
    out = np.full(len(offset), default, np.int64)
    for node in range(len(offset)):
        if offset[node] >= 0 and among[node]:
            _, _, _, low, high = field(tail, tail_at[node] + offset[node], tail_at[node + 1])
            out[node] = _whole_number(tail, low, high, default)
    return out


@njit(cache=True, nogil=True)
def _whole_number(tail: Bytes, pos: int, end: int, default: int) -> Any:
    """The integer (or boolean) in one attribute: of several the last, as protobuf reads them."""
    number = np.int64(default)
    while pos < end:
        found, wire, value, low, high = field(tail, pos, end)
        if found < 0:
            break
        if wire == VARINT and (found in (7, 9, 11, 13, 27)):
            number = np.int64(value)
        elif wire == VARINT and (found in (15, 17)):
            half = np.int64(value >> np.uint64(1))
            number = half if value % np.uint64(2) == 0 else -half - 1
        elif found in (19, 21, 23, 25) and (wire in (FIXED32, FIXED64)):
            word = np.int64(0)
            for i in range(high - low):
                word |= np.int64(tail[low + i]) << (8 * i)
            number = word - 2**32 if found == 23 and word >= 2**31 else word
        pos = high
    return number


@njit(cache=True, nogil=True)
def text_slices(tail: Bytes, where: Any) -> Any:
    """Where the text value of each attribute lies; -1 where it has none."""
    out = np.full((len(where), 2), -1, np.int64)
    for node in range(len(where)):
        pos, end = where[node, 0], where[node, 1]
        while 0 <= pos < end:
            found, wire, _, low, high = field(tail, pos, end)
            if found < 0:
                break
            if found == 29 and wire == SIZED:
                out[node, 0], out[node, 1] = low, high
            pos = high
    return out


def records(name: str, values: Sequence[Any]) -> list[bytes]:
    """The attribute of this name as a node's field, once for each of some values."""
    return [sized(ATTR, encode(name, value)) for value in values]
