"""Search by asking and telling: nothing twice, phases in their order, a start that is kept, mutators that refuse."""

from __future__ import annotations

import numpy as np
import pytest

from assay.sim.search import Candidate, Feedback, Islands, Random, Values, structured

KNOBS = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": ("x", "y")}


def worth(values: Values) -> float:
    return 0.0 if values[2] == "y" and values[0] == 3 else 1.0 + values[0] + values[1] / 4


def played(search: Islands | Random, tries: int) -> Islands | Random:
    for _ in range(tries):
        score = worth(search.ask().values)
        search.tell(score, "" if score else "verify")
    return search


@pytest.mark.parametrize("make", [lambda r: Islands(KNOBS, r, (0, 0, "x")), lambda r: Random(KNOBS, r)])
def test_every_candidate_is_asked_for_once_and_then_no_more(make) -> None:
    search = played(make(np.random.default_rng(0)), 32)
    assert len({one.values for one in search.tried}) == 32
    with pytest.raises(StopIteration):
        search.ask()


def test_islands_explore_first_then_exploit_and_visit_each_other() -> None:
    search = played(Islands(KNOBS, np.random.default_rng(0), (0, 0, "x"), generations=5, islands=4), 21)
    assert isinstance(search, Islands)
    phases = [one.phase for one in search.tried]
    assert phases == ["safe", *["explore"] * 8, *["exploit"] * 12]
    assert search.migrated > 0 and search.summaries >= 3
    assert search.best.score >= 3.0
    assert all(one.parent for one in search.tried[1:])


def test_exploiting_turns_one_knob() -> None:
    feedback = Feedback(
        KNOBS, "exploit", [], {name: (0.0,) * len(v) for name, v in KNOBS.items()}, np.random.default_rng(0)
    )
    parent = Candidate((0, 0, "x"))
    for _ in range(20):
        changed = sum(a != b for a, b in zip(structured(parent, feedback), parent.values, strict=True))
        assert changed == 1


def test_the_same_seed_gives_the_same_search_and_a_mutator_that_refuses_is_stood_in_for() -> None:
    def refuses(parent: Candidate, feedback: Feedback) -> Values:
        raise ValueError("no")

    one, other = (played(Islands(KNOBS, np.random.default_rng(3), (0, 0, "x")), 12).tried for _ in range(2))
    assert one == other
    search = played(Islands(KNOBS, np.random.default_rng(3), (0, 0, "x"), mutate=refuses), 12)
    assert isinstance(search, Islands) and search.refused == 11
