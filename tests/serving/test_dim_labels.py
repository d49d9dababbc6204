"""Labels: every dimension of every matrix product and attention of twelve models comes from where it should."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.serving.dooly import dim_labels
from assay.serving.dooly.dim_labels import MIX, MODEL_CONFIG, NUM_REQ, NUM_TOK, Labelled, merge, product, reshape
from assay.serving.dooly.torch_model import CONFIGS, Shape, shape_of

LABELS = [NUM_TOK, NUM_REQ, MODEL_CONFIG, MIX, None]


def expected(shape: Shape, dense: bool) -> set[tuple[tuple[int | str, ...], ...]]:
    """The matrix products of a layer and the head, by hand from the configuration."""
    d, h, hd = shape.hidden, shape.heads, shape.head_dim
    found: set[tuple[tuple[int | str, ...], ...]] = {(("R", d), (d, shape.vocab))}
    if shape.kv_rank:
        widths = [(d, h * (hd + shape.rope_dim)), (d, shape.kv_rank + shape.rope_dim), (h * shape.value_dim, d)]
    else:
        widths = [(d, (h + 2 * shape.kv_heads) * hd), (h * hd, d)]
    ffns = [shape.ffn] * dense + [shape.shared_ffn] * bool(shape.shared_ffn)
    widths += [pair for ffn in ffns for pair in ((d, 2 * ffn), (ffn, d))]
    return found | {(("T", k), (k, n)) for k, n in widths}


@pytest.mark.parametrize("name", CONFIGS)
def test_matrix_products_and_attention_are_labelled_as_the_table_says(name: str) -> None:
    pytest.importorskip("torch")
    shape = dataclasses.replace(shape_of(name), layers=2)
    trace = dim_labels.trace_model(shape)
    assert trace.unruled == set()
    dense = not shape.experts or shape.dense_layers > 0
    products = {call.signature.inputs for call in trace.calls if call.signature.op == "mm"}
    assert products == expected(shape, dense)
    for call in trace.calls:
        if call.signature.op == "mm":
            assert call.inputs[0][0] in (NUM_TOK, NUM_REQ)
            assert {call.inputs[0][1], *call.inputs[1]} == {MODEL_CONFIG}
            assert call.outputs[0] == (call.inputs[0][0], MODEL_CONFIG)
        if call.signature.op == "paged_attention":
            assert call.signature.inputs[0] == ("T", shape.heads, shape.qk_dim)
            assert call.signature.inputs[1] == (shape.kv_heads, shape.qk_dim)
            assert call.signature.constants == (shape.window,)
            assert call.outputs[0] == (NUM_TOK, MODEL_CONFIG, MODEL_CONFIG)
        if call.signature.op == "experts":
            assert call.inputs[0] == (NUM_TOK, MODEL_CONFIG)


def test_equal_numbers_of_different_origin_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as the model is wide, as many requests as it has heads: labels must not come from values."""
    pytest.importorskip("torch")
    shape = dataclasses.replace(shape_of("llama-3-8b"), layers=2)
    usual = dim_labels.trace_model(shape).counts()
    monkeypatch.setattr(dim_labels, "TRACE_TOKENS", shape.hidden)
    monkeypatch.setattr(dim_labels, "TRACE_REQUESTS", shape.heads)
    assert dim_labels.trace_model(shape).counts() == usual


def test_a_model_with_the_same_sizes_brings_few_new_operations() -> None:
    pytest.importorskip("torch")
    llama, qwen, mixtral = (dim_labels.operations(shape_of(n)) for n in ("llama-3-8b", "qwen3-8b", "mixtral-8x7b"))
    assert {op.op for op in set(qwen) - set(llama)} == {"index", "rope_write", "mm", "silu_mul"}
    shared = {str(op) for op in set(llama) & set(qwen)}
    assert "mm(T×4096, 4096×6144; bfloat16)" in shared
    assert {op.op for op in set(mixtral) - set(llama) - set(qwen)} <= {"index", "mm", "experts"}
    assert llama[next(op for op in llama if op.op == "silu_mul")] == 32  # once a layer


def test_every_layer_is_counted_without_tracing_all() -> None:
    pytest.importorskip("torch")
    shape = dataclasses.replace(shape_of("deepseek-v2-lite").shrunk(16, 5))
    assert dim_labels.operations(shape) == dim_labels.trace_model(shape).counts()


def test_tensor_parallel_ranks_have_their_own_signatures() -> None:
    pytest.importorskip("torch")
    whole, part = (dim_labels.operations(s) for s in (shape_of("llama-3-8b"), shape_of("llama-3-8b").shard(2)))
    common = {op.op for op in set(whole) & set(part)}
    assert common == {"index", "add_rms_norm"}  # what tensor parallelism does not cut


@pytest.mark.parametrize("a", LABELS)
@pytest.mark.parametrize("b", LABELS)
def test_merging_is_symmetric_and_never_invents_a_request(a: str | None, b: str | None) -> None:
    assert merge(a, b) == merge(b, a)
    assert merge(a, b) in (a, b, MIX, None)
    assert merge(NUM_REQ, NUM_TOK) is None
    assert merge(NUM_TOK, MODEL_CONFIG) == MIX


def test_integers_keep_their_history() -> None:
    tokens, heads, dim = Labelled(6, NUM_TOK), Labelled(8, MODEL_CONFIG), Labelled(5, MODEL_CONFIG)
    mixed = tokens * heads * dim
    assert (int(mixed), mixed.label, mixed.factors) == (240, MIX, {NUM_TOK: 6, MODEL_CONFIG: 40})
    assert ((mixed // dim) // heads).label == NUM_TOK
    assert (mixed // tokens).label == MODEL_CONFIG
    assert (2 * tokens).label == NUM_TOK
    assert (heads + dim).label == MODEL_CONFIG
    assert (tokens - heads).label == MIX


@given(st.integers(2, 50), st.lists(st.integers(2, 20), min_size=1, max_size=3))
def test_joining_dimensions_and_splitting_them_again_loses_nothing(tokens: int, config: list[int]) -> None:
    dims = [Labelled(tokens, NUM_TOK), *(Labelled(c, MODEL_CONFIG) for c in config)]
    joined = reshape(dims, [int(product(dims))])
    again = reshape(joined, [tokens, int(product(dims)) // tokens])
    unclear = product(dims[1:]) % tokens == 0 and int(product(dims[1:])) != tokens
    if int(product(dims[1:])) == tokens:  # both factors are the same number: either order is a right answer
        assert {d.label for d in again} == {NUM_TOK, MODEL_CONFIG}
    elif not unclear or again[0].label is not None:
        assert [d.label for d in again] == [NUM_TOK, MODEL_CONFIG]
