"""FractalSort: NumPy's order for everything that has one, an index that answers without being written, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels import sort, sort_file
from assay.kernels.fractalsort import DISTRIBUTIONS, Index, blocks, drawn, index, keys, packing, sorting
from assay.kernels.fractalsort.keys import keys_of
from assay.kernels.fractalsort.rivals import counted, lsd
from assay.record.errors import BadInput

DTYPES = ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "M8[s]", "m8[ms]", "S5", "?")


def random_bits(dtype: str, n: int, seed: int = 0) -> Any:
    """Every pattern of bits: NaN of both signs, infinities, NaT."""
    random = np.random.default_rng(seed)
    if dtype == "?":
        return random.random(n) < 0.5
    size = np.dtype(dtype).itemsize
    return random.integers(0, 256, (n, size), dtype=np.uint8).copy().view(dtype).ravel()


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fmM"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_out_in_numpys_order(dtype: str) -> None:
    x = random_bits(dtype, 5000)
    right = np.sort(x)
    assert same(Index.of(keys_of(x), 2, keep=False).materialise(), right)
    assert same(Index.of(keys_of(x), 2, keep=False).spent(), right)
    assert same(sort(x), right)
    assert same(lsd(x), right)
    assert same(lsd(x, digit=11), right)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_every_distribution(kind: str, bits: int) -> None:
    x = drawn(kind, bits, 1 << 16, seed=3)
    assert same(sort(x), np.sort(x))


@pytest.mark.parametrize("n", [1, 5, 4096, 300_001])  # the last in three blocks of one thread
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [0, 1, 7])  # where in a line the output begins
def test_a_pass_puts_keys_in_stable_order_of_one_digit(n: int, threads: int, ahead: int) -> None:
    x = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)
    x[: n // 2] &= 0xFFFF00FF  # half of them in one bin
    which = 0, np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(8)
    counts = blocks.count_blocks(x, *which, 256, threads)
    starts, total = packing.places(counts.sum(axis=1, dtype=np.int64), 1)
    room = np.full(ahead + n + 16, 7, np.uint32)
    blocks.scatter(x, *which, np.uint64(2**64 - 1), counts, starts, room[ahead : ahead + n])
    assert total == n
    assert np.array_equal(room[ahead : ahead + n], x[np.argsort((x >> 8) & 255, kind="stable")])
    assert (room[:ahead] == 7).all()
    assert (room[ahead + n :] == 7).all()


def test_an_index_that_is_not_spent_can_be_written_twice() -> None:
    x = drawn("uniform", 32, 1 << 16, 0)
    made = Index.of(keys_of(x), 2, keep=False)
    assert same(made.materialise(), made.materialise())


def crowded(dtype: str, n: int) -> Any:
    """Most keys in one bin, most of these again, and some of them all alike."""
    random = np.random.default_rng(5)
    if dtype.startswith("f"):
        return random.standard_normal(n).astype(dtype)
    x = random.integers(0, 1 << 40, n) >> random.integers(0, 40, n)
    x[: n // 3] = 1 << 20
    return np.where(random.random(n) < 0.01, x << 20, x).astype(dtype)


@pytest.mark.parametrize("dtype", ["u4", "f4", "i8", "f8"])
def test_bins_that_no_cache_holds_are_cut_again(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "CACHED", 1 << 10)
    x = crowded(dtype, 30_000)
    right = np.sort(x)
    made = Index.of(keys_of(x), 2, keep=False)
    assert (made.counts.sum(axis=0) * made.packed.itemsize > sorting.CACHED).any()
    assert same(made.materialise(), right)
    assert same(made.spent(), right)
    assert same(index(x, 2).materialise(), right)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=300), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_any_whole_numbers(values: list[int], threads: int) -> None:
    x = np.array(values, np.int64)
    assert same(Index.of(keys_of(x), threads, keep=False).materialise(), np.sort(x))


@pytest.mark.parametrize("dtype", ["u2", "u4", "i8", "f8"])
def test_an_index_selects_what_sorting_would(dtype: str) -> None:
    x = random_bits(dtype, 6000, 1)
    made, right = index(x, 2), np.sort(x)
    for i in (0, 1, 17, 2999, 5999):
        found = made.select(i)
        assert found == right[i] or (found != found and right[i] != right[i])
    assert same(made.materialise(), right)


def test_an_index_of_narrow_entries_is_smaller_than_the_keys() -> None:
    x = drawn("uniform", 32, 1 << 18, 0)
    assert index(x).bytes < x.nbytes


@pytest.mark.parametrize("dtype", ["u2", "f4", "i8", "S5"])
def test_a_file_is_sorted_in_batches(dtype: str, tmp_path: Path) -> None:
    x = random_bits(dtype, 20_000, 2)
    np.save(tmp_path / "keys.npy", x)
    told = sort_file(tmp_path / "keys.npy", tmp_path / "sorted.npy", memory=1 << 14)
    assert same(np.load(tmp_path / "sorted.npy"), np.sort(x))
    assert told["batches"] > 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_view_with_gaps_is_sorted_and_left_alone() -> None:
    x = np.arange(20_000)[::-2]
    assert same(sort(x), np.sort(x))
    assert x[0] == 19_999


@pytest.mark.parametrize(
    "x", [np.zeros((2, 2)), np.array([1 + 2j]), np.array(["text"]), np.array([b"longer than 8"]), np.array([object()])]
)
def test_what_has_no_order_of_bits_gets_one_line(x: Any) -> None:
    with pytest.raises(BadInput) as caught:
        sort(x)
    assert "\n" not in str(caught.value)


def test_nothing_is_sorted_to_nothing() -> None:
    assert len(sort(np.array([], np.int32))) == 0
    with pytest.raises(BadInput, match="no keys"):
        index(np.array([], np.int32))


def test_a_file_that_is_none_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"not a file of NumPy's")
    with pytest.raises(BadInput, match=r"bad\.npy"):
        sort_file(tmp_path / "bad.npy", tmp_path / "out.npy")
    with pytest.raises(BadInput, match="cannot read"):
        sort_file(tmp_path / "none.npy", tmp_path / "out.npy")


def ordered_inputs() -> list[Any]:
    floats = np.sort(random_bits("f8", 4000, 5))  # NaNs last
    dates = np.sort(random_bits("i8", 4000, 6)).view("M8[s]")
    text = np.sort(random_bits("S5", 4000, 7))
    return [floats, dates, text, np.sort(random_bits("f2", 4000, 8)), np.arange(4000, dtype="u2"), np.full(4000, 7.0)]


@pytest.mark.parametrize("place", [None, 0, 1, 2000, 3999])
@pytest.mark.parametrize("turned", [1, -1])
@pytest.mark.parametrize("at", range(6))
def test_what_is_in_order_but_for_one_place_is_sorted_alike(
    at: int, turned: int, place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "SMALL", 1)
    monkeypatch.setattr(keys, "PIECE", 64)
    x = ordered_inputs()[at][::turned].copy()
    if place is not None:
        x[place] = x[(place + 1777) % len(x)]
    assert same(sort(x), np.sort(x))


@pytest.mark.parametrize("turned", [1, -1])
def test_what_is_in_order_is_not_scattered(turned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's sort of such keys takes little more than the copy: ours looks, and copies."""
    monkeypatch.setattr(Index, "of", None)
    for x in (np.arange(1 << 17)[::turned], np.full(1 << 17, 3.0), np.arange(1 << 17, dtype=">u4")[::turned]):
        found = sort(x)
        assert same(found, np.sort(x))
        assert not np.shares_memory(found, x)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "f2"])
def test_counting_in_plain_counters_is_a_sort(dtype: str) -> None:
    x = random_bits(dtype, 30_000, 4)
    assert same(counted(x, 2), np.sort(x))
