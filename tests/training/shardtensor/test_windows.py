"""Halos: every rank wants exactly the rows that its outputs touch, however rows are dealt."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("torch")

from assay.training.shardtensor.shards import near_equal, ranges
from assay.training.shardtensor.windows import Spread, Window
from tests.oracles.conv_reach import touched, touched_transposed

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0)
FEW = st.integers(1, 5)


@given(SIZES, FEW, FEW, st.integers(0, 6), st.integers(1, 3))
def test_a_convolutions_outputs_are_dealt_once_and_want_what_they_touch(
    sizes: list[int], kernel: int, stride: int, padding: int, dilation: int
) -> None:
    expected = touched(sum(sizes), kernel, stride, padding, dilation)
    found = Window(sizes, kernel, stride, (padding, padding), dilation)
    assert found.outputs == len(expected)
    assert [j for a, b in found.out for j in range(a, b)] == list(range(len(expected)))
    for (a, b), (low, high) in zip(found.out, found.want, strict=True):
        needed = set().union(*expected[a:b])
        assert needed <= set(range(low, high))
        assert not needed or dilation > 1 or stride > kernel or (min(needed), max(needed) + 1) == (low, high)


@given(SIZES, FEW, FEW, st.integers(0, 3), st.integers(1, 2), st.integers(0, 2))
def test_a_transposed_convolutions_outputs_are_dealt_once_and_want_what_reaches_them(
    sizes: list[int], kernel: int, stride: int, padding: int, dilation: int, extra: int
) -> None:
    assume(extra < max(stride, dilation))
    expected = touched_transposed(sum(sizes), kernel, stride, padding, dilation, extra)
    assume(expected)
    found = Spread(sizes, kernel, stride, padding, dilation, extra)
    assert [j for a, b in found.out for j in range(a, b)] == list(range(len(expected)))
    for (a, b), (low, high) in zip(found.out, found.want, strict=True):
        assert set().union(*expected[a:b]) <= set(range(low, high))


def test_outputs_stay_where_their_inputs_lie() -> None:
    """No rank gets outputs of rows that it would have to fetch all of."""
    sizes = (37, 27, 36)
    for kernel, stride in ((3, 1), (3, 2), (2, 2), (5, 4)):
        found = Window(sizes, kernel, stride, (kernel // 2, kernel // 2), 1)
        for (a, b), (low, high) in zip(ranges(sizes), found.want, strict=True):
            assert a - kernel < low <= a + stride
            assert b - kernel - stride <= high <= b + kernel
    assert Window(sizes, 3, 1, (1, 1), 1).want == [(0, 38), (36, 65), (63, 100)]
    assert Window((4, 1, 1, 4), 7, 1, (3, 3), 1).want == [(0, 7), (1, 8), (2, 9), (3, 10)]


def test_near_equal_sizes_differ_by_one() -> None:
    assert near_equal(10, 4) == (3, 3, 2, 2)
