"""Where two grids meet: which rows of the encoder's output every rank has, which the LLM's ranks need, who sends what.

The tensor at the boundary has one row for every token of every image of a microbatch, and the LLM's width. Images are
dealt to the encoder's data-parallel copies, samples to the LLM's; context parallelism cuts an image there and a whole
sequence, text and all, here. So counts are ragged, a copy may get nothing, and an image that several samples ask about
is needed in several places. What travels is the intersection of what is needed with what others have, once.

>>> found = between(Side(Layout(tp=2, dp=2)), Side(Layout(tp=4)), Batch((6, 2), ((0, 3), (1, 5))), width=8)
>>> found.forward, found.gathered  # values on the wires; all to everybody would be more where copies are cut
(128, 128)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from assay.record.errors import BadInput
from assay.sim.grids import Box, Grid, Move, transfers
from assay.training.interface import Layout

Range = tuple[int, int]
WAYS = ("copied", "tokens", "hidden")
CUT = {"qkv": 1, "out": 0, "up": 1, "down": 0}  # the dimension that tensor parallelism cuts; others are whole


@dataclass(frozen=True)
class Side:
    """A module's grid over the ranks from `first` on, and what tensor parallelism does to the tensor at the boundary.

    `tp`: every rank has all of it (copied), or a part of its tokens (sequence parallelism) or of its width (hidden).
    `zigzag`: of context parallelism, a rank has one piece from the front and its counterpart from the back.
    """

    layout: Layout
    first: int = 0
    tp: str = "copied"
    zigzag: bool = False

    @property
    def grid(self) -> Grid:
        """Tensor parallelism changes fastest, then context, data and pipeline."""
        cut = self.layout
        return Grid.of(self.first, tp=cut.tp, cp=cut.cp, dp=cut.dp, pp=cut.pp)

    def at(self, stage: int) -> list[int]:
        """The ranks of a stage."""
        grid = self.grid
        return [r for r in range(self.first, self.first + grid.ranks) if grid.coordinates(r)["pp"] == stage]


def side(text: str, first: int = 0, tp: str = "copied", zigzag: bool = False) -> Side:
    """A grid as one would write it.

    >>> side("tp4 cp2", first=8).grid.ranks
    8

    Raises:
        BadInput: a word that is no axis and size.
    """
    sizes: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        found = re.fullmatch(r"(tp|cp|pp|dp)=?(\d{1,6})", word.lower())
        if found is None or int(found[2]) < 1:
            raise BadInput(
                f"grid {text!r}: {word!r} is not understood; write sizes of tp, cp, pp and dp, as in 'tp2 dp4'"
            )
        if found[1] in sizes:
            raise BadInput(f"grid {text!r}: {found[1]} is there twice")
        sizes[found[1]] = int(found[2])
    if not sizes:
        raise BadInput("a grid is empty; write sizes of tp, cp, pp and dp, as in 'tp2 dp4'")
    return Side(Layout(**sizes), first, tp, zigzag)


@dataclass(frozen=True)
class Batch:
    """A microbatch of all copies: tokens of every image; of every sample which image it begins with (-1: none) and how
    many tokens of text follow. `each`: images in a row that a sample begins with."""

    images: tuple[int, ...]
    samples: tuple[tuple[int, int], ...]
    each: int = 1

    def first_row(self, image: int) -> int:
        """Where an image begins among the rows of all."""
        return sum(self.images[:image])

    def image_of(self, sample: int) -> Range:
        """The rows of a sample's images; empty where it has none."""
        image = self.samples[sample][0]
        if image < 0:
            return 0, 0
        return self.first_row(image), self.first_row(image + self.each)

    def length(self, sample: int) -> int:
        """Tokens of a sample, image and text."""
        low, high = self.image_of(sample)
        return high - low + self.samples[sample][1]


def dealt(count: int, copies: int, copy: int) -> range:
    """Which of `count` samples a copy gets: stretches in their order, as even as can be."""
    return range(copy * count // copies, (copy + 1) * count // copies)


def pieces(length: int, on: Side, cp: int, tp: int) -> list[Range]:
    """The tokens of a sequence that a rank has, in their order.

    >>> pieces(16, Side(Layout(cp=2), zigzag=True), cp=0, tp=0)
    [(0, 4), (12, 16)]
    """
    cut = on.layout
    if on.zigzag and cut.cp > 1:
        parts = [dealt(length, 2 * cut.cp, k) for k in (cp, 2 * cut.cp - 1 - cp)]
    else:
        parts = [dealt(length, cut.cp, cp)]
    if on.tp == "tokens":
        mine = dealt(sum(map(len, parts)), cut.tp, tp)
        starts = [sum(map(len, parts[:k])) for k in range(len(parts))]
        parts = [
            part[max(0, mine.start - start) : max(0, mine.stop - start)]
            for part, start in zip(parts, starts, strict=True)
        ]
    return [(part.start, part.stop) for part in parts if len(part)]


def joined(ranges: Sequence[Range]) -> list[Range]:
    """The same numbers in as few ranges as can be.

    >>> joined([(4, 6), (0, 2), (1, 4)])
    [(0, 6)]
    """
    found: list[Range] = []
    for low, high in sorted(part for part in ranges if part[0] < part[1]):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def has(encoder: Side, batch: Batch, width: int) -> dict[int, list[Box]]:
    """What every rank of the encoder's last stage has after its forward pass."""
    found: dict[int, list[Box]] = {}
    for rank in encoder.at(encoder.layout.pp - 1):
        at = encoder.grid.coordinates(rank)
        rows = []
        for image in dealt(len(batch.images), encoder.layout.dp, at["dp"]):
            first = batch.first_row(image)
            rows += [(first + a, first + b) for a, b in pieces(batch.images[image], encoder, at["cp"], at["tp"])]
        columns = dealt(width, encoder.layout.tp, at["tp"]) if encoder.tp == "hidden" else range(width)
        found[rank] = [(part, (columns.start, columns.stop)) for part in joined(rows) if len(columns)]
    return found


def needs(llm: Side, batch: Batch, width: int) -> dict[int, list[Box]]:
    """What every rank of the LLM's first stage needs: rows of the images that lie in its part of its sequences."""
    found: dict[int, list[Box]] = {}
    for rank in llm.at(0):
        at = llm.grid.coordinates(rank)
        rows = []
        for sample in dealt(len(batch.samples), llm.layout.dp, at["dp"]):
            low, high = batch.image_of(sample)
            for a, b in pieces(batch.length(sample), llm, at["cp"], at["tp"]):
                rows.append((low + min(a, high - low), low + min(b, high - low)))
        columns = dealt(width, llm.layout.tp, at["tp"]) if llm.tp == "hidden" else range(width)
        found[rank] = [(part, (columns.start, columns.stop)) for part in joined(rows) if len(columns)]
    return found


@dataclass(frozen=True)
class Boundary:
    """Who has what, who needs what, what is sent forward, and what comes back.

    Every move forward returns its gradient, and gradients that meet are added; where ranks of the LLM have the same
    gradient because its layers added them up, one of them returns it. Ranks of the encoder with the same rows
    (`copies`) then add up theirs, so that each has the whole gradient, once.
    """

    have: dict[int, list[Box]]
    need: dict[int, list[Box]]
    moves: tuple[Move, ...]
    back: tuple[Move, ...]
    copies: tuple[tuple[int, ...], ...]

    @property
    def forward(self) -> int:
        """Values that travel forward."""
        return sum(move.items for move in self.moves if move.source != move.target)

    @property
    def backward(self) -> int:
        """Values that travel backward, those among the encoder's copies (a ring) included."""
        home = sum(move.items for move in self.back if move.source != move.target)
        return home + sum(2 * (len(group) - 1) * _items(self.have[group[0]]) for group in self.copies)

    @property
    def gathered(self) -> int:
        """Values that would travel if every rank of the LLM gathered all rows and cut out its own."""
        whole = _items(list(dict.fromkeys(box for boxes in self.have.values() for box in boxes)))
        return sum(whole - _items(self.have.get(rank, [])) for rank in self.need)

    @property
    def busiest(self) -> int:
        """The most values that one rank sends or receives forward: what the slowest link has to carry."""
        ends: dict[tuple[str, int], int] = {}
        for move in self.moves:
            if move.source != move.target:
                for end in (("out", move.source), ("in", move.target)):
                    ends[end] = ends.get(end, 0) + move.items
        return max(ends.values(), default=0)


def between(encoder: Side, llm: Side, batch: Batch, width: int, *, equal: bool = True) -> Boundary:
    """The boundary of a microbatch.

    Args:
        encoder: where rows come from.
        llm: where they go.
        batch: the same on all ranks.
        width: of a row.
        equal: ranks of the LLM that differ in tensor parallelism only have the same gradients, as those of layers have
            that add them up on the way back (Megatron's); False: each has a part, and they are added here.
    """
    have, need = has(encoder, batch, width), needs(llm, batch, width)
    found = transfers(have, need)
    groups = encoder.grid.groups("tp").tolist() if encoder.tp == "copied" and encoder.layout.tp > 1 else []
    copies = [tuple(group) for group in groups if group[0] in have and have[group[0]]]
    same = equal and llm.tp == "copied"
    return Boundary(have, need, tuple(found), tuple(_one_of_each(found, llm) if same else found), tuple(copies))


def _one_of_each(moves: Sequence[Move], llm: Side) -> list[Move]:
    """Of the ranks that have the same gradient, the one that has it where it belongs, or has returned least."""
    alike: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        at = llm.grid.coordinates(move.target)
        alike.setdefault((at["cp"], at["dp"], move.low, move.high), []).append(move)
    returned: dict[int, int] = {}
    found = []
    for choices in alike.values():
        one = min(choices, key=lambda m: (m.source != m.target, returned.get(m.target, 0)))
        if one.source != one.target:
            returned[one.target] = returned.get(one.target, 0) + one.items
        found.append(one)
    return found


def _items(boxes: Sequence[Box]) -> int:
    return sum((a[1] - a[0]) * (b[1] - b[0]) for a, b in boxes)
