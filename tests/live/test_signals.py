"""A page of metrics becomes one reading, whatever engine wrote it and however badly."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live.signals import FIELDS, Reading, Total, between, events_flag, read, report

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 600.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 8.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 2.0
"""

SGLANG = b"""\
sglang:num_running_reqs{dp_rank="0",model_name="m",priority="",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",model_name="m",priority="",tp_rank="1"} 4.0
sglang:num_running_reqs{dp_rank="0",model_name="m",priority="1",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="m",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
sglang:num_used_tokens{model_name="m"} 2800
sglang:max_total_num_tokens{model_name="m"} 10000
sglang:cache_hit_rate{model_name="m"} 0.5
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100
sglang:prompt_tokens_total{model_name="m"} 800
sglang:gen_throughput{model_name="m"} 41.5
"""


def test_a_page_of_vllm_is_read_and_added_over_its_ranks() -> None:
    reading = read(VLLM)
    assert reading == Reading(
        family="vllm",
        running=7.0,
        waiting=1.0,
        kv_usage=0.375,
        kv_tokens=32_000.0,
        kv_used=12_000.0,
        hits=600.0,
        queries=1000.0,
        preemptions=2.0,
        ttft=Total(2.5, 10.0),
        itl=Total(2.0, 100.0),
    )


def test_older_spellings_are_found_and_never_counted_beside_newer_ones() -> None:
    old = b"vllm:gpu_cache_usage_perc 0.8\nvllm:time_per_output_token_seconds_sum 3\n"
    old += b"vllm:time_per_output_token_seconds_count 30\n"
    assert (read(old).kv_usage, read(old).itl) == (0.8, Total(3.0, 30.0))
    both = old + b"vllm:kv_cache_usage_perc 0.2\n"
    assert read(both).kv_usage == 0.2


def test_the_size_in_tokens_is_preferred_to_blocks_and_none_is_no_number() -> None:
    line = b'vllm:cache_config_info{kv_cache_size_tokens="%s",block_size="16",num_gpu_blocks="%s"} 1\n'
    assert read(line % (b"5000", b"1000")).kv_tokens == 5000.0
    assert read(line % (b"None", b"1000")).kv_tokens == 16_000.0
    assert read(line % (b"None", b"None")).kv_tokens is None


def test_ranks_of_sglang_that_repeat_one_another_count_once_and_parts_not_at_all() -> None:
    reading = read(SGLANG)
    assert reading.family == "sglang"
    assert reading.running == 9.0
    assert (reading.kv_tokens, reading.kv_used, reading.kv_usage) == (10_000.0, 2_800.0, 0.28)
    assert (reading.hits, reading.queries, reading.hit_ratio) == (400.0, 800.0, 0.5)
    assert reading.throughput == 41.5


def test_names_rewritten_with_an_underscore_are_the_same_names() -> None:
    assert read(SGLANG.replace(b"sglang:", b"sglang_")) == read(SGLANG)


def test_llama_cpp_needs_no_labels_and_counts_cached_prompt_tokens_apart() -> None:
    page = b"""\
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:prompt_tokens_total 600
llamacpp:prompt_tokens_cached_total 400
llamacpp:tokens_predicted_total 50
llamacpp:tokens_predicted_seconds_total 2.5
"""
    reading = read(page)
    assert (reading.family, reading.running, reading.waiting) == ("llamacpp", 2.0, 1.0)
    assert (reading.hits, reading.queries, reading.itl) == (400.0, 1000.0, Total(2.5, 50.0))
    assert read(page.replace(b"llamacpp:prompt_tokens_cached_total 400\n", b"")).queries is None


def test_openmetrics_timestamps_exemplars_and_blanks_do_not_disturb() -> None:
    page = b"""\
vllm:num_requests_running{engine="0"} 3.0 1700000000.5
vllm:num_preemptions_total 7 # {trace_id="a"} 1.0
vllm:prefix_cache_hits_total{m="a} 99"} 12 1700000000 # {trace_id="b"} 0.5
vllm:num_requests_waiting {engine="0"}\t2\r
# EOF
"""
    reading = read(page)
    assert (reading.running, reading.preemptions, reading.hits, reading.waiting) == (3.0, 7.0, 12.0, 2.0)


def test_values_that_are_no_signal_are_left_out() -> None:
    for value in (b"NaN", b"+Inf", b"-1", b"1_0", b"three", b""):
        assert read(b"vllm:num_requests_waiting 1\nvllm:num_requests_running " + value).running is None
    assert read(b"vllm:kv_cache_usage_perc 1.7").kv_usage == 1.0


def test_the_report_says_what_is_missing_and_how_to_get_it() -> None:
    line = report(read(b"vllm:num_requests_running 1\n"))
    assert line.startswith("vLLM: found running; missing waiting, ")
    assert line.endswith("; start the engine with --enable-prefix-caching")
    assert "throughput" not in line, "vLLM never tells it"
    assert "--enable-metrics" in report(read(b"404 page not found"))
    assert events_flag("sglang") and not events_flag("llamacpp")


def test_found_and_missing_divide_the_fields() -> None:
    reading = read(VLLM)
    assert set(reading.found) | set(reading.missing) == set(FIELDS)
    assert not set(reading.found) & set(reading.missing)
    assert Reading().missing == FIELDS


def test_a_window_gives_means_ratios_and_rates() -> None:
    before = Reading(ttft=Total(1.0, 10), itl=Total(5.0, 500), hits=100, queries=200, output_tokens=50)
    after = Reading(ttft=Total(3.0, 14), itl=Total(5.0, 500), hits=190, queries=300, output_tokens=150)
    window = between(before, after, 2.0)
    assert window.ttft == 0.5
    assert window.itl is None, "no token came in between"
    assert window.hit_ratio == pytest.approx(0.9)
    assert window.output_rate == 50.0
    assert window.preemption_rate is None


def test_a_window_over_a_restart_counts_from_zero() -> None:
    before = Reading(ttft=Total(100.0, 1000), output_tokens=5000)
    after = Reading(ttft=Total(2.0, 10), output_tokens=30)
    assert between(before, after, 10.0).ttft == 0.2
    assert between(before, after, 10.0).output_rate == 3.0


def test_a_window_without_counts_takes_the_engines_own_hit_ratio() -> None:
    assert between(Reading(), Reading(hit_ratio=0.4), 1.0).hit_ratio == 0.4
    assert between(Reading(output_tokens=1), Reading(output_tokens=2), 0.0).output_rate is None


counts = st.floats(0.0, 1e12)


@given(before=counts, after=counts, sums=st.tuples(counts, counts), seconds=st.floats(0.001, 1e6))
def test_a_window_never_shows_a_negative_number(
    before: float, after: float, sums: tuple[float, float], seconds: float
) -> None:
    old = Reading(hits=before, queries=before, output_tokens=before, ttft=Total(sums[0], before))
    new = Reading(hits=after, queries=after, output_tokens=after, ttft=Total(sums[1], after))
    window = between(old, new, seconds)
    for value in (window.ttft, window.hit_ratio, window.output_rate):
        assert value is None or value >= 0.0


# The same page through prometheus_client, slowly.

labels = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
values = st.floats(0.0, 1e9)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.tuples(labels, st.sampled_from("012")), st.tuples(values, values, values), min_size=1))
def test_a_page_by_prometheus_client_reads_as_its_own_parser_reads_it(
    series: dict[tuple[str, str], tuple[float, float, float]],
) -> None:
    client = pytest.importorskip("prometheus_client")
    parser = pytest.importorskip("prometheus_client.parser")
    registry = client.CollectorRegistry()
    names = ["model_name", "engine"]
    running = client.Gauge("vllm:num_requests_running", "a {brace}", names, registry=registry)
    hits = client.Counter("vllm:prefix_cache_hits", "counter", names, registry=registry)
    ttft = client.Histogram("vllm:time_to_first_token_seconds", "histogram", names, registry=registry)
    client.Gauge("vllm:num_requests_running_by_reason", "a longer name", ["reason"], registry=registry).labels("x").set(
        9
    )
    for label, (gauge, count, seconds) in series.items():
        running.labels(*label).set(gauge)
        hits.labels(*label).inc(count)
        ttft.labels(*label).observe(seconds)
    page = client.generate_latest(registry)
    expected: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            expected[sample.name] = expected.get(sample.name, 0.0) + sample.value
    reading = read(page)
    assert reading.running == pytest.approx(expected["vllm:num_requests_running"])
    assert reading.hits == pytest.approx(expected["vllm:prefix_cache_hits_total"])
    assert reading.ttft is not None
    assert reading.ttft.sum == pytest.approx(expected["vllm:time_to_first_token_seconds_sum"])
    assert reading.ttft.count == expected["vllm:time_to_first_token_seconds_count"]
    openmetrics = client.openmetrics.exposition.generate_latest(registry)
    assert read(openmetrics).hits == pytest.approx(reading.hits)


def _sane(reading: Reading) -> bool:
    numbers = [getattr(reading, name) for name in reading.found]
    flat = [x for n in numbers for x in ((n.sum, n.count) if isinstance(n, Total) else (n,))]
    return all(x >= 0.0 and not math.isnan(x) for x in flat)


@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(noise: bytes) -> None:
    assert _sane(read(noise))
    assert _sane(read(b"vllm:num_requests_running" + noise))
    assert _sane(read(b"sglang:num_running_reqs{" + noise))


@given(st.data())
def test_no_damage_to_a_real_page_makes_it_raise(data: st.DataObject) -> None:
    page = bytearray(data.draw(st.sampled_from([VLLM, SGLANG])))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(page) - 1))
        if data.draw(st.booleans()):
            page[at] = data.draw(st.integers(0, 255))
        else:
            del page[at : at + data.draw(st.integers(1, 40))]
    assert _sane(read(bytes(page)))


def test_a_long_unclosed_label_takes_no_more_than_linear_time() -> None:
    start = time.process_time()
    read(b'sglang:num_running_reqs{a="' + b'\\"' * 200_000)
    read(b"sglang:num_running_reqs{" + b'a="b",' * 100_000)
    assert time.process_time() - start < 5.0


def test_a_reading_is_a_value() -> None:
    assert replace(read(VLLM), running=0.0) != read(VLLM)
    assert hash(read(VLLM)) == hash(read(VLLM))
