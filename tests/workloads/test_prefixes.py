"""The tree of segments says of any two prompts exactly what comparing them block by block says."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.workloads.prefixes import chains, infinite_cache_hit, previous, sessions, shared_tokens, turns
from assay.workloads.request_files import read
from assay.workloads.requests import Prefixes, Requests
from tests.oracles import prefixes as oracle

BLOCK = 16
Chains = list[list[int]]
few_ids = st.integers(0, 3)
content = st.lists(st.lists(few_ids, max_size=7), min_size=1, max_size=12)


def tree_of(blocks: Chains, chained: bool = False, answers: tuple[list[int], list[int]] | None = None) -> Prefixes:
    offsets = np.cumsum([0] + [len(chain) for chain in blocks])
    ids = [block for chain in blocks for block in chain]
    return chains(ids, offsets, BLOCK, [max(1, BLOCK * len(chain)) for chain in blocks], chained, answers)


def as_prefix_ids(blocks: Chains) -> Chains:
    """The same prompts with ids that stand for all before them, as Mooncake names them."""
    known: dict[tuple[int, ...], int] = {}
    return [[known.setdefault(tuple(c[: k + 1]), len(known)) for k in range(len(c))] for c in blocks]


def well_formed(tree: Prefixes) -> None:
    """Paths go from a root to a child to its child, and segments lie end to end."""
    assert (tree.start % tree.block == 0).all()
    assert (tree.stop % tree.block == 0).all()
    assert (tree.stop > tree.start).all()
    for s, parent in enumerate(tree.parent):
        assert parent < s
        assert tree.start[s] == (tree.stop[parent] if parent >= 0 else 0)
    for r in range(len(tree.offsets) - 1):
        path = tree.segments[tree.offsets[r] : tree.offsets[r + 1]]
        assert list(tree.parent[path]) == [-1, *path[:-1]][: len(path)]


@settings(deadline=None)
@given(content)
def test_all_pairs_share_what_they_share(blocks: Chains) -> None:
    for tree in (tree_of(blocks), tree_of(as_prefix_ids(blocks), chained=True)):
        well_formed(tree)
        for one in range(len(blocks)):
            for other in range(len(blocks)):
                same = BLOCK * oracle.shared_blocks(blocks[one], blocks[other])
                assert shared_tokens(tree, one, other) == same


@settings(deadline=None)
@given(content)
def test_a_promise_of_chained_ids_that_is_not_kept_changes_nothing(blocks: Chains) -> None:
    believed, checked = tree_of(blocks, chained=True), tree_of(blocks, chained=False)
    for name in ("parent", "start", "stop", "offsets", "segments"):
        assert np.array_equal(getattr(believed, name), getattr(checked, name))


@settings(deadline=None)
@given(content)
def test_segments_are_maximal(blocks: Chains) -> None:
    assert len(tree_of(blocks).parent) == oracle.segment_count(blocks)


@settings(deadline=None)
@given(content)
def test_infinite_cache_hit_is_the_share_of_blocks_seen(blocks: Chains) -> None:
    lengths = [max(1, len(chain)) for chain in blocks]
    prompt = [BLOCK * k for k in lengths]
    trace = Requests.of(np.arange(len(blocks)), prompt, np.ones(len(blocks)), prefixes=tree_of(blocks))
    assert infinite_cache_hit(trace) == pytest.approx(oracle.hit_ratio(blocks, lengths))


@settings(deadline=None)
@given(st.lists(few_ids, min_size=1, max_size=5), st.lists(few_ids, min_size=1, max_size=9), st.integers(0, 100))
def test_an_answer_has_a_segment_of_its_own(first: list[int], more: list[int], output: int) -> None:
    tree = tree_of([first, first + more], answers=([-1, 0], [output, 1]))
    well_formed(tree)
    held = min((BLOCK * len(first) + output) // BLOCK, len(first + more))
    if held > len(first):
        answer = tree.output[0]
        assert (tree.start[answer], tree.stop[answer]) == (BLOCK * len(first), BLOCK * held)
        assert answer in tree.segments[tree.offsets[1] :]
    else:
        assert tree.output[0] == -1
    assert tree.output[1] == -1
    assert shared_tokens(tree, 0, 1) == BLOCK * len(first)


def test_answers_count_as_cached_when_asked() -> None:
    tree = tree_of([[1, 2], [1, 2, 3, 4]], answers=([-1, 0], [16, 1]))
    trace = Requests.of([0, 1], [32, 64], [16, 1], prefixes=tree)
    assert infinite_cache_hit(trace) == pytest.approx(2 / 6)
    assert infinite_cache_hit(trace, answers=True) == pytest.approx(3 / 6)


def test_ids_beyond_the_prompt_are_left_out() -> None:
    tree = chains([1, 2, 3], [0, 3], BLOCK, [17])
    assert tree.stop.tolist() == [32]


@pytest.mark.parametrize("offsets", [[0, 1], [1, 3], [0, 2, 1, 3]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must rise"):
        chains([1, 2, 3], offsets, BLOCK, [48] * (len(offsets) - 1))


def test_a_conversation_is_found_by_its_prefix() -> None:
    # everybody shares block 0; 1-2 is a conversation whose last block of each turn is not full, 5 is another's opening
    blocks = [[0, 1, 2], [0, 5, 6], [0, 7], [0, 8], [0, 9], [0, 1, 3, 4]]
    offsets = np.cumsum([0] + [len(chain) for chain in blocks])
    prompt = [40, 40, 20, 20, 20, 60]
    tree = chains([b for chain in blocks for b in chain], offsets, BLOCK, prompt)
    before = turns(Requests.of(np.arange(6), prompt, np.ones(6), prefixes=tree))
    assert before.tolist() == [-1, -1, -1, -1, -1, 0]
    assert sessions(before).tolist() == [0, 1, 2, 3, 4, 0]


@settings(deadline=None)
@given(st.lists(st.integers(-1, 3), max_size=20))
def test_previous_is_the_one_before_in_the_session(session: list[int]) -> None:
    found = previous(np.array(session, np.int32))
    for r, s in enumerate(session):
        earlier = [q for q in range(r) if session[q] == s and s >= 0]
        assert found[r] == (earlier[-1] if earlier else -1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 200))
def test_large_and_negative_ids(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    pool = random.integers(-(2**63), 2**63 - 1, 4)
    blocks = [pool[random.integers(0, 4, random.integers(0, 5))].tolist() for _ in range(n)]
    tree = tree_of(blocks)
    assert len(tree.parent) == oracle.segment_count(blocks)


@pytest.mark.traces
@pytest.mark.timed
def test_mooncake_takes_milliseconds() -> None:
    trace = read("mooncake-conversation")
    assert infinite_cache_hit(trace) == pytest.approx(0.366, abs=0.001)
    random = np.random.default_rng(1)  # as many ids, of the same kind
    counts = random.integers(1, 48, 12_031)
    ids = np.arange(counts.sum())
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids[offsets[:-1]] = 0
    best = min(_seconds(ids, offsets, counts * 512) for _ in range(5))
    assert best < 0.04
    assert len(trace.prefixes.parent) < 20_000  # type: ignore[union-attr]


def _seconds(ids: np.ndarray, offsets: np.ndarray, prompt: np.ndarray) -> float:
    begin = time.perf_counter()
    chains(ids, offsets, 512, prompt)
    return time.perf_counter() - begin
