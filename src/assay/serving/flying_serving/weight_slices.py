"""Tensor-parallel shards out of a full copy of the weights, without loading any; and KV blocks that follow the width.

Every engine holds the whole model. To work as rank r of w it needs its slice of each matrix, and there are three ways
to have it: `view` multiplies by strided views, one GEMM a slice and no copy; `materialize` keeps a contiguous copy,
which costs memory; `reorder` permutes the matrix in place so that every rank's slice is contiguous, which costs a
pass over the weights at the switch and is undone, bit by bit, when the engines part again.

KV memory follows: with 1/w of the heads the same physical block holds w times the tokens. So the block size belongs
to the width, and a slot computed with the block size of another width points to a wrong place without any error. Here
a slot table knows its width and is refused where it does not match.

>>> import torch
>>> weight = torch.arange(12.0).reshape(6, 2)  # two fused parts of 4 and 2 rows
>>> cut = Cut(parts=(4, 2), axis=0)
>>> [piece.flatten().tolist() for piece in pieces(weight, cut, rank=1, width=2)]
[[4.0, 5.0, 6.0, 7.0], [10.0, 11.0]]
>>> reorder(weight, cut, 2)
>>> contiguous(weight, cut, rank=1, width=2)[:, 0].tolist()
[4.0, 6.0, 10.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

STRATEGIES = ("view", "materialize", "reorder")


@dataclass(frozen=True)
class Cut:
    """How a matrix [outputs, inputs] is cut: its fused parts along the axis (0: outputs, 1: inputs) each into w."""

    parts: tuple[int, ...]
    axis: int

    def check(self, width: int) -> None:
        """Raises ValueError where a part cannot be cut into `width` equal slices."""
        if any(part % width for part in self.parts):
            raise ValueError(f"parts of {self.parts} cannot be cut into {width} equal slices")


def pieces(weight: Tensor, cut: Cut, rank: int, width: int) -> list[Tensor]:
    """The rank's slices as views: one for each fused part."""
    cut.check(width)
    found, start = [], 0
    for part in cut.parts:
        size = part // width
        found.append(weight.narrow(cut.axis, start + rank * size, size))
        start += part
    return found


def _rows(weight: Tensor, cut: Cut, width: int) -> tuple[Tensor, NDArray[np.int64]]:
    """The matrix as rows that move whole, and where each goes: row k of the reordered one is row order[k]."""
    cut.check(width)
    if cut.axis == 0:
        starts = np.concatenate([[0], np.cumsum(cut.parts)])[:-1]
        order = [
            np.arange(start + rank * (part // width), start + (rank + 1) * (part // width))
            for rank in range(width)
            for start, part in zip(starts, cut.parts, strict=True)
        ]
        return weight, np.concatenate(order)
    (inputs,) = cut.parts  # a matrix cut by inputs is never fused
    outputs = weight.shape[0]
    return weight.view(outputs * width, inputs // width), np.arange(outputs * width).reshape(outputs, width).T.ravel()


def _permute(rows: Tensor, order: NDArray[np.int64]) -> None:
    """rows[k] becomes rows[order[k]], in place, along the permutation's cycles: one row of extra memory."""
    seen = np.zeros(len(order), bool)
    for first in range(len(order)):
        if seen[first] or order[first] == first:
            continue
        spare, at = rows[first].clone(), first
        while True:
            seen[at] = True
            source = int(order[at])
            if source == first:
                rows[at] = spare
                break
            rows[at] = rows[source]
            at = source


def reorder(weight: Tensor, cut: Cut, width: int) -> None:
    """Permute in place, so that the slice of every rank is contiguous."""
    _permute(*_rows(weight, cut, width))


def restore(weight: Tensor, cut: Cut, width: int) -> None:
    """Undo `reorder`, bit by bit."""
    rows, order = _rows(weight, cut, width)
    _permute(rows, np.argsort(order))


def contiguous(weight: Tensor, cut: Cut, rank: int, width: int) -> Tensor:
    """The rank's slice of a reordered matrix: a contiguous view."""
    rows, order = _rows(weight, cut, width)
    size = len(order) // width
    return rows[rank * size : (rank + 1) * size].view(-1, weight.shape[1] // (width if cut.axis else 1))


@dataclass
class Slices:
    """One rank's share of one matrix under a strategy; `times` multiplies by it."""

    weight: Tensor
    cut: Cut
    rank: int
    width: int
    strategy: str

    def __post_init__(self) -> None:
        import torch

        if self.strategy not in STRATEGIES:
            raise ValueError(f"no strategy '{self.strategy}'; there are {', '.join(STRATEGIES)}")
        self._copy: Tensor | None = None
        if self.strategy == "materialize":
            self._copy = torch.cat(pieces(self.weight, self.cut, self.rank, self.width), self.cut.axis).contiguous()

    @property
    def extra_bytes(self) -> int:
        """Memory beyond the full copy of the weights."""
        return 0 if self._copy is None else self._copy.numel() * self._copy.element_size()

    def times(self, x: Tensor) -> Tensor:
        """x @ slice.T: the rank's outputs, or its share of the sum over inputs."""
        import torch

        if self._copy is not None:
            return x @ self._copy.T
        if self.strategy == "reorder":
            return x @ contiguous(self.weight, self.cut, self.rank, self.width).T
        parts = pieces(self.weight, self.cut, self.rank, self.width)
        return torch.cat([x @ part.T for part in parts], -1)


# ----------------------------------------------------------------------------------------------- a layer


@dataclass(frozen=True)
class LayerShape:
    """One decoder layer: grouped-query attention and a gated MLP."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int

    def cuts(self) -> dict[str, Cut]:
        """Its matrices: fused query, key and value; output; fused gate and up; down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": Cut((q, kv, kv), 0),
            "o": Cut((q,), 1),
            "gate_up": Cut((self.ffn, self.ffn), 0),
            "down": Cut((self.ffn,), 1),
        }

    def weights(self, seed: int, dtype: Any = None) -> dict[str, Tensor]:
        """Random matrices of this shape."""
        import torch

        random = torch.Generator().manual_seed(seed)
        rows = {"qkv": self.hidden, "o": self.heads * self.head_dim, "gate_up": self.hidden, "down": self.ffn}
        outs = {"qkv": sum(self.cuts()["qkv"].parts), "o": self.hidden, "gate_up": 2 * self.ffn, "down": self.hidden}
        made = {name: torch.randn(outs[name], rows[name], generator=random) / rows[name] ** 0.5 for name in rows}
        return {name: weight.to(dtype or torch.float32) for name, weight in made.items()}


def _attend(qkv: Tensor, heads: int, kv_heads: int, dim: int) -> Tensor:
    import torch

    n = qkv.shape[0]
    q, k, value = torch.split(qkv, [heads * dim, kv_heads * dim, kv_heads * dim], -1)
    q = q.view(n, heads, dim).transpose(0, 1)
    k = k.view(n, kv_heads, dim).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
    value = value.view(n, kv_heads, dim).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
    scores = (q @ k.transpose(1, 2)) / dim**0.5
    mask = torch.full((n, n), float("-inf"), dtype=scores.dtype).triu(1)
    mixed: Tensor = ((scores + mask).softmax(-1) @ value).transpose(0, 1).reshape(n, heads * dim)
    return mixed


def layer(x: Tensor, weights: dict[str, Tensor], shape: LayerShape, width: int = 1, strategy: str = "view") -> Tensor:
    """The layer computed by `width` ranks: each its heads and its part of the MLP, two all-reduces (sums).

    With `reorder` the matrices must have been reordered for this width.
    """
    import torch

    cuts = shape.cuts()
    hold = [{name: Slices(weights[name], cuts[name], rank, width, strategy) for name in cuts} for rank in range(width)]
    parts = []
    for mine in hold:
        qkv = mine["qkv"].times(x)
        parts.append(mine["o"].times(_attend(qkv, shape.heads // width, shape.kv_heads // width, shape.head_dim)))
    x = x + torch.stack(parts).sum(0)
    parts = []
    for mine in hold:
        gate, up = mine["gate_up"].times(x).chunk(2, -1)
        parts.append(mine["down"].times(torch.nn.functional.silu(gate) * up))
    return x + torch.stack(parts).sum(0)


# -------------------------------------------------------------------------------------------------- KV


class StaleBlockSize(ValueError):  # noqa: N818 - the name says what is wrong
    """A slot table made for one width met KV memory of another."""


@dataclass(frozen=True)
class Slots:
    """Where the tokens of a sequence lie: slot = block x block size + offset, for the block size of one width."""

    numbers: NDArray[np.int64]
    width: int


@dataclass
class KvBlocks:
    """The KV memory of one engine: physical blocks of fixed bytes, seen with 1/width of the heads.

    >>> kv = KvBlocks(blocks=3, block=16, kv_heads=4, head_dim=8)
    >>> kv.at(2).block_size, tuple(kv.at(2).view().shape)
    (32, (3, 32, 2, 8))
    """

    blocks: int
    block: int  # tokens a block holds at width 1
    kv_heads: int
    head_dim: int
    width: int = 1
    storage: Any = None

    def __post_init__(self) -> None:
        import torch

        if self.kv_heads % self.width:
            raise ValueError(f"{self.kv_heads} KV heads cannot be cut into {self.width}")
        if self.storage is None:
            self.storage = torch.zeros(self.blocks, self.block * self.kv_heads * self.head_dim)

    def at(self, width: int) -> KvBlocks:
        """The same memory seen at another width."""
        return KvBlocks(self.blocks, self.block, self.kv_heads, self.head_dim, width, self.storage)

    @property
    def block_size(self) -> int:
        """Tokens a block holds: it scales with the width."""
        return self.block * self.width

    def view(self) -> Tensor:
        """[block, token, head, dim]."""
        seen: Tensor = self.storage.view(self.blocks, self.block_size, self.kv_heads // self.width, self.head_dim)
        return seen

    def slots(self, table: NDArray[np.int64], tokens: int) -> Slots:
        """The slots of a sequence's first tokens, from its block table."""
        position = np.arange(tokens)
        need = -(-tokens // self.block_size)
        if len(table) < need:
            raise ValueError(f"{tokens} tokens need {need} blocks of {self.block_size}, the table has {len(table)}")
        return Slots(table[position // self.block_size] * self.block_size + position % self.block_size, self.width)

    def _flat(self, slots: Slots) -> Tensor:
        if slots.width != self.width:
            raise StaleBlockSize(f"slots for width {slots.width} in memory of width {self.width}: compute them again")
        return self.view().view(-1, self.kv_heads // self.width, self.head_dim)

    def write(self, slots: Slots, values: Tensor) -> None:
        """Store [token, head, dim]."""
        import torch

        self._flat(slots)[torch.from_numpy(slots.numbers)] = values

    def read(self, slots: Slots) -> Tensor:
        """Load [token, head, dim]."""
        import torch

        return self._flat(slots)[torch.from_numpy(slots.numbers)]


def reblock(
    source: list[KvBlocks], source_tables: list[NDArray[np.int64]],
    target: list[KvBlocks], target_tables: list[NDArray[np.int64]], tokens: int,
) -> int:  # fmt: skip
    """Move a sequence's KV between layouts: from len(source) ranks to len(target), heads re-split, blocks re-cut.

    Rank r of w holds the heads [r H/w, (r + 1) H/w). Returns the elements that changed their rank: what a link has to
    carry. Where both layouts hold a head on the same rank number nothing travels.
    """
    heads, moved = source[0].kv_heads, 0
    wide, narrow = heads // source[0].width, heads // target[0].width
    loaded = [kv.read(kv.slots(table, tokens)) for kv, table in zip(source, source_tables, strict=True)]
    for rank, (kv, table) in enumerate(zip(target, target_tables, strict=True)):
        import torch

        share = torch.stack(
            [loaded[head // wide][:, head % wide] for head in range(rank * narrow, (rank + 1) * narrow)], 1
        )
        kv.write(kv.slots(table, tokens), share)
        moved += sum(head // wide != rank for head in range(rank * narrow, (rank + 1) * narrow)) * tokens * kv.head_dim
    return moved
