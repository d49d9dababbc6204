"""Shards of all strategies give the unsharded layer; a split is bit-exact; KV survives any change of width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from assay.serving.flying_serving.weight_slices import (  # noqa: E402
    STRATEGIES,
    KvBlocks,
    LayerShape,
    Slices,
    StaleBlockSize,
    layer,
    reblock,
    reorder,
    restore,
)
from assay.sim.random import stream  # noqa: E402

torch.set_num_threads(1)
SHAPE = LayerShape(hidden=64, heads=8, kv_heads=4, head_dim=16, ffn=96)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_unsharded_layer(strategy: str, width: int) -> None:
    weights = SHAPE.weights(0, torch.float64)
    before = {name: weight.clone() for name, weight in weights.items()}
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = layer(x, weights, SHAPE)
    if strategy == "reorder":
        for name, cut in SHAPE.cuts().items():
            reorder(weights[name], cut, width)
            assert width == 1 or not torch.equal(weights[name], before[name])
    torch.testing.assert_close(layer(x, weights, SHAPE, width, strategy), whole, rtol=1e-10, atol=1e-10)
    if strategy == "reorder":
        for name, cut in SHAPE.cuts().items():
            restore(weights[name], cut, width)
    assert all(torch.equal(weights[name], before[name]) for name in weights)  # bit for bit
    assert torch.equal(layer(x, weights, SHAPE), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reorder_computes_what_a_native_shard_computes(dtype: torch.dtype) -> None:
    weights = SHAPE.weights(2, dtype)
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    native = {
        (name, rank): Slices(weights[name], cut, rank, 4, "materialize")
        for name, cut in SHAPE.cuts().items()
        for rank in range(4)
    }
    for name, cut in SHAPE.cuts().items():
        reorder(weights[name], cut, 4)
        for rank in range(4):
            given_x = x if cut.axis == 0 else torch.randn(7, cut.parts[0] // 4).to(dtype)
            mine = Slices(weights[name], cut, rank, 4, "reorder")
            assert torch.equal(mine.times(given_x), native[name, rank].times(given_x))
            assert mine.extra_bytes == 0 < native[name, rank].extra_bytes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 70))
def test_kv_is_the_same_after_any_change_of_width(seed: int, before: int, after: int, tokens: int) -> None:
    random = stream(seed, "test-reblock")
    heads, dim, block = 4, 3, 4
    values = torch.from_numpy(random.standard_normal((tokens, heads, dim)).astype(np.float32))

    def ranks(width: int) -> tuple[list[KvBlocks], list[np.ndarray]]:
        memory = [KvBlocks(40, block, heads, dim).at(width) for _ in range(width)]
        return memory, [random.permutation(40)[: -(-tokens // (block * width))] for _ in range(width)]

    (old, old_tables), (new, new_tables), (last, last_tables) = ranks(before), ranks(after), ranks(before)
    for rank, (kv, table) in enumerate(zip(old, old_tables, strict=True)):
        share = heads // before
        kv.write(kv.slots(table, tokens), values[:, rank * share : (rank + 1) * share])
    moved = reblock(old, old_tables, new, new_tables, tokens)
    reblock(new, new_tables, last, last_tables, tokens)
    for kv, table, start, start_table in zip(last, last_tables, old, old_tables, strict=True):
        assert torch.equal(kv.read(kv.slots(table, tokens)), start.read(start.slots(start_table, tokens)))
    wide, narrow = heads // before, heads // after
    assert moved == sum(h // wide != h // narrow for h in range(heads)) * tokens * dim  # only heads that change rank
    assert all(kv.block_size == block * after for kv in new)


def test_a_stale_block_size_is_refused_and_would_be_wrong() -> None:
    kv = KvBlocks(blocks=8, block=4, kv_heads=2, head_dim=2)
    table = np.array([5, 2, 7])
    stale = kv.slots(table, 8)
    merged = kv.at(2)
    with pytest.raises(StaleBlockSize, match="width 1 in memory of width 2"):
        merged.read(stale)
    assert not np.array_equal(stale.numbers, merged.slots(table, 8).numbers)  # it would have read other tokens
    with pytest.raises(ValueError, match="need 3 blocks of 4"):
        kv.slots(table[:2], 9)
