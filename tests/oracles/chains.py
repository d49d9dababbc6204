"""Which chain counts, by the definitions alone: every head is found anew from the whole tree."""

from __future__ import annotations

from collections.abc import Sequence

Tree = Sequence[int]
"""The parent of each block in the order in which the blocks came; block 0 comes first and has none (-1)."""


def height(tree: Tree, block: int) -> int:
    """How far a block is from the first."""
    return 0 if tree[block] < 0 else 1 + height(tree, tree[block])


def longest(tree: Tree) -> int:
    """The highest block; of several, the one that came first."""
    return max(range(len(tree)), key=lambda block: (height(tree, block), -block))


def subtree(tree: Tree, block: int) -> int:
    """How many blocks stand on a block, itself included."""
    return 1 + sum(subtree(tree, child) for child, parent in enumerate(tree) if parent == block)


def ghost(tree: Tree) -> int:
    """From the first block on to the child with the largest subtree; of several, the one that came first."""
    block = 0
    while children := [child for child, parent in enumerate(tree) if parent == block]:
        block = max(children, key=lambda child: (subtree(tree, child), -child))
    return block
