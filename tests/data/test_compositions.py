"""Papers of the room hand their results to one another: as files and arrays, with nothing between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.data import Checkpointer, DiskGraph, GraphNetwork, VectorIndex, infer_gnn, knn_graph, train_gnn
from assay.data.atlas import layers
from assay.data.disk.arrays import write_rows

pytest.importorskip("torch")


def clusters(n: int, classes: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    centres = random.normal(scale=3.0, size=(classes, width))
    return (centres[labels] + random.normal(size=(n, width))).astype(np.float32), labels


def test_neighbours_are_a_graph_that_is_trained_on_saved_inferred_and_served(tmp_path: Path) -> None:
    points, labels = clusters(240, 4, 12, seed=5)
    graph = knn_graph(points, k=8, ranks=2)
    edges = graph.edge_index().T
    write_rows(tmp_path / "x.npy", points)
    known = np.where(np.arange(240) % 4 == 0, labels, -1)  # a quarter of the labels is known
    network = GraphNetwork("sage", (12, 16, 8))  # four of the classes never occur
    saved = Checkpointer(tmp_path / "checkpoints")
    train_gnn(
        network, lambda: iter([edges]), tmp_path / "x.npy", known, memory=1 << 26, epochs=25, lr=0.05, checkpoints=saved
    )

    state = saved.restore(25)["model"]
    flat = {name: np.asarray(value) for name, value in flattened(state).items()}
    on_disk = DiskGraph.build(tmp_path / "graph", [edges])
    infer_gnn(layers(flat), on_disk, tmp_path / "x.npy", tmp_path / "rows.npy", 1 << 26)
    rows = np.load(tmp_path / "rows.npy")
    assert (rows.argmax(1) == labels)[known < 0].mean() > 0.95

    with VectorIndex.build(tmp_path / "index", rows[:200]) as index:
        index.insert(rows[200:])
        near, _ = index.search(rows[200:], k=5)
    assert (labels[near] == labels[200:, None]).mean() > 0.9


def flattened(tree: object, under: str = "") -> dict[str, object]:
    """A tree of dictionaries by dotted names, as PyTorch calls its parameters."""
    if not isinstance(tree, dict):
        return {under: tree}
    return {
        name: leaf
        for key, branch in tree.items()
        for name, leaf in flattened(branch, f"{under}.{key}" * bool(under) or key).items()
    }
