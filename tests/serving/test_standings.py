"""Who wins and how sure that is: samples are resampled together, few of them are certain of nothing, ties are said."""

from __future__ import annotations

import numpy as np
import pytest

from assay.serving.engine.lead import paired
from assay.serving.engine.standings import Measure, add_leads, in_stretches, why

WAIT = Measure("wait", "s mean wait", "stretches of requests")


def settled(samples: dict[str, np.ndarray], measure: Measure = WAIT, mechanism: str = "") -> str:
    statistic = np.mean if measure.tail is None else lambda each: np.quantile(each, measure.tail)
    table = [{"policy": name, measure.column: float(statistic(each))} for name, each in samples.items()]
    add_leads(table, samples, measure)
    return why(table, measure, mechanism)


def test_a_clear_lead_is_a_win_with_its_interval() -> None:
    wait = np.random.default_rng(0).exponential(1.0, 400)
    said = settled({"old": wait, "new": 0.5 * wait})
    assert said.startswith("new wins with ")
    assert "50 % ahead of old (95 % interval 50 … 50 %" in said


def test_noise_is_a_tie() -> None:
    random = np.random.default_rng(1)
    said = settled({"old": random.exponential(1.0, 400), "new": random.exponential(1.0, 400)})
    assert " tie at " in said
    assert "may be nothing" in said


def test_the_same_run_twice_is_a_tie() -> None:
    wait = np.arange(40.0)
    assert settled({"a": wait, "b": wait}).startswith("a and b tie at ")


def test_more_may_be_better() -> None:
    met = Measure("met", "of the requests in time", "stretches of requests", least=False)
    good = (np.arange(400) % 10 > 0).astype(float)
    assert settled({"bad": good * (np.arange(400) % 3 > 0), "good": good}, met).startswith("good wins with 0.9 of the")


def test_a_mechanism_that_is_neither_first_nor_second_is_still_placed() -> None:
    wait = np.random.default_rng(2).exponential(1.0, 400)
    said = settled({"a": wait, "b": 2 * wait, "mine": 4 * wait}, mechanism="mine")
    assert "mine has " in said
    assert "75 % (95 % interval 75 … 75 %) behind" in said


@pytest.mark.parametrize("few", [1, 2])
def test_one_or_two_values_are_certain_of_little(few: int) -> None:
    found = paired([1.0, 1.1][:few], [1.05, 1.0][:few], in_stretches(few))
    assert found.tie
    if few == 1:
        assert "too little to tell" in settled({"a": np.ones(1), "b": np.full(1, 2.0)})


def test_the_tail_is_resampled_like_the_mean_and_agrees_with_quantiles_of_repeated_values() -> None:
    """Slow twin: draw the stretches, put their values together, take the quantile."""
    random = np.random.default_rng(3)
    ours, theirs, where = random.exponential(1.0, 200), random.exponential(1.6, 200), in_stretches(200)
    found = paired(ours, theirs, where, tail=0.9)
    shares = []
    for _ in range(2000):
        drawn = np.concatenate([np.flatnonzero(where == k) for k in random.integers(0, 40, 40)])
        high, other = (np.quantile(each[drawn], 0.9, method="inverted_cdf") for each in (ours, theirs))
        shares.append(1 - high / other)
    low, high = np.quantile(shares, [0.02, 0.98])
    assert found.share == pytest.approx(
        1 - np.quantile(ours, 0.9, method="inverted_cdf") / np.quantile(theirs, 0.9, method="inverted_cdf")
    )
    assert found.low == pytest.approx(low, abs=0.06)
    assert found.high == pytest.approx(high, abs=0.06)
