"""The commands whose output follows from their input, under random sequences of what people do to both.

Vectors, edges, rows, labels and models are changed between runs; outputs and stores are used again with other inputs
and options. What a command that ends well has written is the answer to what it was given then, whatever lay there
before; else it has one line to say, and what lay there still does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from assay.data.atlas.commands.gnn import infer_command as infer
from assay.data.graphflash.commands.graph import command as graph
from assay.data.grinnder.commands.gnn import train
from assay.data.solanet.commands.knn import command as knn
from assay.data.vectors import write_vectors
from tests.data.layers import called, vector
from tests.oracles import gnn as oracle
from tests.oracles import graph_programs as programs

NODES, COLUMNS, CLASSES = 12, 4, 3
two = st.integers(0, 1)
PROGRAMS = ["components", "triangles", "pagerank", "bfs", "sssp", "labels"]


def far(u: int, v: int) -> float:
    """How long a road is."""
    return 1.0 + (3 * u + 5 * v) % 7


class Answers(RuleBasedStateMachine):
    """The inputs as they are, and what each output held last."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.drawn = 0
        self.points: list[int] = []
        self.edges: list[tuple[int, int]] = []
        self.trained: dict[int, tuple[Any, int]] = {}  # by store: of what its training is, and how many epochs
        self.there: dict[str, bytes] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def _draw(self) -> np.random.Generator:
        self.drawn += 1
        return np.random.default_rng(self.drawn)

    # ------------------------------------------------------------------------------------------------ the inputs

    @initialize()
    def begin(self) -> None:
        """Some of everything."""
        self.more_points(20)
        self.other_edges(30)
        self.other_rows()
        self.other_model()

    @rule(count=st.integers(1, 10))
    def more_points(self, count: int) -> None:
        """A file of vectors that grew."""
        self.points += range(len(self.points), len(self.points) + count)
        self._write_points()

    @rule(how=st.sampled_from(["backwards", "fewer"]))
    def other_points(self, how: str) -> None:
        """As many vectors in another order, or fewer."""
        self.points = self.points[::-1] if how == "backwards" else self.points[: max(8, len(self.points) - 3)]
        self._write_points()

    def _write_points(self) -> None:
        write_vectors(self.home / "points.fvecs", np.stack([vector(one) for one in self.points]))

    @rule(count=st.integers(1, 9))
    def more_edges(self, count: int) -> None:
        """An edge list that grew."""
        self.edges += [tuple(edge) for edge in self._draw().integers(0, NODES, (count, 2)).tolist()]
        self._write_edges()

    @rule(count=st.sampled_from([20, 30]))
    def other_edges(self, count: int) -> None:
        """Other edges."""
        self.edges = []
        self.more_edges(count)

    def _write_edges(self) -> None:
        (self.home / "edges.txt").write_text("".join(f"{u:02d} {v:02d}\n" for u, v in self.edges))
        (self.home / "roads.txt").write_text("".join(f"{u:02d} {v:02d} {far(u, v)}\n" for u, v in self.edges))

    @rule()
    def other_rows(self) -> None:
        """Other features, and as many labels."""
        random = self._draw()
        self.rows = random.normal(size=(NODES, COLUMNS)).astype(np.float32)
        np.save(self.home / "rows.npy", self.rows)
        np.save(self.home / "labels.npy", np.arange(NODES) % CLASSES if self.drawn % 2 else np.arange(NODES) // 4)

    @rule()
    def other_model(self) -> None:
        """Other weights."""
        random = self._draw()
        shapes = {"lin.weight": (CLASSES, COLUMNS), "bias": (CLASSES,)}
        self.model = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        named: dict[str, Any] = {f"convs.0.{name}": value for name, value in self.model.items()}
        np.savez(self.home / "model.npz", **named)

    # ------------------------------------------------------------------------------------------------ the commands

    def _wrote(self, well: bool, *names: str) -> None:
        """Who ends in one line has left what was there; later runs leave what they do not write."""
        for name in names:
            path = self.home / name
            if not well:
                assert (path.read_bytes() if path.exists() else None) == self.there.get(name), name
            elif path.exists():
                self.there[name] = path.read_bytes()

    @rule(out=two, k=st.sampled_from([2, 3]), edges=st.booleans())
    def neighbours(self, out: int, k: int, edges: bool) -> None:
        """A graph of nearest neighbours, into any of two folders."""
        folder = self.home / f"knn{out}"
        words = [self.home / "points.fvecs", "-k", k, "--ranks", 1, "--out", folder, *(["--edges"] if edges else [])]
        well = called(knn, *words)
        self._wrote(well, f"knn{out}/ids.npy", f"knn{out}/dist.npy")
        if not well:
            return
        rows = np.stack([vector(one) for one in self.points])
        ids, far = np.load(folder / "ids.npy"), np.load(folder / "dist.npy")
        every = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        np.fill_diagonal(every, np.inf)
        assert ids.shape == (len(rows), k) and all(len(set(row)) == k for row in ids.tolist())
        assert np.allclose(far, np.take_along_axis(every, ids.astype(np.int64), 1), rtol=1e-4)
        assert (far <= np.sort(every)[:, k - 1 : k] * 1.0001).mean() > 0.9
        if edges:
            found = np.load(folder / "edge_index.npy")
            assert Counter(found.ravel().tolist()).total() == 2 * k * len(rows) and found.max() < len(rows)

    @rule(program=st.sampled_from(PROGRAMS), store=st.sampled_from(["", "0", "1"]))
    def walk(self, program: str, store: str) -> None:
        """A program over the edges, perhaps through a store in which there was another one."""
        out = self.home / "values.csv"
        file, root = self.home / ("roads.txt" if program == "sssp" else "edges.txt"), self.edges[0][0]
        words = [file, "--workers", 1, "--cut", "hash", "--out", out]
        words += ["--root", root] if program in ("bfs", "sssp") else []
        well = called(graph.commands[program], *words, *(["--store", self.home / f"graph{store}"] if store else []))
        self._wrote(well, "values.csv")
        if well:
            lines = out.read_text().splitlines()[1:]
            found = {int(name): float(value) for name, value in (line.split(",") for line in lines)}
            names = sorted({v for edge in self.edges for v in edge})
            edges = [(names.index(u), names.index(v)) for u, v in self.edges]
            assert list(found) == names
            values, n = list(found.values()), len(names)
            if program == "triangles":
                assert sum(values) == programs.triangles(n, edges)
            elif program == "components":
                assert values == [names[first] for first in programs.components(n, edges)]
            elif program == "labels":
                assert values == [names[first] for first in programs.labels(n, edges, 20)]
            elif program in ("bfs", "sssp"):
                long = [far(u, v) if program == "sssp" else 1.0 for u, v in self.edges]
                right = programs.distances(n, edges, long, names.index(root))
                assert values == [-1 if program == "bfs" and one == float("inf") else one for one in right]
            else:
                assert np.allclose(values, programs.pagerank(n, edges, 0.85), atol=1e-5)

    @rule(out=two, undirected=st.booleans())
    def rows_of_a_network(self, out: int, undirected: bool) -> None:
        """What a network makes of the graph, into any of two files."""
        words = [self.home / "edges.txt", "--features", self.home / "rows.npy", "--model", self.home / "model.npz",
                 "--out", self.home / f"rows{out}.npy", "--memory", "16GB"]  # fmt: skip
        well = called(infer, *words, *(["--undirected"] if undirected else []))
        self._wrote(well, f"rows{out}.npy")
        if well:
            every = self.edges + [(v, u) for u, v in self.edges if undirected and u != v]
            right = oracle.layer("gcn", self.model, every, self.rows)
            assert np.allclose(np.load(self.home / f"rows{out}.npy"), right, atol=1e-4)

    @rule(store=two, epochs=st.sampled_from([1, 2, 3]), seed=two)
    def learn(self, store: int, epochs: int, seed: int) -> None:
        """Train, and go on with what a store has; the model is that of a training without one."""
        well = self._train("kept.npz", epochs, seed, "--store", self.home / f"training{store}")
        self._wrote(well, "kept.npz")
        labels = np.load(self.home / "labels.npy").tobytes()
        what = (tuple(self.edges), self.rows.tobytes(), labels, seed)
        before = self.trained.get(store, (what, 0))
        assert well == (before[0] == what and before[1] <= epochs)
        if well:
            self.trained[store] = (what, epochs)
            assert self._train("plain.npz", epochs, seed)
            kept, plain = np.load(self.home / "kept.npz"), np.load(self.home / "plain.npz")
            assert set(kept.files) == set(plain.files)
            assert all(np.allclose(kept[name], plain[name], atol=1e-5) for name in kept.files)

    def _train(self, out: str, epochs: int, seed: int, *more: object) -> bool:
        return called(
            train, self.home / "edges.txt", "--features", self.home / "rows.npy", "--labels", self.home / "labels.npy",
            "--out", self.home / out, "--hidden", 4, "--epochs", epochs, "--seed", seed, "--memory", "16GB", *more,
        )  # fmt: skip
