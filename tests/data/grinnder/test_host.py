"""Rows under a limit: always the right ones, what a step needs stays, nothing is read before it is written."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.disk.graphs import DiskGraph
from assay.data.grinnder import partitioner, trials
from assay.data.grinnder.blocks import cut
from assay.data.grinnder.host import MODES, Gradients, Host, LoggedGradients
from assay.data.grinnder.partitioner import switch_aware
from assay.sim.graphs import CSR
from assay.sim.partitions import amplification, partition

STEPS = st.lists(st.tuples(st.sampled_from(["put", "gather", "forget"]), st.integers(0, 2), st.integers(0, 4)))


@given(STEPS, st.sampled_from(MODES), st.integers(0, 3000), st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_gathered_rows_are_those_put_last(steps: list[Any], mode: str, nbytes: int, seed: int) -> None:
    """Beside a dictionary that forgets nothing; hits and misses are all the times that a part was asked for."""
    rng = np.random.default_rng(seed)
    n, width, asked = 40, 6, 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        graph = cut(Path(name, "cut"), lambda: iter([rng.integers(0, n, (60, 2))]), n, 5, True)
        host = Host(Path(name), graph, (width,) * 3, nbytes, mode)
        right: dict[tuple[int, int], Any] = {}
        _watch(host)
        for act, layer, part in steps:
            if act == "put":
                rows = rng.normal(size=(int(graph.sizes[part]), width)).astype(np.float32)
                right[layer, part] = rows.copy()
                host.put(layer, part, rows)
            elif act == "forget":
                host.forget(layer)
                right = {key: rows for key, rows in right.items() if key[0] != layer}
                host.layers[layer].written[:] = False
            elif all((layer, q) in right for q in graph.needs(part).tolist()):
                block = graph.block(part)
                found = host.gather(layer, block, np.empty((block.inputs, width), np.float32))
                whole = np.concatenate([right.get((layer, q), np.zeros((s, width))) for q, s in enumerate(graph.sizes)])
                own = np.arange(block.first, block.first + block.n)
                assert np.array_equal(found, whole[np.concatenate([own, block.outside])].astype(np.float32))
                asked += len(graph.needs(part))
                assert host.cache.hits + host.cache.misses == asked
            assert host.cache.used <= nbytes
        host.close()
        graph.close()


def _watch(host: Host) -> None:
    """Fail where a part that the step under way depends on leaves."""
    leave = host._leave

    def watched(key: Any) -> None:
        assert key not in host.kept, "what a step depends on stays while it lasts"
        leave(key)

    host._leave = watched  # type: ignore[method-assign]


def test_a_part_that_nobody_wrote_is_not_read(tmp_path: Path) -> None:
    graph = cut(tmp_path / "cut", lambda: iter([np.array([(0, 1)])]), 4, 2, True)
    host = Host(tmp_path, graph, (3,), 0, "rows")
    with pytest.raises(RuntimeError, match="read before it is written"):
        host.gather(0, graph.block(0), np.empty((4, 3), np.float32))


def test_where_memory_is_enough_nothing_is_written(tmp_path: Path) -> None:
    graph = cut(tmp_path / "cut", lambda: iter([np.array([(0, 1), (2, 3)])]), 4, 2, True)
    host = Host(tmp_path, graph, (3, 3), 1 << 20, "layers")
    before = host.stats.write_bytes
    for layer in (0, 1):
        for part in (0, 1):
            host.put(layer, part, np.ones((2, 3), np.float32))
        host.forget(layer)
    assert host.stats.write_bytes == before


@given(st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_gradients_logged_on_disk_are_those_summed_in_memory(parts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, width = 30, 5
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        graph = cut(Path(name, "cut"), lambda: iter([rng.integers(0, n, (80, 2))]), n, parts, False)
        held, logged = Gradients(graph, width), LoggedGradients(Path(name, "log"), graph, width, chunk=4096)
        right = np.zeros((n, width))
        for p in range(parts):
            block = graph.block(p)
            rows = rng.normal(size=(block.inputs, width)).astype(np.float32)
            np.add.at(right, np.concatenate([np.arange(block.first, block.first + block.n), block.outside]), rows)
            held.add(block, rows)
            logged.add(block, rows)
        for p in range(parts):
            found = right[graph.ptr[p] : graph.ptr[p + 1]]
            assert np.allclose(held.take(p), found, atol=1e-5) and np.allclose(logged.take(p), found, atol=1e-5)
        logged.close()
        graph.close()


# ----------------------------------------------------------------------------------------------- the cut


@given(st.integers(1, 40), st.integers(0, 120), st.integers(1, 6), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_blocks_are_the_graph(n: int, m: int, parts: int, own_loops: bool, seed: int) -> None:
    """Every edge is in the block of its target, with its source by number; nothing else is."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, n, (m, 2))
    right = [(s, t) for s, t in edges.tolist() if not own_loops or s != t] + [(v, v) for v in range(n) if own_loops]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        graph = cut(Path(name), lambda: iter([edges]), n, min(parts, n), own_loops)
        found: list[tuple[int, int]] = []
        for p in range(graph.parts):
            block = graph.block(p)
            new = np.concatenate([np.arange(block.first, block.first + block.n), block.outside])
            targets = np.repeat(np.arange(block.n), np.diff(block.indptr))
            found += zip(
                graph.order[new[block.columns]].tolist(), graph.order[block.first + targets].tolist(), strict=True
            )
            assert (np.diff(block.outside) > 0).all()
        assert sorted(found) == sorted(right)
        assert graph.amplification == pytest.approx(graph.inputs.sum() / n)
        graph.close()


def test_labels_balance_and_cut_about_as_well_as_metis(tmp_path: Path) -> None:
    edges = trials.edges_of("communities", 4096, 16, 1)
    label = switch_aware(DiskGraph.build(tmp_path / "g", [edges], 4096), 8)
    assert np.bincount(label, minlength=8).max() <= 1.05 * 4096 / 8
    csr = CSR.from_edges(edges, 4096)
    assert amplification(csr, label.astype(np.int64)) < 1.3 * amplification(csr, partition(csr, 8, "metis"))


def test_cutting_takes_a_few_bytes_a_node_whatever_the_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "EDGES", 1 << 12)
    graph = DiskGraph.build(tmp_path / "g", [trials.edges_of("communities", 1 << 13, 8, 1)], 1 << 13)
    switch_aware(graph, 4)  # compiled
    tracemalloc.start()
    switch_aware(graph, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * graph.n + (1 << 19)
