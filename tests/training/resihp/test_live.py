"""Real processes: a torch job whose rank gets slow or is killed, and processes that stop. No bound on seconds."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.resihp import beats, job

LIVE = job.Live(warm_up=14, healthy=6, faulty=8, slow=1, clock="work", seed=4)


def ended() -> bool:
    return multiprocessing.active_children() == []


def test_a_rank_that_does_a_fifth_more_is_found_within_five_steps_and_named() -> None:
    seen = job.run(LIVE)
    onset = LIVE.warm_up + LIVE.healthy
    assert seen.alarms and seen.alarms[0][0] == 1 and onset <= seen.alarms[0][1] < onset + 5
    assert list(seen.named) == [1] and seen.named[1] == pytest.approx(1.2, rel=0.02)
    assert (seen.seconds > 0).all() and seen.losses[-5:].mean() < seen.losses[:5].mean() * 1.2
    assert np.array_equal(seen.lengths, job.lengths(LIVE)) and len(np.unique(seen.lengths)) > 20
    assert ended()


def test_a_rank_that_is_killed_is_noticed_by_its_heart() -> None:
    seen = job.run(LIVE, kill=0, kill_at=5)
    assert 0 in seen.stopped and ended()


def test_processes_that_are_killed_or_frozen_stop_counting() -> None:
    found = beats.stops(ranks=4, faults=2, seed=1)
    assert found["found"] == 2 and ended()
