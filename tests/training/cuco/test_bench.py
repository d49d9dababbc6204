"""Real ranks: what is right passes, what lacks a wait is caught, what raises or hangs does not end the search."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.record.errors import BadInput
from assay.sim.search import Islands, Random
from assay.training.cuco import trials
from assay.training.cuco.bench import CHECKS, CLOSE, Bench, Database, Outcome, again, pursue
from assay.training.cuco.program import Lowered, hazards, host, knobs, lower, safe
from assay.training.cuco.run import Shot
from assay.training.cuco.targets import Gemm

SMALL = {
    "gemm": {"rows": 4, "width": 32}, "attention": {"keys": 4, "queries": 8, "width": 8},
    "moe": {"tokens": 6, "width": 16}, "kv": {"prompt": 6, "width": 16},
}  # fmt: skip
INSIDE = {"placement": "inside", "scope": "chunk", "chunk": 2, "depth": 2}
PLANTED = {
    "reads at once": {"scope": "none"},
    "reads at once, window": {"scope": "none", "transport": "window"},
    "no room": {"scope": "arrival", "chunk": 1},
    "no room, window": {"scope": "arrival", "chunk": 1, "transport": "window", "issuer": "thread"},
}


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    opened = {}
    for name, sizes in SMALL.items():
        opened[name] = Bench(name, sizes, rounds=1).__enter__()
        opened[name]._dawdle = 0.05
    yield opened
    for bench in opened.values():
        bench.stop()


@pytest.mark.parametrize("target", SMALL)
def test_right_directives_pass_and_planted_ones_are_caught(target: str, benches: dict[str, Bench]) -> None:
    bench = benches[target]
    right = [host(bench.program), safe(bench.program)]
    right += [host(bench.program) | INSIDE | more for more in (
        {}, {"transport": "window", "grain": "tile"}, {"issuer": "thread", "order": "wide", "wait": "poll"},
        {"issuer": "thread", "scope": "all", "chunk": 1}, {"scope": "arrival", "depth": 8, "transport": "window"},
    )]  # fmt: skip
    for directive in right:
        found = bench.evaluate(directive)
        assert (found.stage, found.note) == ("", ""), directive
        assert len(found.errors) == CHECKS and max(found.errors) <= CLOSE
    for name, change in PLANTED.items():
        directive = host(bench.program) | INSIDE | change
        assert hazards(bench.program, directive)
        found = bench.evaluate(directive)
        assert found.stage == "verify" and not found.seconds, name
    bench.stop()


def test_only_verified_candidates_are_kept_and_each_can_be_built_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "found.jsonl")
    with Bench("gemm", SMALL["gemm"], rounds=1) as bench:
        base = bench.settle(host(bench.program)).median
        search = Islands(knobs(bench.program), np.random.default_rng(1), tuple(safe(bench.program).values()), 4)
        pursue(bench, search, 13, base, database)
    entries = list(database)
    assert len(entries) == sum(one.stage == "" for one in search.tried) < 13  # some were wrong or could not be built
    assert all(len(one["errors"]) >= CHECKS and max(one["errors"]) <= CLOSE for one in entries)
    assert {tuple(one["directive"].values()) for one in entries} == {
        one.values for one in search.tried if one.stage == ""
    }
    found = again(entries[-1], rounds=1)
    assert found.stage == "" and found.errors == tuple(entries[-1]["errors"])
    wrong = entries[0] | {"errors": [0.0, 0.0, 1.0]}
    with pytest.raises(ValueError, match="2 of at least 3"):
        database.add(wrong)
    (tmp_path / "broken.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(BadInput, match="line 1"):
        list(Database(tmp_path / "broken.jsonl"))


class Moody(Gemm):
    """Raises, dies or hangs on one rank, as a file tells."""

    def place(self, data: dict[str, np.ndarray], tiles: slice, got: np.ndarray) -> None:
        """Whatever the mood is."""
        mood = Path(os.environ["CUCO_MOOD"]).read_text()
        if mood == "raise" and tiles.start == 0:
            raise ZeroDivisionError("by mood")
        if mood == "die":
            os._exit(3)
        super().place(data, tiles, got)


def test_a_program_that_raises_or_dies_fails_and_the_next_candidate_gets_new_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mood = tmp_path / "mood"
    mood.write_text("")
    source = tmp_path / "moody.py"
    source.write_text(
        f"import os\nos.environ['CUCO_MOOD'] = {str(mood)!r}\nfrom tests.training.cuco.test_bench import Moody\n"
    )
    monkeypatch.setenv("CUCO_MOOD", str(mood))
    before = set(threading.enumerate())  # whatever else this process has done
    with Bench(f"{source}:Moody", SMALL["gemm"], rounds=1) as bench:
        directive = host(bench.program)
        assert bench.evaluate(directive).stage == ""
        for word, told in (("raise", "by mood"), ("die", "")):
            mood.write_text(word)
            found = bench.evaluate(directive)
            assert found.stage == "verify" and told in found.note
        mood.write_text("")
        assert bench.evaluate(directive).stage == ""
        assert bench.restarts == 2
    assert not set(threading.enumerate()) - before


def test_programs_that_lack_something_say_what(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("from assay.training.cuco.targets import Gemm\nclass Mine(Gemm):\n    place = None\n")
    with pytest.raises(BadInput, match="no function place"), Bench(f"{source}:Mine"):
        pass
    with pytest.raises(BadInput, match="one of gemm"), Bench("gem"):
        pass
    with pytest.raises(BadInput, match="tiles, stages, inputs"), Bench("math:floor"):
        pass


def test_programs_are_judged_once_for_all_their_directives_and_the_finals_tell_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Bench("gemm", SMALL["gemm"], rounds=1, known={}) as bench:
        built: list[Lowered] = []

        def seconds(one: Lowered) -> float:
            return 2.0 - 0.5 * (one.transport == "window") - 0.1 * (one.chunk == 2) - 0.1 * (one.depth == 4)

        def judged(directive: dict[str, object]) -> Outcome:
            built.append(lower(bench.program, directive))
            wrong = bool(hazards(bench.program, directive))
            return Outcome("verify") if wrong else Outcome(errors=(0.0,) * 3, seconds=(seconds(built[-1]),))

        def shots(directive: dict[str, object], shots: tuple[Shot, ...]) -> list[tuple[float, float]]:
            return [(seconds(lower(bench.program, directive)), 0.0) for _ in shots]

        monkeypatch.setattr(bench, "_judged", judged)
        monkeypatch.setattr(bench, "shots", shots)
        choices, by_hand = trials.small(bench.program), list(trials.streams(bench.program).values())
        every = [*by_hand, *trials._drawn(choices, seed=0)]
        for directive in every:
            bench.evaluate(directive)
        assert len(built) == len(set(built)) == len(bench.known or {}) < len(every)
        right = trials.audit(bench, trials._programs(bench, every))
        assert set(right) == {one for one in built if not (bench.known or {})[one].stage} and all(right.values())
        search = Random(choices, np.random.default_rng(0))
        pursue(bench, search, 128, base=2.0)  # all of it
        hand, best = trials._finals(bench, by_hand, {0: search})
        assert (hand["chunk"], best[0]["transport"]) == (2, "window")
        assert seconds(lower(bench.program, best[0])) == min(seconds(one) for one in right)


def test_searches_replayed_over_a_space_find_its_best() -> None:
    program = Gemm()
    choices = trials.small(program)
    random, rows = np.random.default_rng(0), []
    for values in np.ndindex(*(len(one) for one in choices.values())):
        directive = {name: one[k] for (name, one), k in zip(choices.items(), values, strict=True)}
        wrong = bool(hazards(program, directive))
        seconds = 2.0 - 0.4 * (directive["placement"] == "inside") - 0.1 * (directive["chunk"] == 2)
        rows.append(directive | {
            "base": 2.0, "passed": not wrong, "stage": "verify" if wrong else "", "seconds": seconds,
            "shots": (seconds + 0.01 * random.random(3)).tolist(),
        })  # fmt: skip
    found = {row["search"]: row for row in trials.replayed(rows, program, False, 41, 0)}
    assert set(found) == set(trials.SEARCHES)
    assert found["two-phase"]["first_right"] == 0.0 < found["no fast path"]["first_right"]
    assert found["two-phase"]["failed"] < found["random"]["failed"]
    assert all(1.0 < row["best"] < 1.4 for row in found.values())
