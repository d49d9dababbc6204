"""`assay watch --lengths`: suspects are handed to ResiHP, which tells a slow rank from one with long sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.live.watch.gather import Gathering
from assay.live.watch.second_opinion import SecondOpinion
from assay.live.watch.summary import Summary, summarise
from assay.record.errors import BadInput
from tests.live.watched import drawn, report

RANKS, STEPS = 4, 40
WITH_WAIT = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")


def written(path: Path, lengths: np.ndarray) -> Path:
    rows = [f"{step},{rank},{lengths[rank, step]}" for step in range(STEPS) for rank in range(RANKS)]
    path.write_text("step,rank,lengths\n" + "\n".join(rows) + "\n")
    return path


def watched(lengths: np.ndarray, times: float) -> Gathering:
    """Ranks whose forward passes take what their sequences take, rank 2 so many times as long; others wait for it."""
    own = 0.01 + 2e-8 * lengths.astype(float) ** 2
    own[2] *= times
    found = Gathering(window=30)
    for rank in range(RANKS):
        rows = np.zeros((STEPS, len(WITH_WAIT)), np.int64)
        rows[:, 1] = (own[rank] * 1e9).astype(np.int64)
        rows[:, 3] = ((own.max(axis=0) - own[rank]) * 1e9).astype(np.int64) + 10**5
        rows[:, 0], rows[:, 2], rows[:, 6] = 10**6, 10**6, 10**5
        found.take(report(rank, 0, rows, RANKS, stages=WITH_WAIT), now=0.0)
    return found


def judged(tmp_path: Path, longer: int, times: float) -> Summary:
    lengths = np.random.default_rng(0).integers(200, 1500, (RANKS, STEPS))
    lengths[2] = np.maximum(lengths[2], longer)
    job = watched(lengths, times)
    return SecondOpinion(written(tmp_path / "lengths.csv", lengths))(summarise(job, 1.0), job)


def test_a_rank_with_long_sequences_is_a_suspect_and_then_explained(tmp_path: Path) -> None:
    seen = judged(tmp_path, longer=1400, times=1.0)
    first = seen.suspects[0]
    assert (first.rank, first.stage, first.workload) == (2, "forward", "long sequences")
    assert first.workload_ratio == pytest.approx(1.0, abs=0.02)
    assert "its sequences explain it" in drawn(seen)


def test_a_rank_that_is_slow_itself_is_said_to_be(tmp_path: Path) -> None:
    first = judged(tmp_path, longer=1400, times=1.4).suspects[0]
    assert (first.rank, first.workload) == (2, "slow") and first.workload_ratio == pytest.approx(1.4, rel=0.03)


def test_a_file_that_is_still_written_or_not_yet_there_holds_nothing_up(tmp_path: Path) -> None:
    lengths = np.full((RANKS, STEPS), 500)
    lengths[2] = 900
    job = watched(lengths, 1.4)
    path = tmp_path / "lengths.csv"
    second, seen = SecondOpinion(path), summarise(job, 1.0)
    assert second(seen, job).suspects[0].workload == ""
    text = written(path, np.random.default_rng(1).integers(200, 1500, (RANKS, STEPS))).read_text()
    path.write_text(text + "40,0")
    assert second(seen, job).suspects[0].workload in ("slow", "long sequences")
    path.write_text(text + "40,0,x\n")
    assert second(seen, job).suspects[0].workload in ("slow", "long sequences")


def test_a_file_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("step,rank\n0,0\n")
    with pytest.raises(BadInput, match="must name step, rank and lengths"):
        SecondOpinion(tmp_path / "bad.csv")
    with pytest.raises(BadInput, match="no such folder"):
        SecondOpinion(tmp_path / "nowhere" / "lengths.csv")
