"""Merkle trees: a proof fits one leaf at one place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.kernel import signatures


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=20), st.data())
def test_a_proof_fits_its_leaf_and_place_only(leaves: list[bytes], data: st.DataObject) -> None:
    root, proofs = signatures.tree(leaves)
    place = data.draw(st.integers(0, len(leaves) - 1))
    assert signatures.belongs(root, place, leaves[place], proofs[place], len(leaves))
    assert not signatures.belongs(root, place, leaves[place] + b"!", proofs[place], len(leaves))
    assert not signatures.belongs(root, place, leaves[place], (*proofs[place], root), len(leaves))
    other = data.draw(st.integers(0, len(leaves) - 1))
    if leaves[other] != leaves[place]:
        assert not signatures.belongs(root, other, leaves[place], proofs[other], len(leaves))
