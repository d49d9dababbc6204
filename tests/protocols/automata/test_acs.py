"""Least elements of upward-closed sets, beside the plainest way to keep them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("z3", reason="extra protocols")

from assay.protocols.automata.acs import Antichain

Counts = tuple[int, int, int]


def covers(small: Counts, large: Counts) -> bool:
    return all(a <= b for a, b in zip(small, large, strict=True))


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=40))
def test_what_is_kept_are_the_least_of_all_that_came(elements: list[Counts]) -> None:
    least = Antichain(3)
    for position, counts in enumerate(elements):
        assert least.add(counts) == (not any(covers(other, counts) for other in elements[:position]))
    minimal = {one for one in elements if not any(covers(other, one) and other != one for other in elements)}
    assert {tuple(row) for row in least.elements.tolist()} == minimal
    assert len(least) == len(minimal)
    assert all((one in least) == (one in minimal) for one in elements)
