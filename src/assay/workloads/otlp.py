"""OpenTelemetry's OTLP, as files: traces, metrics and logs, in protobuf (the extra `observe`) or JSON (without it).

Read are what exporters send and what the collector's file exporter writes: a request, JSON requests one a line, or
protobuf requests each behind its length. A sender (`service.name`, with its instance) is an entity below its host, and
**every host is a clock**: whoever compares times across hosts must say that they may be (`Frame.shifted`).

- A span keeps its id, parent, duration and whether it failed; its `group` is the trace's id. An edge `calls` leads from
  each parent that is there. An event within a span, and a line of a log, is an event.
- A metric is named as Prometheus would: point attributes as labels, histograms as `_bucket`, `_sum` and `_count`,
  counted from the start. Deltas are added up.

>>> frame = parse(b'''{"resourceSpans": [{"resource": {"attributes": [
...     {"key": "service.name", "value": {"stringValue": "gateway"}}]}, "scopeSpans": [{"spans": [
...     {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "POST /v1", "kind": 2,
...      "startTimeUnixNano": "1000", "endTimeUnixNano": "1500", "status": {"code": 2}}]}]}]}''')
>>> frame.spans.select("name", "cat", "start", "dur", "failed").row(0), frame.entities["name"].to_list()
(('POST /v1', 'rpc', 1000, 500, True), ['gateway'])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.record.errors import BadInput
from assay.sim.telemetry import ONE_CLOCK, Frame
from assay.workloads import otlp_json, otlp_wire
from assay.workloads.labelled_series import LATEST, Labelled, metric_name
from assay.workloads.prometheus_text import unpacked

_RPC = {2, 3, 4, 5, "SPAN_KIND_SERVER", "SPAN_KIND_CLIENT", "SPAN_KIND_PRODUCER", "SPAN_KIND_CONSUMER"}
_DELTA = {1, "AGGREGATION_TEMPORALITY_DELTA"}
_FAILED = {2, "STATUS_CODE_ERROR"}
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_NOTHING_RECORDED = 1  # the flag of a point that only says that its series has ended
MARKS = (b'"resourceSpans"', b'"resourceMetrics"', b'"resourceLogs"')


def read(paths: Path | str | Sequence[Path | str]) -> Frame:
    """Files of OTLP requests, JSON and protobuf mixed as they come; gzipped ones too."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    walk = _Walk()
    for path in given:
        walk.file(unpacked(path), str(path))
    return walk.frame(", ".join(map(str, given)))


def parse(content: bytes, source: str = "request") -> Frame:
    """One file's content."""
    walk = _Walk()
    walk.file(content, source)
    return walk.frame(source)


class _Walk:
    """Goes through requests and gathers rows."""

    def __init__(self) -> None:
        self.series = Labelled()
        self.spans: list[tuple[Any, ...]] = []
        self.events: list[dict[str, Any]] = []
        self.points: list[tuple[int, int, float]] = []  # series, time, value
        self.delta: set[int] = set()  # series that count from the point before

    def file(self, content: bytes, source: str) -> None:
        requests: Sequence[Any]  # of JSON or protobuf: the same names
        if content.lstrip()[:1] == b"{":
            requests, cut = otlp_json.requests(content, source)
        else:
            requests, cut = otlp_wire.requests(content, source)
        self.series.count("requests or senders cut off at the end of a file", cut)
        for request in requests:
            for sender in request.resource_spans:
                who = self.sender(sender.resource)
                self.take_spans(who, (span for scope in sender.scope_spans for span in scope.spans))
            for sender in request.resource_metrics:
                who = self.sender(sender.resource)
                for scope in sender.scope_metrics:
                    for metric in scope.metrics:
                        self.take_metric(who, metric, source)
            for sender in request.resource_logs:
                who = self.sender(sender.resource)
                self.take_logs(who, (record for scope in sender.scope_logs for record in scope.log_records))

    def sender(self, resource: Any) -> int:
        about = _attributes(resource.attributes) if resource is not None else {}
        service, host = about.get("service.name", ""), about.get("host.name", "")
        instance, pod = about.get("service.instance.id", ""), about.get("k8s.pod.name", "")
        name = service + (f"/{instance}" if instance and instance != service else "") if service else pod
        clock = f"host {host}" if host else ONE_CLOCK
        kind = "service" if service else "pod"
        if host:
            return self.series.part(host, kind, name, clock=clock) if name else self.series.entity(host, clock=clock)
        return self.series.entity(name or "unnamed", kind if name else "other")

    # ------------------------------------------------------------------------------------------------- spans

    def take_spans(self, who: int, spans: Iterable[Any]) -> None:
        for span in spans:
            number, start, end = _id(span.span_id), span.start_time_unix_nano, span.end_time_unix_nano
            if number is None or not 0 < start <= LATEST:
                self.series.count("spans without an id or a start left out")
                continue
            if not end or end > LATEST:
                self.series.count("spans without an end")
            elif end < start:
                self.series.count("spans that end before they start left out")
                continue
            dur = end - start if end and end <= LATEST else None
            category = "rpc" if span.kind in _RPC else "other"
            failed = span.status is not None and span.status.code in _FAILED
            trace = span.trace_id if isinstance(span.trace_id, str) else span.trace_id.hex()
            self.spans.append((number, _id(span.parent_span_id), who, span.name, category, start, dur, trace, failed))
            for event in span.events:
                self.event(event.time_unix_nano or start, who, event.name or "event", span.name)

    def event(self, t: int, who: int, name: str, text: str, severity: int | None = None) -> None:
        if not 0 < t <= LATEST:
            self.series.count("events without a time left out")
            return
        self.events.append({"t": t, "entity": who, "name": name, "severity": severity, "text": text})

    def take_logs(self, who: int, records: Iterable[Any]) -> None:
        for record in records:
            level = record.severity_number if isinstance(record.severity_number, int) else 0
            t = record.time_unix_nano or record.observed_time_unix_nano
            self.event(t, who, "log", _plain(record.body) if record.body else "", level if 0 < level < 256 else None)

    # ------------------------------------------------------------------------------------------------- metrics

    def take_metric(self, who: int, metric: Any, source: str) -> None:
        kind = _kind(metric)
        if kind is None or not metric.name:
            self.series.count("metrics without a name or without data left out")
            return
        data = getattr(metric, kind)
        is_delta = getattr(data, "aggregation_temporality", 0) in _DELTA
        for point in data.data_points:
            if point.flags & _NOTHING_RECORDED:
                self.series.count("points that only end their series")
                continue
            if not 0 < point.time_unix_nano <= LATEST:
                self.series.count("points without a time left out")
                continue
            labels = _attributes(point.attributes)
            for suffix, more, value in self.values(kind, point, metric.name, source):
                rises = suffix != "" or (kind == "sum" and data.is_monotonic)
                name = metric_name(metric.name + suffix, labels | more)
                number = self.series.column(
                    who, name, counter=rises, unit=metric.unit if suffix in ("", "_sum") else ""
                )
                self.points.append((number, point.time_unix_nano, value))
                if is_delta:
                    self.delta.add(number)

    def values(self, kind: str, point: Any, name: str, source: str) -> Iterator[tuple[str, dict[str, str], float]]:
        if kind in ("gauge", "sum"):
            value = _number(point)
            if value is not None:
                yield "", {}, value
            else:
                self.series.count("points without a value left out")
            return
        yield "_count", {}, _real(point.count)
        if _there(point, "sum"):
            yield "_sum", {}, float(point.sum)
        if kind == "histogram" and len(point.bucket_counts):
            if len(point.bucket_counts) != len(point.explicit_bounds) + 1:
                told = f"{len(point.bucket_counts)} buckets and {len(point.explicit_bounds)} bounds"
                raise BadInput(f"{source}: the histogram {name[:60]!r} has {told}; one bucket more would be right")
            below = np.cumsum([_real(count) for count in point.bucket_counts])
            for bound, count in zip([*point.explicit_bounds, float("inf")], below, strict=True):
                yield "_bucket", {"le": str(bound)}, float(count)
        elif kind == "summary":
            for quantile in point.quantile_values:
                yield "", {"quantile": str(quantile.quantile)}, quantile.value
        elif kind == "exponential_histogram":
            self.series.count("exponential histograms kept as their count and sum")

    # ------------------------------------------------------------------------------------------------- the frame

    def frame(self, source: str) -> Frame:
        self._put_points()
        base = self.series.frame(source)
        columns = ("span", "parent", "entity", "name", "cat", "start", "dur", "group", "failed")
        schema = {"span": pl.UInt64, "parent": pl.UInt64, "start": pl.Int64, "dur": pl.Int64}
        spans = pl.DataFrame(self.spans, schema=[*columns], schema_overrides=schema, orient="row")
        twins = len(spans) - len(spans := spans.unique(["span", "group"], keep="first", maintain_order=True))
        self.series.count("spans given twice, the first one kept", twins)
        edges = spans.filter(pl.col("parent").is_in(spans["span"].implode())).select(
            src="parent", dst="span", kind=pl.lit("calls")
        )
        return Frame.of(
            base.entities, base.samples, spans, self.events, edges,
            units=base.units, source=source, repairs={**self.series.repairs, **base.repairs},
        )  # fmt: skip

    def _put_points(self) -> None:
        """Hand the points over, deltas added up in the order of time, each moment once."""
        if not self.points:
            return
        series, times, values = (np.asarray(column) for column in zip(*self.points, strict=True))
        rising = np.isin(series, sorted(self.delta))
        self.series.scatter(series[~rising], times[~rising], values[~rising])
        deltas = pl.DataFrame({"series": series[rising], "t": times[rising], "value": values[rising]})
        once = deltas.unique(["series", "t"], keep="last", maintain_order=True).sort("t", maintain_order=True)
        self.series.count("deltas given twice, the last one kept", len(deltas) - len(once))
        total = once.select(pl.col("value").cum_sum().over("series"))["value"]
        self.series.scatter(once["series"], once["t"], total)


def _there(message: Any, field: str) -> bool:
    """Whether an optional field is set; protobuf and JSON say it differently."""
    if isinstance(message, otlp_json.Point):
        return getattr(message, field) is not None
    try:
        return bool(message.HasField(field))
    except ValueError:  # a summary's sum is always there
        return True


def _kind(metric: Any) -> str | None:
    if isinstance(metric, otlp_json.Metric):
        return next((kind for kind in _KINDS if getattr(metric, kind) is not None), None)
    kind: str | None = metric.WhichOneof("data")
    return kind


def _number(point: Any) -> float | None:
    if _there(point, "as_double"):
        return float(point.as_double)
    return _real(point.as_int) if _there(point, "as_int") else None


def _real(count: int) -> float:
    """A count as a float; JSON can hold integers that no float can."""
    return float(count) if abs(count) < 1 << 64 else float("nan")


def _plain(value: Any) -> str:
    """An attribute's value in words; lists and maps are not kept."""
    if isinstance(value, otlp_json.AnyValue):
        given = (value.string_value, value.bool_value, value.int_value, value.double_value)
        found = next((one for one in given if one is not None), "")
    else:
        kind = value.WhichOneof("value")
        found = getattr(value, kind) if kind in ("string_value", "bool_value", "int_value", "double_value") else ""
    return str(found).lower() if isinstance(found, bool) else str(found)


def _attributes(pairs: Iterable[Any]) -> dict[str, str]:
    return {pair.key: _plain(pair.value) for pair in pairs if pair.value is not None}


def _id(given: str | bytes) -> int | None:
    """A span's id as a number; None where it is missing, or no id of eight bytes."""
    if isinstance(given, str):
        try:
            given = bytes.fromhex(given)
        except ValueError:
            return None
    return int.from_bytes(given) or None if len(given) == 8 else None
