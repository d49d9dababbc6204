"""Grids over the same ranks, and tensors that change from one cut to another."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.grids import Cut, Grid, moves

sizes = st.sampled_from([1, 2, 3])


@given(sizes, sizes, sizes)
def test_groups_are_the_ranks_that_differ_on_their_axes_only(tp: int, cp: int, dp: int) -> None:
    grid = Grid.of(tp=tp, cp=cp, dp=dp)
    for names in (("tp",), ("dp",), ("tp", "dp"), ("cp", "dp")):
        rows = grid.groups(*names)
        assert sorted(rows.ravel().tolist()) == list(range(grid.ranks))
        for row in rows.tolist():
            fixed = [{k: v for k, v in grid.coordinates(rank).items() if k not in names} for rank in row]
            assert all(one == fixed[0] for one in fixed)
            assert row == sorted(row)
    assert all(grid.rank(**grid.coordinates(rank)) == rank for rank in range(grid.ranks))


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    grid = Grid.of(draw(st.sampled_from([0, 4])), a=draw(sizes), b=draw(sizes))
    dims = draw(st.permutations(["a", "b", None]))[:2]
    return Cut(grid, tuple(dims))


@given(cuts(), cuts(), st.tuples(st.integers(3, 7), st.integers(3, 7)))
def test_the_moves_give_everybody_what_the_new_cut_says(old: Cut, new: Cut, shape: tuple[int, int]) -> None:
    whole = np.arange(shape[0] * shape[1]).reshape(shape)

    def slice_of(cut: Cut, rank: int) -> Any:
        return tuple(slice(*side) for side in cut.box(rank, shape))

    held = {rank: np.full(shape, -1) for rank in range(old.grid.first, old.grid.first + old.grid.ranks)}
    for rank, mine in held.items():
        mine[slice_of(old, rank)] = whole[slice_of(old, rank)]
    got = {rank: np.full(shape, -1) for rank in range(new.grid.first, new.grid.first + new.grid.ranks)}
    for move in moves(shape, old, new):
        where = tuple(slice(low, high) for low, high in zip(move.low, move.high, strict=True))
        assert (got[move.target][where] == -1).all()  # nothing comes twice
        got[move.target][where] = held[move.source][where]
    for rank, found in got.items():
        inside = np.zeros(shape, bool)
        inside[slice_of(new, rank)] = True
        assert (found[inside] == whole[inside]).all()
        assert (found[~inside] == -1).all()


def test_who_has_it_already_sends_nothing() -> None:
    cut = Cut(Grid.of(tp=2, dp=2), ("tp", None))
    assert all(move.source == move.target for move in moves((8, 8), cut, cut))


def test_copies_share_the_sending() -> None:
    old, new = Cut(Grid.of(dp=4), (None,)), Cut(Grid.of(4, tp=4), ("tp",))
    assert sorted(move.source for move in moves((8,), old, new)) == [0, 1, 2, 3]


def test_two_grids_lie_over_the_same_ranks() -> None:
    """Attention over tp, experts over ep: a rank has a place in both."""
    attention, experts = Grid.of(tp=4, dp=2), Grid.of(ep=8)
    both = [(attention.coordinates(r)["tp"], experts.coordinates(r)["ep"]) for r in range(8)]
    assert both == [(r % 4, r) for r in range(8)]
    assert len(set(product(range(4), range(2)))) == attention.ranks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grid.of(tp=0), "tp is 0, should be at least 1"),
        (lambda: Grid.of(tp=2).coordinates(2), "rank 2 is not among the 2"),
        (lambda: Cut(Grid.of(tp=2), ("dp",)).box(0, (4,)), "cut"),
    ],
)
def test_bad_grids(call: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()
