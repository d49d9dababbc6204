"""A schedule that went wrong can be replayed, cut down, kept in a file and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.faults import Chaos, Crash, Delay, Omit, Silence, When, compose
from assay.protocols.faults.two_faced import twins
from assay.protocols.interface import Fault
from assay.protocols.judges.safety import agreement
from assay.protocols.kernel.asynchronous import Random
from assay.protocols.kernel.trace import (
    Trace,
    byzantine,
    delta,
    happened,
    is_benign,
    load,
    replay,
    save,
    search,
    shrink,
)
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import Bracha
from assay.record.errors import BadInput


def two_liars(seed: int) -> World:
    return twins(World(n=4, f=1, node=Bracha, seed=seed), {0: ("a", "b"), 1: (None, None)}, half={2})


def test_a_run_with_liars_replays_without_their_code() -> None:
    world = two_liars(1)
    outcome = world.run("async", scheduler=Random(1), traced=True)
    again = replay(world, happened(world, outcome))
    assert again.decided() == outcome.decided() != {}


def test_a_shrunk_trace_is_wrong_and_nothing_can_be_left_out() -> None:
    found = search(two_liars, agreement, 20)
    assert found.trace is not None and len(found.trace.events) < found.length
    world, events = two_liars(found.seed), found.trace.events
    assert agreement(world, replay(world, events)) == found.trace.why
    for place in range(len(events)):
        assert agreement(world, replay(world, events[:place] + events[place + 1 :])) is None


def test_a_trace_that_goes_right_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="no objection"):
        shrink(World(n=4, f=1, node=Bracha, inputs=["a"]), agreement, [])


@given(st.sets(st.integers(0, 40), min_size=1, max_size=6))
def test_delta_debugging_finds_exactly_what_is_needed(needed: set[int]) -> None:
    kept = tuple(range(41))

    def wrong(part: object) -> bool:
        nonlocal kept
        items = tuple(part)  # type: ignore[arg-type, var-annotated]
        if needed <= set(items):
            kept = items
        return needed <= set(items)

    delta(wrong, lambda: kept)
    assert set(kept) == needed


def test_a_file_gives_the_trace_back(tmp_path: Path) -> None:
    trace = Trace(((0, 1, ("echo", b"\x00\xff", None, (1, "ü"))), (-1, 2, (("retry", 1),))), "split")
    save(tmp_path / "bad.json", World(n=3, node=Bracha), trace)
    assert load(tmp_path / "bad.json") == trace
    assert json.loads((tmp_path / "bad.json").read_text())["n"] == 3


GOOD = {"format": "assay-trace-1", "why": "", "events": [[0, 1, ["echo", 1]]]}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "not JSON"),
        ("[]", "events"),
        (json.dumps({**GOOD, "format": "other"}), "assay-trace-1"),
        (json.dumps({**GOOD, "events": [[0, 1]]}), "event 1"),
        (json.dumps({**GOOD, "events": [[0, 1, ["a"]], [True, 1, ["a"]]]}), "event 2"),
        (json.dumps({**GOOD, "events": [[0, 1, {"hex": "00"}]]}), "event 1"),
        (json.dumps({**GOOD, "events": [[0, 1, [{"hex": "zz"}]]]}), "event 1"),
        (json.dumps({**GOOD, "events": [[0, 1, [{"a": 1}]]]}), "event 1"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=word) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected"):
        load(tmp_path / "none.json")


def test_the_table_shows_who_said_what_to_whom() -> None:
    lines = str(Trace(((0, 12, ("echo", b"\x01\x02\x03\x04")), (-1, 2, (("retry", 1),))), "split")).splitlines()
    assert lines[0].split() == ["step", "from", "to", "message"]
    assert lines[1].split(None, 3) == ["1", "0", "12", "('echo', 010203…)"]
    assert "timer" in lines[2] and lines[-1] == "split"


def test_faults_that_only_lose_or_delay_are_benign() -> None:
    quiet = compose(Silence(), Delay(), When(lambda ctx: True, Omit()), Crash())
    assert is_benign(quiet) and not is_benign(Fault()) and not is_benign(compose(Silence(), Chaos()))
    assert byzantine(World(n=3, node=Bracha, faults={0: quiet, 1: Chaos()})) == {1}
