"""Who waits for whose answer, and how long people think, as traces show it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.chat import Agents, Chat, chat, fit
from assay.workloads.closed_loop import PACE, closed
from assay.workloads.prefixes import previous
from assay.workloads.request_files import read
from assay.workloads.requests import Requests
from tests.workloads import request_fixtures as fx


def read_text(folder: Path, name: str) -> Requests:
    path = folder / "trace"
    path.write_bytes(fx.FILES[name])
    return read(path)


@given(
    st.lists(st.tuples(st.integers(-1, 3), st.floats(0, 9), st.integers(1, 400), st.floats(0, 20)), max_size=30),
    st.booleans(),
)
def test_gap_less_service_and_never_negative(rows: list[tuple[int, float, int, float]], recorded: bool) -> None:
    session, gaps, output, took = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    arrival = np.cumsum(gaps) if rows else np.zeros(0)
    trace = Requests.of(arrival, [10] * len(rows), output, session=np.array(session, np.int32))
    loop = closed(trace, took if recorded else None)
    assert loop.after is not None and loop.think is not None
    for r in range(len(rows)):
        earlier = [q for q in range(r) if session[q] == session[r] >= 0]
        if recorded:
            earlier = [q for q in earlier if arrival[q] + took[q] <= arrival[r]]
        assert loop.after[r] == (earlier[-1] if earlier else -1)
        if earlier:
            b = earlier[-1]
            expected = arrival[r] - arrival[b] - (took[b] if recorded else output[b] / PACE)
            assert abs(loop.think[r] - max(expected, 0.0)) < 1e-9
        else:
            assert loop.think[r] == 0.0


def test_generated_conversations_think_as_long_as_was_drawn() -> None:
    """Agents wait for tools (2 s on average), people think (60 s)."""
    for agents, low, high in ((Agents(share=1.0), 1.8, 2.2), (None, 52.0, 68.0)):
        trace = chat(6000, rate=20.0, seed=1, agents=agents)
        assert trace.session is not None and trace.after is not None and trace.think is not None
        np.testing.assert_array_equal(trace.after, previous(trace.session))
        later = trace.after >= 0
        # The turns that lie within the trace are those of short thoughts, so it has to be much longer than one.
        early = later & (trace.arrival[trace.after] < trace.seconds / 2)
        assert low < trace.think[early].mean() < high
        gaps = trace.arrival[later] - trace.arrival[trace.after[later]]
        assert (gaps >= trace.think[later] - 1e-9).all()


def test_one_without_conversations_waits_for_nobody() -> None:
    assert chat(100, rate=1.0, seed=0, prefixes=False).after is None
    alone = chat(100, rate=1.0, seed=0, stay=np.zeros(1))
    assert alone.after is not None and (alone.after < 0).all()


def test_fitted_think_times_are_those_between_an_answer_and_the_next_turn() -> None:
    made = chat(5000, rate=10.0, seed=2)
    model: Chat = fit(made)
    assert made.after is not None and made.think is not None
    assert abs(np.median(model.think) / np.median(made.think[made.after >= 0]) - 1) < 0.02


def test_recorded_service_is_taken_where_the_format_has_it(tmp_path: Path) -> None:
    burst = read_text(tmp_path, "burstgpt with sessions")  # 3.9 s apart, of which the first answer took 2.2 s
    assert burst.after is not None and burst.think is not None
    assert burst.after.tolist() == [-1, 0]
    assert abs(burst.think[1] - 1.7) < 1e-9
    assert burst.source.mapping["service"] == "Elapsed time"


def test_a_gateways_log_says_how_long_answers_took_and_who_overlapped(tmp_path: Path) -> None:
    line = {"endpoint": "/v1/completions", "status": 200, "prompt_tokens": 100, "completion_tokens": 5, "session": "s"}
    times = [(0.0, 2.0), (1.0, 0.5), (5.0, 1.0)]  # the second was sent while the first was under way
    lines = [line | {"time": t, "id": f"a-{n}", "e2e": e2e} for n, (t, e2e) in enumerate(times)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    trace = read(path)
    assert trace.after is not None and trace.think is not None
    assert trace.after.tolist() == [-1, -1, 1]
    assert trace.think.tolist() == [0.0, 0.0, 3.5]


def test_parents_of_a_chat_and_pauses_of_transcripts(tmp_path: Path) -> None:
    bailian = read_text(tmp_path, "bailian")
    assert bailian.after is not None and bailian.after.tolist() == [-1, -1, 0]
    said = read_text(tmp_path, "sharegpt")  # no times in the file: turns follow 30 s after an answer
    assert said.after is not None and said.think is not None
    assert said.think[said.after >= 0].tolist() == [30.0]


def test_traces_without_sessions_are_left_as_they_are(tmp_path: Path) -> None:
    for name in ("mooncake", "azure 2023", "burstgpt", "vidur"):
        trace = read_text(tmp_path, name)
        assert trace.after is None and trace.think is None
