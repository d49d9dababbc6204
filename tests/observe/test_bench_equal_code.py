"""Equal code is not called changed: a thousand comparisons resampled from timings of a program beside itself.

`equal_pairs.csv` holds pairs of processes of one commit as `assay bench compare` measures them, in the order they were
taken on a machine of two cores that seven others used as well: log of the time of whom the coin sent first or second,
second over first. A comparison draws runs of neighbours, so that good and bad minutes of the machine stay together, and
lets the runner's own coin say which of a pair was base: what the second of a pair loses, head loses no more than base.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from assay.observe.bench import runner
from assay.observe.bench.judge import IMPROVEMENT, REGRESSION, Judgement, Rule, judge
from assay.sim.random import stream

TOGETHER = 5  # neighbours that are drawn at once
COMPARISONS = 1000


def recorded() -> dict[str, np.ndarray]:
    rows: dict[str, list[float]] = defaultdict(list)
    with Path(__file__).with_name("equal_pairs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["benchmark"]].append(float(row["log_second_over_first"]))
    return {name: np.array(taken) for name, taken in rows.items()}


def compared(pairs: np.ndarray, rule: Rule) -> Judgement:
    """As a comparison goes: look by look, until one decides."""
    judgement = judge([], rule)
    for look in rule.looks:
        judgement = judge(pairs[:look], rule)
        if judgement.decided:
            break
    return judgement


def coins(count: int) -> np.ndarray:
    """What the runner's coin gives pair after pair: 1 where base is first, so that second over first is head over base.

    It has one sequence a benchmark's name; a long one of names stands for many comparisons.
    """
    names = [f"benchmark {at}" for at in range(count // 10)]
    return np.array([[1 - 2 * runner.first_and_second(name, at)[0] for at in range(60)] for name in names])


@pytest.mark.parametrize("smallest", [0.01, 1e-6])  # as it is set, and so that every certain difference counts
def test_a_thousand_equal_pairs_alarm_no_more_often_than_is_said(smallest: float) -> None:
    rule, sides = Rule(min_change=smallest, pairs=60), coins(COMPARISONS)
    for name, taken in recorded().items():
        random = stream(36, "test", "equal code", name)
        alarms = 0
        for at in range(COMPARISONS):
            begins = random.integers(0, len(taken) - TOGETHER + 1, rule.looks[-1] // TOGETHER)
            drawn = taken[(begins[:, None] + np.arange(TOGETHER)).ravel()]
            alarms += compared(drawn * sides[at % len(sides)], rule).decision in (REGRESSION, IMPROVEMENT)
        # What chance gives a rule that keeps its level, once in a thousand such tests.
        assert alarms <= stats.binom.ppf(0.999, COMPARISONS, rule.false_alarms), (name, alarms)


def test_what_is_slower_is_still_found_among_such_timings() -> None:
    """A rule that never alarms would keep any level."""
    rule, sides = Rule(pairs=60), coins(200)
    taken = recorded()["array"]
    random = stream(36, "test", "slower code")
    found = 0
    for at in range(100):
        begins = random.integers(0, len(taken) - TOGETHER + 1, rule.looks[-1] // TOGETHER)
        drawn = taken[(begins[:, None] + np.arange(TOGETHER)).ravel()]
        found += compared(drawn * sides[at % len(sides)] + 0.05, rule).decision == REGRESSION
    assert found >= 90
