from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from assay.sim.random import below, bits, digit, key
from tests.oracles.swarm import Word, splitmix

words = st.integers(0, 2**64 - 1)
sizes = st.integers(1, 2**32 - 1)
names = st.lists(
    st.one_of(st.text("ab1\0é", max_size=5), st.binary(max_size=5), st.integers(-(2**70), 2**70)), max_size=4
)

KNOWN = (
    "from assay.sim.random import key, stream; "
    "print(key(0), key(-1, 'x', b'y', 2), stream(0).integers(2**63), stream(0, 'a', 1).integers(2**63))"
)
KNOWN_VALUES = ["4996483924920521526", "11333519348390726170", "4034106469685706537", "8115321550120354099"]


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_values_are_the_same_in_every_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KNOWN], env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True
    )
    assert done.stdout.split() == KNOWN_VALUES, done.stderr


@given(names, names)
def test_different_names_give_different_keys(one: list[str | bytes | int], other: list[str | bytes | int]) -> None:
    same = [(type(a), a) for a in one] == [(type(b), b) for b in other]
    assert (key(3, *one) == key(3, *other)) == same


def test_neither_joining_nor_kind_confuses_names() -> None:
    assert len({key(0, "ab", "c"), key(0, "a", "bc"), key(0, "abc"), key(0, b"abc"), key(0, "abc", "")}) == 5
    assert len({key(0, 1), key(0, "1"), key(0, b"1"), key(1), key(1, 0)}) == 5
    assert key(np.int64(5), np.uint8(2)) == key(5, 2)


def test_names_are_strings_bytes_or_integers() -> None:
    with pytest.raises(TypeError):
        key(0, 1.5)  # type: ignore[arg-type]


def test_bits_are_splitmix64() -> None:
    # The reference outputs of SplitMix64 for seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [bits(np.uint64(1234567), np.uint64(i)) for i in range(1, 5)] == expected


@given(words, words)
def test_bits_equal_the_plain_formula(k: int, counter: int) -> None:
    assert bits(np.uint64(k), np.uint64(counter)) == splitmix(k + counter * 0x9E3779B97F4A7C15)


@given(words, sizes)
def test_below_is_the_exact_multiply_shift(word: int, n: int) -> None:
    assert below(np.uint64(word), np.uint64(n)) == word * n >> 64


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.lists(st.integers(1, 2**20), min_size=1, max_size=4))
def test_digits_spend_one_word(k: int, counter: int, bases: list[int]) -> None:
    word, twin = np.uint64(bits(np.uint64(k), np.uint64(counter))), Word(k, counter)
    for base in bases:
        value, rest = digit(word, np.uint64(base))
        word = np.uint64(rest)
        assert value == twin.digit(base)


def test_digits_of_counted_words_are_uniform_and_independent() -> None:
    k = np.uint64(key(0, "chi-square"))
    cells = np.zeros((10, 7), np.int64)
    for i in range(70_000):
        u, rest = digit(np.uint64(bits(k, np.uint64(i))), np.uint64(10))
        v, _ = digit(np.uint64(rest), np.uint64(7))
        cells[u, v] += 1
    assert 1e-4 < chisquare(cells.ravel()).pvalue < 1 - 1e-4


def test_each_bit_is_fair() -> None:
    k = np.uint64(key(0, "bits"))
    drawn = np.array([bits(k, np.uint64(i)) for i in range(20_000)], np.uint64)
    ones = (drawn[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 4.5 * 0.5 / np.sqrt(20_000)
