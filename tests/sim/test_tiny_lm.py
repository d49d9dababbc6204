"""The small language model: its cache may be cut, joined and moved, and attention goes by position."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from assay.sim.random import stream  # noqa: E402
from assay.sim.tiny_lm import Cache, Shape, encode, forward, greedy, init, load, nll, save, text, train  # noqa: E402

torch.set_num_threads(1)
SHAPES = {
    "mla": Shape(vocab=64, layers=2, width=32, heads=2, head=8, latent=16, rotary=8, hidden=64),
    "gqa": Shape(vocab=64, layers=2, width=32, heads=4, kv_heads=2, head=8, hidden=64, attn="gqa"),
    "moe": Shape(vocab=64, layers=2, width=32, heads=2, head=8, hidden=64, experts=4, active=2),
}
PARAMS = {name: init(shape, seed=3) for name, shape in SHAPES.items()}
IDS = stream(0, "tiny-lm-tests").integers(0, 64, 40)


def test_importing_the_module_does_not_import_torch() -> None:
    code = "import sys, assay.sim.tiny_lm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_in_pieces_equals_prefill_at_once(name: str) -> None:
    whole, rows = forward(PARAMS[name], IDS)
    cache = None
    parts = []
    for piece in np.split(IDS, [7, 8, 30]):
        logits, cache = forward(PARAMS[name], piece, cache=cache)
        parts.append(logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert cache is not None and torch.allclose(cache.layers[1].free, rows.layers[1].free, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_attention_goes_by_position_and_not_by_place(name: str) -> None:
    _, rows = forward(PARAMS[name], IDS)
    shuffled = rows[stream(1, "order").permutation(30).tolist()]
    again, filled = forward(PARAMS[name], IDS[30:], np.arange(30, 40), shuffled)
    assert torch.allclose(again, forward(PARAMS[name], IDS)[0][:, 30:], atol=1e-5)
    assert filled.in_order().positions.tolist() == list(range(40))


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_in_the_middle_can_be_computed_among_rows_that_are_there(name: str) -> None:
    whole, rows = forward(PARAMS[name], IDS)
    middle = np.arange(12, 20)
    kept = [i for i in range(40) if i not in middle]
    logits, _ = forward(PARAMS[name], IDS[middle], middle, rows[kept])
    assert torch.allclose(logits, whole[:, 12:20], atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(["mla", "gqa"]), old=st.integers(0, 200_000), new=st.integers(0, 200_000))
def test_moved_keys_equal_keys_computed_at_the_new_place(name: str, old: int, new: int) -> None:
    """The rotary part of the first layer depends on token and position alone: moving it must be exact to 1e-5."""
    at = np.arange(10)
    _, there = forward(PARAMS[name], IDS[:10], old + at)
    _, here = forward(PARAMS[name], IDS[:10], new + at)
    moved = there.moved(new - old)
    assert torch.equal(moved.positions, here.positions)
    assert torch.allclose(moved.layers[0].rotary, here.layers[0].rotary, atol=1e-5)
    assert torch.equal(moved.layers[0].free, there.layers[0].free)


def test_moving_a_whole_prompt_changes_nothing() -> None:
    """All left context moves along, so even deep rows and logits stay."""
    whole, _ = forward(PARAMS["mla"], IDS, np.arange(40))
    _, first = forward(PARAMS["mla"], IDS[:30])
    logits, _ = forward(PARAMS["mla"], IDS[30:], np.arange(1030, 1040), first.moved(1000))
    assert torch.allclose(logits, whole[:, 30:], atol=1e-4)
    wrong, _ = forward(PARAMS["mla"], IDS[30:], np.arange(1030, 1040), first.relabelled(1000))
    assert not torch.allclose(wrong, whole[:, 30:], atol=1e-2)


def test_mla_keeps_fewer_numbers_than_gqa() -> None:
    sizes = {name: forward(PARAMS[name], IDS)[1].nbytes for name in ("mla", "gqa")}
    assert sizes == {"mla": 40 * 2 * (8 + 16) * 4, "gqa": 40 * 2 * 2 * 2 * 8 * 4}


def test_stopping_early_gives_the_first_layers() -> None:
    _, rows = forward(PARAMS["gqa"], IDS)
    _, early = forward(PARAMS["gqa"], IDS[20:], cache=rows[:20], layers=1)
    assert len(early.layers) == 1 and len(early) == 40
    assert torch.allclose(early.layers[0].rotary, rows.layers[0].rotary, atol=1e-5)


def test_training_learns_and_leaves_its_input_alone() -> None:
    params = init(SHAPES["moe"], seed=0)
    before = params.tensors["embed"].clone()
    batch = np.tile(np.arange(8), (4, 6))
    trained, losses = train(params, [batch] * 30, steps=30, stretch=16)
    assert losses[-1] < 0.3 * losses[0] and torch.equal(params.tensors["embed"], before)
    _, rows = forward(trained, np.arange(8))
    assert greedy(trained, 0, rows, tokens=3) == [1, 2, 3]
    again, same = train(params, [batch] * 30, steps=30, stretch=16)
    assert same == losses and torch.equal(again.tensors["embed"], trained.tensors["embed"])


@pytest.mark.parametrize("half", [False, True])
def test_a_stored_model_comes_back_with_its_provenance(tmp_path: Path, half: bool) -> None:
    path = tmp_path / "weights" / "m.safetensors"
    save(path, PARAMS, {"seed": 3, "steps": 0, "loss": 4.2}, half=half)
    models, provenance = load(path)
    assert provenance == {"seed": 3, "steps": 0, "loss": 4.2}
    assert {name: params.shape for name, params in models.items()} == SHAPES
    for name, params in models.items():
        wanted = PARAMS[name].tensors["embed"]
        assert torch.equal(params.tensors["embed"], wanted.half().float() if half else wanted)
    assert [file.name for file in path.parent.iterdir()] == ["m.safetensors"]


def test_text_is_the_same_for_a_seed_and_its_answers_are_in_it() -> None:
    assert text(4) == text(4) != text(5)
    said = text(4, sentences=200).split(" ? ")
    thing = said[0].rsplit("is ", 1)[-1] if " is " in said[0] else said[0].rsplit("put ", 1)[-1]
    assert f"put {thing} in the" in said[0]
    assert max(encode(text(4))) < 256
    assert float(nll(torch.zeros(2, 64), [0, 1]).mean()) == pytest.approx(np.log(64))


def test_join_keeps_rows_as_they_are() -> None:
    _, rows = forward(PARAMS["gqa"], IDS)
    joined = Cache.join([rows[:5], rows[5:]])
    assert torch.equal(joined.layers[1].free, rows.layers[1].free) and len(joined) == 40


@pytest.mark.parametrize("wrong", [{"attn": "mha"}, {"experts": 3}, {"active": 2}])
def test_impossible_shapes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"attn|experts"):
        Shape(**wrong)  # type: ignore[arg-type]
