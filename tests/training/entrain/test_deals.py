"""Samples are dealt to microbatches, and language work is put off, within one step and a bounded buffer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.entrain.deals import (
    BACKWARD,
    between_copies,
    both_ways,
    entrain,
    in_order,
    paired,
    put_off,
    reordered,
    strata,
    waiting,
)  # fmt: skip
from assay.training.interface import Floats
from tests.oracles import deferral

COPIES, M, MBS = 2, 4, 3
batches = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).lognormal(0, 1.2, (3, COPIES * M * MBS))
)


@given(batches, st.floats(0, 5))
def test_every_sample_runs_once_and_its_text_never_before_its_image(drawn: Floats, room: float) -> None:
    sight, words, held = drawn
    deal = entrain(sight, words, held, COPIES, M, room)
    for places in (deal.encoder, deal.language):
        assert places.shape == (len(sight), 2)
        assert (places >= 0).all() and (places < (COPIES, M)).all()  # nothing leaves the step
    assert (deal.encoder[:, 0] == deal.language[:, 0]).all()
    assert (deal.language[:, 1] >= deal.encoder[:, 1]).all()
    assert set(Counter(map(tuple, deal.encoder.tolist())).values()) == {MBS}
    assert waiting(deal, held, COPIES, M).max() <= room + 1e-9


@given(batches)
def test_without_a_buffer_nothing_is_put_off(drawn: Floats) -> None:
    assert entrain(*drawn, COPIES, M, buffer=0.0).moved == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 3), st.floats(0, 3))
def test_putting_off_is_never_worse_than_not_and_seldom_far_from_the_best(
    seed: int, n: int, m: int, room: float
) -> None:
    random = np.random.default_rng(seed)
    words, sight, held = random.lognormal(0, 1, (3, n))
    first = random.integers(0, m, n)
    at = put_off(words, sight, held, first, m, room)
    work = np.column_stack([words / words.sum(), BACKWARD * sight / sight.sum()]) * m
    found = deferral.squares(work, at, m)
    assert deferral.kept(held, first, at, m, room)
    assert (at >= first).all()
    assert deferral.best(work, held, first, m, room) - 1e-9 <= found <= deferral.squares(work, first, m) + 1e-9


def test_putting_off_is_within_a_hundredth_of_the_best_in_the_mean() -> None:
    lost = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        words, sight, held = random.lognormal(0, 1, (3, 7))
        first = np.sort(random.integers(0, 3, 7))
        at = put_off(words, sight, held, first, 3, 3.0)
        work = np.column_stack([words / words.sum(), BACKWARD * sight / sight.sum()]) * 3
        lost.append(deferral.squares(work, at, 3) / deferral.best(work, held, first, 3, 3.0) - 1)
    assert np.mean(lost) < 0.01


@given(batches)
def test_strata_put_one_of_each_stratum_into_every_bin(drawn: Floats) -> None:
    work = drawn[0]
    bins = strata(work, COPIES * M)
    order = np.argsort(-work, kind="stable").reshape(MBS, -1)
    for stratum in order:
        assert sorted(bins[stratum].tolist()) == list(range(COPIES * M))


def test_heavy_microbatches_lie_beside_light_ones() -> None:
    assert paired(np.array([5.0, 1.0, 3.0])).tolist() == [0, 1, 2]
    assert sorted(paired(np.arange(7.0)).tolist()) == list(range(7))


@given(batches)
def test_rivals_deal_every_sample_once_too(drawn: Floats) -> None:
    sight, words, _ = drawn
    even = between_copies(sight, words, COPIES, M)
    for places in (
        in_order(len(sight), COPIES, M), even, both_ways(sight, words, COPIES, M),
        reordered(even, np.random.default_rng(0).random((COPIES, M))),
    ):  # fmt: skip
        assert set(Counter(map(tuple, places.tolist())).values()) == {MBS}


def test_a_sample_too_heavy_to_even_out_stays() -> None:
    deal = entrain(np.array([1.0, 1, 1, 1]), np.array([10.0, 1, 1, 1]), np.ones(4), 1, 2, buffer=9.0)
    heavy = int(deal.encoder[0, 1])
    assert deal.language[0, 1] == heavy
    assert deal.moved == pytest.approx(1)  # the light one beside it follows in the other microbatch
