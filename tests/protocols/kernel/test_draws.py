"""Draws without replacement: SciPy's distributions are the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

from assay.protocols.kernel import draws
from tests.oracles.goodness import p_value


@pytest.mark.parametrize(
    ("good", "bad", "sample"),
    [(5, 7, 4), (300, 500, 100), (500, 300, 700), (40, 9000, 2000), (10**6, 10**6, 1200),
     (3 * 10**8, 7 * 10**8, 20_000), (10**12, 2 * 10**12, 500), (10, 10**9, 40_000)],
)  # fmt: skip
def test_hypergeometric_draws_have_the_distribution(good: int, bad: int, sample: int) -> None:
    draw = draws.source(1, "test", good, bad, sample)
    seen = [draws.hypergeometric(draw, good, bad, sample) for _ in range(40_000)]
    values = np.arange(min(seen), max(seen) + 1)
    total = good + bad
    # SciPy's own pmf loses digits at 10^12; there a binomial is as close as chi-square can see.
    law = stats.hypergeom(total, good, sample) if total < 10**11 else stats.binom(sample, good / total)
    assert p_value(seen, dict(zip(values.tolist(), law.pmf(values).tolist(), strict=True))) > 1e-3


@pytest.mark.parametrize(("trials", "chance"), [(7, 0.3), (400, 0.5), (400, 0.97), (10**7, 1e-6), (10**6, 0.25)])
def test_binomial_draws_have_the_distribution(trials: int, chance: float) -> None:
    draw = draws.source(2, "test", trials)
    seen = [draws.binomial(draw, trials, chance) for _ in range(40_000)]
    values = np.arange(min(seen), max(seen) + 1)
    pmf = stats.binom(trials, chance).pmf(values).tolist()
    assert p_value(seen, dict(zip(values.tolist(), pmf, strict=True))) > 1e-3


@settings(deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_log_ratio_is_the_difference_of_log_factorials(a: int, b: int) -> None:
    assert math.isclose(draws.log_ratio(a, b), gammaln(a + 1) - gammaln(b + 1), rel_tol=1e-9, abs_tol=1e-6)


def test_log_ratio_keeps_its_digits_where_subtraction_loses_them() -> None:
    a, b = 10**12 + 50, 10**12
    product = sum(math.log(b + i) for i in range(1, 51))
    assert math.isclose(draws.log_ratio(a, b), product, rel_tol=1e-12)
    assert abs(gammaln(a + 1) - gammaln(b + 1) - product) > 1e-4  # why it is not written as a subtraction


@settings(deadline=None)
@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1))
def test_an_integer_is_the_exact_share_of_its_word(n: int, key: int) -> None:
    draw = np.array([key, 0], np.uint64)
    word = int(draws.word(draw.copy()))
    assert draws.integer(draw, n) == word * n >> 64


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.data())
def test_a_draw_is_possible(good: int, bad: int, data: st.DataObject) -> None:
    sample = data.draw(st.integers(0, good + bad))
    found = draws.hypergeometric(draws.source(data.draw(st.integers(0, 99)), "possible"), good, bad, sample)
    assert max(0, sample - bad) <= found <= min(good, sample)
