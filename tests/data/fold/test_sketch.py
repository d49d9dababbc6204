"""Sketches are what their definitions say, in any script and with any white space."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mmh3", reason="pip install mmh3")

from assay.data.fold.bands import Bands, mates
from assay.data.fold.graph import distance
from assay.data.fold.sketch import bitmaps_of, jaccard, multipliers, sketched
from tests.oracles import dedup as oracle

SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"
WORDS = st.sampled_from(["a", "b", "cc", "ñandú", "日本", "𝔘", "\u200b", "â", "\u2010", "ー"])
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from(SPACES)), max_size=30).map(
    lambda pairs: "".join(w + s for w, s in pairs)
)


@given(st.lists(TEXTS, max_size=6))
def test_sketches_are_their_definition(texts: list[str]) -> None:
    docs, by = sketched(texts), [int(one) for one in multipliers()]
    for row, text in enumerate(texts):
        expected = oracle.shingles(text)
        assert docs.shingles_of(row).tolist() == sorted(expected)
        assert docs.slots[row].tolist() == oracle.slots(expected, by)
        bits = np.flatnonzero(np.unpackbits(docs.bitmaps[row].view(np.uint8), bitorder="little"))
        assert set(bits.tolist()) == oracle.bitmap(docs.slots[row].tolist(), 4096)
    assert np.array_equal(bitmaps_of(docs.slots), docs.bitmaps)


@given(TEXTS, TEXTS)
def test_the_distance_of_bitmaps_is_that_of_their_sets(x: str, y: str) -> None:
    for bits in (256, 512, 4096):  # less than a cache line, one, and several
        docs = sketched([x, y], bits)
        a, b = (oracle.bitmap(row.tolist(), bits) for row in docs.slots)
        found = distance(0, docs.bitmaps, 0, docs.bitmaps, 1)
        assert found == pytest.approx(1 - oracle.jaccard(a, b), abs=1e-6)
        assert found == distance(0, docs.bitmaps, 1, docs.bitmaps, 0)
        assert 0 <= found <= 1
        assert distance(1, docs.bitmaps, 0, docs.bitmaps, 1) == pytest.approx(len(a ^ b) / bits, abs=1e-6)
        if oracle.shingles(x) == oracle.shingles(y):
            assert found == 0
    assert jaccard(docs.shingles_of(0), docs.shingles_of(1)) == oracle.jaccard(oracle.shingles(x), oracle.shingles(y))


@given(st.lists(st.lists(st.integers(0, 2), min_size=8, max_size=8), max_size=12))
def test_bands_find_who_shares_one_and_first_who_shares_most(rows: list[list[int]]) -> None:
    slots = np.array(rows, np.uint32).reshape(-1, 8)
    index, expected = Bands(4, 2, most=16), oracle.shared(rows, 4, 2)
    inside = mates(slots, 4, 2, 16)
    for d, right in enumerate(expected):
        found = index.search(slots[d : d + 1])
        near = [int(other) for other in found.ids[0] if other >= 0]
        assert set(near) == set(right)
        assert [right[other] for other in near] == sorted(right.values(), reverse=True)
        assert {int(other) for other in inside[d] if other >= 0} <= set(right)
        assert not right or inside[d, 0] >= 0
        index.add(slots[d : d + 1], found)


def test_a_lone_surrogate_and_an_empty_document_are_documents() -> None:
    docs = sketched(["", "\ud800 b", "  \n"])
    assert docs.counts.tolist() == [0, 1, 0]
    assert docs.slots[0].tolist() == [0] * 112
