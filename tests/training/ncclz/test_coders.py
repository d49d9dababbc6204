"""Frames: whatever the symbols they come back, a plain reader agrees, and the arbiter chooses near the best."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.ncclz import coders, fields, quantise
from assay.training.ncclz.arbiter import Arbiter, Speeds, estimate
from assay.training.ncclz.floats import SLOW, compress, decompress
from tests.oracles import coded_frames

INT = st.integers(-(2**31), 2**31 - 1)
SMALL = st.integers(-40, 40)
SYMBOLS = st.one_of(
    st.lists(INT, max_size=40),
    st.lists(SMALL, max_size=600),
    st.lists(st.one_of(SMALL, SMALL, SMALL, INT), max_size=600),
)
SPEEDS = Speeds(1e-10, 2e-9, 4e-9, 2e-9)
LOW, HIGH = -(2**31), 2**31 - 1
ODD = {
    "empty": [], "one": [7], "lowest": [LOW], "constant": [5] * 5000, "extremes": [LOW, HIGH] * 3000,
    "runs": [0] * 3000 + [HIGH] * 3000, "ramp": list(range(70_000)), "two": [0, 1] * 999,
    "escapes": [0, 1, 2, 3] * 1000 + [LOW, HIGH, 10**6],
}  # fmt: skip


@given(SYMBOLS, st.sampled_from([coders.RAW, coders.FIXED, coders.HUFFMAN]))
def test_symbols_come_back_and_the_plain_reader_sees_the_same(symbols: list[int], coder: int) -> None:
    frame = coders.encode(np.array(symbols, np.int32), coder)
    assert coders.decode(frame).tolist() == symbols
    assert coded_frames.read(bytes(frame)) == symbols
    assert len(frame) <= coders.HEAD + 4 * len(symbols)


@pytest.mark.parametrize("coder", [coders.RAW, coders.FIXED, coders.HUFFMAN])
@pytest.mark.parametrize("name", ODD)
def test_odd_symbols_come_back(name: str, coder: int) -> None:
    symbols = np.array(ODD[name], np.int32)
    assert np.array_equal(coders.decode(coders.encode(symbols, coder)), symbols)


def test_a_huffman_frame_with_escapes_is_read_by_the_plain_reader() -> None:
    random = np.random.default_rng(0)
    symbols = np.rint(random.laplace(0, 3, 3001)).astype(np.int32)
    symbols[::500] = random.integers(LOW, HIGH, len(symbols[::500]))
    frame = coders.encode(symbols, coders.HUFFMAN)
    assert frame[0] == coders.HUFFMAN
    assert coded_frames.read(bytes(frame)) == symbols.tolist()


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=300).filter(any))
def test_code_lengths_are_a_prefix_code_and_the_best_one_where_that_is_short_enough(counts: list[int]) -> None:
    found = np.empty(len(counts), np.int64)
    coders.lengths(np.array(counts, np.int64), found)
    used = found[found > 0]
    assert ((found > 0) == (np.array(counts) > 0)).all()
    assert used.max() <= coders.LIMIT
    assert sum(2.0 ** -int(n) for n in used) <= 1
    bits, best = int((found * counts).sum()), coded_frames.code_bits(counts)
    assert best <= bits <= 1.05 * best + 8
    if used.max() < coders.LIMIT:
        assert bits == best


def test_skewed_counts_are_cut_to_the_limit_and_still_a_code() -> None:
    counts = np.array([int(1.7**k) + 1 for k in range(40)], np.int64)
    found = np.empty(40, np.int64)
    coders.lengths(counts, found)
    assert found.max() == coders.LIMIT
    assert sum(2.0 ** -int(n) for n in found) == 1


@given(st.binary(max_size=400), st.integers(0, 2), st.integers(0, 2000))
def test_any_bytes_are_symbols_or_refused(body: bytes, coder: int, count: int) -> None:
    frame = np.frombuffer(bytes([coder, 0, 0, 0]) + count.to_bytes(4, "little") + body, np.uint8)
    with contextlib.suppress(coders.Corrupt):
        assert len(coders.decode(frame)) == count


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_frame_with_a_bit_turned_over_is_symbols_or_refused(where: int, bit: int) -> None:
    frame = coders.encode(np.rint(np.random.default_rng(1).laplace(0, 3, 4000)).astype(np.int32), coders.HUFFMAN)
    frame = frame.copy()
    frame[8 + where % (len(frame) - 8)] ^= 1 << bit
    with contextlib.suppress(coders.Corrupt):
        coders.decode(frame)


def test_where_only_bytes_count_the_choice_is_within_3_percent_of_the_best_in_95_of_100_frames() -> None:
    near = []
    for kind in fields.SLOPES:
        x = fields.field(kind, 1 << 17, seed=5, rank=0)
        for eps in (1e-2, 1e-3, 1e-4):
            for predict in (False, True):
                codes = quantise.quantised(x, quantise.grid(eps, 1.0), predict)
                for start in range(0, len(x), 1 << 15):
                    symbols = codes[start : start + (1 << 15)]
                    sizes = [len(coders.encode(symbols, coder)) for coder in range(3)]
                    near.append(sizes[SLOW.choose(symbols)] <= 1.03 * min(sizes))
    assert np.mean(near) >= 0.95


def test_on_a_quick_link_nothing_is_worth_coding_and_on_a_slow_one_it_is() -> None:
    symbols = np.rint(np.random.default_rng(0).laplace(0, 2, 1 << 16)).astype(np.int32)
    assert [Arbiter(rate, SPEEDS).choose(symbols) == coders.RAW for rate in (1e11, 1e7)] == [True, False]
    assert Arbiter(2e9, SPEEDS).hopeless
    assert not Arbiter(1.25e8, SPEEDS).hopeless


def test_estimates_are_near_what_frames_take() -> None:
    symbols = np.rint(np.random.default_rng(2).laplace(0, 5, 1 << 17)).astype(np.int32)
    sizes = [len(coders.encode(symbols, coder)) for coder in range(3)]
    assert np.allclose(estimate(symbols), sizes, rtol=0.04)


# ------------------------------------------------------------------------------------------------------------ floats

FLOATS = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=300)


@given(FLOATS, st.sampled_from([1e-30, 1e-6, 1e-3, 1.0, 1e30]))
def test_floats_come_back_within_eps_and_what_is_not_finite_as_it_was(values: list[float], eps: float) -> None:
    x = np.array(values, np.float32)
    found = decompress(compress(x, eps))
    finite = np.isfinite(x)
    assert np.array_equal(found[~finite], x[~finite], equal_nan=True)
    assert (np.abs(found[finite].astype(np.float64) - x[finite].astype(np.float64)) <= eps).all()


TINY = float(np.float32(1e-42))
ODD_FLOATS = {
    "empty": [], "one": [3.25], "nan": [np.nan] * 100, "infinite": [np.inf, -np.inf] * 50,
    "denormal": [TINY, -TINY] * 500, "constant": [1 / 3] * 10_000, "extremes": [3.4e38, -3.4e38] * 500,
    "zeros": [0.0, -0.0] * 500,
    "some": [np.nan, *np.sin(np.arange(4000) / 50), np.inf, 3.4e38, TINY],
}  # fmt: skip


@pytest.mark.parametrize("eps", [1e-44, 1e-12, 1e-4, 1e5])
@pytest.mark.parametrize("name", ODD_FLOATS)
def test_odd_floats_come_back_within_eps(name: str, eps: float) -> None:
    x = np.array(ODD_FLOATS[name], np.float32)
    found = decompress(compress(x, eps))
    finite = np.isfinite(x)
    assert np.array_equal(found[~finite], x[~finite], equal_nan=True)
    assert (np.abs(found[finite].astype(np.float64) - x[finite].astype(np.float64)) <= eps).all()


def test_smooth_fields_get_small_and_without_a_bound_bits_stay() -> None:
    x = fields.field("smooth", 1 << 16, 0, 0)
    assert len(compress(x, 1e-3)) * 5 < x.nbytes
    assert decompress(compress(x, None)).tobytes() == x.tobytes()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_numbers_are_refused(body: bytes) -> None:
    with contextlib.suppress(coders.Corrupt):
        decompress(np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("eps", [0.0, -1.0, np.nan, np.inf])
def test_no_bound_is_no_bound(eps: float) -> None:
    with pytest.raises(ValueError, match="positive number"):
        compress(np.ones(3, np.float32), eps)
