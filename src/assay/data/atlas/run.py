"""A model over a graph, layer after layer, each whole on the disk before the next begins.

A layer's file counts from the moment its marker exists: the file is synced first, the marker is created, never
overwritten. A run that was killed goes on behind the last marker, if it is asked for the same thing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.atlas.choosing import STRIPS
from assay.data.atlas.engine import Plan, Ran, run_layer
from assay.data.atlas.layers import Layer
from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.data.engine.alone import alone
from assay.sim.memory import MAPPED, return_freed

Progress = Callable[[int, int], None]
KEPT, LEAST_MAPPED = 64, 16 << 10  # a freed block of a 64th of the memory goes back, if that is 16 KiB or more


@dataclass(frozen=True)
class Inferred:
    """What an inference took: one entry a layer that was computed; `resumed` layers were there already."""

    layers: tuple[Ran, ...]
    resumed: int

    @property
    def seconds(self) -> float:
        """The layers' seconds in all."""
        return sum(one.seconds for one in self.layers)


def infer(
    model: Sequence[Layer], graph: DiskGraph, features: Path, out: Path, memory: int, *, policy: str = "auto",
    seed: int = 0, progress: Progress = lambda done, total: None,
) -> Inferred:  # fmt: skip
    """Write every node's row of the last layer to `out`, a `.npy`, holding at most about `memory` bytes.

    `memory` counts what this call adds to the process. `policy` says who leaves the hot tier (`auto` tries both rules
    on a sample of the edges). Where an earlier call for the same output was killed, its finished layers are used.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph = DiskGraph.build(Path(folder, "g"), [np.array([(0, 1), (1, 2)])])
    ...     write_rows(Path(folder, "x.npy"), np.eye(3, dtype=np.float32))
    ...     model = [Layer("gin", {"eps": np.float32(0)}, False, ((np.ones((1, 3), np.float32), None, None, None),))]
    ...     ran = infer(model, graph, Path(folder, "x.npy"), Path(folder, "y.npy"), 1 << 20)
    ...     np.load(Path(folder, "y.npy")).tolist()
    [[1.0], [2.0], [2.0]]
    """
    return_freed(min(max(memory // KEPT, LEAST_MAPPED), MAPPED))
    _check(model, graph, features)
    with alone(out.with_name(out.name + ".work")):  # another run would take our layers for its own
        return _infer(model, graph, features, out, memory, policy, seed, progress)


def _infer(
    model: Sequence[Layer], graph: DiskGraph, features: Path, out: Path, memory: int, policy: str, seed: int,
    progress: Progress,
) -> Inferred:  # fmt: skip
    work = out.with_name(out.name + ".work")
    wanted = _identity(model, graph, features)
    done = _finished(work, wanted, len(model))
    if done == len(model):
        _publish(work, out, done)
        return Inferred((), done)
    if done == 0:
        for path in work.iterdir():
            path.unlink() if not path.is_dir() else shutil.rmtree(path)
    ran = []
    for i in range(done, len(model)):
        source = DiskArray.open(_file(work, i) if i else features)
        target = DiskArray.create(_file(work, i + 1), (graph.n, model[i].out_width), np.float32)
        with source, target:
            ran.append(run_layer(
                model[i], graph, source, target, memory, work, policy, seed,
                lambda row, i=i: progress(i * graph.n + row, len(model) * graph.n),  # type: ignore[misc]
            ))  # fmt: skip
        _mark(work, i + 1, wanted)
        if i:
            _file(work, i).unlink()
    progress(len(model) * graph.n, len(model) * graph.n)
    _publish(work, out, len(model))
    return Inferred(tuple(ran), done)


def _check(model: Sequence[Layer], graph: DiskGraph, features: Path) -> None:
    with DiskArray.open(features) as rows:
        if len(rows.shape) != 2 or rows.dtype.kind != "f":
            raise ValueError(
                f"{features} holds {rows.dtype} of shape {rows.shape}; floats of shape (nodes, columns) expected"
            )
        if len(rows) != graph.n:
            raise ValueError(f"{features} has {len(rows):,} rows, the graph {graph.n:,} nodes; a row a node expected")
        if rows.shape[1] != model[0].in_width:
            raise ValueError(f"{features} has {rows.shape[1]} columns; the model takes {model[0].in_width}")


def _file(work: Path, layer: int) -> Path:
    return work / f"layer-{layer}.npy"


def _marker(work: Path, layer: int) -> Path:
    return work / f"layer-{layer}.done"


def _identity(model: Sequence[Layer], graph: DiskGraph, features: Path) -> str:
    """What an unfinished run must have been asked for to be continued: the same weights, and unchanged files."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in model:
        digest.update(repr((layer.kind, layer.activate, layer.reduce)).encode())
        arrays = [*layer.weights.values(), *(part for step in layer.steps for part in step if part is not None)]
        for array in arrays:
            digest.update(repr(np.shape(array)).encode() + np.ascontiguousarray(array).tobytes())
    for path in (features, graph.indptr.file.path, graph.indices.file.path):
        facts = path.stat()
        digest.update(repr((str(path.resolve()), facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()


def _finished(work: Path, wanted: str, layers: int) -> int:
    """The last layer whose marker is there and is of the same run; 0 where none is."""
    for layer in range(layers, 0, -1):
        marker = _marker(work, layer)
        if marker.is_file() and marker.read_text(encoding="ascii").strip() == wanted:
            return layer
    return 0


def _mark(work: Path, layer: int, wanted: str) -> None:
    """Create the marker of a layer whose file is on the disk."""
    handle = os.open(_marker(work, layer), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(handle, f"{wanted}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    _sync_folder(work)


def _publish(work: Path, out: Path, last: int) -> None:
    """Put the last layer in its place; where that had happened before the crash, only clean up."""
    if _file(work, last).is_file():
        _file(work, last).replace(out)
        _sync_folder(out.parent)
    shutil.rmtree(work, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def warm(model: Sequence[Layer]) -> None:
    """Compile all that these layers need, on few nodes, so that neither time nor memory of it is measured later."""
    [layer] = model[:1]
    group = DiskArray.group_of(4 * layer.out_width)
    n = 2 * Plan.of(layer, 1 << 20, group, Plan.least(layer, 1 << 20, group)).slots  # so that some are evicted
    nodes = np.arange(n)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = DiskGraph.build(folder / "g", [np.stack([nodes, nodes * 7919 % n], axis=1)], n)
        write_rows(folder / "x.npy", np.zeros((n, layer.in_width), np.float32))
        for memory, policy in ((Plan.least(layer, n, group), "auto"), (1 << 26, STRIPS)):
            infer([layer], graph, folder / "x.npy", folder / "y.npy", memory, policy=policy)
        graph.close()
