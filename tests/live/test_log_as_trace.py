"""The log of a gateway run, read back as a trace, has the arrivals, lengths and shared prefixes that were there.

Prefixes are named in blocks of the gateway's index, 16 of its tokens: what two prompts share comes back rounded down to
whole blocks, never as more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.live.access_log import EVERY, AccessLog, Line
from assay.live.relay import hash_ids
from assay.sim.block_hash import chain
from assay.sim.random import stream
from assay.workloads.chat import Agents, Chat
from assay.workloads.prefixes import infinite_cache_hit, shared_tokens
from assay.workloads.request_files import read
from assay.workloads.requests import Requests

BLOCK = 16  # of the index
BEGAN = 1_800_000_000.0  # seconds since 1970
Tokens = NDArray[np.uint32]


@dataclass
class Run:
    """What one run of the gateway would log."""

    salt: str = "5eed5eed"
    key: int = 7
    began: float = BEGAN

    def line(self, number: int, arrival: float, row: Tokens, **more: Any) -> Line:
        """The line of a request that was answered, unless `more` says otherwise."""
        told: dict[str, Any] = {"endpoint": "chat", "status": 200, "engine": "a", "e2e": 1.5, "tries": 1, "model": "m"}
        told |= {"prompt_tokens": len(row), "completion_tokens": 10, "block": float(BLOCK * EVERY)}
        path = chain(row, BLOCK, self.key)
        time = round(self.began + arrival, 6)
        return Line(time=time, id=f"{self.salt}-{number}", hash_ids=hash_ids(path, EVERY), **(told | more))


def written(folder: Path, lines: list[Line], name: str = "gateway.jsonl") -> Path:
    log = AccessLog(str(folder / name))
    for line in lines:
        log.add(line)
    log.flush()
    assert not log.lost
    return folder / name


def rows_of(trace: Requests, seed: int) -> list[Tokens]:
    """Token ids that have the trace's prefix structure."""
    p = trace.prefixes
    assert p is not None
    text = [stream(seed, "segment", s).integers(0, 50_000, int(p.stop[s] - p.start[s])) for s in range(len(p.start))]
    rows = []
    for r, size in enumerate(trace.prompt.tolist()):
        parts = [text[s] for s in p.segments[p.offsets[r] : p.offsets[r + 1]]]
        own = stream(seed, "own", r).integers(0, 50_000, size)
        row = np.concatenate([*parts, own[sum(map(len, parts)) :]])[:size]
        rows.append(row.astype(np.uint32))
    return rows


def common(one: Tokens, other: Tokens) -> int:
    """Leading tokens that two prompts share."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    return int(differ[0]) if len(differ) else n


def logged(trace: Requests, rows: list[Tokens], run: Run) -> list[Line]:
    """In the order in which answers end, which is not the order of arrival."""
    assert trace.session is not None
    lines = [
        run.line(
            r, float(trace.arrival[r]), rows[r], completion_tokens=int(trace.output[r]),
            e2e=0.01 * int(trace.output[r]), session=f"s{trace.session[r]}",
            tenant=trace.tenants[trace.tenant[r]] if trace.tenant is not None else "",
            tier=trace.tiers[trace.tier[r]] if trace.tier is not None else "",
        )
        for r in range(len(trace))
    ]  # fmt: skip
    return sorted(lines, key=lambda line: line.time + line.e2e)


CHAT = Chat(rate=4.0, agents=Agents(), tenants=3, tiers=(("premium", 0.3), ("batch", 0.7)))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Requests, list[Tokens], Requests]:
    """A trace, its prompts, and what a gateway's log of it is read as."""
    trace = CHAT.generate(250, seed=3)
    rows = rows_of(trace, seed=3)
    back = read(written(tmp_path_factory.mktemp("log"), logged(trace, rows, Run())))
    return trace, rows, back


def test_the_format_is_told_by_the_content_and_the_mapping_is_shown(
    both: tuple[Requests, list[Tokens], Requests],
) -> None:
    source = both[2].source
    assert source.format == "assay"
    assert source.mapping["arrival"] == "time (s since 1970)"
    assert source.mapping["prompt"] == "prompt_tokens"
    assert source.mapping["prefixes"] == "hash_ids (blocks of 16 tokens; an id stands for all before it)"
    assert source.mapping["category"] == "endpoint"
    assert (source.refused, source.notes) == (0, ())


def test_arrivals_lengths_and_labels_come_back(both: tuple[Requests, list[Tokens], Requests]) -> None:
    trace, _, back = both
    assert np.abs(back.arrival - (trace.arrival - trace.arrival[0])).max() <= 1e-6
    assert back.prompt.tolist() == trace.prompt.tolist()
    assert back.output.tolist() == trace.output.tolist()
    for name in ("tenant", "tier"):
        codes, names = getattr(trace, name), getattr(trace, name + "s")
        assert [names[c] for c in codes] == [getattr(back, name + "s")[c] for c in getattr(back, name)]
    assert trace.session is not None
    assert back.session is not None
    pairs = set(zip(trace.session.tolist(), back.session.tolist(), strict=True))
    assert len(pairs) == len(set(trace.session.tolist())) == len(set(back.session.tolist()))
    assert back.categories == ("chat",)


def test_models_are_labels_where_there_are_several(tmp_path: Path) -> None:
    """A fleet that serves the one model of a log need not call it by the same name."""
    row = np.arange(40, dtype=np.uint32)
    one = read(written(tmp_path, [Run().line(n, float(n), row) for n in range(2)], "one.jsonl"))
    assert one.models == ()
    assert "model" not in one.source.mapping
    two = read(written(tmp_path, [Run().line(n, float(n), row, model=f"m{n}") for n in range(2)], "two.jsonl"))
    assert two.models == ("m0", "m1")
    assert two.source.mapping["model"] == "model"


def test_a_model_that_nobody_served_is_none_of_the_trace(tmp_path: Path) -> None:
    row, run = np.arange(40, dtype=np.uint32), Run()
    mistyped = run.line(0, 0.0, row, model="gtp", status=404, completion_tokens=0)
    right = [run.line(1 + n, 1.0 + n, row, model="gpt") for n in range(2)]
    assert read(written(tmp_path, [mistyped, *right], "one.jsonl")).models == ()
    other = run.line(3, 3.0, row, model="qwen")
    several = read(written(tmp_path, [mistyped, *right, other], "two.jsonl"))
    assert several.models == ("gpt", "qwen")
    assert several.model is not None and several.model.tolist() == [0, 0, 1]


def test_every_pair_shares_what_it_shared_in_whole_blocks(both: tuple[Requests, list[Tokens], Requests]) -> None:
    trace, rows, back = both
    assert back.prefixes is not None
    some = 0
    for one in range(len(trace)):
        for other in range(one):
            true = common(rows[one], rows[other])
            some += true > 0
            assert shared_tokens(back.prefixes, one, other) == true // BLOCK * BLOCK, (one, other)
    assert some > 100


def test_a_cache_that_forgets_nothing_would_hit_as_often(both: tuple[Requests, list[Tokens], Requests]) -> None:
    trace, _, back = both
    assert infinite_cache_hit(trace) > 0.3
    for answers in (False, True):
        assert infinite_cache_hit(back, answers) == pytest.approx(infinite_cache_hit(trace, answers), abs=0.01)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_the_prompts_nothing_is_shared_that_was_not(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Prompts of few different tokens, cut anywhere: they differ within blocks, at their ends, or not at all."""
    base = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=150))
    cuts = data.draw(st.lists(st.tuples(st.integers(0, 150), st.lists(st.integers(0, 2), max_size=70)), min_size=2))
    rows = [np.array(base[:cut] + tail or [0], np.uint32) for cut, tail in cuts]
    folder = tmp_path_factory.mktemp("log")
    back = read(written(folder, [Run().line(r, float(r), row) for r, row in enumerate(rows)]))
    assert back.prompt.tolist() == [len(row) for row in rows]
    for one in range(len(rows)):
        for other in range(one):
            shared = 0 if back.prefixes is None else shared_tokens(back.prefixes, one, other)
            assert shared == common(rows[one], rows[other]) // BLOCK * BLOCK


def test_what_was_not_answered_is_refused_and_counted(tmp_path: Path) -> None:
    row, run = np.arange(100, dtype=np.uint32), Run()
    lines = [run.line(0, 0.0, row), run.line(1, 1.0, row)]
    lines += [run.line(2 + n, 2.0, row, status=503, completion_tokens=0, engine="", tries=0) for n in range(10)]
    lines += [run.line(12 + n, 2.0, row, status=499, completion_tokens=0) for n in range(2)]
    lines += [run.line(14 + n, 3.0, row, endpoint="embedding", completion_tokens=0) for n in range(3)]
    trace = read(written(tmp_path, lines))
    assert (trace.source.read, trace.source.used, trace.source.refused) == (17, 2, 15)
    assert trace.source.notes == (
        "12 rows refused: answered 499 (2), 503 (10)",
        "3 rows refused: no output tokens: embedding (3)",
    )


def test_the_log_of_several_runs_is_one_trace_and_says_so(tmp_path: Path) -> None:
    row = np.arange(100, dtype=np.uint32)
    runs = [Run("aaaa0000", key=1), Run("bbbb0000", key=2, began=BEGAN + 3600)]
    for run in runs:
        path = written(tmp_path, [run.line(n, float(n), row) for n in range(2)])
    trace = read(path)
    assert trace.arrival.tolist() == [0.0, 1.0, 3600.0, 3601.0]
    assert trace.prefixes is not None
    assert [shared_tokens(trace.prefixes, 0, r) for r in (1, 2, 3)] == [96, 0, 0]
    assert shared_tokens(trace.prefixes, 2, 3) == 96
    [note] = trace.source.notes
    assert note.startswith("2 runs of the gateway")


def test_an_engine_that_counts_otherwise_sets_the_size_of_blocks(tmp_path: Path) -> None:
    """The gateway took four bytes for a token where the engine's tokenizer needs 1.25 tokens for them."""
    row, run = np.arange(800, dtype=np.uint32), Run()
    width = BLOCK * EVERY * 1.25
    lines = [run.line(n, float(n), row, prompt_tokens=1000, block=width + 0.1 * (n - 2)) for n in range(5)]
    trace = read(written(tmp_path, lines))
    assert trace.prefixes is not None
    assert trace.prefixes.block == 20
    assert shared_tokens(trace.prefixes, 0, 4) == 1000


def test_a_next_turn_finds_the_answer_before_it(tmp_path: Path) -> None:
    first = np.arange(64, dtype=np.uint32)
    second = np.arange(200, dtype=np.uint32)  # the first prompt, 80 tokens of answer, and what was said then
    lines = [
        Run().line(0, 0.0, first, completion_tokens=80, session="s"),
        Run().line(1, 9.0, second, completion_tokens=5, session="s"),
    ]
    trace = read(written(tmp_path, lines))
    assert trace.prefixes is not None
    answer = trace.prefixes.output[0]
    assert (trace.prefixes.start[answer], trace.prefixes.stop[answer]) == (64, 144)


def test_a_log_cut_in_the_middle_of_a_line_is_one_clear_line(tmp_path: Path) -> None:
    from assay.record.errors import BadInput

    path = written(tmp_path, [Run().line(n, float(n), np.arange(100, dtype=np.uint32)) for n in range(3)])
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(BadInput, match=r"gateway.jsonl line 3: .* is not a whole JSON object"):
        read(path)
    assert len(read(path, skip_bad=True)) == 2


def test_ids_are_exact_in_any_json_reader() -> None:
    ids = hash_ids(chain(np.arange(1600, dtype=np.uint32), BLOCK, 3), EVERY)
    assert len(ids) == 100
    assert all(float(i) == i for i in msgspec.json.decode(msgspec.json.encode(ids)))
    assert max(ids) < 2**53
