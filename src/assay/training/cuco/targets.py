"""Four programs in which two ranks compute and communicate: what the paper's kernels do, on processes.

Each is written as stages over tiles, with a reference that computes the same from all inputs in a few plain lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.sim.streams import stream
from assay.training.cuco.program import Array, Stage

Data = dict[str, Array]


def draw(seed: int, *names: str | int, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    """Numbers of a normal distribution, the same for the same names."""
    found: Array = stream(seed, "cuco", *names).standard_normal(shape, np.float32) * np.float32(scale)
    return found


@dataclass(frozen=True)
class Gemm:
    """Each rank multiplies its rows by the same matrix; both end with all rows of the product."""

    tiles: int = 8
    rows: int = 40  # of a tile
    width: int = 512
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("multiply", reads=("a", "b"), writes=("c",)),
        Stage("gather", reads=("c",), writes=("rest",), wire=True),
        Stage("place", reads=("rest",), writes=("out",)),
    )

    def inputs(self, seed: int, rank: int) -> Data:
        """Rows, the matrix, and room for the product."""
        shape = self.tiles, self.rows, self.width
        b = draw(seed, "b", shape=(self.width, self.width), scale=self.width**-0.5)
        a = draw(seed, "a", rank, shape=shape)
        return {"a": a, "b": b, "c": np.full(shape, np.nan, np.float32), "out": np.full(shape, np.nan, np.float32)}

    def multiply(self, data: Data, tiles: slice, got: Array | None) -> None:
        """A stretch of rows."""
        a, c = data["a"][tiles], data["c"][tiles]
        np.matmul(a.reshape(-1, self.width), data["b"], out=c.reshape(-1, self.width))

    def place(self, data: Data, tiles: slice, got: Array) -> None:
        """The other's rows where they belong."""
        data["out"][tiles] = got

    def result(self, data: Data, rank: int) -> Array:
        """All rows."""
        both = [data["c"], data["out"]]
        return np.concatenate(both if rank == 0 else both[::-1])

    def reference(self, inputs: list[Data], rank: int) -> Array:
        """The product of everything."""
        return np.concatenate([one["a"] for one in inputs]) @ inputs[0]["b"]


@dataclass(frozen=True)
class Attention:
    """Context parallelism: each rank attends with its queries to its own keys and values, and to the other's."""

    tiles: int = 8
    keys: int = 32  # of a tile
    heads: int = 4
    width: int = 64
    queries: int = 192
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("pass_on", reads=("kv",), writes=("their_kv",), wire=True),
        Stage("own", reads=("q", "kv")),
        Stage("remote", reads=("q", "their_kv")),
    )

    def inputs(self, seed: int, rank: int) -> Data:
        """Queries, keys and values, and the running maximum, sum and output of the softmax."""
        h, n, d = self.heads, self.queries, self.width
        return {
            "q": draw(seed, "q", rank, shape=(h, n, d), scale=d**-0.5),
            "kv": draw(seed, "kv", rank, shape=(self.tiles, 2, h, self.keys, d)),
            "top": np.full((h, n, 1), -np.inf, np.float32), "sum": np.zeros((h, n, 1), np.float32),
            "out": np.zeros((h, n, d), np.float32),
        }  # fmt: skip

    def _attend(self, data: Data, kv: Array) -> None:
        """Add keys and values to what was attended to so far; in which order they come does not matter."""
        for key, value in kv:
            scores = data["q"] @ key.transpose(0, 2, 1)
            top = np.maximum(data["top"], scores.max(-1, keepdims=True))
            weight, kept = np.exp(scores - top), np.exp(data["top"] - top)
            data["sum"] = data["sum"] * kept + weight.sum(-1, keepdims=True)
            data["out"] = data["out"] * kept + weight @ value
            data["top"] = top

    def own(self, data: Data, tiles: slice, got: Array | None) -> None:
        """Attend to keys of this rank."""
        self._attend(data, data["kv"][tiles])

    def remote(self, data: Data, tiles: slice, got: Array) -> None:
        """Attend to keys of the other."""
        self._attend(data, got)

    def result(self, data: Data, rank: int) -> Array:
        """The attention's output for this rank's queries."""
        found: Array = data["out"] / data["sum"]
        return found

    def reference(self, inputs: list[Data], rank: int) -> Array:
        """A softmax over all keys at once."""
        keys, values = (
            np.concatenate([tile[at] for one in inputs for tile in one["kv"]], axis=1).astype(np.float64)
            for at in (0, 1)
        )
        scores = inputs[rank]["q"].astype(np.float64) @ keys.transpose(0, 2, 1)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        found: Array = (weight / weight.sum(-1, keepdims=True)) @ values
        return found


@dataclass(frozen=True)
class Experts:
    """A mixture of two experts, one on each rank: tokens travel to theirs and back, weighted by their gate."""

    tiles: int = 8
    tokens: int = 24  # of a tile
    width: int = 256
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("pack", reads=("x",), writes=("rows",)),
        Stage("dispatch", reads=("rows",), writes=("their_rows",), wire=True),
        Stage("own", reads=("x",)),
        Stage("expert", reads=("their_rows",), writes=("done",)),
        Stage("combine", reads=("done",), writes=("back",), wire=True),
        Stage("add", reads=("back",)),
    )

    def inputs(self, seed: int, rank: int) -> Data:
        """Tokens, which expert each wants and how much, the expert, and room."""
        t, n, d = self.tiles, self.tokens, self.width
        gate = stream(seed, "cuco", "gate", rank).random((t, n), np.float32)
        return {
            "x": draw(seed, "x", rank, shape=(t, n, d)), "gate": gate,
            "away": (stream(seed, "cuco", "route", rank).random((t, n)) < 0.5).astype(np.float32),
            "up": draw(seed, "up", rank, shape=(d, 4 * d), scale=d**-0.5),
            "down": draw(seed, "down", rank, shape=(4 * d, d), scale=(4 * d) ** -0.5),
            "rows": np.full((t, n, d + 1), np.nan, np.float32), "done": np.full((t, n, d), np.nan, np.float32),
            "out": np.full((t, n, d), np.nan, np.float32),
        }  # fmt: skip

    def pack(self, data: Data, tiles: slice, got: Array | None) -> None:
        """Tokens for the other's expert first in their tile, with a column that says which rows are tokens."""
        for x, away, rows in zip(data["x"][tiles], data["away"][tiles], data["rows"][tiles], strict=True):
            chosen = away > 0
            count = int(chosen.sum())
            rows[count:], rows[:count, -1], rows[:count, :-1] = 0.0, 1.0, x[chosen]

    def own(self, data: Data, tiles: slice, got: Array | None) -> None:
        """Tokens that want the expert of this rank."""
        here = data["away"][tiles] == 0
        data["out"][tiles][here] = self._ffn(data, data["x"][tiles][here]) * data["gate"][tiles][here][:, None]

    def expert(self, data: Data, tiles: slice, got: Array) -> None:
        """This rank's expert on the other's tokens."""
        tokens = got[..., -1] != 0  # what never arrived is not a number, and stays none
        done = data["done"][tiles]
        done[~tokens] = 0.0
        done[tokens] = self._ffn(data, got[tokens][:, :-1])

    def add(self, data: Data, tiles: slice, got: Array) -> None:
        """What came back, weighted, where its tokens were."""
        for out, away, gate, rows in zip(
            data["out"][tiles], data["away"][tiles], data["gate"][tiles], got, strict=True
        ):
            chosen = away > 0
            out[chosen] = rows[: int(chosen.sum())] * gate[chosen][:, None]

    @staticmethod
    def _ffn(data: Data, x: Array) -> Array:
        found: Array = np.maximum(x @ data["up"], 0.0) @ data["down"]
        return found

    def result(self, data: Data, rank: int) -> Array:
        """Tokens after their experts."""
        return data["out"]

    def reference(self, inputs: list[Data], rank: int) -> Array:
        """Every token through both experts, and the right one kept."""
        mine = inputs[rank]
        both = [self._ffn(inputs[who], mine["x"].reshape(-1, self.width)).reshape(mine["x"].shape) for who in (0, 1)]
        found: Array = np.where(mine["away"][..., None] > 0, both[1 - rank], both[rank]) * mine["gate"][..., None]
        return found


@dataclass(frozen=True)
class KvTransfer:
    """Prefill on one rank, decode on the other: keys and values go over layer by layer."""

    tiles: int = 8  # layers
    prompt: int = 80
    width: int = 192
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("prefill", reads=("x",), writes=("kv",), ranks=(0,)),
        Stage("hand_over", reads=("kv",), writes=("prompt_kv",), wire=True, ranks=(0,)),
        Stage("decode", reads=("prompt_kv",), ranks=(1,)),
    )

    def inputs(self, seed: int, rank: int) -> Data:
        """Weights of all layers on both ranks; the prompt, and the one token that is decoded."""
        t, n, d = self.tiles, self.prompt, self.width
        return {
            "x": draw(seed, "x", shape=(n, d)), "y": draw(seed, "y", shape=(1, d)),
            "w": draw(seed, "w", shape=(t, d, 3 * d), scale=d**-0.5),
            "mix": draw(seed, "mix", shape=(t, d, d), scale=d**-0.5),
            "kv": np.full((t, n, 2 * d), np.nan, np.float32),
        }  # fmt: skip

    def prefill(self, data: Data, tiles: slice, got: Array | None) -> None:
        """Layers of the prompt, one after the other: keys and values, attention, the next layer's input."""
        d = self.width
        for layer in range(tiles.start, tiles.stop):
            q, kv = np.split(data["x"] @ data["w"][layer], [d], axis=1)
            data["kv"][layer] = kv
            data["x"] = self._layer(data["x"], q, kv, data["mix"][layer])

    def decode(self, data: Data, tiles: slice, got: Array) -> None:
        """The same layers of one token, over the prompt's keys and values."""
        for layer, kv in zip(range(tiles.start, tiles.stop), got, strict=True):
            q = data["y"] @ data["w"][layer][:, : self.width]
            data["y"] = self._layer(data["y"], q, kv, data["mix"][layer])

    def _layer(self, x: Array, q: Array, kv: Array, mix: Array) -> Array:
        scores = q @ kv[:, : self.width].T * np.float32(self.width**-0.5)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weight / weight.sum(-1, keepdims=True) @ kv[:, self.width :]
        found: Array = x + np.tanh(seen @ mix)
        return found

    def result(self, data: Data, rank: int) -> Array:
        """Of the prefill its last layer's input, of the decode its token."""
        return data["x"] if rank == 0 else data["y"]

    def reference(self, inputs: list[Data], rank: int) -> Array:
        """Both on one rank, a layer at a time."""
        data: dict[str, Any] = {name: value.astype(np.float64) for name, value in inputs[0].items()}
        d = self.width
        x, y = data["x"], data["y"]
        for w, mix in zip(data["w"], data["mix"], strict=True):
            kv = (x @ w)[:, d:]
            y = self._layer(y, y @ w[:, :d], kv, mix)
            x = self._layer(x, x @ w[:, :d], kv, mix)
        found: Array = x if rank == 0 else y
        return found


TARGETS = {"gemm": Gemm, "attention": Attention, "moe": Experts, "kv": KvTransfer}
