"""What the name of a column tells of its unit, and of what is better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.benchmark_units import Measure, told


@pytest.mark.parametrize(
    ("name", "unit", "better"),
    [
        ("seconds", "seconds", "less"), ("parse_ms", "ms", "less"), ("latency p99 [µs]", "µs", "less"),
        ("encode ns/op", "ns", "less"), ("peak_rss_mb", "mb", "less"), ("instructions", "instructions", "less"),
        ("latency", "", "less"), ("decode (MB/s)", "MB/s", "more"), ("tokens_per_second", "tokens per second", "more"),
        ("qps", "qps", "more"), ("throughput", "", "more"), ("errors/s", "errors/s", "less"),
        ("error rate", "", "less"), ("value", "", ""),
        ("parse", "", ""), ("class", "", ""), ("test_first_pass", "", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_a_name_tells_unit_and_direction_or_nothing(name: str, unit: str, better: str) -> None:
    assert told(name) == Measure(unit, better)


@given(st.text(max_size=60))
def test_any_name_is_answered(name: str) -> None:
    assert told(name).better in ("", "less", "more")
