"""Rings: within n eps whatever the order, the same bits everywhere, and plain where coding does not pay."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.training.ncclz import coders, fields, quantise
from assay.training.ncclz.arbiter import Speeds
from assay.training.ncclz.collectives import Choices, all_reduce, all_reduce_levels, cut, plain
from assay.training.ncclz.links import Link, link
from assay.training.ncclz.rivals import recompressed
from tests.oracles.coded_frames import ring

SPEEDS = Speeds(1e-10, 2e-9, 4e-9, 2e-9)
CODE = Choices(always=True, speeds=SPEEDS)
SLOW, QUICK = Link(1.25e8, shaped=True), Link(5e9, shaped=True)


def summed(parts: list[Any], eps: float | None, choices: Choices = CODE, on: Link = SLOW) -> list[Any]:
    return ring(parts, lambda port, x: all_reduce(port, x, eps, choices), on)


def exact(parts: list[Any]) -> Any:
    with np.errstate(invalid="ignore"):
        return np.sum([np.asarray(part, np.float64) for part in parts], axis=0)


@given(
    st.integers(2, 5), st.integers(0, 700), st.sampled_from([1e-5, 1e-3, 0.7]), st.integers(0, 2**32),
    st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, False, True]),
)  # fmt: skip
def test_sums_are_within_n_eps_and_the_same_bits_on_all_ranks(
    n: int, count: int, eps: float, seed: int, coder: int | None, predict: bool | None
) -> None:
    random = np.random.default_rng(seed)
    parts = [random.normal(0, 10 ** random.uniform(-3, 2), count).astype(np.float32) for _ in range(n)]
    found = summed(parts, eps, Choices(coder, predict, True, SPEEDS))
    assert (np.abs(found[0][0] - exact(parts)) <= n * eps).all()
    assert all(np.array_equal(out, found[0][0]) for out, _ in found)


def test_every_order_of_ranks_gives_the_same_bits_where_recompressing_does_not() -> None:
    parts = [fields.field("rough", 20_000, 3, rank) for rank in range(4)]
    parts[2][7], parts[1][7], parts[3][9] = np.float32(1e9), np.float32(-3e8), np.inf
    ours, theirs = set(), set()
    for order in list(permutations(range(4)))[::5]:
        some = [parts[k] for k in order]
        ours.add(summed(some, 1e-3)[0][0].tobytes())
        hops = ring(some, lambda port, x: recompressed(port, x, 1e-3)[0], SLOW)
        theirs.add(hops[0].tobytes())
    assert len(ours) == 1
    assert len(theirs) > 1


def test_what_is_not_finite_or_too_large_arrives_as_it_should() -> None:
    parts = [np.linspace(-1, 1, 30_000, dtype=np.float32) * (k + 1) for k in range(3)]
    parts[0][[5, 6, 7]] = np.nan, np.inf, 3e38
    parts[1][[6, 7, 8]] = -np.inf, 3e38, -1e20
    parts[2][29_999] = np.inf
    found, report = summed(parts, 1e-4)[0]
    assert (report.coded, report.outliers) == (True, 3)
    assert np.isnan(found[[5, 6]]).all()
    assert np.isinf(found[[7, 29_999]]).all()
    assert found[8] == np.float32(-1e20)
    rest = np.setdiff1d(np.arange(30_000), [5, 6, 7, 8, 29_999])
    assert (np.abs(found[rest] - exact(parts)[rest]) <= 3e-4).all()


@pytest.mark.parametrize("value", [0.0, 1 / 3, float(np.float32(1e-42)), 3e38, np.nan, np.inf])
@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_constants_of_every_kind(value: float, count: int) -> None:
    parts = [np.full(count, value, np.float32)] * 3
    with np.errstate(all="ignore"):
        found = summed(parts, 1e-6)[0][0]
        assert np.allclose(found, np.float32(3 * value), rtol=1e-6, atol=3e-6, equal_nan=True)


def test_alternating_extremes_fall_back_to_the_plain_ring() -> None:
    parts = [np.tile(np.array([3e38, -3e38], np.float32), 20_000) * s for s in (1, -1)]
    found, report = summed(parts, 1e-4)[0]
    assert not report.coded
    assert (found == 0).all()


def test_without_a_bound_the_sum_is_the_plain_rings_to_the_bit() -> None:
    parts = [fields.field("noise", 40_000, 1, rank) for rank in range(3)]
    off, _ = summed(parts, None)[0]
    assert off.tobytes() == ring(parts, plain, SLOW)[0].tobytes()


def test_small_messages_and_quick_links_are_left_alone_and_slow_links_coded() -> None:
    choices = Choices(speeds=SPEEDS)
    small = [fields.field("smooth", 1 << 14, 0, rank) for rank in range(2)]
    large = [fields.field("smooth", 1 << 17, 0, rank) for rank in range(2)]
    coded = [
        summed(parts, 1e-3, choices, on)[0][1].coded for parts, on in ((small, SLOW), (large, QUICK), (large, SLOW))
    ]
    assert coded == [False, False, True]


def test_ranks_that_disagree_are_told() -> None:
    with pytest.raises(ValueError, match="differ in size and eps"):
        ring([1e-3, 1e-4], lambda port, eps: all_reduce(port, np.ones(40_000, np.float32), eps, CODE), SLOW)
    with pytest.raises(ValueError, match="positive number"):
        summed([np.ones(4, np.float32)] * 2, -1.0)


# -------------------------------------------------------------------------------------------------------------- QSGD


@given(st.integers(2, 4), st.integers(1, 3000), st.integers(2, 8), st.integers(0, 2**32))
def test_levels_are_within_a_step_of_each_ranks_number(n: int, count: int, bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.normal(size=count).astype(np.float32) for _ in range(n)]
    found = ring(parts, lambda port, x: all_reduce_levels(port, x, bits, port.index + 1, CODE)[0], SLOW)
    scale = np.max([quantise.scales(part) for part in parts], axis=0)
    step = np.repeat(scale, quantise.BUCKET)[:count] / (2 ** (bits - 1) - 1)
    assert (np.abs(found[0] - exact(parts)) <= n * step * (1 + 1e-5)).all()
    assert all(np.array_equal(out, found[0]) for out in found)


def test_levels_are_right_in_the_mean() -> None:
    x = np.full(400_000, 0.3, np.float32)
    scale = np.ones(-(-len(x) // quantise.BUCKET), np.float32)
    for bits, key in ((2, 1), (4, 99)):
        levels = 2 ** (bits - 1) - 1
        codes = quantise.levelled(x, 0, scale, levels, key)
        assert abs(codes.mean() / levels - 0.3) < 5 * 0.5 / levels / len(x) ** 0.5
        assert set(np.unique(codes)) <= {int(0.3 * levels), int(0.3 * levels) + 1}


def test_levels_do_not_depend_on_where_frames_begin() -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    scale = quantise.scales(x)
    whole = quantise.levelled(x, 0, scale, 7, 5)
    cuts = [quantise.levelled(x[a:b], a, scale, 7, 5) for a, b in ((0, 777), (777, 778), (778, 5000))]
    assert np.array_equal(np.concatenate(cuts), whole)


# ------------------------------------------------------------------------------------------------------------- links


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_frames_cover_everything_once(count: int, parts: int) -> None:
    spans = [span for part in cut(count, parts) for span in part]
    assert [a for a, _ in spans] + [count] == [0] + [b for _, b in spans] or count == 0


@pytest.mark.parametrize("name", ["", "fast", "0gbit", "1gb", "-1gbit", "1e9"])
def test_what_is_no_link_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="1gbit"):
        link(name)


def test_the_grid_keeps_the_bound_with_the_rounding_to_float32() -> None:
    """The trap: 2 eps wide steps overstep by the last bit of a float32."""
    random = np.random.default_rng(0)
    for peak, eps in ((1.0, 2.0**-20), (1e30, 1e24), (5.0, 1e-3)):
        x = (random.uniform(-1, 1, 50_000) * peak).astype(np.float32)
        found, count = quantise.surveyed(x, eps)
        assert count == 0
        on, out = quantise.grid(eps, found), np.empty_like(x)
        quantise.restored(quantise.quantised(x, on, True), on.step, True, out)
        assert np.abs(out.astype(np.float64) - x).max() <= eps


def test_coders_of_frames_are_counted() -> None:
    parts = [fields.field("smooth", 1 << 16, 0, rank) for rank in range(2)]
    for coder in (coders.FIXED, coders.HUFFMAN):
        _, report = summed(parts, 1e-3, Choices(coder, None, True, SPEEDS))[0]
        assert report.frames[coder] == sum(report.frames) == 2


# ------------------------------------------------------------------------------------------------- kinds and refusals


@pytest.mark.parametrize("eps", [1e-300, 1e-14, 1e-10, 1e-3])
def test_double_precision_is_summed_in_double_precision(eps: float) -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(0, 0.01, 9000) for _ in range(3)]
    for out, _ in summed(parts, eps):
        assert out.dtype == np.float64
        assert np.abs(out - np.sum(parts, axis=0)).max() <= max(3 * eps, 1e-16)


@given(st.integers(0, 2**32), st.sampled_from([2.0**-149, 1e-42, 1e-12, 1e-5, 1e30]), st.sampled_from([2, 3]))
def test_bounds_hold_from_the_smallest_numbers_to_the_largest_of_either_kind(seed: int, eps: float, n: int) -> None:
    random = np.random.default_rng(seed)
    for kind in (np.float32, np.float64):
        scale = eps * 10.0 ** random.uniform(-3, 6, 500)
        with np.errstate(over="ignore", under="ignore"):
            parts = [(random.normal(size=500) * np.minimum(scale, 1e37)).astype(kind) for _ in range(n)]
        whole = exact(parts)
        bound = n * eps + np.abs(whole) * np.finfo(kind).eps * n + float(np.finfo(kind).smallest_subnormal)
        for out, _ in summed(parts, eps):
            assert (np.abs(out - whole) <= bound).all()


@pytest.mark.parametrize("reduce", ["eps", "levels", "plain"])
@pytest.mark.parametrize("choices", [Choices(speeds=SPEEDS), CODE])
def test_sizes_on_either_side_of_what_is_left_alone_are_refused_on_all_ranks(reduce: str, choices: Choices) -> None:
    parts = [np.ones(16_384 + (rank == 1), np.float32) for rank in range(3)]
    again = [np.ones(20_000, np.float32) for _ in range(3)]

    def job(port: Any, x: Any) -> list[str]:
        said = []
        for room in (x, again[port.index]):
            try:
                if reduce == "levels":
                    all_reduce_levels(port, room, 8, 1, choices)
                else:
                    all_reduce(port, room, None if reduce == "plain" else 1e-3, choices)
                said.append("")
            except ValueError as error:
                said.append(str(error))
        return said

    for first, second in ring(parts, job, SLOW):
        assert "differ in size and eps" in first
        assert "16385" in first
        assert second == "", "the ring is whole: a sum of equal sizes goes through"


@pytest.mark.parametrize(
    "wrong",
    [
        {"eps": -1.0}, {"eps": float("nan")}, {"x": np.ones(20_000, np.int32)}, {"x": np.ones(20_000, np.float64)},
        {"choices": CODE}, {"eps": None},
    ],
)  # fmt: skip
def test_one_rank_that_asks_for_something_else_stops_all_of_them(wrong: dict[str, Any]) -> None:
    def job(port: Any, x: Any) -> str:
        asked = {"x": x, "eps": 1e-3, "choices": Choices(speeds=SPEEDS)} | (wrong if port.index == 1 else {})
        with pytest.raises(ValueError) as found:
            all_reduce(port, **asked)
        return str(found.value)

    said = ring([np.ones(20_000, np.float32)] * 3, job, SLOW)
    assert all(said)
    assert said[0] == said[2]


def test_levels_of_rows_that_are_no_numbers_leave_their_neighbours_alone() -> None:
    parts = [np.full(8000, 0.5, np.float32) for _ in range(2)]
    parts[1][400:700] = np.nan
    parts[0][5000] = np.inf
    for out in ring(parts, lambda port, x: all_reduce_levels(port, x, 8, 1, CODE)[0], SLOW):
        assert np.flatnonzero(np.isnan(out)).tolist() == list(range(400, 700))
        assert np.flatnonzero(np.isinf(out)).tolist() == [5000]
        rest = np.delete(out, [*range(400, 700), 5000])
        assert np.abs(rest - 1.0).max() <= 2 * 0.5 / 127 * 1.001


def test_levels_of_nothing_but_nan_are_not_coded() -> None:
    parts = [np.full(8000, np.nan, np.float32), np.ones(8000, np.float32)]
    for out, report in ring(parts, lambda port, x: all_reduce_levels(port, x, 8, 1, CODE), SLOW):
        assert np.isnan(out).all()
        assert not report.coded
