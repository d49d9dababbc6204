"""Copies past the caches are copies: whatever the addresses, and nothing beside them changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.past_caches import copy_past_caches


@given(size=st.integers(0, 300), to_at=st.integers(0, 40), from_at=st.integers(0, 40), seed=st.integers(0, 9))
def test_it_equals_an_ordinary_copy_at_any_address(size: int, to_at: int, from_at: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    source, to = (random.integers(0, 256, 400, np.uint8) for _ in range(2))
    wanted = to.copy()
    wanted[to_at : to_at + size] = source[from_at : from_at + size]
    copy_past_caches(to[to_at : to_at + size], source[from_at : from_at + size])
    assert (to == wanted).all()


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        copy_past_caches(np.zeros(3, np.uint8), np.zeros(4, np.uint8))
