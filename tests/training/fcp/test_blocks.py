"""Blocks, where they lie, and what travels when: every needed message once, in as few rounds as can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.fcp.blocks import cut, plan
from assay.workloads.lengths import lognormal

LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 20), st.booleans())
def test_every_token_lies_in_one_block_and_every_pair_is_counted_once(lengths: Any, size: Any, causal: Any) -> None:
    blocks = cut(lengths, size, causal)
    seen = [(s, t) for s, a, b in zip(blocks.sequence, blocks.start, blocks.stop, strict=True) for t in range(a, b)]
    assert sorted(seen) == [(s, t) for s, length in enumerate(lengths) for t in range(length)]
    assert blocks.tokens.max() <= size
    assert blocks.pairs.sum() == sum(n * (n + 1) / 2 if causal else n * n for n in lengths)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 6), st.booleans())
def test_messages_are_exactly_those_that_queries_need(lengths: Any, size: Any, ranks: Any, causal: Any) -> None:
    found = plan(lengths, ranks, size, causal=causal)
    cuts = found.blocks
    expected = set()
    for k in range(len(cuts.block)):  # queries of span k look at keys of span m
        for m in range(len(cuts.block)):
            sees = cuts.sequence[k] == cuts.sequence[m] and (not causal or cuts.start[m] < cuts.stop[k])
            holder, reader = found.owner[cuts.block[m]], found.owner[cuts.block[k]]
            if sees and holder != reader:
                expected.add((int(cuts.block[m]), int(reader)))
    messages = list(zip(found.block.tolist(), found.receiver.tolist(), strict=True))
    assert set(messages) == expected
    assert len(messages) == len(expected)


@given(LENGTHS, st.integers(1, 20), st.integers(2, 6), st.booleans())
def test_a_round_is_a_matching_and_rounds_are_as_many_as_the_busiest_has_messages(
    lengths: Any, size: Any, ranks: Any, causal: Any
) -> None:
    found = plan(lengths, ranks, size, causal=causal)
    for ends in (found.sender, found.receiver):
        assert len(set(zip(ends.tolist(), found.round.tolist(), strict=True))) == len(ends)
    counts = (np.bincount(ends, minlength=ranks).max() for ends in (found.sender, found.receiver))
    assert found.rounds == max(counts)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_even_to_five_percent_within_their_memory(ranks: int, seed: int) -> None:
    found = plan(lognormal(ranks * 32768, seed), ranks, memory=1.2)
    assert found.imbalance() <= 0.05
    assert found.memory() <= 1.2


def test_the_papers_order_as_we_read_it_is_less_even() -> None:
    lengths = lognormal(64 * 32768, 0)
    assert plan(lengths, 64, by="either").imbalance() > 5 * plan(lengths, 64).imbalance()
