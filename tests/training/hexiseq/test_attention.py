"""Attention by unequal shares on real processes is attention in one piece: outputs and all gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.hexiseq import attention_job
from assay.training.hexiseq.pace import Split
from assay.training.hexiseq.shares import Shares, intervals, positions, tokens_of

RANKS = 4
CHOSEN = [
    ([0, 0, 1, 1], [9, 3, 5, 20], [6, 2, 4, 4]),  # heads cut at different places: three sub-rings
    ([0, 0, 0, 1], [1, 8, 2, 13], [2, 6, 0, 8]),  # one has no heads, one group is a single rank
    ([0, 0, 0, 0], [7, 1, 2, 11], [2, 2, 0, 4]),  # one group: heads alone
    ([2, 0, 1, 3], [5, 6, 17, 1], [8, 8, 8, 8]),  # four groups: a ring alone
    ([1, 0, 1, 0], [4, 16, 3, 9], [2, 4, 6, 4]),  # ranks of a group need not be neighbours
]


@cache
def outcomes() -> list[tuple[Split, dict[str, Any]]]:
    """Chosen and drawn splits, all in one job."""
    splits = [Split(*(np.array(part) for part in parts)) for parts in CHOSEN]
    random = np.random.default_rng(5)
    splits += [attention_job.drawn(RANKS, random) for _ in range(3)]
    return list(zip(splits, attention_job.run(splits, seed=2), strict=True))


@pytest.mark.parametrize("case", range(len(CHOSEN) + 3))
def test_outputs_and_gradients_are_those_of_attention_in_one_piece(case: int) -> None:
    split, outcome = outcomes()[case]
    expected = attention_job.in_one_piece(int(split.tokens.sum()), seed=2)
    assert set(outcome) == {"out", "q", "k", "v"}
    for name, values in expected.items():
        assert outcome[name].shape == values.shape
        assert np.abs(values).max() > 0.1
        assert np.abs(outcome[name] - values).max() <= 1e-4, name


def test_groups_that_cut_heads_differently_make_sub_rings() -> None:
    assert intervals(outcomes()[0][0], attention_job.KV_HEADS) == [(0, 2), (2, 3), (3, 4)]
    assert intervals(outcomes()[3][0], attention_job.KV_HEADS) == [(0, 4)]


def test_heads_that_would_split_a_head_of_keys_are_refused() -> None:
    split = Split(np.array([0, 0]), np.array([3, 3]), np.array([5, 3]))
    with pytest.raises(ValueError, match="not multiples of 2"):
        Shares(split, kv_heads=4)


@pytest.mark.parametrize("seed", range(5))
def test_every_token_has_one_place_and_every_group_sees_as_much_as_its_length(seed: int) -> None:
    random = np.random.default_rng(seed)
    split = attention_job.drawn(6, random)
    places = np.concatenate(tokens_of(split))
    assert sorted(places.tolist()) == list(range(int(split.tokens.sum())))
    total = int(split.lengths.sum())
    for length, stretches in zip(split.lengths, positions(split.lengths), strict=True):
        seen = sum(at + 1 for a, b in stretches for at in range(a, b))
        assert abs(seen - length * total / 2) <= total  # half of all pairs, to within a token
