"""ETAP: exact whatever lies behind a sequence's end, in both forms, with a fourth of the products."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels import etap_mla, mla_decode
from assay.kernels.engine import elsewhere
from assay.kernels.etap_mla import bounds, interpreted
from assay.kernels.etap_mla.compare import read_dump
from assay.kernels.etap_mla.cpu import Problem, decode
from assay.kernels.etap_mla.plan import plan
from assay.kernels.etap_mla.reference import CLOSE, compared, exact
from assay.record.errors import BadInput
from assay.record.types import NotMeasured
from tests.oracles import mla

# ------------------------------------------------------------------------------------------------------------- plans


@given(st.lists(st.integers(0, 700), min_size=1, max_size=12), st.integers(1, 40), st.sampled_from([16, 64, 128]))
@settings(max_examples=60, deadline=None)
def test_shares_are_equal_and_cover_every_block_once(lengths: list[int], workers: int, block: int) -> None:
    made = plan(lengths, workers, block)
    covered = [[] for _ in lengths]  # type: list[list[int]]
    for sequence, first, last in made.pieces.tolist():
        assert first < last
        covered[sequence] += range(first, last)
    assert covered == [list(range(-(-length // block))) for length in lengths]
    sizes = np.diff(made.pieces[:, 1:], axis=1).ravel()
    shares = [int(sizes[a:b].sum()) for a, b in zip(made.workers, made.workers[1:], strict=False)]
    assert max(shares) - min(shares) <= 1
    for sequence, (a, b) in enumerate(zip(made.sequences, made.sequences[1:], strict=False)):
        assert (made.pieces[a:b, 0] == sequence).all()
    assert made.sequences[-1] == len(made.pieces)


@given(st.lists(st.integers(0, 900), min_size=1, max_size=9), st.integers(1, 40), st.sampled_from([16, 64]))
@settings(max_examples=60, deadline=None)
def test_whole_shares_never_go_on_into_another_sequence(lengths: list[int], workers: int, block: int) -> None:
    made = plan(lengths, workers, block, whole=True)
    seen = [(s, b) for s, first, last in made.pieces.tolist() for b in range(first, last)]
    assert seen == [(s, b) for s, length in enumerate(lengths) for b in range(-(-length // block))]
    assert len(made.workers) - 1 <= max(1, workers)
    busy = sum(length > 0 for length in lengths)
    if 0 < busy <= workers:
        assert (np.diff(made.workers) == 1).all()
        blocks = np.diff(made.pieces[:, 1:], axis=1).ravel()
        per = sum(-(-length // block) for length in lengths)
        assert blocks.max() <= -(-per // max(1, workers - busy + 1)) + 1


# -------------------------------------------------------------------------------------------------------- on the CPU


@given(st.integers(0, 70), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_the_reference_is_plain_attention(length: int, heads: int, seed: int) -> None:
    p = interpreted.poisoned([length], heads, math.nan, seed)
    right = [mla.attention(q.astype(float), p.latents(0).astype(float), p.scale) for q in p.query[0]]
    assert np.abs(exact(p)[0] - np.array(right)).max() < 1e-12


@given(
    st.lists(st.one_of(st.sampled_from([0, 1, 63, 64, 65]), st.integers(0, 300)), min_size=1, max_size=6),
    st.integers(1, 19),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.sampled_from([16, 64, 100]),
)
@settings(max_examples=10, deadline=None)
def test_every_entry_is_within_2e_5_whatever_lies_behind_the_end(
    lengths: list[int], heads: int, poison: float, seed: int, workers: int, page: int
) -> None:
    p = interpreted.poisoned(lengths, heads, poison, seed, page)
    found = compared(decode(p, plan(p.lengths, workers, 64)), exact(p))
    assert found["cosine"] <= CLOSE
    assert found["largest"] <= CLOSE


def test_scores_that_differ_by_hundreds_do_not_overflow() -> None:
    p = interpreted.poisoned([200, 130], 4, math.nan, 1, scale=5.0)
    assert compared(decode(p, plan(p.lengths, 3, 64)), exact(p))["largest"] <= CLOSE


def test_every_way_agrees() -> None:
    p = interpreted.poisoned([130, 1, 65], 16, math.nan, 0)
    right = exact(p)
    for way in etap_mla.contenders(2):
        if not way.missing():
            assert etap_mla.KERNEL.check(p, way.run(way.prepare(p)), right).right, way.name


def test_weights_rounded_to_bfloat16_cost_what_a_gpu_loses() -> None:
    p = interpreted.poisoned([1000], 4, math.nan, 0)
    exactly, rounded = (compared(decode(p, plan(p.lengths, 2, 64), r), exact(p)) for r in (False, True))
    assert exactly["rmse"] < 1e-6 < rounded["rmse"]
    assert rounded["cosine"] < CLOSE


def test_latents_side_by_side_and_in_half_precision() -> None:
    random = np.random.default_rng(0)
    query, latent = random.standard_normal((2, 3, 576)), random.standard_normal((2, 70, 576)).astype(np.float16)
    latent[1, 5:] = np.nan
    out = mla_decode(query, latent, lengths=[70, 5])
    alone = mla_decode(query[1:], latent[1:, :5])
    assert np.abs(out[1] - alone[0]).max() < 1e-6
    assert out.dtype == np.float32


@pytest.mark.parametrize(
    ("query", "latent", "lengths", "word"),
    [
        (np.ones((1, 2, 576)), np.ones((1, 3, 512)), None, "576"),
        (np.ones((2, 2, 576)), np.ones((1, 3, 576)), None, r"\[1, heads, 576\]"),
        (np.ones((1, 2, 576)), np.ones((1, 3, 576)), [4], "0 to 3"),
        (np.ones((1, 2, 576)), np.ones((1, 3, 576)), [1.5], "whole numbers"),
        (np.ones((1, 2, 576)), np.full((1, 3, 576), np.nan), [2], "finite"),
        (np.ones((1, 2, 576), int), np.ones((1, 3, 576)), None, "floats"),
    ],
)
def test_what_is_no_decode_step_gets_one_line(query: Any, latent: Any, lengths: Any, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        mla_decode(query, latent, lengths)


def test_dumps(tmp_path: Path) -> None:
    assert read_dump(Path("examples/latents.npz")).lengths.tolist() == [40, 33]
    np.savez(tmp_path / "half.npz", latent=np.ones((1, 3, 576), np.float16))
    np.savez(tmp_path / "bf16.npz", latent=np.ones((1, 3, 576), np.uint16), query=np.ones((1, 1, 576)))
    np.savez(tmp_path / "objects.npz", latent=np.array([{}], object), query=np.ones((1, 1, 576)))
    (tmp_path / "text.npz").write_text("no archive")
    for name, word in (("half", "query"), ("bf16", "float16 or float32"), ("objects", "plain"), ("text", "plain")):
        with pytest.raises(BadInput, match=word):
            read_dump(tmp_path / f"{name}.npz")


# ------------------------------------------------------------------------------------- the GPU's source, interpreted

CASES: list[dict[str, Any]] = [
    {"form": "transposed", "heads": 16, "lengths": [65], "seed": 0},
    {"form": "padded", "heads": 16, "lengths": [65], "seed": 0},
    {"form": "transposed", "heads": 5, "lengths": [65, 0], "seed": 2, "loads": "ahead", "dtype": "float32"},
    {"form": "narrow", "heads": 16, "lengths": [20], "seed": 3, "block": 32, "workers": 1},
]
triton = pytest.mark.skipif(bool(interpreted.missing()), reason=interpreted.ABSENT)


@triton
def test_the_gpus_source_is_right_and_counts_its_products() -> None:
    found = interpreted.asked(CASES)
    for case, answer in zip(CASES, found, strict=True):
        assert answer["cosine"] <= CLOSE, case
    assert found[2]["largest"] <= CLOSE  # in single precision entry by entry
    assert found[1]["macs"] == 4 * found[0]["macs"]


@triton
@pytest.mark.slow
def test_eight_heads_are_padded_eightfold() -> None:
    eight = {"heads": 8, "lengths": [63], "seed": 1, "poison": "inf"}
    turned, padded = interpreted.asked(
        [eight | {"form": "transposed", "loads": "bulk"}, eight | {"form": "padded", "loads": "ahead"}]
    )
    assert max(turned["cosine"], padded["cosine"]) <= CLOSE
    assert padded["macs"] == 8 * turned["macs"]


@triton
@pytest.mark.slow
@pytest.mark.parametrize("form", ["transposed", "padded", "narrow"])
def test_every_way_of_loading_in_every_form(form: str) -> None:
    cases = [
        {"form": form, "heads": heads, "lengths": [1, 63, 64, 65, 200, 0], "seed": 5, "loads": loads, "block": block,
         "dtype": kind, "poison": poison}
        for loads, block in (("async", 64), ("bulk", 64), ("ahead", 64), ("async", 128), ("ahead", 128))
        for heads, kind, poison in ((16, "float16", "nan"), (20, "bfloat16", "inf"))
    ]  # fmt: skip
    assert max(answer["cosine"] for answer in interpreted.asked(cases)) <= CLOSE


HOPPER = """
import re, json, torch, types
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor as M
driver.set_active(types.SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0, get_current_stream=lambda d: 0))
from assay.kernels.etap_mla import gpu
f, i = torch.float32, torch.int32
for form, kernel in (("transposed", gpu.transposed), ("padded", gpu.upright), ("narrow", gpu.upright)):
    done = kernel.warmup(M(torch.bfloat16), M(torch.bfloat16), None, None, *[M(i)] * 4, M(f), M(f), 1.0, 64, 16,
        HEADS=gpu.tile_heads(form, 16), BLOCK=64, PAGE=64, LOADS="async", STAGES=2, num_warps=8, grid=(1,))
    tiles = set(re.findall(r"(?:wgmma.mma_async|mma).sync.aligned.(m[0-9]+)n", done.asm["ptx"]))
    print(json.dumps([form, sorted(tiles), done.metadata.shared]))
"""


@triton
@pytest.mark.slow
def test_compiled_for_hopper_both_forms_use_tiles_of_64_rows_and_fit() -> None:
    done = subprocess.run([sys.executable, "-c", HOPPER], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {form: (tiles, shared) for form, tiles, shared in map(json.loads, done.stdout.splitlines())}
    assert rows["transposed"][0] == rows["padded"][0] == ["m64"]
    assert rows["narrow"][0] == ["m16"]
    assert max(shared for _, shared in rows.values()) <= 232_448


TURNED = Path(etap_mla.__file__).with_name("turned.cu")


@triton
def test_the_form_by_hand_asks_for_the_shared_memory_that_its_source_lays_out() -> None:
    from assay.kernels.etap_mla import by_hand

    told = dict(re.findall(r"^#define (\w+) ([^/\n]+)", TURNED.read_text(encoding="utf-8"), re.MULTILINE))
    sizes: dict[str, int] = {}
    for name in ("HEADS", "SLOTS", "PANEL", "THIRD", "PART", "QUERIES", "WEIGHTS", "HIGHEST", "BARRIERS"):
        sizes[name] = eval(told[name], {}, sizes)
    assert by_hand.SHARED == sizes["BARRIERS"] + 2 * 8 * sizes["SLOTS"] <= 232_448
    assert by_hand.FORM == etap_mla.BY_HAND


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
def test_the_form_by_hand_compiles_for_hopper_and_keeps_its_sums_in_registers(tmp_path: Path) -> None:
    command = ["nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "turned.cubin"), str(TURNED)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores" in done.stderr
    assert "serialized" not in done.stderr  # what the compiler says where products must wait for each other


# ------------------------------------------------------------------------------------------------- claims and bounds


def test_padding_costs_on_an_h20_and_not_on_an_h200() -> None:
    assert 2.3 < bounds.gain(16, bounds.roof("h20")) < 3.3
    assert bounds.gain(16, bounds.roof("h200")) == 1.0
    assert bounds.gain(64, bounds.roof("h20")) == 1.0
    assert "memory bounds both" in bounds.reason(16, bounds.roof("h200"))


def row(what: str, form: str, seconds: float, **more: Any) -> dict[str, Any]:
    spread = {"seconds": seconds, "low": 0.99 * seconds, "high": 1.01 * seconds, "rounds": 15}
    facts = {"heads": 16, "batch": 16, "bytes": 16 * 65536 * 1152, "flops": 1e11, "cosine": 1e-7, "rmse": 2e-5}
    return {"part": "etap-mla", "what": what, "form": form, **facts, **spread, **more}


def test_claims_wait_for_the_gpus_rows_and_judge_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(elsewhere, "rows", lambda name, part: tuple(found))
    measures = {claim.id: claim.measure for claim in etap_mla.claims}
    for name in ("flashmla", "fa3", "bandwidth", "never-slower", "few", "narrow", "many-heads"):
        with pytest.raises(NotMeasured, match="on an H200 only"):
            measures[name](None)
    found += [row("context", "transposed", 3.4e-4, context=65536), row("context", "padded", 3.5e-4, context=65536)]
    found += [row("heads", f, s, context=16384, heads=8) for f, s in (("transposed", 2e-4), ("padded", 1e-4))]
    found += [row("heads", "padded", 3e-4, context=16384, heads=128)]
    found += [row("context", "narrow", 1.7e-4, context=65536), row("ragged", "narrow", 1e-4, lengths="odd")]
    found += [row("heads", "transposed", 4e-4, context=16384, heads=128)]
    found += [row("few", f, s, sms=16) for f, s in (("transposed", 1e-3), ("padded", 1.6e-3))]
    found += [row("ragged", f, 1e-4, lengths="odd") for f in ("transposed", "padded")]
    found += [row("accuracy", "transposed", 1.0, seed=seed) for seed in (1, 2)]
    monkeypatch.setattr(bounds, "roof", lambda name: bounds.Roof(name, 4.4e12, 7.7e14, ""))
    faster = measures["flashmla"](None)
    assert faster.value == pytest.approx(35 / 34)
    assert faster.low < 35 / 34 < faster.high
    assert "memory bounds both" in faster.cases
    assert measures["never-slower"](None).value == pytest.approx(2 / 3)  # the pair with 8 heads fails
    assert measures["bandwidth"](None).value == pytest.approx(16 * 65536 * 1152 / 4.4e12 / 3.4e-4)
    found += [row("context", etap_mla.BY_HAND, 3.1e-4, context=65536)]
    assert measures["bandwidth"](None).value == pytest.approx(16 * 65536 * 1152 / 4.4e12 / 3.1e-4)
    assert measures["bandwidth"](None).cases == "transposed by hand, 65536 tokens"
    assert measures["narrow"](None).value == pytest.approx(0.5)
    assert (
        measures["narrow"](None).cases
        == "the narrow form is faster in 1 of 2 cases, with 16 heads from 65536 tokens on"
    )
    assert measures["many-heads"](None).value == pytest.approx(0.75)
    assert measures["few"](None).value == pytest.approx(1.6)
    assert measures["rmse"](None).value == pytest.approx(2e-5)
    with pytest.raises(NotMeasured, match="FlashAttention-3"):
        measures["fa3"](None)


def test_a_problem_knows_its_tokens() -> None:
    p = Problem(np.ones((2, 1, 576), np.float32), np.zeros((2, 64, 576), np.float32), np.array([[1], [0]], np.int32),
                np.array([3, 4], np.int32), 1.0)  # fmt: skip
    assert p.tokens == 7
    assert p.latents(1).shape == (4, 576)
