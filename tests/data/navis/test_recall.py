"""What is found at defaults does not depend on the data: clusters, texts, duplicates, drift; built and inserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data.navis.vector_index import VectorIndex
from assay.data.vectors import brute_force, drifting

QUERIES, K = 60, 10


def clusters(random: Any, n: int) -> Any:
    """Two hundred groups that lie apart, of as many dimensions as the space has."""
    centres = 10 * random.normal(size=(200, 128))
    return centres[random.integers(0, len(centres), n)] + random.normal(size=(n, 128))


def texts(random: Any, n: int) -> Any:
    """Texts of words by Zipf's law, about topics: counts, rooted, on 64 directions, of length one."""
    words = 1 / np.arange(1, 2001)
    about = [random.permutation(words) for _ in range(30)]
    topics = np.stack([topic / topic.sum() for topic in about])
    mixed = random.dirichlet(np.full(30, 0.08), n) @ topics
    counts = np.stack([random.multinomial(80, row) for row in mixed])
    found = np.sqrt(counts) @ random.normal(size=(2000, 64))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def duplicates(random: Any, n: int) -> Any:
    """Ten of each, some as near as rounding."""
    base = random.normal(size=(n // 10, 32))
    found = base[random.integers(0, len(base), n)]
    found[::3] += 1e-3 * random.normal(size=found[::3].shape)
    return found


def drift(random: Any, n: int) -> Any:
    """Each row a little further than the one before."""
    return drifting(n, 48, clusters=12, seed=int(random.integers(100))).vectors


def share(kind: Any, n: int, built: float, folder: Path) -> float:
    """Of the ten nearest, as many as are as near as the tenth: of equal ones, any are right."""
    made = np.ascontiguousarray(kind(np.random.default_rng(5), n + QUERIES), np.float32)
    rows, asked = made[:n], made[n:]
    first = int(built * n)
    with VectorIndex.build(folder, rows[:first], workers=1) as index:
        index.insert(rows[first:])
        ids, far = index.search(asked, K)
    assert all(len(set(row)) == K for row in ids.tolist())
    last = brute_force(rows, asked, K)[1][:, -1:]
    return float((far <= last * (1 + 1e-5) + 1e-6).mean())


@pytest.mark.parametrize("kind", [clusters, texts, duplicates, drift])
def test_nine_of_ten_and_a_half_are_found_at_defaults_on_each_kind_of_data(kind: Any, tmp_path: Path) -> None:
    assert share(kind, 800, 0.9, tmp_path) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("built", [1.0, 0.8])
@pytest.mark.parametrize("kind", [clusters, texts, duplicates, drift])
def test_so_are_they_among_fifteen_thousand_where_walks_from_one_root_end_in_the_wrong_cluster(
    kind: Any, built: float, tmp_path: Path
) -> None:
    assert share(kind, 15_000, built, tmp_path) >= 0.95
