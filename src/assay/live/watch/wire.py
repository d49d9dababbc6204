"""What a rank tells the watcher: one small record, the same in a datagram and in a file.

A record is framed by its length and a checksum, so that a torn write or a foreign datagram is noticed. It says who
speaks, how far it got, in which stage it is right now, and brings the stage times of finished steps.

>>> told = Report(rank=1, size=4, start=7, host="node3", pid=42, steps=12, stage="data", since=0.5)
>>> decode(encode(told)) == told
True
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from assay.record.errors import BadInput

MAGIC = b"asw1"
LARGEST = 32 << 10  # bytes of a record: below what one datagram carries
MOST_RANKS = 4096
LAST_STEP = 1 << 53

_HEAD = struct.Struct("<4sII")  # magic, length and checksum of what follows

Count = Annotated[int, Meta(ge=0, le=LAST_STEP)]
Name = Annotated[str, Meta(max_length=64)]


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A rank's word: a heartbeat, with the stage times of the steps it finished since the last one, if any."""

    rank: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    size: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    start: Annotated[int, Meta(ge=0, lt=1 << 62)]
    """When this process began to report, in ns of its wall clock: a restarted rank has another, and a later one."""
    host: Name
    pid: Annotated[int, Meta(ge=0, lt=1 << 31)]
    steps: Count
    """Steps finished so far."""
    stage: Name = ""
    """The stage it is in right now; empty between stages."""
    since: float = 0.0
    """For how many seconds it has been in this stage, or, between stages, in this step."""
    dropped: Count = 0
    """Steps whose times could not be sent."""
    last: bool = False
    """The rank says goodbye."""
    deferred: bool = False
    """Work is queued on a device: what the host sees as a wait may have been launched in an earlier stage."""
    vectors: Annotated[bytes, Meta(max_length=LARGEST - 1024)] = b""
    """Stage times of finished steps, as `Vectors.to_bytes` writes them."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def encode(report: Report) -> bytes:
    """A report as a record."""
    body = _encoder.encode(report)
    return _HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def decode(record: bytes) -> Report:
    """The report in a whole record; BadInput where there is none."""
    length, check = _head(record)
    body = record[_HEAD.size :]
    if len(body) != length or zlib.crc32(body) != check:
        raise BadInput(f"a record of {len(body)} bytes is not what its head promises")
    try:
        report = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"a record holds no report: {error}") from None
    if not (math.isfinite(report.since) and report.since >= 0.0):
        raise BadInput(f"a record says that a stage has lasted {report.since} s")
    if not (report.host.isprintable() and report.stage.isprintable()):
        raise BadInput("a record has control characters in a name")  # they would steer the terminal
    if report.rank >= report.size:
        raise BadInput(f"a record is from rank {report.rank} of {report.size}")
    return report


def records(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The records in a piece of a file: after each, the place behind it. A tail that is not whole yet is left.

    Bytes that belong to no record come as one `None`: a reader counts them and goes on behind them.
    """
    place = 0
    while place < len(data):
        try:
            length, check = _head(data[place : place + _HEAD.size])
        except BadInput:
            found = data.find(MAGIC, place + 1)
            if len(data) - place < _HEAD.size and MAGIC.startswith(data[place : place + len(MAGIC)]):
                return  # a head that is still being written
            place = found if found >= 0 else max(len(data) - len(MAGIC) + 1, place + 1)
            yield place, None
            continue
        end = place + _HEAD.size + length
        if end > len(data):
            again = data.find(MAGIC, place + len(MAGIC))
            if again < 0:
                return  # a body that is still being written
            place = again  # the writer was cut off, and another record follows
            yield place, None
            continue
        body = data[place + _HEAD.size : end]
        if zlib.crc32(body) != check:
            found = data.find(MAGIC, place + len(MAGIC))
            place = found if found >= 0 else end
            yield place, None
            continue
        yield end, data[place:end]
        place = end


def _head(record: bytes) -> tuple[int, int]:
    if len(record) < _HEAD.size:
        raise BadInput(f"a record of {len(record)} bytes is too short to have a head")
    magic, length, check = _HEAD.unpack_from(record)
    if magic != MAGIC or length > LARGEST:
        raise BadInput("this is no record of a rank")
    return length, check
