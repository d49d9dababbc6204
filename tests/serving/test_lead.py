"""How sure a difference between two runs is: sessions stay together, no difference is a tie."""

from __future__ import annotations

import numpy as np
import pytest

from assay.serving.engine.lead import Lead, lead, stretches
from assay.serving.engine.outcome import Outcome
from assay.workloads.requests import Requests

N = 800


def requests(session: np.ndarray | None = None) -> Requests:
    return Requests.of(arrival=np.arange(N) / 10.0, prompt=[100] * N, output=[10] * N, session=session)


def run(trace: Requests, served: np.ndarray | None = None) -> Outcome:
    """A run of which only the requests and who was served matter."""
    nothing = np.zeros(0)
    there = np.ones(N, bool) if served is None else served
    return Outcome(trace, None, there, nothing, nothing, nothing, nothing, 0.0, 0.0, 0)  # type: ignore[arg-type]


def test_sessions_are_not_torn_apart() -> None:
    session = np.random.default_rng(0).integers(0, 60, N).astype(np.int32)
    where = stretches(requests(session))
    assert all(len(np.unique(where[session == s])) == 1 for s in np.unique(session))
    assert 20 < len(np.unique(where)) <= 40


def test_without_sessions_stretches_are_neighbours_of_equal_size() -> None:
    where = stretches(requests())
    assert (np.diff(where) >= 0).all()
    assert set(np.bincount(where)) == {N // 40}
    some = np.where(np.arange(N) % 2, -1, 7).astype(np.int32)  # -1: a request without a session
    assert len(np.unique(stretches(requests(some)))) > 10


def test_a_clear_difference_is_no_tie() -> None:
    wait = np.random.default_rng(1).exponential(1.0, N)
    found = lead(run(requests()), run(requests()), 0.8 * wait, wait)
    assert found.share == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2) == found.high  # the same requests: paired, so nothing is left to chance
    assert not found.tie


def test_noise_is_a_tie_most_of_the_time() -> None:
    random = np.random.default_rng(2)
    ties = [
        lead(run(requests()), run(requests()), random.exponential(1.0, N), random.exponential(1.0, N)).tie
        for _ in range(100)
    ]
    assert sum(ties) > 90  # 97.5 expected


def test_noise_that_lasts_is_not_mistaken_for_a_difference() -> None:
    """Waits of neighbours are alike: resampling single requests would be far too sure."""
    random = np.random.default_rng(3)
    sure = 0
    for _ in range(100):
        slow, other = (np.repeat(random.exponential(1.0, N // 20), 20) for _ in range(2))
        sure += not lead(run(requests()), run(requests()), slow, other).tie
    assert sure < 12  # 2.5 expected


def test_who_serves_fewer_is_compared_by_those_it_served() -> None:
    half = np.arange(N) % 2 == 0
    found = lead(run(requests(), half), run(requests()), np.ones(half.sum()), np.full(N, 2.0))
    assert found == Lead(0.5, 0.5, 0.5)


def test_nothing_to_compare_is_a_tie() -> None:
    assert lead(run(requests()), run(requests()), np.zeros(N), np.zeros(N)).tie
