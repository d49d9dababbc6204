"""Robust z-scores against peers and the past: who is found, who is excused, and how often nobody is to blame."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.observe.cluster import nsigma
from assay.observe.cluster.cluster504 import Cluster, truth_of
from assay.observe.cluster.incidents import delays
from assay.observe.cluster.plan import HOUR
from assay.observe.interface import Alarm
from assay.record.errors import BadInput
from assay.sim.telemetry import Block, Frame
from tests.observe.frames import MINUTE, frame_of, waves


def test_a_deviation_is_found_in_either_direction() -> None:
    for by in (+12.0, -12.0):
        values = waves()
        values[30:, 4] += by
        first = nsigma.NSigma().explain(frame_of(values)).suspects[0]
        assert (first.entity, first.indicator) == ("n4", "heat")
        assert first.score > 5


def test_who_was_always_unlike_the_others_is_not_blamed() -> None:
    values = waves()
    values[:, 1] += 40.0
    values[30:, 4] += 12.0
    assert nsigma.NSigma().explain(frame_of(values)).suspects[0].entity == "n4"


def test_what_moves_all_alike_is_excused() -> None:
    values = waves()
    values[30:] += 500.0
    assert nsigma.NSigma().explain(frame_of(values)).suspects[0].score < 6


def test_a_single_scrape_is_not_enough() -> None:
    values = waves()
    values[40, 4] += 300.0
    assert nsigma.NSigma().explain(frame_of(values)).suspects[0].score < 6


def test_a_series_that_vanishes_scores_highest_unless_all_of_it_vanish() -> None:
    values = waves()
    values[50:, 3] = np.nan
    first = nsigma.NSigma().explain(frame_of(values)).suspects[0]
    assert (first.entity, first.score) == ("n3", nsigma.HIGHEST)
    values[50:] = np.nan
    assert nsigma.NSigma().explain(frame_of(values)).suspects[0].score < nsigma.HIGHEST


def test_one_lost_scrape_is_no_disappearance() -> None:
    values = waves()
    values[50, 3] = np.nan
    assert nsigma.NSigma().explain(frame_of(values)).suspects[0].score < nsigma.HIGHEST


def test_too_short_a_frame_gives_a_reason_instead_of_a_name() -> None:
    found = nsigma.NSigma().explain(frame_of(waves()[:3]))
    assert not found.suspects
    assert "too few" in found.why


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_median_is_numpys_without_what_is_missing(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    values = rng.normal(size=(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))).round(1)
    values[rng.random(values.shape) < data.draw(st.floats(0, 0.9))] = np.nan
    axis = data.draw(st.integers(0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing is there at all
        expected = np.nanmedian(values, axis, keepdims=True)
    np.testing.assert_allclose(nsigma._median(values, axis), expected)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.integers(1, 4))
def test_lasting_is_the_least_of_the_last_scores(scores: list[float], scrapes: int) -> None:
    found = nsigma.lasting(np.array(scores)[:, None], scrapes)[:, 0]
    for i, value in enumerate(found):
        assert value == (min(scores[i - scrapes + 1 : i + 1]) if i + 1 >= scrapes else 0.0)


# ------------------------------------------------------------------------------------------------- the detector


def block_of(values: NDArray[np.float64]) -> Block:
    times = np.arange(len(values), dtype=np.int64) * MINUTE
    return Block(times, [(f"n{i}", "heat") for i in range(values.shape[1])], values, ~np.isnan(values))


def test_fed_in_pieces_the_detector_raises_the_same_alarms() -> None:
    values = waves(400)
    values[150:200, 4] += 15
    values[300:340, 2] = np.nan
    past = nsigma.Past.of(block_of(waves(200, seed=1)))
    whole = nsigma.NSigmaDetector(past, 7.0).watch(block_of(values))
    assert [(a.entity, a.t // MINUTE) for a in whole] == [("n4", 152), ("n2", 301)]
    pieces = nsigma.NSigmaDetector(past, 7.0)
    found: list[Alarm] = []
    for begin in range(0, 400, 7):
        part = block_of(values[begin : begin + 7])
        found += pieces.watch(replace(part, times=part.times + begin * MINUTE))
    assert found == whole


def test_frames_and_blocks_raise_the_same_alarms() -> None:
    values = waves(100)
    values[50:, 4] += 15
    past = nsigma.Past.of(block_of(waves(200, seed=1)))
    a, b = (nsigma.NSigmaDetector(past, 7.0) for _ in range(2))
    assert a.update(frame_of(values)) == b.watch(block_of(values))
    assert a.update(Frame.of([{"id": 0, "kind": "node", "name": "stranger"}])) == []


def test_a_threshold_needs_healthy_time() -> None:
    with pytest.raises(BadInput, match="no healthy time"):
        nsigma.NSigmaDetector.calibrated([block_of(waves())], [], 1.0)


@pytest.fixture(scope="module")
def watched() -> dict[str, Any]:
    """Three days of a small cluster: the past and the threshold from some healthy hours, alarms in all the others."""
    cluster = Cluster(seed=3, days=3, nodes=6, failures=7)
    failures = cluster.plan.failures
    ill = {hour for f in failures for hour in range(f.onset // HOUR, f.repaired // HOUR + 1)}
    well = [hour for hour in range(cluster.hours) if hour not in ill]
    past, more = well[0::8][:6], well[1::3][:16]
    detector = nsigma.NSigmaDetector.calibrated(map(cluster.flat, past), map(cluster.flat, more), per_day=1.0)
    held_out = [hour for hour in range(cluster.hours) if hour not in past and hour not in more]
    alarms = [alarm for hour in held_out for alarm in detector.watch(cluster.flat(hour))]
    truths = [replace(truth_of(f), entity=f"node{f.node:02d}") for f in failures]
    by_node = [replace(alarm, entity=alarm.entity.split("/")[0]) for alarm in alarms]
    first, false = delays(truths, by_node)
    return {"failures": failures, "first": first, "false": false, "days": len(held_out) / 24}


def test_planted_failures_are_found(watched: dict[str, Any]) -> None:
    assert sum(delay is not None for delay in watched["first"]) >= 6  # of seven


def test_what_has_no_precursor_is_never_found_early(watched: dict[str, Any]) -> None:
    for failure, delay in zip(watched["failures"], watched["first"], strict=True):
        if failure.fault.name == "detached":
            assert delay is not None
            assert delay > 0


def test_some_failures_are_found_before_they_break(watched: dict[str, Any]) -> None:
    ahead = [(f.breaks - f.onset) * 30 * 10**9 for f in watched["failures"]]
    early = [d is not None and d < a for d, a in zip(watched["first"], ahead, strict=True)]
    assert sum(early) >= 3


def test_false_alarms_on_time_that_was_not_used_stay_near_the_budget(watched: dict[str, Any]) -> None:
    assert len(watched["false"]) <= 4 * watched["days"]
