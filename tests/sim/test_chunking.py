"""Content-defined chunking: the cuts are the oracle's, bounded, and move with the content."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.chunking import cuts
from assay.sim.random import stream
from tests.oracles import chunking as oracle


def segments(ids: np.ndarray, **sizes: int) -> list[bytes]:
    offsets = cuts(ids, **sizes)
    return [ids[a:b].tobytes() for a, b in pairwise(offsets)]


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, 5) | st.integers(0, 2**63 - 1), max_size=400),
    sizes=st.sampled_from([(4, 8, 16), (8, 24, 40), (32, 64, 100), (40, 60, 200)]),
)
def test_cuts_are_those_of_the_oracle(ids: list[int], sizes: tuple[int, int, int]) -> None:
    assert cuts(np.array(ids, np.int64), *sizes).tolist() == oracle.cuts(ids, *sizes)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3000))
def test_offsets_cover_everything_within_bounds(seed: int, n: int) -> None:
    lengths = np.diff(cuts(stream(seed, "ids").integers(0, 50_000, n)))
    assert lengths.sum() == n
    assert (lengths[:-1] >= 32).all() and (lengths <= 512).all()


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), inserted=st.integers(1, 300))
def test_inserting_at_the_head_changes_only_a_few_segments(seed: int, inserted: int) -> None:
    random = stream(seed, "shift")
    ids = random.integers(0, 50_000, 8_000)
    longer = np.concatenate([random.integers(0, 50_000, inserted), ids])
    new = set(segments(longer)) - set(segments(ids))
    # 60 segments on average. Cuts fall into step after a segment or two; 3,000 tries never needed more than 6.
    assert len(new) <= 3 + inserted // 32 + 6


def test_fixed_blocks_lose_everything_after_an_insertion() -> None:
    ids = stream(0, "fixed").integers(0, 50_000, 8_000)
    longer = np.concatenate([[1], ids])
    blocks = {ids[i : i + 128].tobytes() for i in range(0, 8_000, 128)}
    assert not blocks & {longer[i : i + 128].tobytes() for i in range(0, 8_000, 128)}


def test_mean_length_is_the_one_asked_for() -> None:
    ids = stream(1, "mean").integers(0, 256, 1_000_000).astype(np.uint8)
    assert np.diff(cuts(ids, lo=512, avg=2048, hi=8192)).mean() == pytest.approx(2048, rel=0.05)


def test_bytes_and_wide_integers_cut_alike() -> None:
    content = stream(2, "kinds").integers(0, 256, 5_000)
    assert cuts(content.astype(np.uint8)).tolist() == cuts(content).tolist()


@pytest.mark.parametrize("sizes", [(0, 8, 16), (8, 8, 16), (8, 32, 16)])
def test_senseless_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="0 < lo < avg <= hi"):
        cuts([1, 2, 3], *sizes)


def test_what_is_no_flat_integer_array_is_refused() -> None:
    with pytest.raises(ValueError, match="flat array of integers"):
        cuts(np.ones(3))
    with pytest.raises(ValueError, match="flat array of integers"):
        cuts(np.ones((2, 2), int))
