from __future__ import annotations

import numpy as np
import pytest

from assay.sim.random import stream
from assay.workloads import recommender_traffic as traffic_of
from assay.workloads.recommender_traffic import REGIMES, Shape, generate


@pytest.mark.parametrize("regime", REGIMES)
def test_requests_are_in_order_and_the_same_for_the_same_seed(regime: str) -> None:
    a, b, c = (generate(regime, 2, 40.0, seed) for seed in (0, 0, 1))
    assert np.array_equal(a.arrival, b.arrival)
    assert np.array_equal(a.groups, b.groups)
    assert len(a) != len(c)
    assert (np.diff(a.arrival) >= 0).all()
    assert a.arrival[0] >= 0 and a.arrival[-1] < 40.0
    assert a.groups.min() >= 0 and a.groups.max() < a.catalogue
    assert a.user.max() < a.users


def test_steady_traffic_has_its_rate_from_the_first_second() -> None:
    traffic = generate("steady", 4, 100.0, seed=0)
    counts = np.bincount(traffic.arrival.astype(int) // 20)
    assert np.abs(counts / (20 * 4 * Shape().rate) - 1).max() < 0.12


def test_users_come_back_within_a_session_and_their_histories_grow() -> None:
    traffic = generate("steady", 2, 100.0, seed=0)
    order = np.lexsort((traffic.arrival, traffic.user))
    same = np.diff(traffic.user[order]) == 0
    assert same.mean() > 0.7  # most requests are not a session's first
    assert (np.diff(traffic.history[order].astype(int))[same] >= 0).all()
    gaps = np.diff(traffic.arrival[order])[same]
    assert 3.0 < np.median(gaps) < 6.0


def test_the_evening_has_longer_histories_and_fewer_requests() -> None:
    traffic = generate("trend", 2, 200.0, seed=0)
    day, evening = traffic.arrival < 30, np.abs(traffic.arrival - 110) < 15
    assert traffic.history[evening].mean() > 3 * traffic.history[day].mean()
    assert evening.sum() < 0.7 * day.sum()


def test_bursts_of_both_kinds_stand_out() -> None:
    way = traffic_of.course("burst", 400.0, seed=0)
    assert way.rate.max() > 2.0
    assert {0.05, 0.5, 0.9} == set(way.loyal.tolist())


def test_popularity_follows_zipf() -> None:
    ranks = traffic_of.zipf(stream(0, "zipf"), 10_000, 0.8, 400_000)
    counts = np.bincount(ranks, minlength=10_000)
    middle = np.array([counts[a : 2 * a].mean() for a in (16, 64, 256, 1024)])
    slope = np.polyfit(np.log([16, 64, 256, 1024]), np.log(middle), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.05)


def test_the_head_drifts() -> None:
    traffic = generate("steady", 4, 200.0, seed=0)

    def head(when: np.ndarray) -> set[int]:
        return set(np.argsort(np.bincount(traffic.groups[when].ravel(), minlength=traffic.catalogue))[-50:].tolist())

    first, second, last = (head(np.abs(traffic.arrival - t) < 10) for t in (10, 30, 190))
    assert len(first & last) < len(first & second)


def test_bad_shapes_and_regimes_are_refused() -> None:
    with pytest.raises(ValueError, match="communities"):
        Shape(catalogue=101, communities=10)
    with pytest.raises(ValueError, match="no regime 'night'"):
        generate("night", 1, 10.0, seed=0)
