"""Goodness of fit, for samplers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats


def p_value(sample: Sequence[int], pmf: Mapping[int, float]) -> float:
    """Chi-square of a sample against a distribution, thin cells put together."""
    seen = Counter(sample)
    observed, expected, cell_observed, cell_expected = [], [], 0, 0.0
    for value in sorted(pmf):
        cell_observed += seen.pop(value, 0)
        cell_expected += pmf[value] * len(sample)
        if cell_expected >= 10:
            observed.append(cell_observed)
            expected.append(cell_expected)
            cell_observed, cell_expected = 0, 0.0
    assert not seen, "a value the distribution does not have"
    observed[-1] += cell_observed
    expected[-1] += cell_expected
    scaled = np.array(expected) * (sum(observed) / sum(expected))
    return float(stats.chisquare(observed, scaled).pvalue) if len(observed) > 1 else 1.0
