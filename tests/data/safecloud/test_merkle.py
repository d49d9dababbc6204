"""Hash trees prove what they hold, and nothing else."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from assay.data.safecloud.inventory_tree import InventoryTree
from assay.data.safecloud.merkle import MerkleTree, proves

digests = st.integers(0, 10_000).map(lambda n: sha256(str(n).encode()).digest())


@given(st.lists(digests, min_size=1, max_size=40), st.integers(2, 5), st.data())
def test_a_leaf_is_proved_at_its_place_and_nowhere_else(leaves: list[bytes], arity: int, data: st.DataObject) -> None:
    tree = MerkleTree(leaves, arity)
    place = data.draw(st.integers(0, len(leaves) - 1))
    other = data.draw(st.integers(0, len(leaves)))
    proof = tree.proof(place)
    assert proves(tree.root, leaves[place], place, len(leaves), proof, arity)
    if other < len(leaves) and leaves[other] != leaves[place]:
        assert not proves(tree.root, leaves[other], place, len(leaves), proof, arity)
    if other != place and (other == len(leaves) or leaves[other] != leaves[place]):
        assert not proves(tree.root, leaves[place], other, len(leaves), proof, arity)
    assert not proves(tree.root, leaves[place], place, len(leaves) + 1, proof, arity)


@given(st.lists(digests, min_size=2, max_size=40), st.integers(2, 5))
def test_a_node_does_not_pass_for_a_leaf(leaves: list[bytes], arity: int) -> None:
    tree = MerkleTree(leaves, arity)
    shorter = tree.levels[1]
    assert MerkleTree(shorter, arity).root != tree.root
    assert not proves(tree.root, shorter[0], 0, len(shorter), MerkleTree(shorter, arity).proof(0), arity)


def test_different_contents_have_different_roots() -> None:
    leaves = [sha256(bytes([n])).digest() for n in range(6)]
    roots = {
        MerkleTree(leaves).root, MerkleTree(leaves[:5]).root, MerkleTree(leaves[::-1]).root, MerkleTree([]).root,
        MerkleTree(leaves, 3).root, MerkleTree([*leaves, leaves[-1]]).root,
    }  # fmt: skip
    assert len(roots) == 6


@given(st.sets(digests, max_size=300), st.sets(digests, max_size=20))
def test_inventories_differ_by_what_differs(common: set[bytes], more: set[bytes]) -> None:
    one, two = InventoryTree(common | more), InventoryTree(common)
    assert one.minus(two) == sorted(more - common)
    assert two.minus(one) == []
    assert InventoryTree(sorted(common, reverse=True)).root == two.root
    assert all(digest in one for digest in more)


def test_comparing_inventories_opens_few_nodes() -> None:
    many = [sha256(str(n).encode()).digest() for n in range(20_000)]
    one, two = InventoryTree(many), InventoryTree(many[1:])
    unlike = [node for node in one.nodes if node not in two.nodes]
    assert one.minus(two) == [many[0]]
    assert len(unlike) <= 2 * one.height  # of about 645
