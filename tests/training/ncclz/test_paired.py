"""The comparison in turns: nothing is found where nothing is, whatever the machine does meanwhile; what is there is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.training.ncclz import paired
from assay.training.ncclz.paired import FOUR, longer, more, order

TURNS = st.lists(st.floats(1e-4, 1e-1), min_size=16 * FOUR, max_size=24 * FOUR)


def machine(fours: int, seed: int, by: float = 0.0) -> np.ndarray:
    """A virtual clock's turns: spells in which threads wait for their turn, a drift, tails, and an early first turn.

    The new way takes `by` more of what the old one would have taken in the same turn.
    """
    random = np.random.default_rng(seed)
    spell = np.repeat(random.random(fours) < 0.4, 7)[:fours]  # of about seven fours
    waits = random.random((fours, FOUR)) < np.where(spell, 0.7, 0.05)[:, None]
    seconds = 1e-3 * random.lognormal(0, 0.15, (fours, FOUR)) + 3e-3 * waits * random.random((fours, FOUR))
    seconds *= np.linspace(1, 1.6, fours)[:, None] * np.array([0.85, 1, 1, 1.05])
    seconds += 2e-2 * (random.random((fours, FOUR)) < 0.01)
    return np.where([order(four) for four in range(fours)], 1 + by, 1.0) * seconds


def test_where_both_ways_are_one_the_interval_holds_nothing_more_in_nearly_all_runs() -> None:
    found = [longer(machine(160, seed)) for seed in range(40)]
    assert sum(one.low <= 0 <= one.high for one in found) >= 36
    assert np.mean([one.value for one in found]) == pytest.approx(0, abs=0.015)


@pytest.mark.parametrize("by", [0.05, -0.1])
def test_what_a_way_takes_longer_is_found_with_its_sign(by: float) -> None:
    found = [longer(machine(200, seed, by)) for seed in range(12)]
    assert sum(one.low <= by <= one.high for one in found) >= 9
    assert np.mean([one.value for one in found]) == pytest.approx(by, abs=0.03)
    assert all(one.high > 0 if by > 0 else one.low < 0 for one in found)


@given(TURNS)
@settings(max_examples=25, deadline=None)
def test_who_is_called_new_decides_the_sign_alone(turns: list[float]) -> None:
    seconds = np.array(turns[: len(turns) // (2 * FOUR) * 2 * FOUR]).reshape(-1, FOUR)
    assume(len(seconds) >= 2 * paired.BLOCK)
    here = longer(seconds)
    swapped = longer(np.roll(seconds.reshape(-1, 2, FOUR), 1, axis=1).reshape(-1, FOUR))  # B A A B is first
    assert (1 + here.value) * (1 + swapped.value) == pytest.approx(1)
    assert here.low <= here.value * (1 + 1e-9) + 1e-12 and here.value <= here.high * (1 + 1e-9) + 1e-12


@given(TURNS, st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_a_machine_so_many_times_as_slow_changes_no_ratio(turns: list[float], times: float) -> None:
    seconds = np.array(turns[: len(turns) // FOUR * FOUR]).reshape(-1, FOUR)
    assert longer(times * seconds).value == pytest.approx(longer(seconds).value)
    assert more(times * seconds) == pytest.approx(times * more(seconds))


def test_a_few_turns_that_take_for_ever_move_nothing() -> None:
    seconds = machine(100, seed=3, by=0.03)
    late = seconds.copy()
    late[10:14, 1] += 10.0
    assert longer(late).value == pytest.approx(longer(seconds).value, abs=0.01)


def test_neither_way_has_the_better_place() -> None:
    """Over an even number of fours both have the same places, and the same predecessors with names exchanged."""
    one, other = order(0), order(1)
    assert [not way for way in one] == list(other)
    follows = [(way, before) for four in (one, other) for before, way in pairwise(four)]
    assert sorted(follows) == sorted((not way, not before) for way, before in follows)


@pytest.mark.parametrize("shape", [(15, FOUR), (20, 3), (80,)])
def test_too_few_turns_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="fours or more"):
        longer(np.ones(shape))
