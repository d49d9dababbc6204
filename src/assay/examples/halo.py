"""A program of one's own for `assay compare cuco`: rows are smoothed, sent to the other rank and added there."""

from __future__ import annotations

import numpy as np

from assay.training.cuco import Stage


class Halo:
    """Eight tiles of 64 x 512 numbers on each of two ranks."""

    tiles = 8
    stages = (
        Stage("smooth", reads=("x",), writes=("y",)),
        Stage("send", reads=("y",), writes=("theirs",), wire=True),
        Stage("add", reads=("theirs",), writes=("out",)),
    )

    def inputs(self, seed: int, rank: int) -> dict[str, np.ndarray]:
        """The buffers of a rank; what a wire moves has tiles as its first dimension."""
        x = np.random.default_rng([seed, rank]).standard_normal((8, 64, 512), np.float32)
        return {"x": x, "y": np.full_like(x, np.nan), "out": np.full_like(x, np.nan)}

    def smooth(self, data: dict[str, np.ndarray], tiles: slice, got: np.ndarray | None) -> None:
        """Means of three neighbours, a few times over."""
        y = data["x"][tiles]
        for _ in range(8):
            y = (np.roll(y, 1, axis=-1) + y + np.roll(y, -1, axis=-1)) / 3
        data["y"][tiles] = y

    def add(self, data: dict[str, np.ndarray], tiles: slice, got: np.ndarray) -> None:
        """The sum of both ranks' rows."""
        data["out"][tiles] = got + data["x"][tiles]

    def result(self, data: dict[str, np.ndarray], rank: int) -> np.ndarray:
        """What is compared with the reference."""
        return data["out"]

    def reference(self, inputs: list[dict[str, np.ndarray]], rank: int) -> np.ndarray:
        """The same in a plain way."""
        y = inputs[1 - rank]["x"].astype(np.float64)
        for _ in range(8):
            y = (np.roll(y, 1, axis=-1) + y + np.roll(y, -1, axis=-1)) / 3
        return y + inputs[rank]["x"]
