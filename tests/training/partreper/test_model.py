"""The model of large machines beside slow ones, and counts of messages beside those of small trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.partreper import Fleet, efficiency, mean_time_to_interrupt, model
from tests.oracles import interrupts


@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_the_mean_time_to_an_interrupt_is_exact(ranks: int, data: st.DataObject) -> None:
    replicated = data.draw(st.integers(0, ranks))
    assert mean_time_to_interrupt(ranks, replicated) == pytest.approx(
        float(interrupts.mean_time(ranks, replicated)), rel=1e-12
    )


@pytest.mark.parametrize(("ranks", "replicated"), [(3, 0), (4, 2), (5, 5)])
def test_the_share_of_time_that_counts_is_that_of_one_death_after_the_other(ranks: int, replicated: int) -> None:
    fleet = Fleet(life=10_000.0, checkpoint=60.0, restart=120.0)
    periods = 4000
    slow = interrupts.useful(ranks, replicated, 10_000.0, 60.0, 120.0, 500.0, periods, np.random.default_rng(3))
    assert model.useful(fleet, ranks, replicated, every=500.0) == pytest.approx(slow, abs=0.02)


def test_the_chance_to_be_alive_integrates_to_the_mean() -> None:
    times = np.linspace(0, 4.0, 400_001)
    area = float(np.trapezoid(model.alive(times, 30, 20, 1.0), times))
    assert area == pytest.approx(mean_time_to_interrupt(30, 20), rel=1e-6)


def test_young_s_and_daly_s_interval_is_near_the_best_without_replicas() -> None:
    fleet = Fleet(life=1e8)
    chosen = model.useful(fleet, 1000, 0)
    best = max(model.useful(fleet, 1000, 0, every=float(every)) for every in np.geomspace(500, 50_000, 60))
    assert chosen <= best + 1e-9 and chosen > 0.98 * best


def test_large_machines_take_no_time_and_keep_their_order() -> None:
    means = [mean_time_to_interrupt(100_000, some) for some in range(0, 100_001, 5000)]
    assert means == sorted(means) and means[10] / means[0] == pytest.approx(2.0, rel=1e-3)
    # none is lost in the limit of machines that do not die; then replicas only cost
    assert efficiency(Fleet(life=1e15), 1000, 1.0) == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_messages_of_trees_and_exchanges(n: int) -> None:
    doubling = n & (n - 1) == 0
    summed = n * (n.bit_length() - 1) if doubling else 2 * (n - 1)
    barrier = n * (n - 1).bit_length()
    assert model.messages("ep", n, 3).sum() == summed + barrier
    assert model.messages("cg", n, 3).sum() == 4 * n * (n - 1) + 6 * summed + barrier
    assert model.messages("heat", n, 4).sum() == 8 * (n - 1) + 2 * summed + n * (n - 1) + barrier
    assert model.copies(model.messages("is", n, 1), tuple(range(n))) == 2 * model.messages("is", n, 1).sum()
