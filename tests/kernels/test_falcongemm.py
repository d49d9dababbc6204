"""FalconGEMM: the vendor's product, by schemes that Brent's equations vouch for, where the machine's rates say so."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels import gemm, gemm_weights
from assay.kernels.falcongemm import KERNEL, claims, contenders, cpu, drawn, errors, exact, h200_rows, profiles
from assay.kernels.falcongemm.compare import read_shapes
from assay.kernels.falcongemm.decision import (
    TRIED,
    Plan,
    Profile,
    blocks,
    choose,
    frontier,
    least,
    plausible,
    roofline,
    settle,
    work,
)
from assay.kernels.falcongemm.profiles import measure
from assay.kernels.falcongemm.schemes import Scheme, brent, library, named, nested, read_scheme, rotated, transposed
from assay.kernels.falcongemm.shapes import shapes
from assay.kernels.falcongemm.triton_source import source
from assay.record import timing
from assay.record.errors import BadInput
from assay.record.types import NotMeasured
from tests.oracles.gemm import by_scheme, product

NAMES = sorted(library())


# ------------------------------------------------------------------------------------------------- schemes


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_satisfies_brents_equations(name: str) -> None:
    assert brent(named(name))
    assert named(name).saved > 0


@given(st.sampled_from(NAMES), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_every_scheme_multiplies_whole_numbers_exactly(name: str, seed: int) -> None:
    scheme, random = named(name), np.random.default_rng(seed)
    a = random.integers(-99, 100, (scheme.m, scheme.k)).tolist()
    b = random.integers(-99, 100, (scheme.k, scheme.n)).tolist()
    assert by_scheme(a, b, scheme) == product(a, b)


@given(st.sampled_from(["strassen", "winograd", "2x2x3", "2x3x3"]), st.sampled_from(["strassen", "2x3x3", "2x3x4"]))
@settings(max_examples=8, deadline=None)
def test_symmetries_and_nesting_give_schemes_again(one: str, other: str) -> None:
    made = nested(named(one), named(other))
    assert made.rank == named(one).rank * named(other).rank
    for way in (made, rotated(named(other)), transposed(named(other)), rotated(transposed(named(one)))):
        assert brent(way)


@given(st.sampled_from(NAMES), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_one_wrong_sign_is_noticed(name: str, seed: int) -> None:
    scheme, random = named(name), np.random.default_rng(seed)
    u = scheme.u.copy()
    r, block = random.integers(len(u)), random.integers(u.shape[1])
    u[r, block] += 1
    assert not brent(Scheme("broken", scheme.m, scheme.k, scheme.n, u, scheme.v, scheme.w))


def test_known_ranks() -> None:
    found = {one.size for one in library().values()}
    assert {"<2,2,2;7>", "<2,2,3;11>", "<2,3,3;15>", "<2,3,4;20>", "<3,3,3;23>", "<2,2,5;18>", "<4,4,4;49>"} <= found


def test_schemes_are_read_from_files_of_both_forms(tmp_path: Path) -> None:
    strassen = named("strassen")
    told = {
        "m": 2,
        "k": 2,
        "n": 2,
        **{name: getattr(strassen, name).tolist() for name in "uv"},
        "w": strassen.w.T.tolist(),
    }
    (tmp_path / "mine.json").write_text(json.dumps(told))
    assert read_scheme(tmp_path / "mine.json").size == "<2,2,2;7>"
    by_columns = strassen.w.reshape(2, 2, 7).transpose(1, 0, 2).reshape(4, 7)  # as AlphaTensor numbers the result
    tables: Any = {"2,2,2": np.array([strassen.u.T, strassen.v.T, by_columns], np.int32)}
    np.savez(tmp_path / "theirs.npz", **tables)
    assert brent(read_scheme(tmp_path / "theirs.npz"))
    told["u"][0][0] = 5
    (tmp_path / "broken.json").write_text(json.dumps(told))
    with pytest.raises(BadInput, match="Brent"):
        read_scheme(tmp_path / "broken.json")
    for name, text in (("no.json", "[]"), ("short.json", "{"), ("gone.json", None)):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(BadInput, match=name):
            read_scheme(tmp_path / name)


# ------------------------------------------------------------------------------------------------ products


@given(
    st.sampled_from(NAMES), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from(["f4", "f8"]),
    st.sampled_from("CFS"), st.sampled_from("CFS"), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_products_of_whole_numbers_are_exact_whatever_the_size_and_the_layout(
    name: str, m: int, k: int, n: int, kind: str, left: str, right: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    a, b = (_laid(random.integers(-9, 10, size).astype(kind), how) for size, how in (((m, k), left), ((k, n), right)))
    got = gemm(a, b, name)
    assert got.dtype == a.dtype
    assert got.tolist() == product(a.astype(int).tolist(), b.astype(int).tolist())


def _laid(x: Any, how: Any) -> Any:
    """The same matrix by rows, by columns, or as every second entry of a larger one."""
    if how == "S":
        wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
        wide[::2, ::3] = x
        return wide[::2, ::3]
    return np.array(x, order=how)


@given(
    st.sampled_from(["strassen", "winograd", "3x3x3"]),
    st.integers(0, 10**6),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)
@settings(max_examples=25, deadline=None)
def test_what_is_not_finite_comes_out_as_in_the_vendors_product(name: str, seed: int, odd: float) -> None:
    random = np.random.default_rng(seed)
    a, b = random.random((13, 11)), random.random((11, 17))
    (a if seed % 2 else b)[random.integers(11), random.integers(11)] = odd
    np.testing.assert_array_equal(gemm(a, b, name), a @ b)


def test_sums_that_overflow_are_done_again() -> None:
    a = np.full((4, 4), 3e38, np.float32)
    right = gemm(a, np.eye(4, dtype=np.float32), "strassen")
    np.testing.assert_array_equal(right, a)


def test_every_way_agrees() -> None:
    pair = drawn((96, 120, 72), "float32", 3)
    right = KERNEL.oracle(pair)
    for way in contenders((96, 120, 72)):
        if not way.missing():
            assert KERNEL.check(pair, way.run(way.prepare(pair)), right).right, way.name
    spoilt = pair[0] @ pair[1]
    spoilt[5, 7] += 1
    assert not KERNEL.check(pair, spoilt, right).right


def test_weights_are_combined_once() -> None:
    a, b = drawn((60, 50, 40), "float64", 1)
    kept = gemm_weights(b, rows=60, scheme="2x3x3")
    np.testing.assert_allclose(gemm(a, kept), a @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gemm(a[:7], kept), a[:7] @ b, rtol=1e-12, atol=1e-12)
    with pytest.raises(BadInput, match="50 rows"):
        gemm(a[:, :4], kept)


def test_torch_tensors_come_back_as_such() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(8, 6), torch.ones(6, 4).T.contiguous().T
    assert torch.equal(gemm(a, b, "strassen"), a @ b)
    with pytest.raises(BadInput, match="bfloat16"):
        gemm(a.bfloat16(), b.bfloat16())


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), "3 columns"),
        (np.ones((0, 3)), np.ones((3, 2)), "empty"),
        (np.ones(3), np.ones((3, 2)), "1 dimensions"),
        ([[1.0]], np.ones((1, 1)), "list"),
        (np.ones((2, 2), int), np.ones((2, 2), int), "float32 or float64"),
        (np.ones((2, 2), complex), np.ones((2, 2), complex), "complex128"),
        (np.ones((2, 2), np.float16), np.ones((2, 2), np.float16), "float16"),
        (np.ones((2, 2)), np.ones((2, 2), np.float32), "cast one"),
    ],
)
def test_what_cannot_be_multiplied_gets_one_line(a: object, b: object, told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        gemm(a, b)
    assert "\n" not in str(caught.value)


def test_a_product_larger_than_memory_gets_one_line() -> None:
    a = np.broadcast_to(np.float32(1), (1 << 22, 1))
    with pytest.raises(BadInput, match="are free"):
        gemm(a, a.T)


def test_an_unknown_scheme_gets_one_line() -> None:
    with pytest.raises(BadInput, match="no scheme 'fastest'"):
        gemm(np.ones((2, 2)), np.ones((2, 2)), "fastest")


# ------------------------------------------------------------------------------------------------ the decision


def toy(rate: float = 1e11, moving: float = 1e-10, off: float = 0.0) -> Profile:
    """A machine whose products all have the same rate."""
    return Profile("toy", "f32", 4, (256, 4096), (rate,) * 8, moving, 0.0, 0.0, off)


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000), st.floats(0, 0.2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_scheme_is_only_chosen_for_more_than_the_margin(m: int, k: int, n: int, off: float, static: bool) -> None:
    profile = toy(off=off)
    choice = choose(profile, (m, k, n), static=static)
    least = min(choice.seconds.values())
    if choice.scheme:
        assert choice.seconds[choice.name] == least
        assert choice.seconds["vendor"] / least > 1.02 + off - 1e-12
    else:
        assert choice.seconds["vendor"] / least <= 1.02 + off + 1e-12


PLANS = [Plan(named(name), "staged") for name in ("winograd", "2x3x3", "3x2x3", "winograd of winograd", "strassen")]


@given(st.integers(64, 20_000), st.integers(64, 20_000), st.integers(64, 20_000), st.floats(0, 0.3))
@settings(max_examples=60, deadline=None)
def test_what_is_tried_is_what_the_models_own_error_lets_gain(m: int, k: int, n: int, shy: float) -> None:
    profile, shape = replace(toy(), shy=shy), (m, k, n)
    predicted = {plan: profile.seconds(shape, plan.scheme, way=plan.way) for plan in PLANS}
    hoped = [plan for plan in PLANS if predicted[plan] * 1.02 < profile.seconds(shape, None) * np.exp(shy)]
    tried = plausible(profile, shape, PLANS)
    assert tried == sorted(hoped, key=lambda plan: predicted[plan])[:TRIED]


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_trial_takes_only_what_gained_in_every_round(times: list[list[float]]) -> None:
    seconds = dict(enumerate(times))
    taken = settle(seconds, 0)
    if taken:
        assert all(vendor > 1.02 * ours for vendor, ours in zip(seconds[0], seconds[taken], strict=True))
        assert np.median(seconds[taken]) == min(np.median(x) for name, x in seconds.items() if name)


def test_products_in_one_call_have_rates_of_their_own() -> None:
    profile = replace(toy(), batched=(2e11,) * 8)
    shape, scheme = (4096, 4096, 4096), named("winograd")
    staged, batched = (profile.seconds(shape, scheme, way=way) for way in ("staged", "batched"))
    assert profile.seconds(shape, scheme) == batched < staged
    assert replace(profile, floor=100.0).seconds(shape, scheme) == 100.0


@given(st.integers(64, 9000), st.integers(64, 9000), st.integers(64, 9000), st.sampled_from(PLANS))
@settings(max_examples=40, deadline=None)
def test_no_prediction_lies_below_the_least(m: int, k: int, n: int, plan: Plan) -> None:
    profile = toy()
    assert least((m, k, n), plan.scheme, 4, 1e11, 1e10) <= profile.seconds((m, k, n), plan.scheme) * (1 + 1e-9)


def test_the_frontier_moves_with_the_ridge() -> None:
    sizes = [frontier(toy(rate)) or 1 << 17 for rate in (1e10, 1e11, 1e12, 1e14)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    h20, h200 = (
        frontier(roofline("g", "bf16", 2, peak, bw, 0.75)) for peak, bw in ((148e12, 4.0e12), (989e12, 4.8e12))
    )
    assert h20 is not None
    assert h200 is None or h200 > 4 * h20


@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(NAMES), st.sampled_from([1, 16])
)
@settings(max_examples=40, deadline=None)
def test_blocks_cover_the_matrices(m: int, k: int, n: int, name: str, align: int) -> None:
    scheme = named(name)
    high, deep, wide = blocks((m, k, n), scheme, align)
    assert scheme.m * high >= m
    assert scheme.k * deep >= k
    assert scheme.n * wide >= n
    assert high % align == deep % align == wide % align == 0
    assert scheme.m * (high - align) < m


def test_rates_between_the_grids_sizes_lie_between_its_rates() -> None:
    profile = Profile("toy", "f32", 4, (100, 1000), tuple(np.linspace(1e9, 8e9, 8).tolist()), 0.0, 0.0, 0.0)
    assert profile.rate((100, 100, 100)) == pytest.approx(1e9)
    assert profile.rate((1000, 1000, 5000)) == pytest.approx(8e9)
    assert 1e9 < profile.rate((300, 100, 100)) < 5e9
    assert work((8, 8, 8), named("strassen"), static=True).moved < work((8, 8, 8), named("strassen")).moved


def test_a_machine_is_measured() -> None:
    with cpu.one_thread():
        found = measure("f32", (64, 128))
    assert len(found.rates) == 8
    assert found.moving > 0
    assert found.off >= 0
    assert choose(found, (64, 64, 64)).seconds["vendor"] > 0


def test_the_grid_of_shapes() -> None:
    every = shapes()
    assert len(set(every)) == 960
    assert {m for m, _, _ in every} == set(range(512, 20481, 512))


# -------------------------------------------------------------------------------------------- study and command


def test_parts_of_the_study() -> None:
    row = exact("2x3x4", 5)
    assert row["brent"]
    assert row["whole_numbers"]
    assert row["nested"]
    grown = errors(96, "float32", 0)
    assert 0 < grown["strassen"]["growth"] < grown["winograd of winograd"]["growth"] * 10


def test_claims_about_an_h200_wait_for_its_rows() -> None:
    if h200_rows():
        pytest.skip("measured on an H200")
    import polars as pl

    for claim in claims:
        if claim.id in ("prefill", "slowest", "model-alone", "where-chosen", "regret-h200"):
            with pytest.raises(NotMeasured, match="on an H200 only"):
                claim.measure(pl.DataFrame())


def test_shapes_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("M,K,N,dtype\n8,16,32,FP32\n8,16,32,f32\n4,4,4,bfloat16\n")
    assert [str(one) for one in read_shapes(tmp_path / "mine.csv")] == ["8 x 16 x 32 f32", "4 x 4 x 4 bf16"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column"),
        ("m,k\n1,2\n", "no column n"),
        ("m,k,n\n", "no shapes"),
        ("m,k,n\n1,2\n", "line 2: n is"),
        ("m,k,n\n0,2,3\n", "line 2: m is 0"),
        ("m,k,n\n1.5,2,3\n", "whole number"),
        ("m,k,n\n1,nan,3\n", "whole number"),
        ("m,k,n\n99999999999,2,3\n", "expected"),
        ("m,k,n,dtype\n1,2,3,int4\n", "int4"),
        (b"\xff\xfe\x00\x01", "text"),
    ],
)
def test_bad_shapes_get_one_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=told) as caught:
        read_shapes(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="cannot read"):
        read_shapes(tmp_path / "gone.csv")


# ------------------------------------------------------------------------------------------------- GPU sources


@pytest.mark.parametrize("name", ["strassen", "winograd of winograd", "3x2x3"])
def test_sources_for_a_gpu_name_every_product_once(name: str) -> None:
    scheme, text = named(name), source(named(name))
    ast.parse(text)
    assert text.count("tl.store(out + ") >= 2 * scheme.rank + scheme.m * scheme.n
    assert ("def fused(" in text) == (scheme.m * scheme.n <= 4)


INTERPRETED = """
import torch
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patched(tensor, *more):  # Triton 3.6 cannot make an index of NumPy 2.4's arrays of one entry
    found = patch(tensor, *more)
    tensor.__index__ = lambda self: int(self.handle.data.item())
    return found
interpreter._patch_lang_tensor = patched
from assay.kernels.falcongemm import gpu
from assay.kernels.falcongemm.schemes import named
gpu.PASS = (8, 32, 4)
torch.manual_seed(0)
for way in ("staged", "batched", "grouped", "fused"):
    a, b = torch.randint(-4, 5, (37, 41)).float(), torch.randint(-4, 5, (41, 23)).float()
    if way == "staged":
        a[1, 2] = float("nan")
    b = b if way == "grouped" else b.T.contiguous().T
    flag = None if way == "staged" else torch.zeros(1, dtype=torch.int32)
    out = gpu.multiply(a, b, named("winograd"), way, tile=(16, 16, 16, 4, 2), flag=flag)
    assert torch.equal(out.nan_to_num(99.0), (a @ b).nan_to_num(99.0)), way
print("right")
"""


@pytest.mark.slow
def test_triton_kernels_in_the_interpreter() -> None:
    if not find_spec("triton") or not find_spec("torch"):
        pytest.skip("needs torch and triton")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "right", done.stderr[-2000:]


# ------------------------------------------------------------------------------------- what is believed of a machine

FINE = Profile(
    "toy", "f32", 4, (192, 640, 1920), (1e10,) * 27, 1e-10, 1e-11, 0.0, threads=1, batched=(),
    measured=f"{datetime.now(UTC):%Y-%m-%d}, on this machine",
)  # fmt: skip


def test_no_scheme_is_promised_to_gain_more_than_the_multiplications_it_saves() -> None:
    """A profile of a loaded machine, where a product on all threads took twice as long as products on one each."""
    loaded = replace(FINE, batched=(4e10,) * 27, threads=2)
    for one in library().values():
        gain = loaded.product((4000, 4000, 4000)) / loaded.seconds((4000, 4000, 4000), one) - 1
        assert gain <= 1 / (1 - one.saved) - 1 + 1e-12
    assert "4 times" in profiles.unphysical(loaded)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(FINE, rates=(4e15,) * 27), replace(FINE, rates=(0.0,) * 27), replace(FINE, moving=float("nan")),
        replace(FINE, off=0.75), replace(FINE, measured="2020-01-01"), replace(FINE, rates=(1e9,) * 27),
        replace(FINE, batched=(2.1e10,) * 27),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be_is_thrown_away(
    wrong: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    measured: list[Profile] = [FINE, wrong, wrong]
    monkeypatch.setattr(profiles, "measure", lambda dtype: measured.pop(0))
    monkeypatch.setattr(profiles, "_rate", lambda *_: 1e10)
    monkeypatch.setattr(timing.Gauge, "__exit__", lambda self, *_: setattr(self, "free", 8.0))
    profiles._HERE.clear()
    assert profiles.here("f32") == FINE
    (path,) = tmp_path.glob("machines/gemm-*")
    path.write_bytes(msgspec.json.encode(asdict(wrong)))
    monkeypatch.setattr(profiles, "measure", lambda dtype: FINE)
    profiles._HERE.clear()
    assert profiles.here("f32") == FINE
    path.unlink()
    profiles._HERE.clear()
    monkeypatch.setattr(profiles, "measure", lambda dtype: measured.pop(0))
    found = profiles.here("f32")
    if profiles.unphysical(wrong):
        assert "not believed" in found.measured
        assert choose(found, (4000, 4000, 4000)).scheme is None
        assert not path.exists()
    profiles._HERE.clear()


def test_a_profile_of_a_busy_machine_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.setattr(profiles, "measure", lambda dtype: FINE)
    monkeypatch.setattr(timing.Gauge, "__exit__", lambda self, *_: setattr(self, "free", 0.3))
    profiles._HERE.clear()
    assert "not kept" in profiles.here("f32").measured
    assert not list(tmp_path.glob("machines/gemm-*"))
    profiles._HERE.clear()
