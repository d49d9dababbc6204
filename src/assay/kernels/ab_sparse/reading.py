"""The trained model answering questions over a long context, with attention that reads only some blocks of it.

The context is read once by the model itself; each question is then one decode step whose attention goes through the
kernels of this paper, in every layer. So an answer is wrong where a head did not see what it needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.kernels.ab_sparse import blocks, retrieval_lm
from assay.kernels.ab_sparse.blocks import Corners, Floats, Frame, Ints
from assay.kernels.ab_sparse.carry import Carry, learnt
from assay.kernels.ab_sparse.ragged import Ragged, attend
from assay.sim import tiny_lm


@dataclass(frozen=True)
class Way:
    """How attention is thinned: the block size of every head, layer by layer, the summary and its bits."""

    sizes: tuple[int, ...]  # empty: nothing is left out
    kind: str = "cuboid"
    bits: int = 16
    carried: bool = True  # rounded as calibration queries want it; else to the nearest step


@dataclass(frozen=True)
class Book:
    """A context that was read: the rows it left [layers, heads, tokens, width].

    `carries` say how a head's summaries are rounded, by layer, head and kind; where they don't, to the nearest step.
    """

    context: retrieval_lm.Context
    keys: Floats
    values: Floats
    where: Frame
    carries: Mapping[tuple[int, int, str], Carry] = field(default_factory=dict)
    summaries: dict[tuple[int, int, int, Way], Corners] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """KV heads of all layers."""
        return int(self.keys.shape[0] * self.keys.shape[1])

    def sizes(self, way: Way, layer: int) -> tuple[int, ...]:
        """The block sizes of a layer's heads."""
        heads = self.keys.shape[1]
        return way.sizes[layer * heads : (layer + 1) * heads]

    def corners(self, layer: int, head: int, size: int, way: Way) -> Corners:
        """What ranks the blocks of a head; made once."""
        name = (layer, head, size, replace(way, sizes=()))
        if name not in self.summaries:
            body = self.keys[layer, head, self.where.sink : self.where.end]
            carry = self.carries.get((layer, head, way.kind)) if way.carried else None
            self.summaries[name] = blocks.summarise(body, size, way.kind, way.bits, carry)
        return self.summaries[name]


def read(
    params: tiny_lm.Params, context: retrieval_lm.Context, carries: Mapping[tuple[int, int, str], Carry] | None = None
) -> Book:
    """Read a context with full attention, as prefill does."""
    import torch

    with torch.no_grad():
        _, cache = tiny_lm.forward(params, context.ids)
    keys, values = (
        np.stack([getattr(layer, part)[0].transpose(0, 1).numpy() for layer in cache.layers]).astype(np.float32)
        for part in ("rotary", "free")
    )
    return Book(context, keys, values, blocks.frame(len(context.ids)), carries or {})


def chosen(book: Book, way: Way, layer: int, queries: Floats, tokens: int) -> list[Ints]:
    """The blocks that each head of a layer reads for queries [questions, heads, width]."""
    return [
        blocks.picks(queries[:, h], book.corners(layer, h, size, way), tokens // size)
        for h, size in enumerate(book.sizes(way, layer))
    ]


def ask(params: tiny_lm.Params, book: Book, way: Way, tokens: int) -> tuple[Ints, list[Floats]]:
    """The answers to all questions of a book, and each layer's queries [questions, heads, width]."""
    w = {name: tensor.numpy() for name, tensor in params.tensors.items()}
    shape = params.shape
    x = w["embed"][book.context.questions]
    turns = _turns(len(book.context.ids), shape)
    asked = []
    for layer in range(shape.layers):
        one = {name.partition(".")[2]: t for name, t in w.items() if name.startswith(f"{layer}.")}
        rows = _norm(x, one["norm_attention"])
        q, k, v = ((rows @ one[name]).reshape(len(x), shape.heads, shape.head) for name in ("query", "key", "value"))
        q, k = _turn(q, turns), _turn(k, turns)
        asked.append(q)
        mixed, most, total = _attended(book, way, layer, q, tokens)
        own = (q * k).sum(2) / np.float32(np.sqrt(shape.head))  # a question also sees itself
        top = np.maximum(most, own)
        old, new = np.exp(most - top) * total, np.exp(own - top)
        mixed = (mixed * old[..., None] + v * new[..., None]) / (old + new)[..., None]
        x = x + mixed.reshape(len(x), -1) @ one["out"]
        rows = _norm(x, one["norm_ffn"])
        gate = rows @ one["gate"][0]
        x = x + (gate / (1 + np.exp(-gate)) * (rows @ one["up"][0])) @ one["down"][0]
    logits = _norm(x, w["norm"]) @ w["embed"].T
    return logits.argmax(1), asked


def _attended(book: Book, way: Way, layer: int, q: Floats, tokens: int) -> tuple[Floats, Floats, Floats]:
    heads, n = q.shape[1], book.where.tokens
    if way.sizes:
        each = chosen(book, way, layer, q, tokens)
        sizes, where = np.array(book.sizes(way, layer)), book.where
    else:
        each, sizes, where = [np.empty((len(q), 0), np.int64)] * heads, np.ones(heads, np.int64), Frame(n, 0, 0)
    begin = np.concatenate([[0], np.cumsum([one.shape[1] for one in each])])
    nothing, folded = np.empty((0,), np.float32), np.empty((0,), np.float16)
    cache = Ragged(book.keys[layer][None], book.values[layer][None], sizes, begin, where, 32, nothing, folded)
    return attend(cache, np.ascontiguousarray(q), np.zeros(len(q), np.int64), np.concatenate(each, 1), begin)


def _norm(x: Floats, weight: Floats) -> Floats:
    scaled: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.finfo(np.float32).eps) * weight
    return scaled


def _turns(position: int, shape: tiny_lm.Shape) -> tuple[Floats, Floats]:
    import torch

    cos, sin = tiny_lm.rotation(torch.tensor([position]), shape.head, shape.theta)
    return cos.numpy()[0], sin.numpy()[0]


def _turn(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    cos, sin = turns
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


# ------------------------------------------------------------------------------------------ recall


class Weights:
    """The full attention of a book's questions, head by head: what recalls are shares of."""

    def __init__(self, book: Book, asked: Sequence[Floats]) -> None:
        self.book, self.asked = book, asked
        self.by_head = {
            (layer, h): blocks.attention(asked[layer][:, h], book.keys[layer, h])
            for layer in range(len(asked))
            for h in range(book.keys.shape[1])
        }

    def recall(self, way: Way, tokens: int) -> NDArray[np.float64]:
        """The share of its attention that each head reads, every task counting alike."""
        found, tasks = [], self.book.context.tasks
        for layer in range(len(self.asked)):
            sizes = self.book.sizes(way, layer)
            for h, picked in enumerate(chosen(self.book, way, layer, self.asked[layer], tokens)):
                each = blocks.recall(self.by_head[layer, h], picked, self.book.where, sizes[h])
                found.append(np.mean([each[tasks == task].mean() for task in np.unique(tasks)]))
        return np.array(found, np.float64)

    def overlap(self, way: Way, other: Way, tokens: int) -> float:
        """Of the attention on blocks that `other` reads, the share that `way` reads, too; sizes are the same."""
        both = alone = 0.0
        where = self.book.where
        for layer in range(len(self.asked)):
            q = self.asked[layer]
            pair = [chosen(self.book, one, layer, q, tokens) for one in (way, other)]
            for h, (mine, theirs) in enumerate(zip(*pair, strict=True)):
                size = self.book.sizes(way, layer)[h]
                body = self.by_head[layer, h][:, where.sink : where.end].reshape(len(q), -1, size).sum(2)
                read = np.zeros_like(body, bool)
                np.put_along_axis(read, mine, True, 1)
                weights = np.take_along_axis(body, theirs, 1)
                alone += float(weights.sum())
                both += float((weights * np.take_along_axis(read, theirs, 1)).sum())
        return both / alone


def carries(opened: Sequence[Weights]) -> dict[tuple[int, int, str], Carry]:
    """How to round the summaries of each head, by the queries of calibration texts."""
    layers, heads = opened[0].book.keys.shape[:2]
    return {
        (layer, h, kind): learnt(np.concatenate([one.asked[layer][:, h] for one in opened]), kind)
        for layer in range(layers)
        for h in range(heads)
        for kind in ("cuboid", "ball")
    }


def metadata(book: Book, way: Way) -> float:
    """Bytes of the summaries of all heads, for each token of the body."""
    spent = [
        book.corners(layer, h, size, way).nbytes
        for layer in range(len(book.keys))
        for h, size in enumerate(book.sizes(way, layer))
    ]
    return sum(spent) / book.where.body


def right(book: Book, said: Ints) -> dict[str, Any]:
    """The share of right answers by task, and over the tasks."""
    hit = said == book.context.answers
    found = {task: float(hit[book.context.tasks == i].mean()) for i, task in enumerate(retrieval_lm.TASKS)}
    return found | {"accuracy": float(np.mean(list(found.values())))}
