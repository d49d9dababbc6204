"""OTLP files: JSON and protobuf give the same frame; damage is said or refused in one line."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import otlp

T = 1_700_000_000_000_000_000
TRACE = "5b8efff798038103d269b633813fc60c"


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def resource(service: str, host: str = "h1") -> dict[str, Any]:
    return {"attributes": [attribute("service.name", service), attribute("host.name", host), attribute("pid", 7)]}


def span(number: int, parent: int = 0, *, start: int = 0, dur: int = 5, **more: Any) -> dict[str, Any]:
    own = {"traceId": TRACE, "spanId": f"{number:016x}", "name": f"op{number}", "kind": 2}
    times = {"startTimeUnixNano": str(T + start), "endTimeUnixNano": str(T + start + dur)}
    return own | ({"parentSpanId": f"{parent:016x}"} if parent else {}) | times | more


TRACES: dict[str, Any] = {
    "resourceSpans": [
        {"resource": resource("gateway"), "scopeSpans": [{"scope": {"name": "lib"}, "spans": [
            span(1, dur=100), span(2, 1, start=10, kind=1, status={"code": 2, "message": "no"},
                                   events=[{"timeUnixNano": str(T + 12), "name": "retry"}])]}]},
        {"resource": resource("engine", "h2"), "scopeSpans": [{"spans": [span(3, 2, start=11), span(4, 99)]}]},
    ]
}  # fmt: skip
POINT = {"timeUnixNano": str(T), "attributes": [attribute("code", 500), attribute("ok", True)]}
METRICS: dict[str, Any] = {
    "resourceMetrics": [{"resource": resource("gateway"), "scopeMetrics": [{"metrics": [
        {"name": "queue", "unit": "1", "gauge": {"dataPoints": [POINT | {"asDouble": 2.5}]}},
        {"name": "hits", "sum": {"aggregationTemporality": 2, "isMonotonic": True,
                                 "dataPoints": [POINT | {"asInt": "9007199254740993"}]}},
        {"name": "wait", "unit": "s", "histogram": {"aggregationTemporality": 2, "dataPoints": [
            {"timeUnixNano": str(T), "count": "6", "sum": 3.5, "bucketCounts": ["1", "2", "3"],
             "explicitBounds": [0.5, 2]}]}},
        {"name": "size", "summary": {"dataPoints": [
            {"timeUnixNano": str(T), "count": "2", "sum": 8.0, "quantileValues": [{"quantile": 0.5, "value": 4.0}]}]}},
        {"name": "wide", "exponentialHistogram": {"aggregationTemporality": 2, "dataPoints": [
            {"timeUnixNano": str(T), "count": "3", "sum": 1.5, "scale": 1}]}},
        {"name": "gone", "gauge": {"dataPoints": [{"timeUnixNano": str(T), "flags": 1}]}},
    ]}]}]
}  # fmt: skip
LOGS: dict[str, Any] = {
    "resourceLogs": [{"resource": resource("engine"), "scopeLogs": [{"logRecords": [
        {"timeUnixNano": str(T), "severityNumber": 17, "body": {"stringValue": "out of memory"}}]}]}]
}  # fmt: skip


def as_json(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()


def as_protobuf(request: dict[str, Any]) -> bytes:
    """The same request, written by protobuf's own library: ids are base64 in *its* JSON."""
    pytest.importorskip("opentelemetry.proto")
    import base64

    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    kinds: dict[str, Any] = {
        "resourceSpans": ExportTraceServiceRequest, "resourceMetrics": ExportMetricsServiceRequest,
        "resourceLogs": ExportLogsServiceRequest,
    }  # fmt: skip
    kind = kinds[next(iter(request))]
    request = copy.deepcopy(request)
    for sender in request.get("resourceSpans", []):
        for scope in sender["scopeSpans"]:
            for one in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in one:
                        one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    return bytes(ParseDict(request, kind()).SerializeToString())


def values(frame: Frame) -> dict[str, float]:
    return dict(frame.samples.select(pl.col("metric").cast(pl.String), "value").rows())


def same(a: Frame, b: Frame) -> bool:
    tables = ("entities", "samples", "spans", "events", "edges")
    words = [
        getattr(f, name).with_columns(pl.selectors.categorical().cast(pl.String)) for f in (a, b) for name in tables
    ]
    return all(x.equals(y) for x, y in zip(words[:5], words[5:], strict=True)) and a.repairs == b.repairs


def test_spans_keep_parents_hosts_failures_and_events() -> None:
    frame = otlp.parse(as_json(TRACES))
    assert frame.entities.select("kind", "name", "clock").rows() == [
        ("node", "h1", "host h1"), ("service", "h1/gateway", "host h1"),
        ("node", "h2", "host h2"), ("service", "h2/engine", "host h2"),
    ]  # fmt: skip
    assert frame.spans.select("span", "parent", "cat", "start", "dur", "failed").rows() == [
        (1, None, "rpc", T, 100, False), (2, 1, "other", T + 10, 5, True),
        (3, 2, "rpc", T + 11, 5, False), (4, 99, "rpc", T, 5, False),
    ]  # fmt: skip
    assert frame.spans["group"].unique().to_list() == [TRACE]
    assert frame.edges.select("src", "dst").rows() == [(1, 2), (2, 3)]  # 99 was never sent
    assert frame.events.select("t", "name", "text").rows() == [(T + 12, "retry", "op2")]


def test_times_of_two_hosts_are_not_compared_unasked() -> None:
    with pytest.raises(BadInput, match="2 clocks"):
        otlp.parse(as_json(TRACES)).comparable("the latency")


def test_metrics_are_named_as_prometheus_would() -> None:
    frame = otlp.parse(as_json(METRICS))
    assert values(frame) == {
        'queue{code="500",ok="true"}': 2.5, 'hits{code="500",ok="true"}': 9007199254740992.0,
        "wait_count": 6.0, "wait_sum": 3.5, 'wait_bucket{le="0.5"}': 1.0, 'wait_bucket{le="2.0"}': 3.0,
        'wait_bucket{le="+Inf"}': 6.0, "size_count": 2.0, "size_sum": 8.0, 'size{quantile="0.5"}': 4.0,
        "wide_count": 3.0, "wide_sum": 1.5,
    }  # fmt: skip
    assert frame.units["wait_sum"] == "s"
    assert frame.repairs == {
        "exponential histograms kept as their count and sum": 1, "points that only end their series": 1,
    }  # fmt: skip


def test_deltas_are_added_up_in_the_order_of_time() -> None:
    points = [{"timeUnixNano": str(T + t), "asInt": str(v)} for t, v in ((2, 30), (1, 10), (1, 10), (3, 5))]
    metric = {"name": "hits", "sum": {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": points}}
    request = {"resourceMetrics": [{"resource": resource("x"), "scopeMetrics": [{"metrics": [metric]}]}]}
    frame = otlp.parse(as_json(request))
    assert frame.samples.select("t", "value").rows() == [(T + 1, 10.0), (T + 2, 40.0), (T + 3, 45.0)]
    assert frame.repairs == {"deltas given twice, the last one kept": 1}


def test_a_point_without_a_value_is_not_a_zero() -> None:
    request = copy.deepcopy(METRICS)
    request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"] = [
        {"name": "a", "gauge": {"dataPoints": [POINT, POINT | {"asDouble": "NaN"}, {"asDouble": 1.0}]}}
    ]
    frame = otlp.parse(as_json(request))
    assert frame.samples.is_empty()
    assert frame.repairs == {
        "points without a value left out": 1, "points without a time left out": 1,
        "samples without a number left out": 1,
    }  # fmt: skip


@pytest.mark.parametrize("request_", [TRACES, METRICS, LOGS], ids=["traces", "metrics", "logs"])
def test_protobuf_and_json_give_the_same_frame(request_: dict[str, Any]) -> None:
    assert same(otlp.parse(as_protobuf(request_)), otlp.parse(as_json(request_)))


def test_a_log_line_is_an_event() -> None:
    frame = otlp.parse(as_json(LOGS))
    assert frame.events.select("t", "name", "severity", "text").rows() == [(T, "log", 17, "out of memory")]


def test_files_of_the_collector_hold_many_requests(tmp_path: Path) -> None:
    lines = tmp_path / "lines.json"
    lines.write_bytes(b"\n".join(as_json(request) for request in (TRACES, METRICS, LOGS)) + b"\n")
    framed = tmp_path / "framed.binpb.gz"
    parts = [as_protobuf(request) for request in (TRACES, METRICS, LOGS)]
    framed.write_bytes(gzip.compress(b"".join(len(part).to_bytes(4) + part for part in parts)))
    assert same(otlp.read(lines), otlp.read(framed))
    assert len(otlp.read([lines]).spans) == 4


def test_a_span_sent_twice_counts_once() -> None:
    frame = otlp.parse(as_json(TRACES) + b"\n" + as_json(TRACES))
    assert len(frame.spans) == 4
    assert frame.repairs == {"spans given twice, the first one kept": 4}


def test_odd_spans_are_left_out_or_kept_without_a_duration_and_counted() -> None:
    odd = [span(1, dur=-9), span(2, spanId="zz"), span(3, startTimeUnixNano="0"), span(4, endTimeUnixNano="0")]
    request = {"resourceSpans": [{"scopeSpans": [{"spans": odd}]}]}
    frame = otlp.parse(as_json(request))
    assert frame.spans.select("span", "dur").rows() == [(4, None)]
    assert frame.repairs == {
        "spans that end before they start left out": 1, "spans without an id or a start left out": 2,
        "spans without an end": 1,
    }  # fmt: skip


def test_cut_files_keep_what_came_before_and_say_so() -> None:
    said = {"requests or senders cut off at the end of a file": 1}
    lines = as_json(TRACES) + b"\n" + as_json(METRICS)
    assert otlp.parse(lines[:-40]).repairs == said
    raw = as_protobuf(TRACES)
    cut = otlp.parse(raw[:-10])
    assert cut.repairs == said
    assert len(cut.spans) == 2  # of the first sender
    with pytest.raises(BadInput, match="byte 0"):
        otlp.parse(raw[:40])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"resourceSpans": [', "truncated"),
        (b'{"resourceSpans": [}', "byte"),
        (b'{"resourceSpans": 5}', "Expected"),
        (b'{"a": ' + b"[" * 100_000, "recursion|truncated"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than ten bytes"),
        (b"\x0b\x01", "breaks off"),
        (b"\x00\x00\x00\x02\x55\x01", "0x55"),
        (b"\x0a\x05\x12\x03abc", "no traces"),
    ],
)
def test_what_is_no_otlp_is_refused_in_one_line(content: bytes, told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        otlp.parse(content, "x")
    assert "\n" not in str(caught.value)


def test_nested_protobuf_bombs_are_refused() -> None:
    value = b""
    for _ in range(5000):  # a list in a list in a list …
        inner = b"\x0a" + _varint(len(value)) + value
        value = b"\x2a" + _varint(len(inner)) + inner
    pair = b"\x0a\x01k\x12" + _varint(len(value)) + value
    about = b"\x0a" + _varint(len(pair)) + pair
    sender = b"\x0a" + _varint(len(about)) + about + b"\x12\x00"
    with pytest.raises(BadInput, match="no traces"):
        otlp.parse(b"\x0a" + _varint(len(sender)) + sender)


def _varint(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def test_histograms_with_the_wrong_number_of_buckets_are_refused() -> None:
    point = {"timeUnixNano": str(T), "count": "1", "bucketCounts": ["1"], "explicitBounds": [1, 2]}
    metric = {"name": "h", "histogram": {"dataPoints": [point]}}
    request = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    with pytest.raises(BadInput, match="1 buckets and 2 bounds"):
        otlp.parse(as_json(request))


@pytest.mark.parametrize("binary", [False, True])
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_in_one_line_or_read(binary: bool, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from([TRACES, METRICS, LOGS]))
    raw = bytearray(as_protobuf(request) if binary else as_json(request))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(raw[: data.draw(st.integers(1, len(raw)))])
    try:
        frame = otlp.parse(content, "x")
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert len(frame.spans) <= 4
        assert not frame.samples["value"].is_nan().any()
