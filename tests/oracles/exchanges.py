"""An all-to-all's messages performed one by one on sets of blocks, each only when what it carries is really there."""

from __future__ import annotations

from typing import Any


def performed(messages: Any, ranks: int) -> list[set[tuple[int, int]]]:
    """What blocks each rank holds at the end; fails where a message carries what its sender may not yet have."""
    own = [{(i, j) for j in range(ranks)} for i in range(ranks)]
    arrived: list[set[tuple[int, int]]] = [set() for _ in range(ranks)]
    for number, (src, dst, blocks, after) in enumerate(
        zip(messages.src, messages.dst, messages.blocks, messages.after, strict=True)
    ):
        assert src != dst
        assert all(before < number for before in after)
        known = set(own[src])
        for before in after:
            assert messages.dst[before] == src, "a rank can only wait for what comes to it"
            known |= set(messages.blocks[before])
        assert set(blocks) <= known, "it carries what it did not wait for"
        arrived[dst] |= set(blocks)
    return [mine | {(rank, rank)} for rank, mine in enumerate(arrived)]
