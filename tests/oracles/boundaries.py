"""A boundary between two grids, value by value: who has it, who needs it, and what its gradient is."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.training.hetpar.boundary import Batch, Boundary, Side

Cells = set[tuple[int, int]]


def cells(boxes: Any) -> Cells:
    """Every value of some boxes."""
    return {(row, column) for (a, b), (c, d) in boxes for row in range(a, b) for column in range(c, d)}


def needed(llm: Side, batch: Batch, width: int, rank: int) -> Cells:
    """What a rank needs, sample by sample and token by token, from first principles."""
    at, cut = llm.grid.coordinates(rank), llm.layout
    found = set()
    for k, (image, words) in enumerate(batch.samples):
        if not (at["dp"] * len(batch.samples) // cut.dp <= k < (at["dp"] + 1) * len(batch.samples) // cut.dp):
            continue
        size = batch.images[image] if image >= 0 else 0
        length = size + words
        pieces = 2 * cut.cp if llm.zigzag and cut.cp > 1 else cut.cp
        wanted = (at["cp"], pieces - 1 - at["cp"]) if pieces > cut.cp else (at["cp"],)
        local = [t for p in wanted for t in range(p * length // pieces, (p + 1) * length // pieces)]
        if llm.tp == "tokens":
            local = local[at["tp"] * len(local) // cut.tp : (at["tp"] + 1) * len(local) // cut.tp]
        columns = range(width)
        if llm.tp == "hidden":
            columns = range(at["tp"] * width // cut.tp, (at["tp"] + 1) * width // cut.tp)
        first = sum(batch.images[:image]) if image >= 0 else 0
        found |= {(first + t, c) for t in local if t < size for c in columns}
    return found


def play(boundary: Boundary, whole: Any) -> dict[int, Any]:
    """What every rank of the LLM gets if every move is made: values where they belong, others are not numbers."""
    got = {}
    for rank in boundary.need:
        got[rank] = np.full(whole.shape, np.nan)
    for move in boundary.moves:
        where = tuple(slice(low, high) for low, high in zip(move.low, move.high, strict=True))
        assert all(
            cell in cells(boundary.have[move.source]) for cell in cells([tuple(zip(move.low, move.high, strict=True))])
        )
        assert np.isnan(got[move.target][where]).all()  # nothing comes twice
        got[move.target][where] = whole[where]
    return got


def returned(boundary: Boundary, gradients: dict[int, Any]) -> dict[int, Any]:
    """What every rank of the encoder has after the way back, the sum over its copies included."""
    total = {rank: np.zeros_like(next(iter(gradients.values()))) for rank in boundary.have}
    for move in boundary.back:
        where = tuple(slice(low, high) for low, high in zip(move.low, move.high, strict=True))
        total[move.source][where] += gradients[move.target][where]
    for group in boundary.copies:
        both = sum(total[rank] for rank in group)
        for rank in group:
            total[rank] = both
    return total
