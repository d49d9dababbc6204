"""A batch of sequences cut into blocks, who holds which, and which keys and values have to travel.

Work is counted in query-key pairs. A sequence longer than a block is cut into blocks of one size, its last one shorter;
shorter ones are packed whole into blocks. Under a causal mask block i of a sequence attends to i + 1 blocks, so blocks
differ in cost by orders of magnitude; that is what makes them pack well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.packing import edge_colour

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SMALLEST = 1024  # tokens of a block that is halved no more


@dataclass(frozen=True)
class Blocks:
    """Spans of tokens, in the order of blocks: span k has tokens `start[k]` to `stop[k]`, in `block[k]`."""

    lengths: Ints
    sequence: Ints
    start: Ints
    stop: Ints
    block: Ints
    causal: bool

    @cached_property
    def tokens(self) -> Ints:
        """Tokens of each block: what it takes of a memory."""
        return np.bincount(self.block, weights=self.stop - self.start).astype(np.int64)

    @cached_property
    def pairs(self) -> Floats:
        """Query-key pairs that the queries of each block take part in."""
        first, last, whole = self.start, self.stop, self.lengths[self.sequence]
        under = (last * (last + 1) - first * (first + 1)) / 2 if self.causal else (last - first) * whole
        return np.bincount(self.block, weights=under).astype(np.float64)

    @cached_property
    def of(self) -> Ints:
        """Of each block its sequence, -1 where it holds whole ones and needs nobody."""
        found = np.full(len(self.tokens), -1)
        parts = (self.stop - self.start) < self.lengths[self.sequence]
        found[self.block[parts]] = self.sequence[parts]
        return found


def cut(lengths: Sequence[int] | Ints, size: int, causal: bool = True) -> Blocks:
    """Blocks of at most `size` tokens.

    >>> blocks = cut([10, 3, 4], size=4)
    >>> blocks.tokens.tolist(), blocks.pairs.tolist(), blocks.of.tolist()
    ([4, 4, 2, 4, 3], [10.0, 26.0, 19.0, 10.0, 6.0], [0, 0, 0, -1, -1])
    """
    given = np.asarray(lengths, np.int64)
    spans: list[tuple[int, int, int, int]] = []
    number = 0
    for sequence in np.flatnonzero(given > size):
        for start in range(0, int(given[sequence]), size):
            spans.append((int(sequence), start, min(start + size, int(given[sequence])), number))
            number += 1
    room: list[int] = []  # first fit of the short ones, longest first
    short = np.flatnonzero((given > 0) & (given <= size))
    for sequence in short[np.argsort(-given[short], kind="stable")]:
        length = int(given[sequence])
        place = next((k for k, left in enumerate(room) if left >= length), len(room))
        room += [size] if place == len(room) else []
        room[place] -= length
        spans.append((int(sequence), 0, length, number + place))
    spans.sort(key=lambda span: (span[3], span[0], span[1]))
    columns = np.array(spans, np.int64).reshape(-1, 4).T
    return Blocks(given, columns[0], columns[1], columns[2], columns[3], causal)


def distribute(blocks: Blocks, ranks: int, memory: float, by: str = "pairs") -> Ints:
    """The rank of each block: the dearest first, to whoever has the least to compute and room for its tokens.

    `memory` is how many tokens a rank may hold, over the mean. Dear is what has many pairs; `by="either"` is the
    paper's order as we read it: the larger of a block's shares of all pairs and of all tokens. It leaves dear blocks
    for the end, the short last ones of long sequences, and ranks less even.

    >>> distribute(cut([16, 4, 4], size=4), ranks=2, memory=1.0).tolist()
    [0, 1, 1, 0, 0, 1]
    """
    pairs, tokens = blocks.pairs, blocks.tokens.astype(np.float64)
    dear = np.maximum(pairs / pairs.sum(), tokens / tokens.sum()) if by == "either" else pairs
    limit = memory * tokens.sum() / ranks
    return _placed(pairs, tokens, np.argsort(-dear, kind="stable"), ranks, limit)


@njit(cache=True, nogil=True)
def _placed(pairs: Floats, tokens: Floats, order: Ints, ranks: int, limit: float) -> Ints:
    found, busy, held = np.empty(len(pairs), np.int64), np.zeros(ranks), np.zeros(ranks)
    for item in order:
        best = -1
        for rank in range(ranks):
            fits = held[rank] + tokens[item] <= limit
            if fits and (best < 0 or busy[rank] < busy[best] or (busy[rank] == busy[best] and held[rank] < held[best])):
                best = rank
        if best < 0:  # nobody has room for it: whoever has the most
            best = int(np.argmin(held))
        found[item] = best
        busy[best] += pairs[item]
        held[best] += tokens[item]
    return found


@dataclass(frozen=True)
class Plan:
    """Who holds which block, and the transfers: keys and values of `block[m]` to `receiver[m]` in `round[m]`."""

    blocks: Blocks
    owner: Ints
    ranks: int
    block: Ints
    receiver: Ints
    round: Ints

    @property
    def sender(self) -> Ints:
        """Who holds what is sent."""
        return self.owner[self.block]

    @property
    def rounds(self) -> int:
        """How many there are."""
        return int(self.round.max(initial=-1)) + 1

    def check_rounds(self) -> None:
        """Raise where a rank would send or receive two blocks in one round: then there is no timetable to follow.

        >>> plan([20, 20], ranks=2, size=8).check_rounds()
        """
        for verb, who in (("send", self.sender), ("receive", self.receiver)):
            pairs, count = np.unique(np.column_stack([self.round, who]), axis=0, return_counts=True)
            if (count > 1).any():
                when, rank = pairs[np.argmax(count)]
                raise ValueError(f"round {when}: rank {rank} would {verb} {count.max()} blocks; one at most")

    def imbalance(self) -> float:
        """How much more than the mean the busiest rank computes, as a share.

        >>> plan([8, 8], ranks=2, size=8).imbalance()
        0.0
        """
        return _imbalance(self.blocks, self.owner, self.ranks)

    def memory(self) -> float:
        """The tokens of the rank that holds most, over the mean."""
        held = np.bincount(self.owner, weights=self.blocks.tokens, minlength=self.ranks)
        return float(held.max() / held.mean())


def _imbalance(blocks: Blocks, owner: Ints, ranks: int) -> float:
    busy = np.bincount(owner, weights=blocks.pairs, minlength=ranks)
    return float(busy.max() / busy.mean() - 1)


def plan(
    lengths: Sequence[int] | Ints, ranks: int, size: int = 4096, *, causal: bool = True, memory: float = 1.2,
    matched: bool = True, by: str = "pairs", even: float = 0.05,
) -> Plan:  # fmt: skip
    """Blocks on ranks, and rounds in which nobody sends or receives twice.

    One block of a long sequence may be more than a rank's share of everything: where the busiest rank has more than
    `even` above the mean, blocks are halved, down to 1,024 tokens. `matched=False`: every rank pulls what it needs in
    the blocks' order, whoever else pulls from the same holder.

    >>> found = plan([40, 9, 7], ranks=4, size=4)
    >>> found.rounds, int(max(np.bincount(found.sender).max(), np.bincount(found.receiver).max()))
    (11, 11)
    """
    blocks = cut(lengths, size, causal)
    owner = distribute(blocks, ranks, memory, by)
    while size >= 2 * SMALLEST and _imbalance(blocks, owner, ranks) > even:
        size //= 2
        blocks = cut(lengths, size, causal)
        owner = distribute(blocks, ranks, memory, by)
    block, receiver = needed(blocks, owner)
    if matched:
        when = edge_colour(owner[block], receiver, ranks)
    else:
        order = np.lexsort((block, receiver))
        first = np.searchsorted(receiver[order], receiver[order])
        when = np.empty(len(order), np.int64)
        when[order] = np.arange(len(order)) - first
    return Plan(blocks, owner, ranks, block, receiver, when)


def needed(blocks: Blocks, owner: Ints) -> tuple[Ints, Ints]:
    """Which blocks' keys and values which ranks lack: a query of theirs attends to them, another rank has them."""
    what, to = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for sequence in np.unique(blocks.of[blocks.of >= 0]):
        mine = np.flatnonzero(blocks.of == sequence)
        holders = owner[mine]
        for rank in np.unique(holders):
            last = np.flatnonzero(holders == rank).max() if blocks.causal else len(mine) - 1
            lacking = mine[: last + 1][holders[: last + 1] != rank]
            what.append(lacking)
            to.append(np.full(len(lacking), rank))
    return np.concatenate(what), np.concatenate(to)
