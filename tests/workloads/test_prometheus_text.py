"""Scraped text and query answers: what is kept, what is mended and said, what is refused in one line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import prometheus_text
from assay.workloads.labelled_series import metric_name

NS = 1_000_000_000
HISTOGRAM = """\
# HELP wait_seconds How long.
# TYPE wait_seconds histogram
# UNIT wait_seconds seconds
wait_seconds_bucket{le="0.5"} 3 1700000000.25 # {trace_id="a b"} 0.4 1699999999.5
wait_seconds_bucket{le="+Inf"} 4 1700000000.25
wait_seconds_sum 2.5 1700000000.25
wait_seconds_count 4 1700000000.25
# EOF
"""


def values(frame: Frame) -> dict[tuple[str, str, int], float]:
    names = frame.entities.select(entity="id", name="name")
    rows = frame.samples.join(names, on="entity").select("name", pl.col("metric").cast(pl.String), "t", "value")
    return {(name, metric, t): value for name, metric, t, value in rows.rows()}


def answer(result: list[dict[str, Any]], kind: str = "matrix") -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def series(name: str, instance: str, pairs: list[list[Any]]) -> dict[str, Any]:
    return {"metric": {"__name__": name, "instance": instance, "job": "node"}, "values": pairs}


# ------------------------------------------------------------------------------------------------- text


def test_a_histogram_keeps_its_buckets_sum_count_unit_and_exemplar() -> None:
    frame = prometheus_text.parse(HISTOGRAM, "n1")
    at = 1_700_000_000 * NS + NS // 4
    assert values(frame) == {
        ("n1", 'wait_seconds_bucket{le="0.5"}', at): 3.0,
        ("n1", 'wait_seconds_bucket{le="+Inf"}', at): 4.0,
        ("n1", "wait_seconds_sum", at): 2.5,
        ("n1", "wait_seconds_count", at): 4.0,
    }
    assert frame.units["wait_seconds_sum"] == "seconds"
    assert frame.events.select("t", "name", "text").rows() == [
        (1_699_999_999 * NS + NS // 2, "exemplar", '{trace_id="a b"} 0.4')
    ]
    assert not frame.repairs


def test_the_same_bound_written_in_two_ways_is_one_series() -> None:
    text = 'x_bucket{le="1"} 3 1000\nx_bucket{le="1.0"} 4 2000\n'
    assert set(prometheus_text.parse(text, "n").samples["metric"]) == {'x_bucket{le="1.0"}'}


def test_times_are_milliseconds_in_prometheus_format_and_seconds_in_openmetrics() -> None:
    assert prometheus_text.parse("up 1 1700000000000\n", "n").samples["t"].item() == 1_700_000_000 * NS
    assert prometheus_text.parse("up 1 1700000000\n# EOF\n", "n").samples["t"].item() == 1_700_000_000 * NS
    exact = prometheus_text.parse("up 1 1700000000.123456789\n# EOF\n", "n")
    assert exact.samples["t"].item() == 1_700_000_000_123_456_789


def test_values_that_are_no_numbers_are_left_out_and_counted_and_infinity_is_kept() -> None:
    frame = prometheus_text.parse("a NaN 1000\nb +Inf 1000\nc -Inf 1000\nd 0 1000\n", "n")
    assert values(frame) == {("n", "b", NS): math.inf, ("n", "c", NS): -math.inf, ("n", "d", NS): 0.0}
    assert frame.repairs == {"samples without a number left out": 1}


def test_doubled_and_disordered_samples_are_mended_and_counted() -> None:
    frame = prometheus_text.parse("a 1 3000\na 2 1000\na 3 1000\n", "n")
    assert values(frame) == {("n", "a", 3 * NS): 1.0, ("n", "a", NS): 3.0}
    assert frame.repairs["samples given twice, the last one kept"] == 1
    assert frame.repairs["samples out of order put in order"] == 2


def test_a_counter_that_rises_while_its_times_fall_is_a_clock_set_back() -> None:
    said = "times of a rising counter that go back (its clock was set back)"
    assert prometheus_text.parse("x_total 1 9000\nx_total 2 5000\nx_total 3 6000\n", "n").repairs[said] == 1
    assert said not in prometheus_text.parse("x_total 9 9000\nx_total 5 5000\n", "n").repairs  # merely shuffled
    assert said not in prometheus_text.parse("heat 1 9000\nheat 2 5000\n", "n").repairs  # a gauge may rise


def test_labels_may_hold_quotes_backslashes_newlines_braces_and_commas() -> None:
    text = 'x{a="q\\"q",b="back\\\\slash",c="new\\nline",d="}{,= #",} 1 1000\n'
    labels = {"a": 'q"q', "b": "back\\slash", "c": "new\nline", "d": "}{,= #"}
    assert prometheus_text.parse(text, "n").samples["metric"].to_list() == [metric_name("x", labels)]


def test_a_quoted_metric_name_is_read() -> None:
    text = '{"http.requests",code="500"} 2 1000\n'
    assert prometheus_text.parse(text, "n").samples["metric"].to_list() == ['http.requests{code="500"}']


def test_gpus_of_one_machine_are_entities_below_it() -> None:
    text = 'T{gpu="0",UUID="GPU-a"} 50 1000\nT{gpu="1",UUID="GPU-b"} 60 1000\n'
    frame = prometheus_text.parse(text, "n1")
    assert frame.entities.select("kind", "name", "parent").rows() == [
        ("node", "n1", None), ("gpu", "n1/gpu 0", 0), ("gpu", "n1/gpu 1", 0),
    ]  # fmt: skip
    assert frame.samples["metric"].unique().to_list() == ["T"]


def test_an_address_scraped_by_two_jobs_is_two_entities() -> None:
    frame = prometheus_text.parse('up{instance="a",job="x"} 1 1000\nup{instance="a",job="y"} 0 1000\n', "n")
    assert values(frame) == {("a (x)", "up", NS): 1.0, ("a (y)", "up", NS): 0.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("up one 1000\n", "n:1: the value 'one'"),
        ("up 1_0 1000\n", "n:1: the value '1_0'"),
        ("\nup 1 soon\n", "n:2: the time 'soon'"),
        ("up 1 1e300\n# EOF\n", "n:1: the time '1e300'"),
        ("up 1 99999999999999999999999999999\n", "n:1: the time"),
        ('up{a="1",a="2"} 1 1000\n', "n:1: the label 'a' is given twice"),
        ("up{a=1} 1 1000\n", "n:1: labels that cannot be read"),
        ('{a="1"} 1 1000\n', "n:1: a sample without a name"),
        ('up{a="1 1 1000\n', "n:1: no sample"),
        ("up 1 1000 # trace 5\n", "n:1: an exemplar"),
        ("up 1\n", "n:1: a sample without a time"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_its_place(text: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        prometheus_text.parse(text, "n")
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_a_last_line_that_was_cut_is_not_taken_for_a_number() -> None:
    frame = prometheus_text.parse("up 1 1000\nbytes_total 12", "n", at=NS)
    assert values(frame) == {("n", "up", NS): 1.0}
    assert frame.repairs == {"last lines without a line end left out (the file was cut)": 1}


def test_openmetrics_without_its_end_is_said() -> None:
    frame = prometheus_text.parse(HISTOGRAM.removesuffix("# EOF\n"), "n1")
    assert frame.repairs == {"OpenMetrics without its # EOF (the file was cut)": 1}
    assert frame.samples["t"].unique().to_list() == [1_700_000_000 * NS + NS // 4]


def test_the_oracle_reads_the_same_samples() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    rng = np.random.default_rng(0)
    lines = ["# TYPE a gauge"]
    for i in range(50):
        odd = "".join(rng.choice(list('x\\"\n,}= é'), 6)).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'a{{note="{odd}",i="{i}"}} {rng.normal():.17g} {1_700_000_000 + i}.5')
    text = "\n".join([*lines, *HISTOGRAM.splitlines()]) + "\n"
    expected = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            t = sample.timestamp.sec * NS + sample.timestamp.nsec
            expected[("n", metric_name(sample.name, sample.labels), t)] = sample.value
    assert values(prometheus_text.parse(text, "n")) == expected


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_is_refused_in_one_line_or_read(data: st.DataObject) -> None:
    raw = bytearray(HISTOGRAM.encode() + b'x{a="\\"}",b=""} -1e3 1700000000\n')
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b'{}"\\,=# \n\x00\xff019.eN-_\xc3'))
    text = bytes(raw[: data.draw(st.integers(0, len(raw)))]).decode("utf-8", "replace")
    try:
        frame = prometheus_text.parse(text, "n", at=NS)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert not frame.samples["value"].is_nan().any()


# ------------------------------------------------------------------------------------------------- files


def test_untimed_samples_get_the_time_in_the_file_name_or_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "n7-1700000000.prom").write_text("up 1\n")
    (tmp_path / "n7-1700000030.prom").write_text("up 0\n")
    frame = prometheus_text.read(tmp_path)
    assert values(frame) == {("n7", "up", 1_700_000_000 * NS): 1.0, ("n7", "up", 1_700_000_030 * NS): 0.0}
    assert frame.repairs == {"samples without a time given that of their file": 2}
    plain = tmp_path / "n8.prom"
    plain.write_text("up 1\n")
    assert prometheus_text.read(plain).samples["t"].item() == plain.stat().st_mtime_ns


def test_a_folder_of_answers_and_text_is_one_frame(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "up.json").write_bytes(answer([series("up", "n1", [[1, "1"], [2, "0"]])]))
    (tmp_path / "more.json.gz").write_bytes(gzip.compress(answer([series("load", "n1", [[1.5, "7"]])])))
    (tmp_path / "n2.prom").write_text("up 1 1000\n")
    assert values(prometheus_text.read(tmp_path)) == {
        ("n1", "up", NS): 1.0, ("n1", "up", 2 * NS): 0.0, ("n1", "load", 3 * NS // 2): 7.0, ("n2", "up", NS): 1.0,
    }  # fmt: skip


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "folder"
    empty.mkdir()
    (tmp_path / "latin").write_bytes(b'up{a="x"} 1 1000\nup{a="\xe9"} 1 1000\n')
    (tmp_path / "nothing").write_text("# only remarks\n")
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"up 1 1000\n" * 100)[:-9])
    for path, told in ((empty, "no file in it"), (tmp_path / "latin", "latin:2: byte 23"),
                       (tmp_path / "half.gz", "damaged gzip"), (tmp_path / "none", "No such file"),
                       (tmp_path / "nothing", "no sample")):  # fmt: skip
        with pytest.raises(BadInput, match=told):
            prometheus_text.read(path)


# ------------------------------------------------------------------------------------------------- answers


def parsed(tmp_path: Path, content: bytes) -> Frame:
    (tmp_path / "a.json").write_bytes(content)
    return prometheus_text.read(tmp_path / "a.json")


def test_special_values_of_an_answer(tmp_path: Path) -> None:
    pairs = [[1, "NaN"], [2, "+Inf"], [3, "-Inf"], [4, "1e-3"], [5.001, "5"]]
    frame = parsed(tmp_path, answer([series("x", "n", pairs)]))
    assert frame.samples["value"].to_list() == [math.inf, -math.inf, 0.001, 5.0]
    assert frame.samples["t"].to_list()[-1] == 5_001_000_000
    assert frame.repairs == {"samples without a number left out": 1}


def test_vectors_scalars_and_native_histograms(tmp_path: Path) -> None:
    vector = [{"metric": {"__name__": "up", "instance": "n"}, "value": [7, "1"]}]
    assert values(parsed(tmp_path, answer(vector, "vector"))) == {("n", "up", 7 * NS): 1.0}
    scalar = b'{"status":"success","data":{"resultType":"scalar","result":[7,"3"]}}'
    assert parsed(tmp_path, scalar).samples["value"].to_list() == [3.0]
    native = [{"metric": {"__name__": "h", "instance": "n"}, "histograms": [[7, {"count": "4", "sum": "2.5"}]]}]
    frame = parsed(tmp_path, answer(native))
    assert values(frame) == {("n", "h_count", 7 * NS): 4.0, ("n", "h_sum", 7 * NS): 2.5}
    assert frame.repairs == {"native histograms kept as their count and sum": 1}


def test_a_result_without_a_name_is_named_after_its_file(tmp_path: Path) -> None:
    frame = parsed(tmp_path, answer([{"metric": {"instance": "n"}, "values": [[1, "2"]]}]))
    assert values(frame) == {("n", "a", NS): 2.0}


def test_an_answer_cut_anywhere_keeps_whole_samples_only_and_says_so(tmp_path: Path) -> None:
    content = answer([series(name, "n", [[t, f"{t}5"] for t in range(1, 5)]) for name in ("x", "y")])
    whole = values(parsed(tmp_path, content))
    salvaged = 0
    for end in range(1, len(content) - 3, 3):
        try:
            frame = parsed(tmp_path, content[:end])
        except BadInput as error:
            assert "\n" not in str(error)
            continue
        salvaged += 1
        assert frame.repairs == {"answers cut off: what came before is kept": 1}
        assert values(frame).items() <= whole.items()
    assert salvaged > len(content) / 3 / 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"status":"error","error":"query timed out"}', "query timed out"),
        (b'{"status":"success"}', "no 'data'"),
        (b'{"status":"success","data":{"resultType":"string","result":[1,"x"]}}', "type 'string'"),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}',
            "result 0",
        ),
        (b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1e300,"1"]]}]}}', "1e"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1 "1"]]}]}}', "byte"),
        (b'{"status":' + b"[" * 100_000, "status|recursion|truncated|Expected"),
    ],
)
def test_wrong_answers_are_refused_in_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        parsed(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_answers_are_refused_in_one_line_or_read(data: st.DataObject) -> None:
    from assay.workloads import prometheus_query
    from assay.workloads.labelled_series import Labelled

    raw = bytearray(answer([series("x", "n", [[1, "1"], [2, "+Inf"]]), series("y", "n", [[1, "3"]])]))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b'{}[]"\\,:\x00\xff09e-n'))
    content = bytes(raw[: data.draw(st.integers(1, len(raw)))])
    gathered = Labelled()
    try:
        prometheus_query.add(gathered, content, "x.json")
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert len(gathered.frame("x.json").samples) <= 3
