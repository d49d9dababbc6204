"""What crosses from one grid to another: all that is needed, nothing else, once; every gradient comes home once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.training.hetpar.boundary import Batch, Side, between, side
from assay.training.interface import Layout
from tests.oracles.boundaries import cells, needed, play, returned

WIDTH = 4
SIZES = st.sampled_from([1, 2, 3])


@st.composite
def sides(draw: st.DrawFn) -> Side:
    layout = Layout(
        tp=draw(st.sampled_from([1, 2, 4])), cp=draw(SIZES), dp=draw(SIZES), pp=draw(st.sampled_from([1, 2]))
    )
    return Side(
        layout,
        draw(st.sampled_from([0, 0, 5])),
        draw(st.sampled_from(["copied", "tokens", "hidden"])),
        draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    images = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    samples = draw(st.lists(st.tuples(st.integers(-1, len(images) - 1), st.integers(0, 6)), min_size=1, max_size=6))
    return Batch(tuple(images), tuple(samples))


@given(sides(), sides(), batches())
def test_every_rank_gets_exactly_the_values_it_needs_and_no_value_it_has_travels(
    a: Side, b: Side, batch: Batch
) -> None:
    found = between(a, b, batch, WIDTH)
    whole = np.arange(sum(batch.images) * WIDTH, dtype=float).reshape(-1, WIDTH)
    got = play(found, whole)
    least = 0
    for rank in b.at(0):
        wanted = needed(b, batch, WIDTH, rank)
        assert {tuple(cell) for cell in np.argwhere(~np.isnan(got[rank])).tolist()} == wanted
        assert all(got[rank][cell] == whole[cell] for cell in wanted)
        least += len(wanted - cells(found.have.get(rank, [])))
    assert found.forward == least  # the intersection's lower bound
    assert found.forward <= found.gathered


@given(sides(), sides(), batches())
def test_gradients_of_duplicated_rows_are_added_and_every_copy_has_the_sum_once(a: Side, b: Side, batch: Batch) -> None:
    found = between(a, b, batch, WIDTH, equal=False)
    random, shape = np.random.default_rng(0), (sum(batch.images), WIDTH)
    gradients, expected = {}, np.zeros(shape)
    for rank in b.at(0):
        gradients[rank] = np.zeros(shape)
        for cell in needed(b, batch, WIDTH, rank):
            gradients[rank][cell] = random.normal()
        expected += gradients[rank]
    _same(found, gradients, expected)


@given(sides(), sides(), batches())
def test_equal_gradients_of_tensor_parallel_ranks_are_counted_once(a: Side, b: Side, batch: Batch) -> None:
    found = between(a, b, batch, WIDTH)
    random, shape = np.random.default_rng(0), (sum(batch.images), WIDTH)
    gradients, expected, drawn = {}, np.zeros(shape), {}
    for rank in b.at(0):
        at, wanted = b.grid.coordinates(rank), needed(b, batch, WIDTH, rank)
        key = at["cp"], at["dp"], 0 if b.tp == "copied" else at["tp"]
        first = key not in drawn
        values = drawn.setdefault(key, random.normal(size=shape))
        gradients[rank] = np.zeros(shape)
        for cell in wanted:
            gradients[rank][cell] = values[cell]
        if first:
            expected += gradients[rank]
    _same(found, gradients, expected)


def _same(found: Any, gradients: Any, expected: Any) -> None:
    for rank, total in returned(found, gradients).items():
        for cell in cells(found.have[rank]):
            assert total[cell] == pytest.approx(expected[cell], abs=1e-9)


def test_who_has_a_row_keeps_it_and_copies_share_the_sending() -> None:
    batch = Batch((8, 8), ((0, 0), (1, 0)))
    same = between(side("dp2"), side("dp2"), batch, WIDTH)
    assert same.forward == same.backward == 0
    spread = between(side("tp4"), side("cp4", first=4), Batch((16,), ((0, 0),)), WIDTH)
    assert sorted(move.source for move in spread.moves) == [0, 1, 2, 3]
    assert spread.busiest == 16 * WIDTH / 4


def test_a_data_parallel_degree_may_fan_in_and_fan_out_with_ragged_counts() -> None:
    batch = Batch((3, 5, 2), ((0, 4), (1, 1), (2, 6)))
    into, out = (
        between(side("dp3"), side("dp1", first=3), batch, WIDTH),
        between(side("dp1"), side("dp3", first=1), batch, WIDTH),
    )
    assert [sum(m.items for m in into.moves if m.source == r) for r in range(3)] == [12, 20, 8]
    assert [sum(m.items for m in out.moves if m.target == r) for r in range(1, 4)] == [12, 20, 8]


def test_a_colocated_encoder_in_data_parallelism_sends_less_than_a_gather_where_the_llm_cuts_the_context() -> None:
    """The spec's trap: replicate, then slice gives the right rows and moves context-parallel times as much."""
    batch = Batch((64,) * 8, tuple((k, 64) for k in range(8)))
    found = between(side("dp8"), side("cp8", zigzag=True), batch, WIDTH)
    assert found.forward <= found.gathered / 7


@pytest.mark.parametrize(
    ("text", "says"),
    [("tp2 xp3", "'xp3' is not understood"), ("tp2 tp4", "tp is there twice"), ("", "empty"), ("tp0", "'tp0'")],
)
def test_a_grid_that_is_none_gets_one_line(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        side(text)
