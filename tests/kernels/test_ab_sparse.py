"""AB-Sparse: sizes by head are the best there are, kernels are exact on what they read, a trained model answers."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import runpy
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels import ab_sparse, allocate, sparse_decode, summarise_kv
from assay.kernels.ab_sparse import blocks, compare, ragged, reading, retrieval_lm, text_models
from assay.kernels.ab_sparse.allocation import SIZES, greedy, total
from assay.kernels.ab_sparse.carry import carry, learnt, seen
from assay.kernels.engine import elsewhere
from assay.record.errors import BadInput
from assay.record.types import NotMeasured
from assay.sim.random import stream
from tests.oracles import sparse_attention as oracle

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install 'assay[torch]'")

# ------------------------------------------------------------------------------------------ allocation


@given(st.integers(1, 5), st.sampled_from([(8, 16, 32, 64, 128), (4, 16, 64), (8, 32)]), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_sizes_are_the_best_of_all_combinations(heads: int, sizes: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    recall = random.random((heads, len(sizes)))
    if seed % 2:  # as recall mostly is: falling with the size, and with ties
        recall = np.round(np.sort(recall, 1)[:, ::-1], 1)
    mean = int(random.choice(sizes))
    found = allocate(recall, sizes, mean)
    value, _ = oracle.best_sizes(recall, sizes, mean)
    assert abs(total(recall, found, sizes) * heads - float(value)) < 1e-12
    assert sum(Fraction(1, int(size)) for size in found) <= Fraction(heads, mean)
    assert total(recall, found, sizes) >= total(recall, [mean] * heads, sizes) - 1e-12
    assert total(recall, found, sizes) >= total(recall, greedy(recall, sizes, mean), sizes) - 1e-12


def test_greedy_can_miss_the_best() -> None:
    # Head 0 gains most for its blocks; head 1 gains more, but then no longer has the blocks it takes.
    recall = [[0.5, 0.5, 0.0, 0.0], [0.9, 0.0, 0.0, 0.0]] + [[0.1, 0.1, 0.1, 0.1]] * 6
    sizes = (8, 16, 32, 64)
    assert total(recall, allocate(recall, sizes, 32), sizes) > total(recall, greedy(recall, sizes, 32), sizes)


@pytest.mark.parametrize(
    ("recall", "words"),
    [
        ([[0.5] * 4], "5 sizes"),
        ([[2.0] * 5], "between 0 and 1"),
        ([[float("nan")] * 5], "between 0 and 1"),
        ([], "5 sizes"),
    ],
)
def test_recalls_that_are_none_get_one_line(recall: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        allocate(recall)


# ------------------------------------------------------------------------------------------ blocks and kernels


@given(st.integers(1, 3), st.integers(1, 3), st.integers(300, 700), st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_a_decode_step_is_what_the_obvious_way_gives(heads: int, group: int, tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    keys, values = random.normal(size=(2, 1, heads, tokens, 8)).astype(np.float32)
    q = random.normal(size=(1, heads * group, 8)).astype(np.float32)
    sizes = random.choice(SIZES, heads)
    cache = summarise_kv(keys, values, sizes, bits=32)
    out = sparse_decode(cache, q, budget=128)
    for h in range(heads):
        mine = slice(h * group, (h + 1) * group)
        wanted, _ = oracle.decode(
            keys[0, h], values[0, h], q[0, mine], int(sizes[h]), 128, cache.where.sink, cache.where.end
        )
        assert np.abs(out[0, mine] - wanted).max() < 1e-4


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_best_blocks_are_those_of_a_stable_sort(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scored = random.integers(0, 9, (3, 40)).astype(np.float32)  # many are equal
    wanted = np.sort(np.argsort(-scored, axis=1, kind="stable")[:, :count], axis=1)
    assert (blocks.best(scored, count) == wanted).all()


@given(st.sampled_from(SIZES), st.sampled_from(["cuboid", "ball"]), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_score_is_never_below_any_product_in_the_block(size: int, kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    keys, q = random.normal(size=(256, 8)).astype(np.float32), random.normal(size=(3, 8)).astype(np.float32)
    scored = blocks.scores(q, blocks.summarise(keys, size, kind, bits=32))
    products = (q @ keys.T).reshape(3, -1, size).max(2)
    assert (scored >= products - 1e-4).all()


def test_estimates_from_bytes_are_those_of_the_numbers_they_stand_for() -> None:
    random = np.random.default_rng(1)
    keys = random.normal(size=(2, 2, 2600, 16)).astype(np.float32)  # two groups of tokens
    q = random.normal(size=(2, 6, 16)).astype(np.float32)
    calibration = random.normal(size=(40, 6, 16)).astype(np.float32)
    cache = summarise_kv(keys, keys, [8, 64], queries=calibration)
    scored = ragged.estimate(cache, q)
    for c in range(2):
        for h, size in enumerate((8, 64)):
            how = learnt(calibration[:, 3 * h : 3 * h + 3].reshape(-1, 16))
            corners = blocks.summarise(keys[c, h, cache.where.sink : cache.where.end], size, bits=4, carry=how)
            wanted = blocks.scores(q[c, 3 * h : 3 * h + 3], corners).max(0)
            assert np.abs(scored[c, cache.first[h] : cache.first[h + 1]] - wanted).max() < 1e-3


@pytest.mark.parametrize("tokens", [4128, 5000])
def test_four_bits_take_a_quarter_of_sixteen_and_equally_many_blocks_equally_many_bytes(tokens: int) -> None:
    keys = np.random.default_rng(0).normal(size=(1, 8, tokens, 64)).astype(np.float32)
    ours, uniform = (summarise_kv(keys, keys, sizes) for sizes in (ab_sparse.MIXES["one fine head"], [32] * 8))
    assert ours.nbytes == uniform.nbytes
    body = keys[0, 0, 16:4112]
    four, sixteen = (blocks.summarise(body, 32, bits=bits).nbytes for bits in (4, 16))
    groups = len(body) // blocks.GROUP
    assert four - 2 * 4 * 64 * groups == sixteen / 4  # and a scale and a zero for each channel of both corners
    assert four * 8 == ours.nbytes or tokens != 4128


# ------------------------------------------------------------------------------------------ rounding


@given(st.integers(1, 5), st.integers(1, 40), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_groups_codes_do_not_change_when_later_blocks_come(group: int, later: int, known: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(3 * group + later, 12)).astype(np.float32)
    how = learnt(random.normal(size=(30, 6))) if known else None
    before, after = (blocks.codes(x, 4, group, how) for x in (numbers[: 3 * group], numbers))
    assert (after[0][: 3 * group] == before[0]).all()
    for old, new in zip(before[1:], after[1:], strict=True):
        assert (new[:3] == old).all()


@given(st.integers(1, 9), st.integers(1, 30), st.sampled_from([2, 4, 8]), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_codes_are_those_of_the_obvious_way(group: int, count: int, bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, 8)).astype(np.float32)
    how = learnt(random.normal(size=(20, 4)))
    for carried in (None, how):
        code, scale, zero = blocks.codes(numbers, bits, group, carried)
        wanted = oracle.codes(numbers, scale, zero, bits, group, carried)
        # A tie may fall either way where sums are added in another order.
        assert np.abs(code.astype(int) - wanted).max() <= (carried is not None)
        assert (code != wanted).mean() < 0.02


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_without_queries_no_number_is_off_by_more_than_half_a_step(seed: int) -> None:
    numbers = np.random.default_rng(seed).normal(size=(50, 8)).astype(np.float32)
    _, scale, _ = blocks.codes(numbers, 4, 16)
    off = np.abs(blocks.rounded(numbers, 4, 16) - numbers)
    assert (off <= np.repeat(scale.astype(np.float32), 16, 0)[:50] * 0.5 + 4e-3).all()  # ends are halves, too


def test_what_queries_see_is_less_off_where_rounding_knows_them() -> None:
    random = np.random.default_rng(2)
    mixed = random.normal(size=(6, 16)).astype(np.float32)
    calibration, asked = (random.normal(size=(300, 6)).astype(np.float32) @ mixed for _ in range(2))
    numbers = random.normal(size=(400, 32)).astype(np.float32)
    nearest, carried = (blocks.rounded(numbers, 4, 64, how) - numbers for how in (None, learnt(calibration)))
    by_nearest, by_carried = (float(((seen(asked) @ off.T) ** 2).mean()) for off in (nearest, carried))
    assert by_carried < 0.5 * by_nearest
    assert (carried**2).mean() > (nearest**2).mean()  # though numbers themselves are farther off


def test_queries_that_tell_nothing_leave_the_nearest_steps() -> None:
    numbers = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    alike = blocks.codes(numbers, 4, 10, carry(np.eye(6)))[0]
    assert (alike == blocks.codes(numbers, 4, 10)[0]).all()


@needs_torch
@pytest.mark.parametrize("known", [False, True])
def test_codes_in_torch_are_the_packages(known: bool) -> None:
    import torch

    from assay.kernels.ab_sparse import codes_torch

    random = np.random.default_rng(3)
    numbers = random.normal(size=(2, 45, 16)).astype(np.float32)
    hows = [learnt(random.normal(size=(50, 8))) for _ in range(2)]
    order, shares = (torch.from_numpy(np.stack(x)) for x in zip(*hows, strict=True))
    got = codes_torch.codes(torch.from_numpy(numbers), 4, 16, (order, shares) if known else None)
    for head, how in enumerate(hows):
        wanted = blocks.codes(numbers[head], 4, 16, how if known else None)
        assert (got[0][head].numpy() != wanted[0]).mean() < 0.01
        for x, y in zip(got[1:], wanted[1:], strict=True):
            assert np.abs(x[head].float().numpy() - y.astype(np.float32)).max() < 1e-3


def test_what_is_kept_is_sink_window_and_the_chosen_blocks() -> None:
    where = blocks.frame(500)
    assert (where.sink, where.end) == (16, 400)
    mask = blocks.kept(where, np.array([[1, 5]]), 64)[0]
    assert np.flatnonzero(~mask).tolist() == [*range(16, 80), *range(144, 336)]
    weights = np.random.default_rng(0).random((1, 500)).astype(np.float32)
    assert abs(float(blocks.recall(weights, np.array([[1, 5]]), where, 64)[0]) - weights[0, mask].sum()) < 1e-3


@pytest.mark.parametrize("sizes", [[8], [8, 16, 32]])
def test_caches_and_sizes_that_do_not_go_together_get_one_line(sizes: list[int]) -> None:
    with pytest.raises(BadInput, match="do not go together"):
        summarise_kv(np.ones((1, 2, 300, 8)), np.ones((1, 2, 300, 8)), sizes)


def test_calibration_queries_of_another_shape_get_one_line() -> None:
    with pytest.raises(BadInput, match=r"calibration queries must be \[steps, a multiple of 2, 8\]"):
        summarise_kv(np.ones((1, 2, 300, 8)), np.ones((1, 2, 300, 8)), [8, 8], queries=np.ones((4, 3, 8)))


# ------------------------------------------------------------------------------------------ the GPU's source


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
    reason="pip install triton torch",
)
@pytest.mark.parametrize(
    ("cases", "count"), [(["1"], 3), pytest.param(["0", "1", "2", "3"], 11, marks=pytest.mark.slow)]
)
def test_triton_kernels_are_right_in_the_interpreter(cases: list[str], count: int) -> None:
    script = Path(__file__).with_name("triton_interpreted.py")
    done = subprocess.run(
        [sys.executable, str(script), *cases], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert len(rows) == count
    for row in rows:
        assert row["same"]
        assert row["scores"] < 0.02  # products in half precision
        assert row["out"] < 2e-3


# ------------------------------------------------------------------------------------------ the trained model


@needs_torch
def test_reading_everything_gives_the_models_own_answers() -> None:
    import torch

    from assay.sim import tiny_lm

    torch.set_num_threads(1)
    context = retrieval_lm.context(400, stream(3, "test"))
    book = reading.read(ab_sparse.trained(), context)
    said, _ = reading.ask(ab_sparse.trained(), book, reading.Way(()), 0)
    ids = np.column_stack([np.tile(context.ids, (len(context.questions), 1)), context.questions])
    with torch.no_grad():
        logits, _ = tiny_lm.forward(ab_sparse.trained(), ids)
    assert said.tolist() == logits[:, -1].argmax(1).tolist()
    heads = book.heads
    for way in (reading.Way((8,) * heads), reading.Way((64,) * heads, "ball", 4)):  # a budget of all blocks
        again, _ = reading.ask(ab_sparse.trained(), book, way, book.where.body)
        assert again.tolist() == said.tolist()


@needs_torch
def test_the_stored_model_says_where_it_comes_from_and_answers_unseen_questions() -> None:
    from assay.sim import tiny_lm

    _, provenance = tiny_lm.load(retrieval_lm.WEIGHTS)
    assert [stage["steps"] for stage in provenance["stages"]] == [stage.steps for stage in retrieval_lm.STAGES]
    context = retrieval_lm.context(4000, stream(9, "unseen"))
    book = reading.read(ab_sparse.trained(), context)
    found = reading.right(book, reading.ask(ab_sparse.trained(), book, reading.Way(()), 0)[0])
    assert found["accuracy"] > 0.5  # guessing gives one in eight


def test_contexts_hold_what_is_asked() -> None:
    made = retrieval_lm.context(2048, stream(0, "test"))
    assert len(made.ids) == 2048
    for question, answer, task in zip(made.questions, made.answers, made.tasks, strict=True):
        subject = question - retrieval_lm._ASK
        told = made.ids[(made.ids >= retrieval_lm._FACT) & (made.ids < retrieval_lm._NOISE)] - retrieval_lm._FACT
        values = told[told // retrieval_lm.VALUES == subject] % retrieval_lm.VALUES
        counts = np.bincount(values, minlength=retrieval_lm.VALUES)
        assert (len(values) == 1) == (task == 0)
        assert counts.argmax() == answer


# ------------------------------------------------------------------------------------------ models of natural text


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """`benchmarks/h200_ab_quality.py`, whose masks in torch stand for the kernels, and a small model and context."""
    folder = Path(__file__).parents[2] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        found = runpy.run_path(str(folder / "h200_ab_quality.py"), run_name="read")
    from assay.sim import tiny_lm

    shape = tiny_lm.Shape(vocab=64, layers=2, width=32, heads=4, head=16, kv_heads=2, hidden=32, attn="gqa")
    made, random = tiny_lm.init(shape, 0), np.random.default_rng(0)
    sharper = {name: x * (2 if name.endswith(("query", "key")) else 1) for name, x in made.tensors.items()}
    words = found["Words"](1, 2, 3, np.arange(10, 40), np.arange(40, 60))
    text = random.integers(0, 60, 3000)
    text[::7] = words.newline
    return found | {
        "model": tiny_lm.Params(shape, sharper), "context": found["context"](text, 672, words, random), "words": words,
    }  # fmt: skip


@needs_torch
def test_going_on_behind_all_of_a_context_is_what_the_model_itself_says(script: dict[str, Any]) -> None:
    import torch

    from assay.sim import tiny_lm

    model, context = script["model"], script["context"]
    book = script["Book"](model, context)
    with torch.no_grad():
        said = script["ask"](model, book, None)
        for task, before in (("text", context.ids[:-1]), ("passage", context.ids), ("needle", context.ids)):
            wanted, _ = tiny_lm.forward(model, np.concatenate([before, context.tails[task][-1, :-1]]))
            assert (said[task][-1] - wanted[0, -script["ASKED"][task] :]).abs().max() < 1e-4


@needs_torch
@pytest.mark.parametrize(("kind", "bits"), [("cuboid", 16), ("cuboid", 4), ("ball", 16), ("ball", 4)])
def test_masks_in_torch_keep_what_the_packages_blocks_keep(script: dict[str, Any], kind: str, bits: int) -> None:
    import torch

    model = script["model"]
    book = script["Book"](model, script["context"])
    queries: list[Any] = []
    with torch.no_grad():
        script["ask"](model, book, None, queries)
        book.carried = script["carries"]({each: script["moments"](queries, each) for each in ("cuboid", "ball")})
        recall, _ = script["recalls"](book, queries)
    where = blocks.frame(book.tokens)
    assert (where.sink, where.end, blocks.budget(where, 0.04)) == (script["SINK"], book.end, book.budget)
    ends = np.cumsum([0] + [ids[:, 1:].size for ids in script["context"].tails.values()])
    for head, size in enumerate((8, 128, 16, 32)):
        layer, h = divmod(head, 2)
        keys, q = book.keys[layer, h].numpy(), queries[layer][h].numpy()
        carry = learnt(q.reshape(-1, 16), kind) if bits == 4 else None
        corners = blocks.summarise(keys[where.sink : where.end], size, kind, bits, carry)
        picked = blocks.picks(q.transpose(1, 0, 2).reshape(-1, 16), corners, book.budget // size, group=2)
        each = np.mean([blocks.recall(blocks.attention(one, keys), picked, where, size) for one in q], 0)
        wanted = np.mean([each[a:b].mean() for a, b in itertools.pairwise(ends)])
        assert abs(recall[size, kind, bits, bits == 4][head] - wanted) < 1e-4


@needs_torch
def test_contexts_of_natural_text_hold_what_is_asked(script: dict[str, Any]) -> None:
    text, tails = script["context"].ids.tolist(), script["context"].tails
    assert len(text) == 672
    for tail in [*tails["passage"].tolist(), *tails["needle"].tolist()]:
        assert any(text[i : i + len(tail)] == tail for i in range(len(text)))
    assert len({tuple(name) for name in tails["needle"][:, :5].tolist()}) == len(tails["needle"])


def test_what_was_measured_on_natural_text_is_whole_and_keeps_the_rules() -> None:
    for model in (text_models.LARGE, text_models.SMALL, text_models.SHORT):
        sizes = {way: text_models.rows()[model, way]["sizes"].split() for way in ("ab-sparse", "quest-32")}
        assert sum(Fraction(1, int(size)) for size in sizes["ab-sparse"]) <= Fraction(len(sizes["quest-32"]), 32)
        for method in ("full", "ab-sparse", "ab-sparse spent", "quest-32", "quest-32 int4", "quest-8 int4"):
            assert len(text_models.column(model, method, "accuracy")) == 32
        # Found by nobody, so not part of any accuracy.
        assert text_models.column(model, "full", "needle").max() == 0


# ------------------------------------------------------------------------------------------ claims and commands


def test_claims_about_the_gpu_wait_for_its_rows_and_are_judged_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(elsewhere, "rows", lambda name, part: tuple(rows) if part == "ab-sparse" else ())
    ab_sparse.on_h200.cache_clear()
    try:
        decode = next(claim for claim in ab_sparse.claims if claim.id == "decode")
        with pytest.raises(NotMeasured, match="on an H200 only"):
            decode.measure(pl.DataFrame())
        for model in ("a", "b"):
            for method, seconds in (("quest-32", 3e-5), *((f"ab-sparse, {mix}", 2e-5) for mix in ab_sparse.MIXES)):
                rows.append(
                    {"model": model, "tokens": 1, "batch": 4, "method": method, "seconds": seconds, "right": True}
                )
        ab_sparse.on_h200.cache_clear()
        assert decode.measure(pl.DataFrame()).value == pytest.approx(1.5)
        rows[0]["right"] = False  # a wrong result wins nothing
        ab_sparse.on_h200.cache_clear()
        assert decode.measure(pl.DataFrame()).n == 2
    finally:
        ab_sparse.on_h200.cache_clear()


def test_a_users_dump_is_read_and_bad_ones_get_one_line(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    keys, q = random.normal(size=(2, 600, 8)), random.normal(size=(4, 4, 8))
    good, path = {"keys": keys, "values": keys, "queries": q}, tmp_path / "kv.npz"
    np.savez(path, **good)
    dump = compare.read_kv(path, 0.04)
    caches, calibrated = compare._caches(dump, 32)
    assert calibrated.shape == (2, 5)
    for name, cache in caches.items():
        got = compare._sparse(cache, dump)(None)
        assert compare._check(dump, got, None).right, name
    oracle_kept, ours = (
        compare.recalls(dump, caches[name], slice(2, None)).mean() for name in ("oracle top tokens", "ab-sparse")
    )
    assert 0 < ours <= 1
    assert oracle_kept <= 1
    bad: dict[str, dict[str, Any]] = {
        "no array": {"keys": keys, "values": keys},
        "same shape": good | {"values": keys[:, 1:]},
        "not finite": good | {"keys": np.full_like(keys, np.nan)},
        "do not go with": good | {"queries": random.normal(size=(4, 3, 8))},
        "at least 288": {"keys": keys[:, :100], "values": keys[:, :100], "queries": q},
        "must be numbers": good | {"queries": np.array([[["a"]]])},
    }
    for words, arrays in bad.items():
        np.savez(path, **arrays)
        with pytest.raises(BadInput, match=words):
            compare.read_kv(path, 0.04)
    path.write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="npz"):
        compare.read_kv(path, 0.04)
