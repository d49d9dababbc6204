"""Erasure codes, as broadcast by fragments uses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.amortized_brb import reed_solomon
from tests.oracles import fields


@given(st.binary(max_size=60), st.integers(1, 12), st.integers(0, 12), st.randoms(use_true_random=False))
def test_any_k_fragments_give_the_message_back(message: bytes, k: int, more: int, random: object) -> None:
    fragments = reed_solomon.encode(message, k + more, k)
    chosen = random.sample(range(k + more), k)  # type: ignore[attr-defined]
    assert reed_solomon.decode({place: fragments[place] for place in chosen}, k) == message


@given(st.binary(min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 5))
def test_fragments_are_the_values_of_one_polynomial(message: bytes, k: int, more: int) -> None:
    fragments = reed_solomon.encode(message, k + more, k)
    for column in range(0, len(fragments[0]), 2):
        symbols = [int.from_bytes(one[column : column + 2], "big") for one in fragments]
        assert [fields.value_at(symbols[:k], x) for x in range(k + more)] == symbols


def test_fragments_share_the_length_of_the_message() -> None:
    fragments = reed_solomon.encode(bytes(30_000), n=300, k=100)
    assert len(fragments) == 300
    assert {len(one) for one in fragments} == {302}


@pytest.mark.parametrize(
    ("fragments", "word"),
    [
        ({0: b"ab"}, "2 needed"),
        ({0: b"abcd", 1: b"ab"}, "lengths"),
        ({0: b"abc", 1: b"abc"}, "lengths"),
        ({0: b"\xff\xff\xff\xff", 1: b"abcd"}, "bytes in fragments"),
    ],
)
def test_what_cannot_have_been_encoded_is_refused(fragments: dict[int, bytes], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        reed_solomon.decode(fragments, 2)


def test_more_fragments_than_the_field_has_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="65536 expected"):
        reed_solomon.encode(b"x", n=70_000, k=2)
