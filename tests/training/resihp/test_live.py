"""Real processes: a torch job whose rank gets slow or is killed, and processes that stop. No bound on seconds."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.resihp import beats, job

pytestmark = pytest.mark.usefixtures("nobody_left")
LIVE = job.Live(warm_up=14, healthy=6, faulty=8, slow=1, clock="work", seed=4, episodes=2)
LIVE_SECONDS = replace(LIVE, clock="seconds")


def test_a_rank_that_does_a_fifth_more_is_found_within_five_steps_and_named_in_every_episode() -> None:
    seen = job.run(LIVE)
    for episode, slow in enumerate((1, 0)):
        onset = episode * LIVE.episode + LIVE.onset
        found = [one for one in seen.alarms if one[1] // LIVE.episode == episode]
        assert found[0][0] == slow == LIVE.victim(episode) and onset <= found[0][1] < onset + 5
        assert list(seen.named[episode]) == [slow] and seen.named[episode][slow] == pytest.approx(1.2, rel=0.02)
    assert (seen.seconds > 0).all() and seen.losses[-5:].mean() < seen.losses[:5].mean() * 1.2
    assert np.array_equal(seen.lengths, job.lengths(LIVE)) and len(np.unique(seen.lengths)) > 20


def test_a_paced_pass_takes_the_processor_time_of_its_operations_whatever_it_computes() -> None:
    def passing(work: float, busy: int) -> float:
        began = time.thread_time()
        with job.paced(2e-3) as does:
            sum(range(busy))
            does(work)
        return time.thread_time() - began

    for work, busy in ((2.0, 100), (2.0, 10_000), (6.0, 0)):
        took = [passing(work, busy) for _ in range(8)]  # a host that takes its processor away makes some longer
        assert 2e-3 * work <= min(took) < 2e-3 * work + 2e-3


class Late:
    """A clock, and ranks that note for how long they were held; whoever sleeps wakes up late."""

    table = ({"pid": 0}, {"pid": 0})

    def __init__(self) -> None:
        self.now, self.held, self._since, self.turns = 0.0, [0.0, 0.0], 0.0, 0
        self._random = np.random.default_rng(0)
        self.over = lambda: None

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + float(self._random.exponential(2e-3))
        self.turns += 1
        if self.turns == 600:
            self.over()

    def array(self, name: str) -> np.ndarray:
        return np.ones(2)

    def stop(self, rank: int) -> None:
        self._since = self.now

    def go_on(self, rank: int) -> None:
        self.held[rank] += self.now - self._since


def test_who_is_frozen_is_so_for_a_sixth_of_the_time_however_late_its_turns_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late()
    monkeypatch.setattr(job, "time", late)
    fault = job.Fault(LIVE_SECONDS, late)  # type: ignore[arg-type]
    late.over = fault.over.set
    fault.begin(1)
    thread = threading.Thread(target=fault.cycle)
    thread.start()
    thread.join()
    assert late.held[0] == 0.0 and late.held[1] / late.now == pytest.approx(1 / 6, rel=0.05)
    assert fault.end() == pytest.approx(1.2, rel=0.02)


def test_a_rank_that_is_killed_is_noticed_by_its_heart() -> None:
    seen = job.run(LIVE, kill=0, kill_at=5)
    assert 0 in seen.stopped


def test_processes_that_are_killed_or_frozen_stop_counting() -> None:
    found = beats.stops(ranks=4, faults=2, seed=1)
    assert found["found"] == 2
