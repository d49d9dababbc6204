"""Orders of samples through sections: never worse than their own, near the best there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.maestro.wavefront import ORDERS, _end, _place, idle, johnson, played, wavefront
from tests.oracles.section_orders import optimum, plain_end, tried


@st.composite
def batches(draw: st.DrawFn, most: int = 12) -> tuple[Any, Any]:
    n, sections = draw(st.integers(1, most)), draw(st.integers(1, 3))
    work = st.lists(st.integers(0, 20), min_size=sections, max_size=sections)
    auxiliary = np.array(draw(st.lists(work, min_size=n, max_size=n)), float)
    return auxiliary, np.array(draw(st.lists(st.integers(1, 20), min_size=n, max_size=n)), float)


@given(batches())
def test_every_sample_is_taken_once_and_the_critical_section_never_waits_longer_than_in_their_own_order(
    batch: tuple[Any, Any],
) -> None:
    order = wavefront(*batch)
    assert sorted(order.tolist()) == list(range(len(order)))
    assert idle(*batch, order) <= idle(*batch, np.arange(len(order))) + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_the_end_is_within_five_percent_of_the_best_there_is(seed: int) -> None:
    """CP-SAT may order every section by itself."""
    pytest.importorskip("ortools")
    random = np.random.default_rng(seed)
    n, sections = int(random.integers(3, 13)), 1 + seed % 3
    auxiliary = random.integers(1, 30, (n, sections)) * (random.random((n, sections)) < random.uniform(0.3, 1))
    critical = random.integers(1, 30, n).astype(float)
    best = optimum(auxiliary, critical)
    found = idle(auxiliary, critical, wavefront(auxiliary, critical))
    assert found + critical.sum() <= 1.05 * best
    assert found <= 1.05 * (best - critical.sum()) + 1e-9  # of the idle time alone


@given(batches(most=6))
def test_johnsons_rule_is_the_best_for_one_helper_and_the_wavefront_meets_it(batch: tuple[Any, Any]) -> None:
    auxiliary, critical = batch[0][:, :1], batch[1]
    best = tried(auxiliary.tolist(), critical.tolist()) - critical.sum()
    assert idle(auxiliary, critical, johnson(auxiliary, critical)) == pytest.approx(best)
    assert idle(auxiliary, critical, wavefront(auxiliary, critical)) == pytest.approx(best)


@given(batches(most=7), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_ends_of_all_places_at_once_are_those_of_trying_each(
    batch: Any, random: Any, chained: bool, ways: bool
) -> None:
    auxiliary, critical = batch
    n, sections = auxiliary.shape
    before = np.triu(np.ones((sections, sections)), 1) if chained else np.zeros((sections, sections))
    back = np.flip(auxiliary, axis=0).copy() if ways else np.zeros_like(auxiliary)
    order = list(range(n - 1))
    random.shuffle(order)
    place, end = _place(auxiliary, critical, back, before, np.array(order, np.int64), n - 1)
    every = [
        _end(auxiliary, critical, back, before, np.array([*order[:k], n - 1, *order[k:]], np.int64)) for k in range(n)
    ]
    assert end == pytest.approx(min(every))
    assert every[place] == pytest.approx(min(every))
    if not ways:
        whole = [*order[:place], n - 1, *order[place:]]
        assert plain_end(auxiliary.tolist(), critical.tolist(), whole, before.tolist()) == pytest.approx(end)


def test_texts_cover_the_wait_for_the_first_images() -> None:
    auxiliary, critical = np.array([[6.0], [6.0], [0.0], [0.0]]), np.full(4, 3.0)
    order = wavefront(auxiliary, critical)
    assert order[0] in (2, 3)
    assert idle(auxiliary, critical, order) == 3.0  # twelve of the helper, then one sample: no order waits less
    assert idle(auxiliary, critical, np.arange(4)) == 9.0


def test_helpers_take_real_time_however_samples_are_ordered() -> None:
    """The spec's trap: with helpers as slow as they are, no order ends before all of a helper's work is done."""
    auxiliary, critical = np.full((10, 1), 5.0), np.ones(10)
    for order in ORDERS.values():
        end, over = played(auxiliary, np.ones((10, 1)), critical, order(auxiliary, critical))
        assert end >= 50 + 1
        assert over >= 60


def test_a_bounded_queue_holds_a_helper_back_and_ways_back_fill_the_gaps() -> None:
    auxiliary, back, critical = np.full((6, 1), 1.0), np.full((6, 1), 2.0), np.full(6, 10.0)
    end, over = played(auxiliary, back, critical, np.arange(6), queue=1)
    assert (end, over) == (61.0, 63.0)  # of six ways back only the last is not hidden
    end, _ = played(auxiliary, np.zeros((6, 1)), critical, np.arange(6), queue=1)
    assert end == 60.0  # no way back: the queue was filled before the batch began


def test_a_helper_without_a_way_back_still_needs_its_own_time_for_a_batch() -> None:
    auxiliary, critical = np.full((20, 1), 5.0), np.ones(20)
    _, over = played(auxiliary, np.zeros((20, 1)), critical, np.arange(20), queue=8)
    assert over == 100.0


def test_a_thousand_samples_are_each_ordered_once() -> None:
    random = np.random.default_rng(0)
    auxiliary, critical = random.exponential(1, (1000, 2)), random.exponential(1, 1000)
    order = wavefront(auxiliary, critical)
    assert sorted(order.tolist()) == list(range(1000))
