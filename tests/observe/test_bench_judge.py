"""The judge of a comparison: exact under symmetry, robust against bursts, honest about what it could not see."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.bench import judge as bench_judge
from assay.observe.bench.judge import Comparison, Judgement, Rule, hodges_lehmann, judge, judge_counts
from assay.sim.random import stream


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_the_law_of_signed_ranks_is_that_of_all_sign_patterns(n: int) -> None:
    sums = [sum(r for r, picked in zip(range(1, n + 1), signs, strict=True) if picked)
            for signs in itertools.product((0, 1), repeat=n)]  # fmt: skip
    expected = np.bincount(sums, minlength=n * (n + 1) // 2 + 1) / 2**n
    assert bench_judge._signed_rank(n).tolist() == pytest.approx(expected.tolist())


def test_the_interval_misses_zero_as_seldom_as_it_says_over_all_sign_patterns() -> None:
    sizes = stream(0, "test", "signs").standard_t(2, 11)
    level = 0.05
    missed = 0
    for signs in itertools.product((-1, 1), repeat=11):
        _, low, high = hodges_lehmann(np.abs(sizes) * signs, level)
        missed += low > 0 or high < 0
    assert 0.02 < missed / 2**11 <= level


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=25), st.floats(-0.5, 0.5))
@settings(max_examples=100, deadline=None)
def test_centre_and_interval_move_with_the_values_and_mirror(values: list[float], shift: float) -> None:
    centre, low, high = hodges_lehmann(values, 0.05)
    assert low <= centre <= high
    moved = hodges_lehmann(np.asarray(values) + shift, 0.05)
    mirrored = hodges_lehmann(-np.asarray(values), 0.05)
    assert moved == pytest.approx((centre + shift, low + shift, high + shift), abs=1e-12)
    assert mirrored == pytest.approx((-centre, -high, -low), abs=1e-12)


@pytest.mark.parametrize("law", ["normal", "heavy", "bursts"])
def test_equal_code_is_seldom_called_changed_though_looked_at_three_times(law: str) -> None:
    random = stream(1, "test", "nulls", law)
    rule = Rule(min_change=1e-6, false_alarms=0.05, pairs=40)  # no smallest change: every error counts
    alarms, trials = 0, 600
    for _ in range(trials):
        pairs = _noise(random, law, rule.looks[-1])
        alarms += any(judge(pairs[:look], rule).decision in ("regression", "improvement") for look in rule.looks)
    assert alarms / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def _noise(random: np.random.Generator, law: str, n: int) -> np.ndarray:
    if law == "normal":
        return random.normal(0, 0.02, n)
    if law == "heavy":
        return 0.02 * random.standard_t(1, n)
    return random.normal(0, 0.01, n) + (random.random(n) < 0.2) * random.choice([-0.4, 0.4], n)


def test_a_real_change_is_found_through_bursts() -> None:
    random = stream(2, "test", "power")
    rule = Rule()
    found = [judge(0.05 + _noise(random, "bursts", 60), rule).decision for _ in range(50)]
    assert found.count("regression") >= 45  # a fifth of the pairs is off by 40 %, eight times the change


def test_a_change_is_found_as_often_as_the_resolution_says() -> None:
    random = stream(3, "test", "resolvable")
    rule = Rule(min_change=0.001)
    noise = [random.normal(0, 0.02, 60) for _ in range(200)]
    smallest = float(np.median([bench_judge.resolvable(sample, rule) for sample in noise]))
    found = [judge(math.log1p(smallest) + sample, rule).decision == "regression" for sample in noise]
    assert 0.8 <= np.mean(found) <= 1.0
    half = [judge(math.log1p(smallest / 2) + sample, rule).decision == "regression" for sample in noise]
    assert np.mean(half) < 0.6


@pytest.mark.parametrize(
    ("ratio", "decision"), [(0.05, "regression"), (-0.05, "improvement"), (0.0, "no change"), (0.009, "undecided")]
)
def test_each_decision_has_its_case(ratio: float, decision: str) -> None:
    pairs = ratio + stream(4, "test", decision).normal(0, 0.003, 24)
    assert judge(pairs, Rule(min_change=0.01)).decision == decision


def test_a_certain_change_below_the_smallest_that_matters_is_no_alarm() -> None:
    pairs = 0.004 + stream(5, "test", "small").normal(0, 0.0005, 60)
    judgement = judge(pairs, Rule(min_change=0.01))
    assert judgement.low > 0 and judgement.decision == "no change"


def test_too_few_pairs_decide_nothing() -> None:
    assert judge([0.5] * 9, Rule()).decision == "undecided"
    assert judge([0.5] * 10, Rule()).decision == "regression"
    assert judge([], Rule()).decision == "undecided"


def test_more_benchmarks_need_more_pairs_before_the_first_look() -> None:
    assert Rule(tests=1).looks[0] < Rule(tests=50).looks[0]
    assert Rule(tests=50).level == pytest.approx(Rule(tests=1).level / 50)


def test_counts_show_two_per_cent_and_are_silent_on_equal_code() -> None:
    assert judge_counts([10_000_000, 10_004_000], [10_200_000, 10_204_500], 0.01).decision == "regression"
    assert judge_counts([10_000_000, 10_004_000], [10_000_900, 10_003_000], 0.01).decision == "no change"


def test_counts_that_disagree_among_themselves_decide_nothing() -> None:
    assert judge_counts([1000, 1000], [1040, 1000], 0.01).decision == "undecided"


def _time(decision: str, low: float, high: float) -> Judgement:
    return Judgement(decision, (low + high) / 2, low, high, 24, 0.02)


def test_a_count_speaks_only_where_time_is_undecided_and_does_not_contradict_it() -> None:
    count = Judgement("regression", 0.02, 0.019, 0.021, 2, 0.01)
    open_ended = Comparison("b", 1.0, 1.0, _time("undecided", -0.01, 0.03), count)
    assert (open_ended.decision, open_ended.by) == ("regression", "instructions")
    settled = Comparison("b", 1.0, 1.0, _time("no change", -0.005, 0.005), count)
    assert (settled.decision, settled.by) == ("no change", "time")
    contradicted = Comparison("b", 1.0, 1.0, _time("undecided", -0.05, 0.01), count)
    assert (contradicted.decision, contradicted.by) == ("undecided", "time")
    equal = Comparison("b", 1.0, 1.0, _time("undecided", -0.01, 0.03), _time("no change", -0.001, 0.001))
    assert equal.decision == "undecided"


def test_what_did_not_run_is_an_error_and_nothing_else() -> None:
    assert Comparison("b", None, None, None, error="no module").decision == "error"
    assert Comparison("b", None, None, None).decision == "error"


def test_ratios_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        judge([0.1, float("nan")], Rule())
