"""The Kineto reader: every event that JSON's own decoder sees, exact times, and honest answers to damaged files."""

from __future__ import annotations

import gzip
import io
import json
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import json_scan, kineto, kineto_file, kineto_window
from assay.workloads.kineto_file import read_stream
from assay.workloads.kineto_generate import Job, schedule, write

JOB = Job(ranks=2, steps=3, layers=4, slow_rank=1, slow_by=1.4)


def span(name: str = "gemm", ts: Any = 1, dur: Any = 2, cat: str = "kernel", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur} | more


def frame_of(events: list[dict[str, Any]] | bytes, name: str = "x.json", **about: Any) -> Frame:
    text = events if isinstance(events, bytes) else json.dumps({"traceEvents": events, **about}).encode()
    return kineto.frame([read_stream(io.BytesIO(text), name)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(JOB, tmp_path_factory.mktemp("kineto"))


# ------------------------------------------------------------------------------------------------- bytes


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(values, st.sampled_from([None, 1]), st.booleans())
def test_a_value_ends_where_the_json_decoder_says(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    padded = np.frombuffer(text + b" ,", np.uint8)
    assert json_scan.skip_value(padded, 0, len(padded)) == len(text)


@settings(deadline=None)
@given(st.integers(-(10**17), 10**17), st.integers(0, 20), st.integers(-30, 18), st.sampled_from("eE"))
def test_a_time_with_an_exponent_is_as_exact_as_one_without(digits: int, behind: int, power: int, mark: str) -> None:
    with localcontext(prec=80):
        mantissa = Decimal(digits).scaleb(-behind)
        text = f"{mantissa:f}{mark}{power:+d}".encode() + b","
        thousandths = abs(mantissa.scaleb(power + 3)).quantize(Decimal(1), ROUND_HALF_UP)
    if thousandths <= 10**18 and abs(mantissa) < 10**15:
        found = json_scan.thousandths(np.frombuffer(text, np.uint8), 0, len(text))
        assert found == (-1 if digits < 0 else 1) * int(thousandths)


@settings(deadline=None)
@given(values.filter(lambda value: isinstance(value, dict | list)))
def test_every_cut_of_a_value_asks_for_more_bytes(value: Any) -> None:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    for end in range(len(text)):
        assert json_scan.skip_value(text, 0, end) == json_scan.MORE


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15), st.integers(0, 999))
def test_microseconds_become_nanoseconds_exactly(whole: int, part: int) -> None:
    text = np.frombuffer(f"{whole}.{part:03d},".encode(), np.uint8)
    assert json_scan.thousandths(text, 0, len(text)) == (abs(whole) * 1000 + part) * (-1 if whole < 0 else 1)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("1e3", 1_000_000), ("1.5E-3", 2), ('"12.5"', 12_500), ("0.0005", 1), ("0.0004", 0), ("7", 7000)],
)
def test_other_spellings_of_a_number_are_read(text: str, nanoseconds: int) -> None:
    letters = np.frombuffer(text.encode() + b" ", np.uint8)
    assert json_scan.thousandths(letters, 0, len(letters)) == nanoseconds


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "null", "1e999", "99999999999999999999", '"soon"'])
def test_what_is_no_number_is_missing(text: str) -> None:
    letters = np.frombuffer(text.encode() + b" ", np.uint8)
    assert json_scan.thousandths(letters, 0, len(letters)) == json_scan.MISSING


# ------------------------------------------------------------------------------------------------- events


def test_the_reader_sees_what_the_json_decoder_sees(files: list[Path]) -> None:
    for path in files:
        recording = kineto_file.read_file(path)
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] not in "stf"]
        assert len(recording) == len(events)
        for column in ("name", "cat"):
            assert [recording.strings[i] if i >= 0 else None for i in recording[column]] == [
                event.get(column) for event in events
            ]
        times = [round(event.get("dur", 0) * 1000) for event in events]
        assert np.maximum(recording["dur"], 0).tolist() == times
        for column, key in (("correlation", "correlation"), ("stream", "stream"), ("seq", "Seq")):
            said = [event.get("args", {}).get(key, json_scan.MISSING) for event in events]
            assert recording[column].tolist() == said


def test_spans_are_those_of_the_schedule_to_the_nanosecond(files: list[Path]) -> None:
    frame = kineto.read(files)
    ranks = {"kernel": "kernel", "comm": "comm", "memcpy": "memcpy", "step": "step", "cpu": "cpu_op", "call": "other"}
    wanted = sorted((f"rank {op.rank}", ranks[op.kind], op.start, op.end - op.start) for op in schedule(JOB))
    clock = frame.entities.select(entity="id", clock="clock")
    found = frame.spans.join(clock, on="entity").select("clock", pl.col("cat").cast(pl.String), "start", "dur").rows()
    assert sorted(found) == wanted
    assert not frame.repairs


def test_kernels_are_linked_to_the_calls_that_launched_them(files: list[Path]) -> None:
    frame = kineto.read(files)
    names = dict(frame.spans.select("span", pl.col("name").cast(pl.String)).iter_rows())
    launched = sum(op.kind in ("kernel", "comm", "memcpy") for op in schedule(JOB))
    assert len(frame.edges) == launched
    assert {names[src] for src in frame.edges["src"]} == {"cudaMemcpyAsync", "cudaLaunchKernel", "cudaLaunchKernelExC"}


@pytest.mark.parametrize("numbered", [True, False])
def test_collectives_get_the_same_number_on_every_rank(tmp_path: Path, numbered: bool) -> None:
    frame = kineto.read(write(Job(ranks=3, steps=2, layers=3, numbered=numbered), tmp_path))
    comm = frame.spans.filter((pl.col("cat") == "comm") & pl.col("seq").is_not_null())
    assert comm.group_by("seq").len()["len"].to_list() == [3] * 6
    assert frame.aligned().clocks == ["one"]


def test_steps_carry_their_own_number(files: list[Path]) -> None:
    steps = kineto.read(files).spans.filter(pl.col("cat") == "step")
    assert sorted(steps["seq"].to_list()) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("piece", [64, 1000, 4096])
def test_the_size_of_the_pieces_does_not_matter(files: list[Path], piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kineto_file.read_file(files[0])
    monkeypatch.setattr(kineto_window, "PIECE", piece)
    again = kineto_file.read_file(files[0])
    assert again.strings == whole.strings
    assert all(np.array_equal(again[name], whole[name]) for name in whole.columns)


def test_more_strings_than_the_tables_have_room_for_are_read() -> None:
    events = [span(f"kernel {i} {'x' * 60}", ts=i) for i in range(9000)]
    assert frame_of(events).spans["name"].cast(pl.String).to_list() == [event["name"] for event in events]


def test_gzip_and_plain_give_the_same(files: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "rank-0.json.gz"
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    assert kineto.read(packed).spans.equals(kineto.read(files[0]).spans)


@pytest.mark.parametrize(
    "text",
    [
        b'[{"ph":"X","name":"a","ts":1,"dur":2,"pid":0,"tid":0}]',
        b'{"deviceProperties":[{"id":0,"x":[1,{"y":"]}"}]}],"traceEvents":[{"name":"a","dur":2,"ts":1,"ph":"X"}]}',
        b'{"traceEvents":[{"args":{"q":{"args":{"stream":1}}},"ph":"X","ts":1,"dur":2,"name":"a"}],"z":null}',
        b' {\n "traceEvents" :\n [ { "ph" : "X" , "name" : "a" , "ts" : 1.0 , "dur" : 2.0 } ] , "k" : {} } \n',
    ],
)
def test_the_events_may_stand_anywhere(text: bytes) -> None:
    spans = frame_of(text).spans
    assert spans.select(pl.col("name").cast(pl.String), "start", "dur").rows() == [("a", 1000, 2000)]


def test_names_with_escapes_and_odd_bytes_are_read() -> None:
    one, other = (
        rb'{"ph":"X","ts":1,"dur":1,"name":"a\"b\\\u00e9\n"}',
        rb'{"ph":"X","ts":2,"dur":1,"name":"C:\temp\Qx"}',
    )
    text = b'{"traceEvents":[' + one + b"," + other + b"]}"
    assert frame_of(text).spans["name"].cast(pl.String).to_list() == ['a"b\\é\n', "C:\\temp\\Qx"]


def test_the_rank_is_said_by_the_file_or_its_name_or_given() -> None:
    def rank(name: str, **about: Any) -> str:
        return str(frame_of([span()], name, **about).entities["name"][0])

    assert rank("x.json", distributedInfo={"rank": 5}) == "5"
    assert rank("run/rank-12.json") == rank("trace_rank12.json.gz") == "12"
    assert rank("20241115_rank_3.json") == "3"
    assert rank("x.json") == "0"


def test_two_files_of_one_rank_are_refused(files: list[Path]) -> None:
    with pytest.raises(BadInput, match="both say that they are rank 0"):
        kineto.read([files[0], files[0]])


@pytest.mark.parametrize(
    ("shapes", "dtype", "nbytes"),
    [
        ([[100]], "float", 400),
        ([[8, 4], [], [0, 5]], "c10::BFloat16", 66),  # a tensor of no dimension is one number
        ([[[10, 2], [5]]], "long int", 200),
        ([], "float", None),
        ([[2**40, 2**40]], "float", None),
        ([["a"]], "float", None),
        ([[100]], "Scalar", None),
    ],
)
def test_the_size_of_a_gloo_message_is_that_of_its_tensors(shapes: Any, dtype: str, nbytes: int | None) -> None:
    args = {"Input type": [dtype, ""], "Input Dims": shapes}
    gloo = span("gloo:all_reduce", cat="user_annotation", args=args)
    operator = span("aten::mm", ts=5, cat="cpu_op", args=args)
    assert frame_of([gloo, operator]).spans["bytes"].to_list() == [nbytes, None]


def test_a_gather_of_gloo_is_as_large_as_its_result() -> None:
    gloo = span("gloo:all_gather", cat="user_annotation", args={"Input type": ["float"], "Input Dims": [[4]]})
    assert frame_of([gloo], distributedInfo={"rank": 0, "world_size": 3}).spans["bytes"].to_list() == [48]


# ------------------------------------------------------------------------------------------------- what is mended


def test_a_span_of_a_day_is_left_out_and_said() -> None:
    frame = frame_of([span(), span(dur=86_400_000_000)])
    assert len(frame.spans) == 1
    assert [times for what, times in frame.repairs.items() if "the clock jumped" in what] == [1]


def test_beginnings_are_paired_with_their_ends_within_a_thread() -> None:
    events = [
        {"ph": "B", "name": "outer", "ts": 1, "pid": 0, "tid": 0, "cat": "cpu_op"},
        {"ph": "B", "name": "other", "ts": 2, "pid": 0, "tid": 1, "cat": "cpu_op"},
        {"ph": "B", "name": "inner", "ts": 3, "pid": 0, "tid": 0, "cat": "cpu_op"},
        {"ph": "E", "ts": 5, "pid": 0, "tid": 0},
        {"ph": "E", "ts": 9, "pid": 0, "tid": 0},
        {"ph": "E", "ts": 10, "pid": 0, "tid": 0},
    ]
    frame = frame_of(events)
    assert dict(frame.spans.select(pl.col("name").cast(pl.String), "dur").iter_rows()) == {"outer": 8000, "inner": 2000}
    assert sum(frame.repairs.values()) == 2  # `other` never ends, and one end never began


def test_spans_without_a_usable_time_are_left_out_and_counted() -> None:
    text = (
        b'{"traceEvents":[{"ph":"X","name":"good","ts":1,"dur":1},{"ph":"X","name":"nan","ts":1,"dur":NaN},'
        b'{"ph":"X","name":"negative","ts":1,"dur":-3},{"ph":"X","name":"endless","ts":1},'
        b'{"ph":"X","name":"never","dur":1},{"ph":"X","name":"huge","ts":1,"dur":Infinity}]}'
    )
    frame = frame_of(text)
    assert frame.spans["name"].cast(pl.String).to_list() == ["good"]
    assert frame.repairs == {"spans without a usable time left out": 5}


def test_kernels_given_twice_are_read_once() -> None:
    args = {"correlation": 9, "stream": 7}
    frame = frame_of([span(args=args), span(args=args), span(ts=5, args=args | {"correlation": 10})])
    assert len(frame.spans) == 2
    assert frame.repairs == {"calls and kernels given twice, one kept": 1}


def test_a_jump_of_the_clock_is_left_out_and_counted() -> None:
    frame = frame_of([*(span(ts=10**12 + i) for i in range(9)), span(ts=5)])
    assert len(frame.spans) == 9
    assert "clock jumped" in next(iter(frame.repairs))


def test_a_kernel_before_its_launch_is_kept_and_counted() -> None:
    call = span("cudaLaunchKernel", ts=10, cat="cuda_runtime", tid=1, args={"correlation": 4})
    frame = frame_of([call, span(ts=5, args={"correlation": 4, "stream": 7})])
    assert len(frame.spans) == 2
    assert "device's clock is behind" in next(iter(frame.repairs))


def test_the_order_of_the_events_does_not_matter(files: list[Path]) -> None:
    whole = json.loads(files[0].read_text())
    shuffled = whole | {"traceEvents": whole["traceEvents"][::-1]}

    def rows(recorded: dict[str, Any]) -> list[Any]:
        frame = kineto.frame([read_stream(io.BytesIO(json.dumps(recorded).encode()), "rank-0.json")])
        return sorted(frame.spans.select(pl.col("name", "cat").cast(pl.String), "start", "dur", "seq").rows(), key=str)

    assert rows(whole) == rows(shuffled)


# ------------------------------------------------------------------------------------------------- damage


def test_every_cut_keeps_the_whole_events_before_it() -> None:
    text = json.dumps({"traceEvents": [span(ts=i, dur=1) for i in range(4)], "x": 1}).encode()
    ends = [i + 1 for i in range(len(text)) if text[i : i + 1] == b"}"]
    for cut in range(text.index(b"[") + 1, len(text)):
        recording = read_stream(io.BytesIO(text[:cut]), "x.json")
        # an event counts as whole once something follows it: only then is it known that nothing of it is missing
        whole = sum(end < cut for end in ends[:4])
        assert recording.cut == cut
        assert len(recording) in (whole, max(0, whole - 1))


def test_a_cut_file_says_where_it_ends() -> None:
    text = json.dumps({"traceEvents": [span(ts=i) for i in range(9)]}).encode()[:-60]
    frame = frame_of(text)
    assert len(frame.spans) >= 7
    assert list(frame.repairs) == [f"x.json ends early, at byte {len(text)}: the whole events before it kept"]


def test_a_cut_gzip_file_keeps_what_can_be_unpacked(files: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "rank-0.json.gz"
    packed.write_bytes(gzip.compress(files[0].read_bytes())[:-400])
    frame = kineto.read(packed)
    assert 0 < len(frame.spans) < len(kineto.read(files[0]).spans)
    assert "ends early" in next(iter(frame.repairs))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"traceEvents":[{"ph":"X" "ts":1}]}', "byte 26"),
        (b'{"traceEvents":[{"ph":"X","ts":1]}', "byte 32"),
        (b'{"traceEvents":[{"ph":"X"}{"ph":"X"}]}', "byte 26"),
        (b'{"traceEvents":[{"na\nme":1}]}', "byte 20"),
        (b'{"traceEvents":[5]}', "byte 16"),
        (b'{"traceEvents":[]} {}', "follows the end of the trace at byte 19"),
        (b'{"arrived_at": 1, "num_prefill_tokens": 5}\n{"arrived_at": 2}', "'assay traces'"),
        (b"timestamp,prompt\n1,2\n", "'assay traces'"),
        (b"", "not a profiler trace"),
        (b'{"traceEvents":[]}', "no span of time"),
        (b'{"traceEvents":null}', "'traceEvents' is no list"),
        (b'{"traceEvents":[{"ph":"X","ts":1700000000000000000,"dur":1}]}', "without a usable time left out: 1"),
        (b'{"trace', "before any 'traceEvents'"),
        (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", "byte 65"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(text: bytes, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        frame_of(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_window, "UNPACKED", 1 << 20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents":[' + b" " * (64 << 20)))
    with pytest.raises(BadInput, match="times its size"):
        kineto.read(bomb)


def test_damaged_gzip_data_is_refused(files: list[Path], tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(files[0].read_bytes()))
    packed[len(packed) // 2] ^= 0xFF
    broken = tmp_path / "x.json.gz"
    broken.write_bytes(packed)
    with pytest.raises(BadInput):
        kineto.read(broken)


def test_a_value_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_window, "LARGEST_EVENT", 8 << 20)
    with pytest.raises(BadInput, match="one value at byte"):
        read_stream(io.BytesIO(b'{"traceEvents":[{"name":"' + b"x" * (40 << 20)), "x.json")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_files_are_read_or_refused_never_worse(data: st.DataObject) -> None:
    text = bytearray(
        json.dumps({"traceEvents": [span(ts=i, args={"stream": 7, "k": [1, "x"]}) for i in range(3)]}).encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        frame = frame_of(bytes(text))
    except BadInput as refused:
        assert "\n" not in str(refused)
    else:
        assert (frame.spans["dur"] >= 0).all()


# ------------------------------------------------------------------------------------------------- the real thing


def test_a_trace_of_the_real_profiler_is_read_as_torch_wrote_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    schedule_of = torch.profiler.schedule(wait=0, warmup=1, active=2)
    path = tmp_path / "real.json"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule_of,
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(3):
            model(torch.randn(8, 32)).sum().backward()
            profiler.step()
    frame = kineto.read(path)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(frame.spans) == len(events)
    assert sorted(frame.spans["name"].cast(pl.String).to_list()) == sorted(event["name"] for event in events)
    assert len(frame.spans.filter(pl.col("cat") == "step")) == 2
    assert not frame.repairs
