"""A trace that names sessions but no blocks: later turns find their history, or a note says that nobody knows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.chat import chat
from assay.workloads.prefixes import hits, previous
from assay.workloads.request_files import read
from assay.workloads.requests import Requests
from assay.workloads.session_reuse import with_session_reuse
from tests.oracles.session_reuse import reused

GROWING = [("a", 0.0, 300, 40), ("b", 1.0, 90, 10), ("a", 30.0, 400, 25), ("a", 70.0, 500, 9), ("b", 80.0, 130, 60)]


def note_of(trace: Requests) -> str:
    return "; ".join(trace.source.notes)


def as_file(kind: str, folder: Path) -> Path:
    path = folder / f"trace.{kind}"
    if kind == "csv":
        lines = ["timestamp,conversation_id,input_tokens,output_tokens"]
        lines += [f"{time},{session},{prompt},{output}" for session, time, prompt, output in GROWING]
        path.write_text("\n".join(lines))
    elif kind == "jsonl.gz":
        rows = [
            {"ts": time, "threadId": session, "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
            for session, time, prompt, output in GROWING
        ]
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif kind == "burstgpt":
        lines = ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"]
        lines += [
            f"{time},{session},1.5,m,{prompt},{output},{prompt + output},chat"
            for session, time, prompt, output in GROWING
        ]
        path.write_text("\n".join(lines))
    else:
        keys = {"endpoint": "chat", "status": 200, "e2e": 1.0, "hash_ids": []}
        rows = [
            keys
            | {"id": f"r{n}", "time": time, "session": session, "prompt_tokens": prompt, "completion_tokens": output}
            for n, (session, time, prompt, output) in enumerate(GROWING)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl.gz", "burstgpt", "gateway"])
def test_turns_that_grow_begin_with_the_turn_before_in_every_format(kind: str, tmp_path: Path) -> None:
    trace = with_session_reuse(read(as_file(kind, tmp_path)))
    assert trace.prefixes is not None
    found, _ = hits(trace.prefixes, trace.prompt, answers=True)
    assert found.tolist() == [0, 0, 340, 425, 100]
    assert "reuse by session (assumed): 3 of 3 later turns" in note_of(trace)


lengths = st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(1, 20))


@given(st.lists(lengths, min_size=1, max_size=25))
def test_what_is_shared_is_what_the_prompts_written_out_share(rows: list[tuple[int, int, int]]) -> None:
    sessions, added, outputs = (list(column) for column in zip(*rows, strict=True))
    before = previous(np.array(sessions, np.int32)).tolist()
    prompts: list[int] = []
    for r, more in enumerate(added):  # grows, with room for the answer or not; now and then it is cut
        shrinks = more == 1 and sum(before[q] >= 0 for q in range(r)) > 5
        prompts.append(more if before[r] < 0 or shrinks else prompts[before[r]] + more)
    trace = with_session_reuse(
        Requests.of(np.arange(len(rows)), prompts, outputs, session=np.array(sessions, np.int32))
    )
    if trace.prefixes is None:
        assert "not modelled" in note_of(trace)
        return
    found, _ = hits(trace.prefixes, trace.prompt, answers=True)
    assert found.tolist() == reused(prompts, outputs, before)


def test_a_turn_too_short_for_the_answer_holds_the_prompt_alone() -> None:
    trace = Requests.of([0.0, 9.0], [100, 130], [50, 5], session=np.array([4, 4], np.int32))
    tree = with_session_reuse(trace).prefixes
    assert tree is not None
    assert hits(tree, trace.prompt, answers=True)[0].tolist() == [0, 100]


@pytest.mark.parametrize(
    ("prompt", "session", "says"),
    [
        ([900, 40, 35, 60], [0, 0, 0, 0], "only 1 of 3 later turns have longer prompts"),
        ([50, 50, 50, 50], [0, 0, 1, 1], "only 0 of 2 later turns"),
        ([50, 60, 70, 80], [0, 1, 2, 3], "no session has a second turn"),
        ([50, 60, 70, 80], None, "names neither shared blocks nor sessions"),
    ],
)
def test_where_nothing_can_be_derived_a_note_says_that_reuse_is_not_modelled(
    prompt: list[int], session: list[int] | None, says: str
) -> None:
    named = {} if session is None else {"session": np.array(session, np.int32)}
    trace = with_session_reuse(Requests.of([0.0, 1.0, 2.0, 3.0], prompt, [9] * 4, **named))
    assert trace.prefixes is None
    assert says in note_of(trace) and "not modelled" in note_of(trace)


def test_unrelated_lengths_are_not_taken_for_histories() -> None:
    rng = np.random.default_rng(3)
    session = rng.integers(0, 60, 600).astype(np.int32)
    trace = Requests.of(np.arange(600), rng.geometric(0.01, 600), rng.geometric(0.02, 600), session=session)
    assert with_session_reuse(trace).prefixes is None


def test_a_trace_that_says_itself_what_is_shared_is_left_alone() -> None:
    trace = chat(50, rate=5.0, seed=0)
    assert with_session_reuse(trace) is trace
