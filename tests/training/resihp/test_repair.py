"""Repaired plans: nothing is lost, everything fits, no level makes it worse, and layers are dealt as well as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.engine.compound import pipeline
from assay.training.engine.schedules import OneFOneB
from assay.training.interface import Layout
from assay.training.resihp import Repaired, Training, repair, trials
from assay.training.resihp.hybrid import fits, step, whole, without
from assay.training.resihp.iterations import Profile, iterations, lengths
from assay.training.resihp.mending import LEVELS, longest_first, partition
from assay.training.resihp.rivals import RIVALS
from tests.oracles import layer_moves

SMALL = Training("llama-2-7b", "32xa100:ib200", Layout(tp=4, pp=4, dp=2), microbatches=6, tokens=8192)
SQUARES = lengths(SMALL, 1, 0)[..., 0].ravel()
SPEEDS = st.lists(st.sampled_from([1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.5, 0.0]), min_size=32, max_size=32)


def conserved(found: Repaired) -> bool:
    plan = found.plan
    layers = set(plan.layers[plan.alive].sum(axis=1).tolist())
    return len(plan.owner) == 12 and layers == {32} and bool(plan.alive[plan.owner].all())


@given(SPEEDS)
@settings(max_examples=12, deadline=None)
def test_layers_and_microbatches_are_conserved_memory_is_kept_and_no_level_makes_it_worse(drawn: list[float]) -> None:
    speed = np.array(drawn).reshape(2, 4, 4)
    before = 0.0
    for count in range(len(LEVELS) + 1):
        found = repair(SMALL, speed, SQUARES, levels=LEVELS[:count])
        if found is None:
            assert before == 0.0
            assert count == 0 or not (speed.max(axis=2) > 0).all(axis=1).any()
            continue
        assert conserved(found) and fits(SMALL, found.plan, SQUARES)
        used = found.plan.members[found.plan.alive]
        assert (speed[found.plan.alive][used] > 0).all()  # nobody who is gone works
        assert found.throughput(found.step) >= before
        before = found.throughput(found.step)
    for rival in RIVALS.values():
        other = rival(SMALL, speed, SQUARES)
        assert other is None or (len(other.plan.owner) == 12 and fits(SMALL, other.plan, SQUARES))


def test_without_faults_nothing_is_repaired() -> None:
    found = repair(SMALL, np.ones((2, 4, 4)), np.full(12, 8192.0**2 / 4))
    assert found is not None and "groups" not in found.taken
    assert found.step <= step(SMALL, whole(SMALL), np.ones((2, 4, 4)), np.full(12, 8192.0**2 / 4))


def test_a_group_goes_on_without_its_slow_member_only_where_that_is_faster() -> None:
    slow, little = np.ones((2, 4, 4)), np.ones((2, 4, 4))
    slow[1, 2, 0], little[1, 2, 0] = 0.3, 0.9
    one, other = (repair(SMALL, each, SQUARES) for each in (slow, little))
    assert one is not None and other is not None
    assert one.plan.degree[1, 2] == 2 and not one.plan.members[1, 2, 0]
    assert (other.plan.degree == 4).all()


def test_the_scheduler_sees_estimates_alone() -> None:
    true = np.ones((2, 4, 4))
    true[0, 0, 0] = 0.5
    said = trials.estimated(true, seed=3)
    assert said[0, 0, 0] != 0.5 and said[0, 0, 0] == pytest.approx(0.5, rel=0.1)
    assert (said[true == 1] == 1).mean() > 0.9


@given(
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 3), st.integers(1, 6)), min_size=1, max_size=4),
    st.integers(1, 14),
)
@settings(max_examples=60, deadline=None)
def test_layers_are_dealt_as_well_as_by_trying_all_ways(stages: list[tuple[float, float, int]], layers: int) -> None:
    unit, more, most = (list(each) for each in zip(*stages, strict=True))
    best = layer_moves.slowest(unit, more, layers, most)
    found = partition(np.array(unit), np.array(more), layers, np.array(most))
    if best is None:
        assert found is None
        return
    assert found is not None and found.sum() == layers and (found >= 1).all() and (found <= most).all()
    assert float((found * unit + more).max()) == pytest.approx(best, rel=1e-9)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_microbatches_dealt_longest_first_end_within_twice_the_least_possible(
    seed: int, places: int, items: int
) -> None:
    random = np.random.default_rng(seed)
    seconds = random.uniform(1, 3, items) * random.uniform(1, 2, (places, 1))
    found = longest_first(seconds, np.zeros(places))
    best = layer_moves.least_end(seconds.tolist())
    ends = [seconds[place, found == place].sum() for place in range(places)]
    assert len(found) == items and max(ends) <= 2 * best + 1e-9


def test_a_replica_that_leaves_hands_all_its_microbatches_on() -> None:
    left = without(whole(SMALL), np.array([True, False]))
    assert left is not None and (left.owner == 1).all() and left.layers[0].sum() == 0
    assert without(whole(SMALL), np.array([True, True])) is None


def test_many_iterations_at_once_are_those_solved_one_by_one() -> None:
    squares = lengths(SMALL, 3, 1)
    profile = Profile.learned(SMALL, squares, 1)
    said, together = profile.predicted(squares), profile.iterations(squares)
    for replica in range(2):
        for at in range(3):
            one = [
                each[:, replica : replica + 1, :, at] for each in (said.forward, said.inputs, said.weights, said.sent)
            ]
            alone = pipeline(OneFOneB(), type(said)(*one[:3], 0 * one[0], one[3], said.passing), SMALL.section.ends())
            assert together[replica, at] == pytest.approx(alone.step, rel=1e-12)
    assert iterations(SMALL, squares, 1).shape == (2, 3)


def test_the_kinds_of_faults_do_to_devices_what_they_say() -> None:
    job = trials.REPAIRS["small"]
    gone, slow, both = (trials.speeds(job, kind, 4, 5) for kind in ("fail-stop", "fail-slow", "mixed"))
    assert (gone == 0).sum() == 4 and ((slow > 0.3) & (slow < 0.84)).sum() == 4
    assert (both == 0).sum() == 2 and (both < 1).sum() == 4
