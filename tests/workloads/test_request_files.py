"""A trace comes out of a file as it was published; a file that is no trace is one line that names the place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads.prefixes import infinite_cache_hit, shared_tokens, turns
from assay.workloads.request_files import read, spread
from assay.workloads.requests import Requests
from tests.workloads import request_fixtures as fx


def put_and_read(folder: Path, content: bytes, **options: Any) -> Requests:
    return sound(read(fx.put(folder, content), **options))


def sound(trace: Requests) -> Requests:
    """What every reader promises."""
    n = len(trace)
    assert n >= 1
    assert np.isfinite(trace.arrival).all()
    assert trace.arrival[0] >= 0
    assert (np.diff(trace.arrival) >= 0).all()
    assert min(trace.prompt.min(), trace.output.min()) >= 1
    assert trace.source.read == trace.source.used + trace.source.refused
    assert trace.source.used == n
    for codes, labels in ((trace.tier, trace.tiers), (trace.tenant, trace.tenants), (trace.model, trace.models),
                          (trace.category, trace.categories)):  # fmt: skip
        assert codes is None or (len(codes) == n and codes.max() < len(labels) and codes.min() >= -1)
    if trace.prefixes is not None:
        assert len(trace.prefixes.offsets) == n + 1
        assert 0.0 <= infinite_cache_hit(trace) <= 1.0
    return trace


def refused(folder: Path, content: bytes, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        put_and_read(folder, content, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------- published formats


def test_mooncake(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["mooncake"])
    assert trace.source.format == "mooncake"
    assert trace.arrival.tolist() == [0.0, 3.0, 3.0, 6.0]
    assert trace.prompt.tolist() == [1000, 1500, 1600, 100]
    assert trace.prefixes is not None
    assert trace.prefixes.block == 512
    assert [shared_tokens(trace.prefixes, 0, r) for r in (1, 3)] == [512, 0]
    assert shared_tokens(trace.prefixes, 1, 2) == 1536
    assert infinite_cache_hit(trace) == pytest.approx(4 / 10)
    assert trace.source.mapping["arrival"] == "timestamp (ms)"


def test_mooncake_with_another_block_size(tmp_path: Path) -> None:
    rows = [{**row, "hash_ids": list(range(k * 1000, k * 1000 + -(-row["input_length"] // 64)))}
            for k, row in enumerate(fx.MOONCAKE)]  # fmt: skip
    trace = put_and_read(tmp_path, fx.jsonl(rows))
    assert trace.prefixes is not None
    assert trace.prefixes.block == 64


def test_bailian_ids_are_chained_and_sessions_follow_parents(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["bailian"])
    assert trace.source.format == "bailian"
    assert trace.arrival.tolist() == [0.0, 0.5, 3.75]
    assert trace.session is not None
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.prefixes is not None
    assert shared_tokens(trace.prefixes, 0, 1) == 0  # the same blocks in another order share nothing
    assert shared_tokens(trace.prefixes, 0, 2) == 32
    answer = trace.prefixes.output[0]  # 40 prompt and 16 output tokens: blocks 2 of the next prompt
    assert (trace.prefixes.start[answer], trace.prefixes.stop[answer]) == (32, 48)
    assert trace.blocks is not None
    assert trace.blocks.ids.tolist() == [7, 8, 9, 8, 7, 1, 7, 8, 2, 3, 4]  # by content, for caches beyond the prefix
    assert trace.categories == ("text", "search")


def test_azure_of_both_years(tmp_path: Path) -> None:
    old = put_and_read(tmp_path, fx.FILES["azure 2023"])
    assert (old.source.format, old.prompt.tolist(), old.output.tolist()) == ("azure", [374, 396], [44, 109])
    assert old.arrival.tolist() == pytest.approx([0.0, 4.314579], abs=1e-9)
    new = put_and_read(tmp_path, fx.FILES["azure 2024"])
    assert new.arrival.tolist() == pytest.approx([0.0, 1.007405], abs=1e-9)
    assert new.prefixes is None


def test_burstgpt_failures_are_refused_and_counted(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["burstgpt"])
    assert (trace.source.format, trace.source.read, trace.source.refused) == ("burstgpt", 3, 1)
    assert "1 rows refused: no output tokens (failures)" in trace.source.notes
    assert (trace.models, trace.categories) == (("ChatGPT", "GPT-4"), ("Conversation log", "API log"))
    assert trace.arrival.tolist() == [0.0, 113.0]
    newer = put_and_read(tmp_path, fx.FILES["burstgpt with sessions"])
    assert newer.session is not None
    assert newer.session.tolist() == [0, 0]
    assert turns(newer).tolist() == [-1, 0]


def test_vidur(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["vidur"])
    assert (trace.source.format, trace.arrival.tolist()) == ("vidur", [0.0, 4.314579])


def test_sharegpt_shares_real_text(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["sharegpt"])
    assert trace.source.format == "sharegpt"
    assert (trace.source.read, trace.source.refused) == (4, 1)  # nobody answered the third
    assert trace.session is not None
    assert np.bincount(trace.session).tolist() == [2, 1]
    assert trace.prefixes is not None
    opening = next(r for r in range(3) if trace.session[r] == 1)
    first, second = (r for r in range(3) if trace.session[r] == 0)
    assert trace.prompt[first] == trace.prompt[opening] == -(-len("human\n" + fx.LONG * 3 + "\n") // 4)
    assert shared_tokens(trace.prefixes, first, opening) == trace.prompt[first] // 16 * 16
    assert trace.prefixes.output[first] >= 0  # the second prompt holds the first answer
    assert trace.prompt[second] > trace.prompt[first] + trace.output[first]
    assert any("no times" in note for note in trace.source.notes)


def test_openai_chats_and_batches(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["openai"])
    assert (trace.source.format, len(trace), trace.models) == ("openai", 2, ("m",))
    assert trace.prefixes is not None
    assert shared_tokens(trace.prefixes, 0, 1) >= 64  # the system prompt
    batch = put_and_read(tmp_path, fx.FILES["batch"])
    assert (batch.output.tolist(), batch.models) == ([64], ("m",))


def test_gateway_log_by_the_names_of_its_columns(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.FILES["gateway"])
    assert trace.source.mapping == {
        "arrival": "ts (s since 1970)", "prompt": "usage.prompt_tokens", "output": "usage.completion_tokens",
        "model": "model", "tenant": "user", "tier": "priority",
    }  # fmt: skip
    assert (trace.arrival.tolist(), trace.tenants, trace.tiers) == ([0.0, 1.0], ("u1", "u2"), ("1", "0"))
    assert (trace.source.read, trace.source.refused) == (2, 0)
    assert any("1 lines are no requests" in note for note in trace.source.notes)


def test_engine_logs(tmp_path: Path) -> None:
    sglang = put_and_read(tmp_path, fx.FILES["sglang"])
    assert (sglang.prompt.tolist(), sglang.output.tolist(), sglang.arrival.tolist()) == ([12, 9], [30, 8], [0.0, 2.0])
    vllm = put_and_read(tmp_path, fx.FILES["vllm"])
    assert (vllm.prompt.tolist(), vllm.output.tolist()) == ([40, 41, 42], [10, 11, 12])
    assert vllm.prefixes is not None
    assert shared_tokens(vllm.prefixes, 0, 2) == 32
    assert any("max_tokens" in note for note in vllm.source.notes)


@pytest.mark.parametrize(
    ("header", "times", "unit", "seconds"),
    [
        ("arrival_ms", ["0", "2500"], "ms", 2.5),
        ("timestamp", ["1700000000000", "1700000002500"], "ms since 1970", 2.5),
        ("ts", ["1700000000", "1700000002.5"], "s since 1970", 2.5),
        ("created_at", ["2024-01-01T00:00:00Z", "2024-01-01T01:00:02.5+01:00"], "date and time", 2.5),
        ("time", ["3", "5.5"], "s", 2.5),
    ],
)  # fmt: skip
def test_units_of_time(tmp_path: Path, header: str, times: list[str], unit: str, seconds: float) -> None:
    trace = put_and_read(tmp_path, fx.table([header, "ISL", "osl"], [[t, 5, 6] for t in times]))
    assert trace.seconds == pytest.approx(seconds, abs=1e-6)
    assert trace.source.mapping["arrival"] == f"{header} ({unit})"
    rows = [{header: t if "-" in t else float(t), "ISL": 5, "osl": 6} for t in times]
    assert put_and_read(tmp_path, fx.jsonl(rows)).seconds == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_and_a_byte_order_mark(tmp_path: Path, separator: str) -> None:
    text = "\ufefftime,prompt tokens,output tokens\r\n1,5,6\r\n\r\n2,7,8\r\n".replace(",", separator)
    trace = put_and_read(tmp_path, text.encode())
    assert (trace.prompt.tolist(), trace.source.read) == ([5, 7], 2)


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("name", list(fx.FILES))
def test_packed_files_read_alike(tmp_path: Path, name: str, how: str) -> None:
    plain = put_and_read(tmp_path, fx.FILES[name])
    small = read(fx.packed(tmp_path, fx.FILES[name], how))
    for column in ("arrival", "prompt", "output"):
        assert np.array_equal(getattr(plain, column), getattr(small, column))
    assert plain.source.mapping == small.source.mapping


# ---------------------------------------------------------------------------------- rows that are none


def broken(at: int, **change: Any) -> bytes:
    rows = [dict(row) for row in fx.MOONCAKE]
    for key, value in change.items():
        if value is None:
            del rows[at][key]
        else:
            rows[at][key] = value
    return fx.jsonl(rows)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"output_length": None}, "line 3: output_length is missing; expected a whole number >= 1"),
        ({"input_length": "many"}, "line 3: input_length is 'many'; expected a whole number >= 1"),
        ({"input_length": -4}, "line 3: input_length is -4; expected a whole number >= 1"),
        ({"input_length": 2**40}, "line 3: input_length is 1099511627776; expected a whole number >= 1"),
        ({"timestamp": -1}, "line 3: timestamp is -1; expected a time"),
        ({"hash_ids": [1, "x"]}, 'line 3: hash_ids is [1,"x"]; expected a list of whole numbers of 64 bits'),
        ({"hash_ids": [2**70]}, "line 3: hash_ids is [1180591620717411303424]; expected a list"),
    ],
)
def test_a_bad_row_is_named_or_counted(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    content = broken(2, **change).replace(b'1, "x"', b'1,"x"')
    assert f"trace.txt {says}" in refused(tmp_path, content)
    trace = put_and_read(tmp_path, content, skip_bad=True)
    assert (trace.source.read, trace.source.used, trace.source.refused) == (4, 3, 1)
    assert any(says.split(";")[0] in note for note in trace.source.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,4\n", "line 2: ContextTokens is 'x';"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,3,4\n", "line 2: TIMESTAMP is 'noon'; expected a time"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n-1,2,3\n", "line 3: arrived_at is '-1'; expected"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\ninf,2,3\n", "line 2: arrived_at is 'inf'; expected"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2.5,3\n", "line 2: num_prefill_tokens is '2.5';"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2\n", "line 2: num_decode_tokens is missing; expected"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n1,2,3,4\n", "line 3: 4 cells; expected 3"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n", "holds no request"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,0\n", "holds no request (1 rows refused: no output"),
        (b"time,prompt_tokens\n1,2\n", "no column for output among time, prompt_tokens; expected names such"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (fx.FILES["mooncake"][:-30], "line 4: '{\"timestamp\": 6000, \"input_len' is not a whole JSON object"),
        (fx.FILES["mooncake"] + b"[1]\n", "line 5: '[1]' is not a whole JSON object"),
        (fx.FILES["sharegpt"][:-9], "file: not a whole JSON list"),
        (b'[{"conversations": 5}]', "item 1: no conversation in"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "neither JSON nor text"),
        (b"\x1f\x8b\x08\x00garbage", "cannot unpack it"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refused(tmp_path, content)


def test_bad_rows_of_a_table_can_be_skipped(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'x' if k % 2 else 5},6\n" for k in range(20))
    trace = put_and_read(tmp_path, b"time,prompt_tokens,output_tokens\n" + rows.encode(), skip_bad=True)
    assert (trace.source.read, trace.source.used, trace.source.refused) == (20, 10, 10)
    assert any("10 rows refused as malformed: line 3: prompt_tokens is 'x'" in note for note in trace.source.notes)


def test_arrivals_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    trace = put_and_read(tmp_path, fx.jsonl(fx.MOONCAKE[::-1]))
    assert trace.prompt.tolist() == [1000, 1600, 1500, 100]
    assert "arrivals were not in order: sorted" in trace.source.notes
    assert trace.prefixes is not None
    assert shared_tokens(trace.prefixes, 1, 2) == 1536  # the ids went with their rows


@pytest.mark.parametrize("name", list(fx.FILES))
def test_limit_reads_the_first_rows(tmp_path: Path, name: str) -> None:
    assert put_and_read(tmp_path, fx.FILES[name], limit=1).source.read == 1


def test_a_format_can_be_asked_for(tmp_path: Path) -> None:
    assert put_and_read(tmp_path, fx.FILES["azure 2023"], format="csv").source.format == "csv"
    assert "unknown format 'xml'; expected one of mooncake" in refused(tmp_path, b"x", format="xml")
    assert "not the columns of vidur" in refused(tmp_path, fx.FILES["azure 2023"], format="vidur")
    assert "timestamp is missing" in refused(tmp_path, fx.FILES["gateway"], format="mooncake")


def test_a_name_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))
    with pytest.raises(BadInput, match=r"not at hand: burstgpt-1; burstgpt-1: it is at .*BurstGPT"):
        read("burstgpt-1")
    with pytest.raises(BadInput, match="no file or trace 'nothing'; traces by name: mooncake"):
        read("nothing")
    with pytest.raises(BadInput, match=r"cannot read .*: No such file"):
        read(tmp_path / "nothing.csv")
    with pytest.raises(BadInput, match=r"cannot read .*: Is a directory"):
        read(tmp_path)
    fx.put(tmp_path, fx.FILES["vidur"], "vidur_splitwise_conv.csv")
    assert len(read("vidur-splitwise-conv")) == 2


# ---------------------------------------------------------------------------------- hostile files


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(list(fx.FILES)),
    cuts=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), st.binary(max_size=8)), max_size=3),
    skip=st.booleans(),
)
@example(name="mooncake", cuts=[(0, 0, b"\xef\xbb\xbf")], skip=False)
def test_changed_bytes_give_a_trace_or_one_line(
    tmp_path: Path, name: str, cuts: list[tuple[int, int, bytes]], skip: bool
) -> None:
    content = fx.FILES[name]
    for at, size, new in cuts:
        content = content[: at % (len(content) + 1)] + new + content[at % (len(content) + 1) + size :]
    trace_or_one_line(fx.put(tmp_path, content), skip)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode), skip=st.booleans())
@example(content=b"[" * 5000, skip=True)
@example(content=b'{"timestamp":' + b"[" * 5000, skip=True)
@example(content=b'{"ts": 1e300, "prompt_tokens": 1, "output_tokens": 1}\n', skip=True)
@example(content=b"\x28\xb5\x2f\xfdgarbage", skip=True)
def test_any_bytes_give_a_trace_or_one_line(tmp_path: Path, content: bytes, skip: bool) -> None:
    trace_or_one_line(fx.put(tmp_path, content), skip)


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)
cell = st.text(max_size=6) | st.integers().map(str) | st.floats().map(str)
KEYS = """timestamp input_length output_length hash_ids ts chat_id parent_chat_id type prompt_tokens output_tokens model
session messages body""".split()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), values), max_size=6), skip=st.booleans())
def test_any_objects_give_a_trace_or_one_line(tmp_path: Path, rows: list[dict[str, Any]], skip: bool) -> None:
    trace_or_one_line(fx.put(tmp_path, "".join(json.dumps(row) + "\n" for row in rows).encode()), skip)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.lists(cell, min_size=1, max_size=4)), skip=st.booleans())
def test_any_cells_give_a_trace_or_one_line(tmp_path: Path, cells: list[list[str]], skip: bool) -> None:
    lines = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(",".join(row) for row in cells)]
    trace_or_one_line(fx.put(tmp_path, "\n".join(lines).encode(errors="replace")), skip)


def trace_or_one_line(path: Path, skip: bool) -> None:
    try:
        sound(read(path, skip_bad=skip, dejitter=skip))
    except BadInput as error:
        assert "\n" not in str(error)
        assert path.name in str(error)


# ---------------------------------------------------------------------------------- coarse clocks


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=200).map(sorted))
def test_spread_keeps_order_and_ticks(ticks: list[int]) -> None:
    arrival = np.array(ticks, np.float64) * 3.0
    times, note = spread(arrival)
    assert note
    assert (np.diff(times) >= 0).all()
    assert np.array_equal(np.floor(times / 3.0 + 1e-12) >= np.floor(arrival / 3.0), np.ones(len(times), bool))
    assert np.array_equal(spread(arrival)[0], times)


def test_dejitter_says_what_it_did(tmp_path: Path) -> None:
    rows = [{"timestamp": 3000 * (k // 10), "input_length": 5, "output_length": 5, "hash_ids": [k]} for k in range(200)]
    trace = put_and_read(tmp_path, fx.jsonl(rows), dejitter=True)
    assert "arrivals spread uniformly within the 3 s of the clock they were rounded to" in trace.source.notes
    assert np.array_equal(np.floor(trace.arrival / 3), np.arange(200) // 10)
    exact = put_and_read(tmp_path, fx.FILES["vidur"], dejitter=True)
    assert any("left as they are" in note for note in exact.source.notes)


# ---------------------------------------------------------------------------------- size, and the real files


def test_a_long_file_takes_bounded_memory(tmp_path: Path) -> None:
    """A hundred thousand lines; what is held is a few columns, not objects."""
    line = '{"timestamp": %d, "input_length": 40, "output_length": 3, "hash_ids": [0, %d, %d]}\n'
    path = fx.put(tmp_path, "".join(line % (k, 2 * k + 1, 2 * k + 2) for k in range(100_000)).encode())
    read(path, limit=10)
    begin = time.process_time()
    trace = sound(read(path))
    assert (len(trace), trace.source.read) == (100_000, 100_000)
    assert time.process_time() - begin < 5


@pytest.mark.traces
def test_the_real_mooncake_trace() -> None:
    trace = sound(read("mooncake-conversation"))
    assert (len(trace), trace.source.refused) == (12_031, 0)
    assert trace.prompt.mean() == pytest.approx(12_035, abs=1)
    assert trace.prompt.max() == 126_195
    assert trace.output.mean() == pytest.approx(343, abs=1)
    assert trace.seconds == pytest.approx(3537, abs=1)
    assert infinite_cache_hit(trace) == pytest.approx(0.366, abs=0.001)
    spread_out = read("mooncake-conversation", dejitter=True)
    assert (np.diff(trace.arrival) == 0).mean() == pytest.approx(0.9, abs=0.01)
    assert (np.diff(spread_out.arrival) == 0).mean() == 0


@pytest.mark.traces
@pytest.mark.timed
def test_the_real_mooncake_trace_is_read_in_a_blink() -> None:
    assert min(_seconds("mooncake-conversation") for _ in range(5)) < 0.12  # 42 ms on a quiet machine


def _seconds(name: str) -> float:
    begin = time.perf_counter()
    read(name)
    return time.perf_counter() - begin


@pytest.mark.traces
def test_the_real_azure_trace_is_the_one_vidur_reads() -> None:
    azure, vidur = sound(read("azure-2023-conv")), sound(read("vidur-splitwise-conv"))
    assert len(azure) == len(vidur) == 19_366
    assert np.array_equal(azure.prompt, vidur.prompt)
    assert np.array_equal(azure.output, vidur.output)
    assert np.allclose(azure.arrival, vidur.arrival, atol=1e-6)


def test_a_profilers_trace_is_sent_to_the_right_command(tmp_path: Path) -> None:
    path = fx.put(tmp_path, b'{\n  "schemaVersion": 1,\n  "traceEvents": []\n}')
    with pytest.raises(BadInput, match="'assay trace' reads it"):
        read(path)
