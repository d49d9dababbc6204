"""OTLP as JSON: the messages with the names of their protobuf twins, so that one walk serves both.

Only the fields that telemetry keeps are here; a decoder passes over the rest. Numbers of 64 bits are strings in this
format, ids are hexadecimal, enumerations are numbers (some writers use their names).
"""

from __future__ import annotations

import msgspec

from assay.record.errors import BadInput


class _Message(msgspec.Struct, rename="camel"):
    pass


class AnyValue(_Message):
    """An attribute's value; lists and maps are not kept."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None


class KeyValue(_Message):
    """An attribute."""

    key: str = ""
    value: AnyValue | None = None


class Resource(_Message):
    """Who sent it."""

    attributes: list[KeyValue] = []


class Status(_Message):
    """Whether a span went well."""

    code: int | str = 0


class SpanEvent(_Message):
    """Something that happened within a span."""

    time_unix_nano: int = 0
    name: str = ""


class Span(_Message):
    """One operation."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    kind: int | str = 0
    start_time_unix_nano: int = 0
    end_time_unix_nano: int = 0
    attributes: list[KeyValue] = []
    events: list[SpanEvent] = []
    status: Status | None = None


class QuantileValue(_Message):
    """A quantile of a summary."""

    quantile: float = 0.0
    value: float = 0.0


class Point(_Message):
    """A data point of any kind of metric."""

    attributes: list[KeyValue] = []
    time_unix_nano: int = 0
    as_double: float | None = None
    as_int: int | None = None
    count: int = 0
    sum: float | None = None
    bucket_counts: list[int] = []
    explicit_bounds: list[float] = []
    quantile_values: list[QuantileValue] = []
    flags: int = 0


class Points(_Message):
    """The data points of a metric, and whether each counts from the start (2) or from the one before (1)."""

    data_points: list[Point] = []
    aggregation_temporality: int | str = 0
    is_monotonic: bool = False


class Metric(_Message):
    """A metric; one of its kinds is set."""

    name: str = ""
    unit: str = ""
    gauge: Points | None = None
    sum: Points | None = None
    histogram: Points | None = None
    exponential_histogram: Points | None = None
    summary: Points | None = None


class LogRecord(_Message):
    """A line of a log."""

    time_unix_nano: int = 0
    observed_time_unix_nano: int = 0
    severity_number: int | str = 0
    body: AnyValue | None = None


class ScopeSpans(_Message):
    """Spans of one library."""

    spans: list[Span] = []


class ScopeMetrics(_Message):
    """Metrics of one library."""

    metrics: list[Metric] = []


class ScopeLogs(_Message):
    """Log records of one library."""

    log_records: list[LogRecord] = []


class ResourceSpans(_Message):
    """Spans of one sender."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] = []


class ResourceMetrics(_Message):
    """Metrics of one sender."""

    resource: Resource | None = None
    scope_metrics: list[ScopeMetrics] = []


class ResourceLogs(_Message):
    """Log records of one sender."""

    resource: Resource | None = None
    scope_logs: list[ScopeLogs] = []


class Request(_Message):
    """What an exporter sends: one of the three is set."""

    resource_spans: list[ResourceSpans] = []
    resource_metrics: list[ResourceMetrics] = []
    resource_logs: list[ResourceLogs] = []


_decoder = msgspec.json.Decoder(Request, strict=False)


def requests(content: bytes, source: str) -> tuple[list[Request], int]:
    """The requests of a file (one object, or one a line), and how many at its end were cut off.

    >>> requests(b'{"resourceSpans": []}\\n{"resourceMetr', "x.json")
    ([Request(resource_spans=[], resource_metrics=[], resource_logs=[])], 1)
    """
    try:
        return [_decoder.decode(content)], 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        whole = error
    lines = content.split(b"\n")
    found: list[Request] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if "truncated" in str(error) and found and not b"".join(lines[place:]).strip():
                return found, 1
            told = f"{source}: {whole}" if not found else f"{source}:{place}: {error}"
            raise BadInput(f"{told}; an OTLP request as JSON, one or one a line, would be right") from None
    return found, 0
