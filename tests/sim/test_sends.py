"""A collective's sends give the right result in any order they allow, and move the bytes that theory says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.sends import Sends, arrivals, chain, direct_sends, double_tree, execute, ring_sends, tree_sends

ranks = st.integers(2, 64)
few = st.integers(2, 12)


def any_order(sends: Sends, seed: int) -> list[int]:
    """Another order that heeds what each send waits for, and its queue."""
    random = np.random.default_rng(seed)
    before = [set(sends.after[sends.after_ptr[i] : sends.after_ptr[i + 1]].tolist()) for i in range(len(sends))]
    last: dict[int, int] = {}
    for i, queue in enumerate(sends.queue.tolist()):
        before[i] |= {last[queue]} if queue in last else set()
        last[queue] = i
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(sends):
        ready = [i for i in range(len(sends)) if i not in done and before[i] <= done]
        chosen = random.permutation(ready)[: max(1, len(ready) // 2)].tolist()
        order += chosen
        done |= set(chosen)
    return order


def held(k: int, count: int) -> np.ndarray:
    return np.arange(k * count, dtype=np.float64).reshape(k, count) ** 2


@given(ranks, st.integers(0, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9) | st.none())
@settings(max_examples=30)
def test_a_ring_reduces_everything_everywhere(
    k: int, count: int, channels: int, slices: int, chunk: int | None
) -> None:
    sends = ring_sends("all_reduce", k, count, channels=channels, chunk=chunk, slices=slices)
    assert (execute(sends, held(k, count)) == held(k, count).sum(axis=0)).all()
    assert sends.sent().sum() == 2 * (k - 1) * count


@given(ranks, st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=30)
def test_gathering_and_scattering_are_the_halves_of_it(k: int, part: int, channels: int) -> None:
    given_ = held(k, k * part)
    gathered = execute(ring_sends("all_gather", k, k * part, channels=channels, chunk=2, slices=2), given_)
    own = np.concatenate([given_[r, r * part : (r + 1) * part] for r in range(k)])
    assert (gathered == own).all()
    scattered = execute(ring_sends("reduce_scatter", k, k * part, channels=channels, chunk=2), given_)
    for r in range(k):
        mine = slice(r * part, (r + 1) * part)
        assert (scattered[r, mine] == given_.sum(axis=0)[mine]).all()


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@given(k=ranks, part=st.integers(1, 20), channels=st.integers(1, 4))
@settings(max_examples=20)
def test_round_a_ring_every_rank_moves_the_theoretical_bytes(op: str, k: int, part: int, channels: int) -> None:
    sends = ring_sends(op, k, k * part * channels, channels=channels, chunk=7)
    share = (2 if op == "all_reduce" else 1) * (k - 1) * part * channels
    if op == "all_reduce" and part % 7:  # chunks of a loop differ by an element where they do not divide it
        assert abs(sends.sent() - share).max() <= 2 * len(sends)
        assert sends.sent().sum() == k * share
    else:
        assert sends.sent().tolist() == sends.received().tolist() == [share] * k


@given(ranks, st.integers(1, 100))
@settings(max_examples=20)
def test_with_whole_chunks_all_reduce_moves_exactly_two_p_minus_one_of_p(k: int, part: int) -> None:
    assert ring_sends("all_reduce", k, k * part).sent().tolist() == [2 * (k - 1) * part] * k


@given(few, st.integers(1, 5), st.integers(0, 99), st.integers(1, 4), st.integers(1, 30), st.integers(0, 9))
@settings(max_examples=30)
def test_two_trees_reduce_everything_everywhere_in_any_allowed_order(
    units: int, per: int, count: int, channels: int, chunk: int, seed: int
) -> None:
    k = min(units * per, 24)
    parents = double_tree(np.arange(k) // per)
    sends = tree_sends("all_reduce", parents, count, channels=channels, chunk=chunk)
    assert (execute(sends, held(k, count), any_order(sends, seed)) == held(k, count).sum(axis=0)).all()
    assert sends.sent().sum() == 2 * (k - 1) * count


@given(few, st.integers(1, 40), st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=20)
def test_a_ring_needs_only_what_its_sends_wait_for(k: int, count: int, slices: int, seed: int) -> None:
    sends = ring_sends("all_reduce", min(k, 6), count, channels=2, chunk=2, slices=slices)
    first = held(sends.ranks, count)
    assert (execute(sends, first, any_order(sends, seed)) == first.sum(axis=0)).all()


@given(ranks)
def test_who_has_children_in_one_tree_has_none_in_the_other(k: int) -> None:
    first, second = (set(tree[tree >= 0].tolist()) for tree in double_tree(range(k)))
    assert len(first & second) <= (1 if k % 2 or k == 2 else 0) + (k % 2)
    for tree in double_tree(range(k)):
        assert (tree < 0).sum() == 1 and np.bincount(tree[tree >= 0]).max(initial=0) <= 2


@given(ranks, st.integers(1, 50), st.integers(1, 20))
@settings(max_examples=20)
def test_a_chain_brings_the_first_ranks_vector_to_all_and_back(k: int, count: int, chunk: int) -> None:
    sends = tree_sends("broadcast", [chain(k)], count, chunk=chunk)
    assert (execute(sends, held(k, count)) == held(k, count)[0]).all()
    assert sends.sent().sum() == (k - 1) * count
    reduced = execute(tree_sends("reduce", [chain(k)], count, chunk=chunk), held(k, count))
    assert (reduced[0] == held(k, count).sum(axis=0)).all()


@given(ranks, st.integers(1, 5), st.integers(1, 8))
@settings(max_examples=20)
def test_an_all_to_all_transposes_and_moves_all_but_ones_own_part(k: int, part: int, channels: int) -> None:
    first = held(k, k * part)
    sends = direct_sends(k, k * part, channels=channels)
    expected = first.reshape(k, k, part).transpose(1, 0, 2).reshape(k, k * part)
    assert (execute(sends, first) == expected).all()
    assert sends.sent().tolist() == sends.received().tolist() == [(k - 1) * part] * k


def test_what_cannot_be_lowered_is_told() -> None:
    with pytest.raises(ValueError, match="no ring for 'gather'"):
        ring_sends("gather", 2, 4)
    with pytest.raises(ValueError, match="not one equal part"):
        ring_sends("all_gather", 3, 4)
    with pytest.raises(ValueError, match="no tree for"):
        tree_sends("all_gather", double_tree(range(2)), 4)
    with pytest.raises(ValueError, match="shape"):
        execute(ring_sends("all_reduce", 2, 4), np.zeros((3, 4)))


@given(few, st.integers(1, 1000), st.floats(1e-9, 1e-6), st.floats(0, 1e-3))
def test_one_loop_round_a_ring_takes_its_steps(k: int, part: int, byte: float, hop: float) -> None:
    sends = ring_sends("all_reduce", k, k * part)
    assert arrivals(sends, byte, hop).max() == pytest.approx(2 * (k - 1) * (hop + part * byte), rel=1e-9)
