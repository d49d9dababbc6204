"""Weights through the codec: bit for bit, sparse where little changed, whole where much did."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.rose import codec


@given(
    rows=st.integers(1, 12), width=st.integers(1, 9), share=st.floats(0, 1), seed=st.integers(0, 10_000),
    shards=st.integers(1, 5), wide=st.booleans(),
)  # fmt: skip
def test_what_went_in_comes_out(rows: int, width: int, share: float, seed: int, shards: int, wide: bool) -> None:
    random = np.random.default_rng(seed)
    kind = np.uint32 if wide else np.uint16
    old = {"a": random.integers(0, 1 << 16, (rows, width)).astype(kind), "b": random.integers(0, 9, rows).astype(kind)}
    new = {name: np.where(random.random(x.shape) < share, x ^ 5, x).astype(kind) for name, x in old.items()}
    kept = {name: x.copy() for name, x in old.items()}
    packets = codec.encode(old, new, shards)
    found = codec.decode(old, packets)
    assert all(np.array_equal(found[name], new[name]) for name in new)
    assert all(np.array_equal(old[name], kept[name]) for name in old)
    for packet in packets:  # never more than the tensor itself
        name, first, last = packet.key
        whole = new[name].reshape(len(new[name]), -1)[first:last]
        assert packet.nbytes <= whole.nbytes


def test_checkpoints_of_a_policy_that_really_learns() -> None:
    """At a rate of RL most bfloat16 weights stay; in float32 nearly all change, and tensors are sent whole."""
    half, single = (codec.checkpoints(2, 1e-6, seed=0, bf16=bf16) for bf16 in (True, False))
    for kept, sparse in ((half, True), (single, False)):
        for old, new in pairwise(kept):
            packets = codec.encode(old, new)
            found = codec.decode(old, packets)
            assert all(np.array_equal(found[name], new[name]) for name in new)
            large = [packet for packet in packets if packet.key[0] in ("embed", "0.up", "1.up") or packet.nbytes > 4000]
            sent, whole = sum(p.nbytes for p in packets), sum(x.nbytes for x in new.values())
            assert (sent < 0.5 * whole) == sparse
            if not sparse:
                assert large and not any(packet.sparse for packet in large)
    assert any((half[0][name] != half[-1][name]).any() for name in half[0])


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="send all of them once"):
        codec.encode({"a": np.zeros(3, np.uint16)}, {"a": np.zeros(4, np.uint16)})
