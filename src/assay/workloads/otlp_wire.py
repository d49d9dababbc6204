"""OTLP as protobuf: where its messages begin and end, and which of the three signals they are.

A request is a list of senders, all in field 1, whichever signal it is. So the outer layer is walked here, which also
tells the byte at which a cut file breaks off, and keeps the senders before it; each sender is decoded by protobuf's own
library, with its own bound on nesting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from assay.record.errors import BadInput

_SENDER = 0x0A  # field 1, with a length


class Requests(NamedTuple):
    """Senders of each signal."""

    resource_spans: list[Any]
    resource_metrics: list[Any]
    resource_logs: list[Any]


def looks_like(content: bytes) -> bool:
    """Whether the bytes are senders one after another, to the end; a request behind its length counts too.

    >>> looks_like(bytes([10, 2, 18, 0])), looks_like(bytes([0, 0, 0, 4, 10, 2, 18, 0])), looks_like(b"up 1")
    (True, True, False)
    """
    try:
        found, cut = _senders(content, "")
    except BadInput:
        return False
    return bool(found) and not cut and all(sender[:1] in (b"\x0a", b"\x12") for _, sender in found)


def requests(content: bytes, source: str) -> tuple[list[Requests], int]:
    """The senders of a file, told apart by what they hold, and how many at its end were cut off."""
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs
        from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
    except ImportError:
        raise BadInput(f"{source}: OTLP in protobuf needs the extra: pip install 'assay[observe]'") from None
    senders, cut = _senders(content, source)
    kinds: list[tuple[Callable[[], Any], Callable[[Any], bool]]] = [
        (ResourceSpans, _holds_spans), (ResourceMetrics, _holds_metrics), (ResourceLogs, _holds_logs),
    ]  # fmt: skip
    found = Requests([], [], [])
    for at, sender in senders:
        for place, (kind, holds) in enumerate(kinds):
            message = kind()
            try:
                message.ParseFromString(sender)
            except DecodeError:
                continue
            if holds(message):
                found[place].append(message)
                break
        else:
            if len(sender) > 2 and _scopes(sender):
                raise BadInput(f"{source}: byte {at}: no traces, metrics or logs; an OTLP request would be right")
    return [found], cut


def _holds_spans(sender: Any) -> bool:
    return any(len(span.trace_id) == 16 and len(span.span_id) == 8 for s in sender.scope_spans for span in s.spans)


def _holds_metrics(sender: Any) -> bool:
    return any(metric.WhichOneof("data") for scope in sender.scope_metrics for metric in scope.metrics)


def _holds_logs(sender: Any) -> bool:
    records = [record for scope in sender.scope_logs for record in scope.log_records]
    return any(record.time_unix_nano or record.observed_time_unix_nano for record in records)


def _scopes(sender: bytes) -> bool:
    """Whether a sender sent something at all: field 2 is there, or what is there cannot be walked."""
    at = 0
    while at < len(sender):
        tag, size, begin = sender[at], *_length(sender, at + 1)
        if tag & 7 != 2 or begin < 0 or tag == 0x12:
            return True
        at = begin + size
    return at != len(sender)


def _length(content: bytes, at: int) -> tuple[int, int]:
    """A varint at `at`, and where it ends; the end is negative if it does not."""
    value = 0
    for i in range(10):
        if at + i >= len(content):
            return 0, -1
        value |= (content[at + i] & 0x7F) << (7 * i)
        if content[at + i] < 0x80:
            return value, at + i + 1
    return 0, -2


def _senders(content: bytes, source: str) -> tuple[list[tuple[int, bytes]], int]:
    """Each sender with its place; and 1 if the file ends within one, which is left out then."""
    found: list[tuple[int, bytes]] = []
    framed, at = content[:1] != bytes([_SENDER]), 0
    while at < len(content):
        end = len(content)
        if framed:
            if at + 4 > len(content):
                return _cut(found, at, source)
            end = at + 4 + int.from_bytes(content[at : at + 4])
            at += 4
            if end > len(content):
                return _cut(found, at, source)
        while at < end:
            if content[at] != _SENDER:
                raise BadInput(f"{source}: byte {at} is 0x{content[at]:02x}; an OTLP request would have 0x0a there")
            size, begin = _length(content, at + 1)
            if begin == -2:
                raise BadInput(f"{source}: byte {at + 1}: a length of more than ten bytes; an OTLP request has none")
            if begin < 0 or begin + size > end:
                if framed:
                    raise BadInput(f"{source}: byte {at}: a sender longer than its request; an OTLP request has none")
                return _cut(found, at, source)
            found.append((at, content[begin : begin + size]))
            at = begin + size
    return found, 0


def _cut(found: list[tuple[int, bytes]], at: int, source: str) -> tuple[list[tuple[int, bytes]], int]:
    if not found:
        raise BadInput(f"{source}: breaks off at byte {at}, within the first sender; an OTLP request would be right")
    return found, 1
