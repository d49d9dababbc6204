"""Flight Recorder dumps: pickle and JSON give the same calls; broken ones are mended and said so, or refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads import flight_recorder


def entry(seq: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "frames": [{"name": "all_reduce", "filename": "/x/torch/distributed.py", "line": 3},
                   {"name": "train", "filename": "/job/train.py", "line": 41}],
        "process_group": ("0", "default_pg"), "pg_id": 0, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000 * seq, "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"], "state": state, "retired": state == "completed", "is_p2p": False,
        "time_discovered_completed_ns": 1_000 * seq + 300 if state == "completed" else None,
    } | more  # fmt: skip


def dump(*entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
            "entries": list(entries)}  # fmt: skip


def test_a_pickle_and_its_json_hold_the_same_calls() -> None:
    value = dump(entry(1), entry(2, "started"))
    from_pickle = flight_recorder.parse(pickle.dumps(value, 2), rank=1)
    from_json = flight_recorder.parse(json.dumps(value).encode(), rank=1)
    assert from_pickle.calls.equals(from_json.calls)
    assert from_pickle.groups == from_json.groups == {"0": (0, 1)}
    first = from_pickle.calls.row(0, named=True)
    assert first == {
        "rank": 1, "group": "0", "seq": 1, "kind": "all_reduce", "signature": "all_reduce [[4, 2]] Float",
        "bytes": 32, "done": True, "started": True, "created": 1_000, "duration": 300, "where": "train.py:41 train",
    }  # fmt: skip


def test_a_folder_is_read_rank_by_rank_and_becomes_a_frame_of_many_clocks(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(entry(1), entry(2, "started")), 2))
    (tmp_path / "README").write_text("not a dump")
    dumps = flight_recorder.read(tmp_path)
    assert dumps.ranks == (0, 1, 2) and len(dumps.calls) == 6
    frame = dumps.frame()
    assert frame.clocks == ["rank 0", "rank 1", "rank 2"]
    assert frame.spans["dur"].to_list() == [300, None] * 3
    assert frame.spans["seq"].to_list() == [1, 2] * 3


def test_point_to_point_calls_are_not_collectives() -> None:
    dumps = flight_recorder.parse(pickle.dumps(dump(entry(3, is_p2p=True), entry(4)), 2), 0)
    assert dumps.calls["seq"].to_list() == [4]


def test_json_that_was_cut_off_keeps_its_whole_entries_and_says_so() -> None:
    text = json.dumps({"entries": [entry(1), entry(2, "started")], "version": "2.10"})
    cut = flight_recorder.parse(text[: text.rindex("started") + 3].encode(), 0)
    assert cut.calls["seq"].to_list() == [1]
    assert "cut off" in next(iter(cut.repairs))


def test_every_cut_of_a_json_dump_is_mended_or_refused_in_one_line() -> None:
    text = json.dumps({"entries": [entry(1), entry(2)], "version": "2.10"}).encode()
    for end in range(len(text)):
        try:
            assert 1 <= len(flight_recorder.parse(text[:end], 0).calls) <= 2
        except BadInput as refused:
            assert "\n" not in str(refused)


def test_a_call_given_twice_counts_once_and_an_entry_without_a_number_is_left_out() -> None:
    dumps = flight_recorder.parse(pickle.dumps(dump(entry(1, "started"), entry(1), {"state": "x"}), 2), 0)
    assert dumps.calls["done"].to_list() == [True]
    assert dumps.repairs == {
        "calls given twice, the last one kept": 1,
        "entries without a group or a number left out": 1,
    }


def test_two_dumps_of_one_rank_no_dump_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file whose name ends in a rank"):
        flight_recorder.read(tmp_path)
    for name in ("rank_3", "rank_3.json"):
        (tmp_path / name).write_bytes(json.dumps(dump()).encode())
    with pytest.raises(BadInput, match=r"rank 3 has another dump, rank_3"):
        flight_recorder.read(tmp_path)
    with pytest.raises(BadInput, match="a folder"):
        flight_recorder.read(tmp_path / "rank_3")


@pytest.mark.parametrize("data", [b"", b"   ", b"[1]", b"\x80\x02]q\x00.", b'{"a": 1}', b'{"entries": 3}', b"GIF89a"])
def test_what_is_no_dump_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        flight_recorder.parse(data, 0, "rank_0")
    assert str(refused.value).startswith("rank_0: ") and "\n" not in str(refused.value)


ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=300)
@given(field=st.sampled_from(sorted(entry(1))), value=ODD, config=ODD)
def test_a_field_of_the_wrong_type_never_breaks_the_reader(field: str, value: Any, config: Any) -> None:
    data = pickle.dumps(dump(entry(1, **{field: value}), entry(2)) | {"pg_config": config}, 4)
    try:
        dumps = flight_recorder.parse(data, 0)
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    assert 2 in dumps.calls["seq"].to_list() or field == "collective_seq_id"
    dumps.frame()
