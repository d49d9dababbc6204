"""Histories in four formats: what is read is what was meant, what cannot be read is refused in one line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads import edn, histories
from assay.workloads.histories import FORMATS, Operation
from assay.workloads.history_events import events

REGISTERS = [
    Operation(0, "write", None, 3, None, 0.0, 2.0),
    Operation(1, "read", None, None, 3, 1.0, 4.0),
    Operation(2, "cas", None, [3, 4], True, 3.0, 6.0),
    Operation(0, "write", None, 5, None, 5.0, 8.0, "fail"),
    Operation(1, "write", None, 6, None, 7.0, math.inf, "info"),
]


def read_text(folder: Path, text: str, format: str | None = None) -> list[Operation]:
    path = folder / "history"
    path.write_text(text)
    return histories.read(path, format)


@pytest.mark.parametrize("format", ["jsonl", "jepsen-edn", "jepsen-json"])
def test_a_history_survives_writing_and_reading(tmp_path: Path, format: str) -> None:
    histories.write(tmp_path / "h", REGISTERS, format)
    assert histories.read(tmp_path / "h") == REGISTERS


@pytest.mark.parametrize("format", ["jepsen-edn", "jepsen-json"])
def test_keys_travel_as_pairs_in_jepsens_formats(tmp_path: Path, format: str) -> None:
    keyed = [operation._replace(key="x") for operation in REGISTERS]
    histories.write(tmp_path / "h", keyed, format)
    assert histories.read(tmp_path / "h") == keyed


def test_porcupines_log_keeps_the_order_of_events_and_the_comparisons_that_failed(tmp_path: Path) -> None:
    history = [*REGISTERS[:2], Operation(2, "cas", None, [3, 4], False, 3.0, 6.0)]
    histories.write(tmp_path / "h", history, "porcupine-log")
    found = histories.read(tmp_path / "h")
    assert [(item.f, item.value, item.result, item.status) for item in found] == [
        ("write", 3, None, "ok"), ("read", None, 3, "ok"), ("cas", [3, 4], False, "ok"),
    ]  # fmt: skip
    assert [(item.invoke, item.complete) for item in found] == [(0.0, 2.0), (1.0, 4.0), (3.0, 5.0)]


def test_porcupines_calls_and_returns_are_joined_by_their_numbers(tmp_path: Path) -> None:
    history = [Operation(0, "write", "x", "a", None, 0.0, 1.0), Operation(1, "append", "x", "b", None, 2.0)]
    history[1] = history[1]._replace(status="info")
    histories.write(tmp_path / "h", history, "porcupine-json")
    found = histories.read(tmp_path / "h")
    assert [item[:5] for item in found] == [item[:5] for item in history]
    assert found[1].status == "info" and found[1].complete == math.inf


def test_porcupines_numbers_of_operations_are_get_put_and_append(tmp_path: Path) -> None:
    text = """[{"Kind": 0, "ClientId": 1, "Id": 0, "Value": {"op": 2, "key": "k", "value": "z"}},
               {"Kind": 1, "ClientId": 1, "Id": 0, "Value": {"value": ""}}]"""
    assert read_text(tmp_path, text) == [Operation(1, "append", "k", "z", None, 0.0, 1.0)]


def test_the_register_log_of_porcupines_tests_is_read(tmp_path: Path) -> None:
    text = (
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n"
        "INFO  jepsen.util - 1\t:invoke\t:cas\t[0 3]\n"
        "INFO  jepsen.core - a line of another logger\n"
        "INFO  jepsen.util - 1\t:fail\t:cas\t[0 3]\n"
        "INFO  jepsen.util - 0\t:fail\t:read\t:timed-out\n"
        "INFO  jepsen.util - 2\t:invoke\t:write\t4\n"
        "INFO  jepsen.util - 2\t:info\t:write\t:timed-out\n"
    )
    read, cas, write = read_text(tmp_path, text)
    assert read.status == "fail" and write.status == "info" and write.value == 4
    assert (cas.status, cas.result, cas.value) == ("ok", False, [0, 3])


def test_the_key_value_log_of_porcupines_tests_is_read(tmp_path: Path) -> None:
    text = (
        '{:process 0, :type :invoke, :f :get, :key "1", :value nil}\n'
        '{:process 1, :type :invoke, :f :append, :key "1", :value "x 0 0 y"}\n'
        '{:process 0, :type :ok, :f :get, :key "1", :value "x 0 0 y"}\n'
        '{:process 1, :type :ok, :f :append, :key "1", :value "x 0 0 y"}\n'
    )
    assert read_text(tmp_path, text) == [
        Operation(0, "read", "1", None, "x 0 0 y", 0.0, 2.0),
        Operation(1, "append", "1", "x 0 0 y", None, 1.0, 3.0),
    ]


def test_jepsens_transactions_banks_and_sets_are_read_and_its_nemesis_is_not(tmp_path: Path) -> None:
    text = """[{:type :info, :process :nemesis, :f :start, :value nil, :time 5, :index 0}
     {:type :invoke, :process 0, :f :txn, :value [[:append 1 2] [:r 1 nil]], :time 1000000000, :index 1}
     #jepsen.history.Op{:type :ok, :process 0, :f :txn, :value [[:append 1 2] [:r 1 [2]]], :time 2000000000, :index 2}
     {:type :invoke, :process 1, :f :transfer, :value {:from 0, :to 1, :amount 5}, :time 2000000001}
     {:type :ok, :process 1, :f :transfer, :value {:from 0, :to 1, :amount 5}, :time 3000000000}
     {:type :invoke, :process 2, :f :read, :value nil, :time 3500000000}
     {:type :ok, :process 2, :f :read, :value #{1 2}, :time 4000000000}]"""
    transaction, transfer, read = read_text(tmp_path, text)
    assert transaction == Operation(
        0, "txn", None, [["append", 1, 2], ["r", 1, None]], [["append", 1, 2], ["r", 1, [2]]], 1.0, 2.0
    )
    assert transfer.value == {"from": 0, "to": 1, "amount": 5}
    assert read.result == frozenset({1, 2}) and read.complete == 4.0


def test_events_of_one_instant_happened_in_the_order_of_the_log(tmp_path: Path) -> None:
    events = (("invoke", 0, "write", 1), ("ok", 0, "write", 1), ("invoke", 1, "read", "nil"), ("ok", 1, "read", "nil"))
    text = "\n".join(f"{{:type :{kind}, :process {p}, :f :{f}, :value {v}, :time 7}}" for kind, p, f, v in events)
    write, read = read_text(tmp_path, text)
    assert write.invoke < write.complete < read.invoke < read.complete < 8e-9


def test_pairs_of_a_key_and_a_value_are_told_by_the_swaps_where_nobody_reads(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :cas, :value [1 [nil 4]]}
        {:process 0, :type :ok, :f :cas, :value [1 [nil 4]]}
        {:process 1, :type :invoke, :f :write, :value [2 5]}"""
    assert [(item.key, item.value) for item in read_text(tmp_path, text)] == [(1, [None, 4]), (2, 5)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a history in any format"),
        ("hello", "not a history in any format"),
        ('{"process": 0, "f": "read", "invoke": 1, "complete": 0}', ":1: completes at 0.0, before it is invoked"),
        ('{"process": 0, "f": "read", "invoke": 1}', ":1: 'ok' without 'complete'"),
        ('{"process": "a", "f": "read", "invoke": 1, "complete": 2}', ":1: 'process' must be an integer"),
        ('{"process": 0, "f": "read", "invoke": 1, "complete": 2, "hue": 3}', ":1: no field 'hue'"),
        ('{"process": 0, "f": "read", "invoke": "soon"}', ":1: 'invoke' is 'soon'; seconds would be right"),
        ('{"process": 0, "f": "read", "invoke": 1, "complete": 2}\n{', ":2: not JSON"),
        ("{:type :invoke, :process 0, :f :read, :value nil}\n{:type :never}", ":2: type 'never'; invoke, ok"),
        ("{:type :ok, :process 0, :f :read, :value 1}", ":1: 'ok' of process 0 without an 'invoke'"),
        ("{:type :invoke, :process 0, :f :read}\n{:type :invoke, :process 0, :f :read}", ":2: process 0 begins before"),
        ("{:type :invoke, :process 0", ":1: '{' is never closed"),
        ("{:type :invoke]", ":1: ']' where '}' would be right"),
        ('[{"kind": "return", "id": 3, "client": 0}]', "returns from call 3, which never began"),
        ('[{"kind": "shout", "id": 3, "client": 0}]', "kind 'shout'; call or return would be right"),
        ("[:a " + "[" * 5000, "nested deeper than 200"),
    ],
)
def test_bad_input_is_refused_in_one_line_that_says_where(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_text(tmp_path, text)
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        histories.read(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not text"):
        histories.read(tmp_path / "bytes")
    (tmp_path / "history.edn.gz").write_bytes(gzip.compress(b"{:type :invoke}"))
    with pytest.raises(BadInput, match="compressed; unpack it first"):
        histories.read(tmp_path / "history.edn.gz")
    with pytest.raises(BadInput, match="is a directory; name the history in it"):
        histories.read(tmp_path)
    with pytest.raises(BadInput, match="no format 'xml'"):
        histories.read(tmp_path / "bytes", "xml")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner),
    max_leaves=6,
)
operations = st.builds(
    lambda process, f, key, value, result, invoke, length: Operation(
        process, f, key, value, result, invoke, invoke + length, "ok" if length < math.inf else "info"
    ),
    st.integers(-3, 9), st.sampled_from(["read", "write", "txn", "x y"]), values, values,
    values | st.frozensets(st.integers(0, 9)), st.integers(-5, 99).map(float), st.sampled_from([0.0, 0.5, math.inf]),
)  # fmt: skip
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(st.lists(operations, min_size=1, max_size=5))
def test_our_own_format_loses_nothing(tmp_path: Path, history: list[Operation]) -> None:
    histories.write(tmp_path / "h", history)
    assert histories.read(tmp_path / "h") == history


@quick
@given(values)
def test_edn_loses_nothing(value: object) -> None:
    assert list(edn.read_all(edn.write(value))) == [(1, value)]


FRAGMENTS = st.sampled_from(
    [*'{}[]()#":\\;,_ \n', "nil", "##NaN", "#inst", ":type", ":invoke", ":ok", ":process", "0", "1e999", '"kind"',
     '"type"', '"call"', "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n", '{"process":0,"f":"r","invoke":1}',
     "\x00", "𝄞", "1N"]
)  # fmt: skip


@quick
@given(
    st.one_of(st.lists(FRAGMENTS, max_size=30).map("".join), st.text(max_size=60)), st.sampled_from([None, *FORMATS])
)
def test_hostile_text_is_read_or_refused_never_more(tmp_path: Path, text: str, format: str | None) -> None:
    path = tmp_path / "h"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = histories.read(path, format)
    except BadInput as error:
        assert "\n" not in str(error).replace(str(path), "")
    else:
        assert found and all(isinstance(item, Operation) for item in found)


def test_who_returns_and_calls_at_one_instant_returns_first() -> None:
    acts = [(0, "acquire", 0.0, 5.0), (0, "release", 5.0, 5.0), (0, "acquire", 5.0, 9.0), (1, "release", 3.0, 5.0)]
    history = [Operation(process, f, None, None, None, call, back) for process, f, call, back in acts]
    told = [(event.process, event.type, event.f) for event in events(history) if event.time == 5.0]
    assert told == [
        (0, "ok", "acquire"), (0, "invoke", "release"), (0, "ok", "release"), (0, "invoke", "acquire"),
        (1, "ok", "release"),
    ]  # fmt: skip


@pytest.mark.parametrize("lines", range(60, 100))
def test_a_log_is_known_wherever_its_first_page_ends(tmp_path: Path, lines: int) -> None:
    pair = "INFO  jepsen.util - {0}\t:invoke\t:write\t{1}\nINFO  jepsen.util - {0}\t:ok\t:write\t{1}\n"
    path = tmp_path / "etcd.log"
    path.write_text("".join(pair.format(number % 5, 10**number) for number in range(lines)))
    assert len(histories.read(path)) == lines
