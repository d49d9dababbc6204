"""Generated graphs for systems that store and learn on them: R-MAT, and communities with uneven degrees.

- Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004; Graph500's parameters.
- Karrer and Newman, "Stochastic blockmodels and community structure in networks", 2011: the degree correction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.sim.random import stream

Edges = npt.NDArray[np.int64]


def rmat(
    scale: int, edge_factor: int = 16, seed: int = 0, corners: tuple[float, float, float] = (0.57, 0.19, 0.19)
) -> Edges:
    """Directed edges of Graph500's R-MAT on 2**scale nodes, whose numbers are shuffled; repeats and loops are kept.

    >>> edges = rmat(6, 4, seed=1)
    >>> edges.shape, int(edges.max()) < 64
    ((256, 2), True)
    """
    if not 1 <= scale <= 30 or edge_factor < 1 or min(corners) < 0 or sum(corners) > 1:
        raise ValueError(
            f"scale {scale}, {edge_factor} edges a node, corners {corners}; 1 to 30, 1 or more, a share each"
        )
    rng = stream(seed, "rmat", scale, edge_factor)
    a, b, c = corners
    m = edge_factor << scale
    edges = np.zeros((m, 2), np.int64)
    for bit in range(scale):
        draw = rng.random(m, np.float32)
        edges[:, 0] |= (draw >= a + b).astype(np.int64) << bit
        edges[:, 1] |= (((draw >= a) & (draw < a + b)) | (draw >= a + b + c)).astype(np.int64) << bit
    return rng.permutation(1 << scale)[edges]


class Communities(NamedTuple):
    """Edges, and the community of each node."""

    edges: Edges
    block: npt.NDArray[np.int64]


def communities(
    n: int, blocks: int, degree: float = 16, mixing: float = 0.1, seed: int = 0, shuffle: bool = True
) -> Communities:
    """A degree-corrected block model: Pareto degrees, and a share `mixing` of edges that leave their community.

    With `shuffle` node numbers say nothing of communities; else a community's nodes follow on one another.

    >>> made = communities(1000, 10, degree=8, seed=1)
    >>> u, v = made.edges.T
    >>> 0.85 < (made.block[u] == made.block[v]).mean() < 0.95
    np.True_
    """
    if n < blocks or blocks < 1 or not 0 <= mixing <= 1:
        raise ValueError(f"{n} nodes in {blocks} blocks, mixing {mixing}; a node a block, and 0 to 1, expected")
    rng = stream(seed, "communities", n, blocks, repr(float(degree)), repr(float(mixing)))
    block = np.sort(rng.integers(blocks, size=n))
    weight = (1 - rng.random(n)) ** -0.5  # Pareto with exponent 2: uneven, with a finite mean
    total = np.concatenate([[0.0], np.cumsum(weight)])
    first = np.searchsorted(block, np.arange(blocks + 1))
    m = int(degree * n)
    sources = np.searchsorted(total, rng.random(m) * total[-1], side="right") - 1
    inside = rng.random(m) >= mixing
    low = np.where(inside, total[first[block[sources]]], 0.0)
    high = np.where(inside, total[first[block[sources] + 1]], total[-1])
    targets = np.searchsorted(total, low + rng.random(m) * (high - low), side="right") - 1
    edges = np.stack([sources, targets], axis=1).clip(0, n - 1)
    if not shuffle:
        return Communities(edges, block)
    name = rng.permutation(n)
    moved = np.empty(n, np.int64)
    moved[name] = block
    return Communities(name[edges], moved)


def features(block: npt.NDArray[np.int64], width: int, noise: float = 1.0, seed: int = 0) -> npt.NDArray[np.float32]:
    """A row for each node: its community's centre, and noise, so that learning from them means something.

    >>> first, second, third = features(np.array([0, 0, 1]), 4, noise=0.0).tolist()
    >>> first == second, first == third
    (True, False)
    """
    rng = stream(seed, "features", len(block), width)
    centres = rng.standard_normal((int(block.max(initial=0)) + 1, width), np.float32)
    return centres[block] + np.float32(noise) * rng.standard_normal((len(block), width), np.float32)
