"""Division by whole shifted inverses: exact on every pair, off by one at most, a few products long."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.kernels import bigint_div
from assay.kernels.bigint_div import compare, dividing, layout, pairs
from assay.kernels.bigint_div.dividing import divide, divide_limbs, gcd, mulmod, multiply
from assay.kernels.engine import elsewhere
from assay.kernels.engine.cuda import OnCpu, missing
from assay.record.errors import BadInput
from assay.record.types import NotMeasured
from tests.oracles import shifted_inverse

NUMBERS = st.integers(0, 700).flatmap(lambda bits: st.integers(-(1 << bits), 1 << bits)) | st.builds(
    lambda power, by, sign: sign * ((1 << power) + by),
    st.integers(0, 20_000),
    st.integers(-2, 2),
    st.sampled_from((1, -1)),
)


def split(made: pairs.Pairs) -> tuple[list[int], list[int]]:
    return [u for u, _ in made], [v for _, v in made]


def check(made: pairs.Pairs) -> Counter[int]:
    """All pairs come out as Python has them; gives how often quotients were off by how much before."""
    u, v = split(made)
    assert list(zip(*divide(u, v, "cpu"), strict=True)) == [divmod(*pair) for pair in made]
    off: Counter[int] = Counter()
    for group in dividing._alike(u, v):
        found = divide_limbs(layout.limbs_of([u[i] for i in group]), layout.limbs_of([v[i] for i in group]), "cpu")
        off.update(found.fixes.sum(1).tolist())
    return off


# ---------------------------------------------------------------------------------------------- exactness


@given(st.lists(st.tuples(NUMBERS, NUMBERS.filter(bool)), max_size=6))
def test_quotients_and_remainders_are_pythons(made: pairs.Pairs) -> None:
    u, v = split(made)
    q, r = divide(u, v, "cpu")
    assert list(zip(q, r, strict=True)) == [divmod(*pair) for pair in made]


@pytest.mark.parametrize(("bits", "count"), [(256, 1500), (2048, 400), (1 << 15, 40)])
def test_random_and_adversarial_pairs_are_exact_and_off_by_one_at_most(bits: int, count: int) -> None:
    random = np.random.default_rng(bits)
    off = check(pairs.adversarial(random, bits, count) + pairs.anyhow(random, bits, count))
    assert set(off) <= {-1, 0, 1}
    assert off[1] and off[0]


@pytest.mark.slow
def test_a_hundred_thousand_pairs_are_exact() -> None:
    random = np.random.default_rng(1)
    off: Counter[int] = Counter()
    for bits, count in ((256, 20_000), (1024, 15_000), (4096, 13_000), (1 << 14, 1600), (1 << 16, 300), (1 << 18, 100)):
        off += check(pairs.adversarial(random, bits, count) + pairs.anyhow(random, bits, count))
    assert sum(off.values()) == 100_000
    assert set(off) <= {-1, 0, 1}


def test_a_quotient_that_is_too_large_is_taken_back() -> None:
    """A first inverse errs upward, by the limbs of the divisor it does not see: just below a multiple that shows."""
    v = (1 << 96) + (1 << 33) - 1
    assert check([(v * q - 1, v) for q in range((1 << 31) + 1, (1 << 31) + 9)]) == {-1: 8}


def test_the_papers_text_on_pythons_integers_is_off_by_two_at_most() -> None:
    off: Counter[int] = Counter()
    for width in (8, 16, 32):
        random = np.random.default_rng(width)
        for u, v in pairs.adversarial(random, 30 * width, 1500) + pairs.anyhow(random, 30 * width, 500):
            q, r, missed = shifted_inverse.divide(u, v, width)
            assert (q, r) == divmod(u, v)
            off[missed] += 1
    assert set(off) == {0, 1, 2}


def test_long_and_lopsided_numbers() -> None:
    random = np.random.default_rng(3)
    lengths = ((600_000, 300_000), (300_000, 40), (270_000, 262_200), (140_000, 9_000), (50, 300_000))
    check([(pairs.bits_of(random, a), pairs.bits_of(random, b)) for a, b in lengths])


def test_rounding_is_proven_exact_for_every_transform() -> None:
    for bits in range(6, 26):
        points, digit = (1 << bits, 16) if 1 << bits <= layout.SHORT else (2 << bits, 8)
        assert layout.proven(points, digit) < 0.5
    roots = layout.roots(1 << 10)
    assert np.abs(roots[2:] ** 2 - np.repeat(roots[1:512], 2)[:1022] * np.tile([1, -1], 511)).max() < 4e-16


# ------------------------------------------------------------------------------------------------ the face


@pytest.mark.parametrize(
    ("u", "v"),
    [(7, 2), (-7, 2), (7, -2), (-7, -2), (0, 5), (0, -5), (3, 10**30), (-3, 10**30), (10**30, 10**30), (2**64, 2**32)],
)
def test_signs_and_small_numbers(u: int, v: int) -> None:
    assert divide(u, v) == divmod(u, v)


def test_batches_lists_and_limbs() -> None:
    assert divide([], []) == ([], [])
    assert divide([10, 21], 4) == ([2, 5], [2, 1])
    assert divide(np.int64(9), np.int64(4)) == (2, 1)  # type: ignore[call-overload]
    q, r = divide(np.array([[1, 2, 3]], np.uint32), np.array([[7, 1]], np.uint32))
    assert (layout.numbers_of(q)[0], layout.numbers_of(r)[0]) == divmod(1 + (2 << 32) + (3 << 64), 7 + (1 << 32))
    empty = np.empty((0, 4), np.uint32)
    assert divide(empty, empty)[0].shape == (0, 4)


def test_short_pairs_are_left_to_python_unless_a_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    limbs = dividing.divide_limbs

    def watched(u: Any, v: Any, device: str) -> Any:
        asked.append(len(u))
        return limbs(u, v, device)

    monkeypatch.setattr(dividing, "divide_limbs", watched)
    short, long = (2**14_000 + 1, 2**7_000 - 1), (2**33_000 + 1, 2**16_500 - 1)
    made = [short, long, (-short[0], short[1])]
    assert list(zip(*divide(*split(made)), strict=True)) == [divmod(*pair) for pair in made]
    assert asked == [1]
    assert divide(*short, "cpu") == divmod(*short)
    assert asked == [1, 1]


def test_what_is_made_of_divisions() -> None:
    random = np.random.default_rng(5)
    a, b = ([pairs.bits_of(random, 900) for _ in range(5)] for _ in range(2))
    assert multiply(a, b) == [x * y for x, y in zip(a, b, strict=True)]
    assert mulmod(a, b, b[::-1]) == [x * y % m for x, y, m in zip(a, b, b[::-1], strict=True)]
    assert gcd([x * 12 for x in a], [y * 18 for y in b]) == [
        math.gcd(x * 12, y * 18) for x, y in zip(a, b, strict=True)
    ]


@pytest.mark.parametrize("bad", [([1, 2], [1]), ([1.5], [2]), (["7"], [2]), ([True], [1]), ([1], [None])])
def test_what_is_no_pair_gets_one_line(bad: tuple[Any, Any]) -> None:
    with pytest.raises(BadInput):
        divide(*bad)


def test_zero_divides_nothing() -> None:
    for u, v in ((1, 0), ([1, 2], [1, 0]), (np.ones((2, 1), np.uint32), np.zeros((2, 1), np.uint32))):
        with pytest.raises(ZeroDivisionError, match="is zero"):
            divide(u, v)  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="divisor 0 is zero"):
        divide(1, 0)
    with pytest.raises(BadInput, match="no device"):
        divide(1, 1, "tpu")
    with pytest.raises(BadInput, match="uint32"):
        divide(np.ones((1, 2)), np.ones((1, 2)))  # type: ignore[call-overload]


@pytest.mark.skipif(not missing(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    with pytest.raises(BadInput, match="divide cannot run on a GPU here"):
        divide(7, 2, "gpu")


# -------------------------------------------------------------------------------------------- the CUDA source

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def on_fibres(made: pairs.Pairs, setting: layout.Setting) -> Counter[int]:
    u, v = split(made)
    found = dividing.on_device(layout.limbs_of(u), layout.limbs_of(v), OnCpu, setting, grid=2)
    assert list(zip(layout.numbers_of(found.q), layout.numbers_of(found.r), strict=True)) == [
        divmod(*pair) for pair in made
    ]
    return Counter(found.fixes.sum(1).tolist())


@needs_compiler
def test_the_cuda_source_divides_exactly() -> None:
    """Products of over 20 limbs by transforms of 64 to 256 points, two warps, several blocks of a quotient."""
    random, setting = np.random.default_rng(7), layout.Setting(64, 20, 4)
    made = [(3, 1), *pairs.adversarial(random, 4096, 60), *pairs.anyhow(random, 4096, 20), (1 << 4096, 1 << 2048)]
    off = on_fibres(made, setting)
    assert set(off) <= {-1, 0, 1}
    assert off[1] and off[0]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [layout.Setting(32, 24, 3), layout.Setting(128, 64, 3), layout.Setting(32, 1 << 12, 4)]
)
def test_the_cuda_source_divides_long_numbers_exactly(setting: layout.Setting) -> None:
    random = np.random.default_rng(8)
    made = pairs.adversarial(random, 36_000, 120) + pairs.anyhow(random, 36_000, 30) + pairs.halves(random, 1 << 15, 10)
    assert set(on_fibres(made, setting)) <= {-1, 0, 1}


@needs_compiler
def test_the_cuda_source_counts_and_multiplies() -> None:
    random, setting = np.random.default_rng(9), layout.Setting(64, 20, 4)
    u, v = (layout.limbs_of(part) for part in split(pairs.halves(random, 4096, 3)))
    at = layout.room(u.shape[1], v.shape[1])
    device = OnCpu(dividing.SOURCE, **setting.defines(at))
    out, counts = np.zeros((3, 2 * v.shape[1]), np.uint32), np.zeros((3, 3), np.uint64)
    device.launch(
        "multiply", 2, 64, v, v.shape[1], v, v.shape[1], out, 3, *layout.arguments(np, at, 2), at.words, counts
    )
    assert layout.numbers_of(out) == [x * x for x in layout.numbers_of(v)]
    assert counts.tolist() == [[1, 128, 0]] * 3
    found = dividing.on_device(u, v, OnCpu, setting, grid=2)
    here = dividing.on_cpu(u, v)
    assert (found.counts[:, 0] == here.counts[:, 0]).all()  # the same products, in the same order
    assert bigint_div.counted(found.counts[0], 4096) < 7.5


# ------------------------------------------------------------------------------------------- study and command


def test_a_division_is_counted_in_full_length_products() -> None:
    for bits in bigint_div.BITS:
        u, v = (layout.limbs_of(part) for part in split(pairs.halves(np.random.default_rng(bits), bits, 1)))
        assert 2 < bigint_div.counted(dividing.on_cpu(u, v).counts[0], bits) < 4


def stored(bits: int, method: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"method": method, "bits": bits, "pairs": 4096, "seconds": seconds, "low": 0.9 * seconds,
            "high": 1.1 * seconds, "rounds": 9, "right": 4096, "counts": [20, 3 * (bits // 32), 0], **more}  # fmt: skip


def test_the_claims_judge_what_the_gpu_gave_and_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    named, nothing = {claim.id: claim.measure for claim in bigint_div.claims}, pl.DataFrame()
    monkeypatch.setattr(elsewhere, "rows", lambda name, part: ())
    names = ("multiplications", "sizes", "optimum", "batches", "classical", "copies", "classical-products")
    for name in names:
        with pytest.raises(NotMeasured, match="on an H200 only"):
            named[name](nothing)
    taken = {"division": 4.0, "product": 1.0, "gmp": 24.0, "classical division": 8.0, "check": 0.0,
             "division with copies": 8.0, "classical product": 2.0}  # fmt: skip
    rows = [stored(bits, method, taken[method]) for bits in bigint_div.BITS for method in taken]
    monkeypatch.setattr(elsewhere, "rows", lambda name, part: rows)
    values = {name: named[name](nothing).value for name in names}
    assert values == {
        "multiplications": 4.0,
        "sizes": 1.0,
        "optimum": pytest.approx(1 / 3),
        "batches": 1.0,
        "classical": 2.0,
        "copies": 3.0,
        "classical-products": 4.0,
    }
    rows[0] = stored(1 << 15, "division", 5.0)
    assert named["batches"](nothing).value < 1


@pytest.mark.parametrize("name", ["p.csv", "p.txt", "p.jsonl"])
def test_pairs_are_read_from_text(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    lines = {
        "p.csv": "u,v\n0xff,16\n-5,2\n",
        "p.txt": "# two\n0xff 16\n\n-5 2\n",
        "p.jsonl": '["0xff", 16]\n{"u": -5, "v": "2"}\n',
    }
    file.write_text(lines[name])
    assert compare.read_pairs(file) == ([255, -5], [16, 2])
    file.write_text(("9" * 5000 + " 7\n") if name != "p.jsonl" else f"[{'9' * 5000}, 7]\n")
    assert compare.read_pairs(file)[0][0] == 10**5000 - 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 2\n3 0\n", ":2: the divisor is zero"),
        ("1 2\n1 2 3\n", ":2: two whole"),
        ("x y\n", ":1: two whole"),
        ("", "no pair in it"),
    ],
)
def test_what_is_no_file_of_pairs_gets_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "p.txt"
    file.write_text(text)
    with pytest.raises(BadInput, match=told):
        compare.read_pairs(file)
    for path in (tmp_path / "none.csv", tmp_path / "p.xml"):
        with pytest.raises(BadInput, match=path.name):
            compare.read_pairs(path)
