"""Packing: everything lies somewhere, bins are as even as promised, and rounds of messages are as few as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.packing import edge_colour, karmarkar_karp, lpt, replicas, snake

WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


@given(WEIGHTS, st.integers(1, 6))
def test_the_fullest_bin_has_at_most_the_mean_and_one_item_more(weights, bins) -> None:
    for pack in (lpt, karmarkar_karp):
        full = np.bincount(pack(weights, bins), weights=weights, minlength=bins)
        assert full.sum() == sum(weights)
        assert full.max() <= sum(weights) / bins + max(weights)


@given(WEIGHTS, st.integers(1, 6))
def test_longest_first_is_within_four_thirds_of_what_must_be(weights, bins) -> None:
    full = np.bincount(lpt(weights, bins), weights=weights, minlength=bins)
    ordered = sorted(weights, reverse=True)
    # Graham's bound holds against the best packing, which is no better than these two.
    two = ordered[bins - 1] + ordered[bins] if len(weights) > bins else 0
    assert full.max() <= (4 / 3) * max(sum(weights) / bins, ordered[0], two) + ordered[0] / 3


def test_differencing_is_better_than_longest_first_where_it_is_known_to_be() -> None:
    weights = [8, 7, 6, 5, 4]
    ends = [np.bincount(pack(weights, 2), weights=weights).max() for pack in (lpt, karmarkar_karp)]
    assert ends == [17, 16]


@given(WEIGHTS, st.integers(1, 6))
def test_dealing_in_a_snake_gives_everybody_equally_many(weights, bins) -> None:
    counts = np.bincount(snake(weights, bins), minlength=bins)
    assert counts.max() - counts.min() <= 1


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_no_bin_gets_more_items_than_it_may(bins, most, data) -> None:
    weights = data.draw(st.lists(st.integers(0, 99), min_size=bins * most, max_size=bins * most))
    assert (np.bincount(lpt(weights, bins, most), minlength=bins) == most).all()


def test_more_items_than_places_are_refused() -> None:
    with pytest.raises(ValueError, match="3 items do not go into 2 bins of 1"):
        lpt([1, 1, 1], bins=2, most=1)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 12))
def test_no_single_copy_could_be_given_to_a_worse_off_expert(load, more) -> None:
    loads = np.array(load, float)
    count = replicas(loads, len(load) + more)
    assert count.sum() == len(load) + more
    for e in np.flatnonzero(count > 1):
        assert loads[e] / (count[e] - 1) >= (loads / count).max() - 1e-9


MESSAGES = st.integers(1, 8).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
)


@given(MESSAGES)
def test_rounds_are_matchings_and_as_many_as_the_busiest_has_messages(case) -> None:
    nodes, messages = case
    senders, receivers = (np.array([m[side] for m in messages], np.int64) for side in (0, 1))
    rounds = edge_colour(senders, receivers, nodes)
    for ends in (senders, receivers):
        assert len({(end, r) for end, r in zip(ends, rounds, strict=True)}) == len(messages)
    busiest = max(np.bincount(senders, minlength=1).max(), np.bincount(receivers, minlength=1).max())
    assert len(set(rounds.tolist())) == busiest
