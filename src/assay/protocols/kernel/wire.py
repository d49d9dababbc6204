"""How a message travels: a frame of four bytes of length, sender, receiver, and the message in MessagePack.

The simulator counts the bits of exactly these frames, so that a run over sockets and its simulation agree on them.

>>> body = encode(("echo", 3, b"ab"))
>>> decode(body)
('echo', 3, b'ab')
>>> frame_bits(body) == 8 * len(frame(0, 1, body))
True
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from assay.protocols.interface import Message

HEADER = struct.Struct(">III")
LARGEST = 1 << 26
"""Bytes of the largest body that anybody accepts."""

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder()
_DEPTH = 32


def decode(body: bytes) -> Message:
    """The message of a body, with tuples for arrays. ValueError for anything that is no message."""
    try:
        value = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not MessagePack: {error}") from None
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("a message is an array that begins with its kind, a string")
    message: Message = plain(value)
    return message


def plain(value: Any, depth: int = 0) -> Any:
    """The value with tuples for lists; ValueError for what no message may hold: maps, extensions, deep nesting, NaN.

    Votes for NaN cannot be counted: every copy that arrives is a value of its own.
    """
    if isinstance(value, (list, tuple)):
        if depth >= _DEPTH:
            raise ValueError(f"a message is nested deeper than {_DEPTH}")
        return tuple([plain(item, depth + 1) for item in value])
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        if value != value:  # NaN
            raise ValueError("a message holds NaN, which does not even equal itself")
        return value
    raise ValueError(f"a message holds a {type(value).__name__}; plain values and tuples expected")


def frame(src: int, dst: int, body: bytes) -> bytes:
    """The bytes on the wire."""
    return HEADER.pack(len(body), src, dst) + body


def frame_bits(body: bytes) -> int:
    """Their number of bits."""
    return 8 * (HEADER.size + len(body))
