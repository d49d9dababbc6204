"""Processes that share one model's weights for real: layers owned by rank l mod G, fetched or computed at the owner.

A small decoder in float32 (attention with a KV cache of one's own, then a gated feed-forward part) runs on G processes,
each with its own batch. `stream`: a rank copies the layers it does not own into a ring of two buffers and computes.
`send`: ranks send activations; each layer's owner computes the projections for all ranks' tokens together, attention
happens where the KV cache lies. Either way every output must equal the unsplit model's, bit for bit.

>>> demonstrate(2, "stream").equal
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream as randomness
from assay.sim.ranks import Rank, Ranks

Array = NDArray[np.float32]
LAYERS, WIDTH, HEADS, FFN = 8, 64, 4, 192
SEQUENCES, STEPS = 3, 6  # of each rank
SIZES = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * FFN), (FFN, WIDTH))
LAYER = sum(a * b for a, b in SIZES)  # weights of one layer, flat: a fetch is one copy


@dataclass(frozen=True)
class Shown:
    """Whether the shared model's outputs are the unsplit model's, and what each rank held and moved."""

    equal: bool
    resident: tuple[int, ...]  # weights each rank keeps, buffers included
    moved: int  # numbers that crossed between ranks


def matrices(flat: Array) -> list[Array]:
    """A layer's four matrices, as views of its flat weights."""
    ends = np.cumsum([a * b for a, b in SIZES])[:-1]
    return [part.reshape(size) for part, size in zip(np.split(flat, ends), SIZES, strict=True)]


def project(flat: Array, x: Array) -> Array:
    """Normalise, then queries, keys and values of all rows."""
    return np.asarray(_normed(x) @ matrices(flat)[0])


def finish(flat: Array, x: Array, attended: Array) -> Array:
    """The output projection and the feed-forward part, with both residuals."""
    _, out, up, down = matrices(flat)
    x = x + attended @ out
    gate, value = np.split(_normed(x) @ up, 2, axis=1)
    return np.asarray(x + (gate / (1 + np.exp(-gate)) * value) @ down)


def attend(qkv: Array, cache: list[Array]) -> Array:
    """Attention of one new token per sequence over its cache, which grows by it."""
    rows = qkv.reshape(len(qkv), 3, HEADS, WIDTH // HEADS)
    cache.append(rows[:, 1:])
    kv = np.stack(cache, axis=1)  # [sequences, tokens, 2, heads, width]
    scores = np.einsum("shd,sthd->sht", rows[:, 0], kv[:, :, 0]) / np.float32((WIDTH // HEADS) ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(np.einsum("sht,sthd->shd", weights, kv[:, :, 1]).reshape(len(qkv), WIDTH))


def _normed(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-6)))


def unsplit(weights: Array, batches: list[Array], together: bool) -> Array:
    """The reference: one process with all weights; `together` multiplies all ranks' rows at once, as an owner does."""
    caches = [[[] for _ in range(LAYERS)] for _ in batches]  # type: list[list[list[Array]]]
    states = list(batches)
    for _ in range(STEPS):
        for layer in range(LAYERS):
            flat = weights[layer]
            qkv = _each(lambda x, flat=flat: project(flat, x), states, together)  # type: ignore[misc]
            seen = [attend(part, caches[rank][layer]) for rank, part in enumerate(qkv)]
            pairs = [np.concatenate([x, a], axis=1) for x, a in zip(states, seen, strict=True)]
            states = _each(
                lambda p, flat=flat: finish(flat, p[:, :WIDTH], p[:, WIDTH:]),  # type: ignore[misc]
                pairs,
                together,
            )
    return np.stack(states)


def _each(compute: Callable[[Array], Array], batches: list[Array], together: bool) -> list[Array]:
    if not together:
        return [compute(np.ascontiguousarray(batch)) for batch in batches]
    return np.split(compute(np.concatenate(batches)), len(batches))


def work_stream(rank: Rank) -> int:
    """A rank that fetches: owned layers where they lie, the others through two buffers."""
    pool, x = rank.array("weights"), rank.array("inputs")[rank.index].copy()
    ring = [np.empty(LAYER, np.float32) for _ in range(2)]
    caches: list[list[Array]] = [[] for _ in range(LAYERS)]
    moved = 0
    for _ in range(STEPS):
        for layer in range(LAYERS):
            flat = pool[layer]
            if layer % rank.size != rank.index:
                np.copyto(ring[layer % 2], flat)
                flat, moved = ring[layer % 2], moved + LAYER
            x = finish(flat, x, attend(project(flat, x), caches[layer]))
    rank.array("outputs")[rank.index] = x
    return moved


def work_send(rank: Rank) -> int:
    """A rank that sends: activations go to each layer's owner, who computes for everyone."""
    pool, x = rank.array("weights"), rank.array("inputs")[rank.index].copy()
    box, answers = rank.array("box"), rank.array("answers")
    caches: list[list[Array]] = [[] for _ in range(LAYERS)]
    moved = 0

    def ask(layer: int, mine: Array, width: int, compute: Callable[[Array], Array]) -> Array:
        nonlocal moved
        box[rank.index, :, : mine.shape[1]] = mine
        rank.meet()
        if layer % rank.size == rank.index:
            rows = np.ascontiguousarray(box[:, :, : mine.shape[1]]).reshape(-1, mine.shape[1])
            answers[:, :, :width] = compute(rows).reshape(rank.size, -1, width)
        else:
            moved += mine.size + len(mine) * width
        rank.meet()
        return np.array(answers[rank.index, :, :width])

    for _ in range(STEPS):
        for layer in range(LAYERS):
            flat = pool[layer]  # read by the owner alone
            qkv = ask(layer, x, 3 * WIDTH, lambda rows, flat=flat: project(flat, rows))  # type: ignore[misc]
            pair = np.concatenate([x, attend(qkv, caches[layer])], axis=1)
            x = ask(layer, pair, WIDTH, lambda rows, flat=flat: finish(flat, rows[:, :WIDTH], rows[:, WIDTH:]))  # type: ignore[misc]
    rank.array("outputs")[rank.index] = x
    return moved


def demonstrate(group: int, mode: str, *, seed: int = 0) -> Shown:
    """Run `group` processes in a mode (`stream` or `send`) and compare them with the unsplit model."""
    random = randomness(seed, "weight-pool", group)
    weights = random.normal(0, 0.08, (LAYERS, LAYER)).astype(np.float32)
    inputs = random.normal(0, 1, (group, SEQUENCES, WIDTH)).astype(np.float32)
    wide = np.zeros((group, SEQUENCES, 3 * WIDTH), np.float32)
    arrays: dict[str, NDArray[Any]] = {"weights": weights, "inputs": inputs, "outputs": np.zeros_like(inputs),
                                       "box": wide, "answers": wide.copy()}  # fmt: skip
    target = {"stream": work_stream, "send": work_send}[mode]
    with Ranks(group, target, arrays=arrays, imports=(__name__,)) as ranks:
        moved = sum(ranks.wait(timeout=60))
        outputs = ranks.array("outputs").copy()
    expected = unsplit(weights, list(inputs), together=mode == "send")
    owned = [len(range(rank, LAYERS, group)) for rank in range(group)]
    buffers = 2 if mode == "stream" else 0
    return Shown(bool(np.array_equal(outputs, expected)), tuple((own + buffers) * LAYER for own in owned), moved)
