"""Full-batch training, block by block and layer by layer: the gradients of the whole graph, in a given memory.

Forward keeps every layer's rows once. Backward gathers a block's inputs a second time from those rows, computes the
layer again and differentiates it; what a block blames on nodes of other parts is added to their gradients. The loss is
summed over training nodes and divided by their number at the end, so that the cut changes nothing but rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.disk.pages import IoStats
from assay.data.grinnder.blocks import Blocks, CutGraph, rows_in_order
from assay.data.grinnder.host import Gradients, Host, LoggedGradients
from assay.data.grinnder.layers import Block, Floats, Int64s, Network
from assay.data.grinnder.plan import Plan, planned
from assay.sim.blas import WORTHWHILE
from assay.sim.scratch import scratch

Progress = Callable[[int, int], None]


class Blame(Protocol):
    """Gradients of a layer's rows, summed over blocks."""

    @property
    def stats(self) -> IoStats:
        """What they cost on disk."""

    def add(self, block: Block, rows: Floats) -> None:
        """Add those of a block's inputs."""

    def take(self, part: int) -> Floats:
        """A part's sums."""

    def close(self) -> None:
        """Let them go."""


@dataclass(frozen=True)
class Epoch:
    """What one pass over the graph found, with the weights before its step, and what it took."""

    loss: float
    accuracy: float  # of the training nodes
    others: float | None  # of the other labelled nodes
    seconds: float
    read_bytes: int
    written_bytes: int


class Fetched(NamedTuple):
    """A block, its inputs, and on the way back the gradient of its outputs."""

    block: Block
    x: Floats
    blame: Floats | None


class Trainer:
    """One network on one cut graph. `epoch()` leaves the gradients of the mean loss in the network's parameters."""

    def __init__(
        self, network: Network, graph: CutGraph, plan: Plan, folder: Path, labels: Int64s, train: npt.NDArray[np.bool_]
    ) -> None:
        self.network, self.graph, self.plan, self.folder = network, graph, plan, folder
        graph.resident = plan.blocks
        self.labels = labels[graph.order].astype(np.int32)
        self.train = train[graph.order]
        self.count = int(train.sum())
        folder.mkdir(parents=True, exist_ok=True)
        inner = network.widths[:-1]
        self.host = Host(folder, graph, (*inner, *inner), plan.cache, plan.mode)  # rows of layers, then their gradients
        self._moving = ThreadPoolExecutor(1, thread_name_prefix="rows")  # the one thread that owns the host's rows
        size = int(graph.inputs.max(initial=0)) * max(network.widths[:-1])
        self._buffers = [np.empty(size, np.float32) for _ in range(2)]
        self._blamed: dict[int, Blame] = {}
        self._logged = IoStats()
        self.backwards = False  # which way the epoch under way is going

    def load(self, features: DiskArray) -> None:
        """Copy the features, part by part, in the order of the cut."""
        some = max((4 << 20) // max(features.row_bytes, 4096), 1)
        for p in range(self.graph.parts):
            order = self.graph.order[self.graph.ptr[p] : self.graph.ptr[p + 1]]
            parts = list(rows_in_order(features, order, some)) or [np.empty((0, features.shape[1]), np.float32)]
            self.host.layers[0].write(p, np.concatenate(parts))

    @property
    def stats(self) -> IoStats:
        """What all files were asked so far."""
        return self.host.stats + self.graph.stats + self._logged

    def epoch(self, progress: Progress = lambda done, total: None) -> Epoch:
        """Forward and backward over the whole graph."""
        threads, widest = torch.get_num_threads(), max(self.network.widths)
        if int(self.graph.inputs.max(initial=0)) * widest**2 < WORTHWHILE:
            torch.set_num_threads(1)  # small products wait for a second core longer than they take
        try:
            return self._epoch(progress)
        finally:
            torch.set_num_threads(threads)

    def _epoch(self, progress: Progress) -> Epoch:
        began, before = perf_counter(), self.stats
        layers, parts = len(self.network.convs), self.graph.parts
        total = (2 * layers - 1) * parts
        self._done = lambda passes, part: progress(passes * parts + part + 1, total)
        self.network.zero_grad(set_to_none=False)
        self.backwards = False
        for i in range(layers - 1):
            self._pass(i, self._forward, i)
        self.backwards = True
        self._seen = np.zeros(5)  # loss; right and all of the training nodes; of the others
        for i in reversed(range(layers)):
            self._pass(i, self._backward, 2 * layers - 2 - i)
            self._finish(i + 1)
            if i:
                self.host.forget(i)
            if i > 1:  # the next layer's gradients want the memory in which these were summed
                self._moving.submit(self._settle, i).result()
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(self.count, 1)
        now = self.stats
        loss, right, all_, also, others = self._seen.tolist()
        return Epoch(
            loss / max(self.count, 1), right / max(all_, 1), also / others if others else None, perf_counter() - began,
            now.read_bytes - before.read_bytes, now.write_bytes - before.write_bytes,
        )  # fmt: skip

    def _pass(self, i: int, compute: Callable[[int, Fetched], Any], number: int) -> None:
        """Layer i on every block; the next block's inputs come in while one is computed."""
        parts, pending = self.graph.parts, list[Future[None]]()
        coming = self._moving.submit(self._fetch, i, 0)
        for p in range(parts):
            fetched = coming.result()
            if p + 1 < parts:
                coming = self._moving.submit(self._fetch, i, p + 1)
            for done in pending:
                done.result()
            pending = [self._moving.submit(*leaving)] if (leaving := compute(i, fetched)) else []
            del fetched, leaving
            self._done(number, p)
        for done in pending:
            done.result()

    def _fetch(self, i: int, p: int) -> Fetched:
        block = self.graph.block(p)
        width = self.network.widths[i]
        buffer = self._buffers[p % 2][: block.inputs * width].reshape(block.inputs, width)
        blame = self._taken(i + 1, p) if self.backwards and i < len(self.network.convs) - 1 else None
        return Fetched(block, self.inputs(i, block, buffer), blame)

    def inputs(self, i: int, block: Block, buffer: Floats) -> Floats:
        """A block's inputs of layer i; called in the thread that moves rows."""
        return self.host.gather(i, block, buffer)

    def _forward(self, i: int, fetched: Fetched) -> tuple[Any, ...]:
        with torch.no_grad():
            out = self.network.layer(i, torch.from_numpy(fetched.x), fetched.block)
        return self.host.put, i + 1, fetched.block.part, out.numpy()

    def _backward(self, i: int, fetched: Fetched) -> tuple[Any, ...] | None:
        rows = torch.from_numpy(fetched.x).requires_grad_(i > 0)
        out = self.network.layer(i, rows, fetched.block)
        if fetched.blame is None:
            self._loss(out, fetched.block).backward()
        else:
            out.backward(torch.from_numpy(fetched.blame))
        if i == 0:
            return None
        assert rows.grad is not None  # a part without training nodes, too, is connected to its zero
        return self._blame(i).add, fetched.block, rows.grad.numpy()

    def _loss(self, out: Tensor, block: Block) -> Tensor:
        """The summed loss of a block's training nodes; counts on the way what was told right."""
        own = slice(block.first, block.first + block.n)
        labels, train = torch.from_numpy(self.labels[own].astype(np.int64)), torch.from_numpy(self.train[own])
        loss = functional.cross_entropy(out[train], labels[train], reduction="sum") + 0 * out.sum()
        with torch.no_grad():
            right = out.argmax(1) == labels
        others = ~train & (labels >= 0)
        self._seen += [
            float(loss.detach()), int(right[train].sum()), int(train.sum()), int(right[others].sum()),
            int(others.sum()),
        ]  # fmt: skip
        return loss

    def _blame(self, i: int) -> Blame:
        if i not in self._blamed:
            self._blamed[i] = self.new_gradients(i)
        return self._blamed[i]

    def new_gradients(self, i: int) -> Blame:
        """Where the gradients of layer i's rows are summed."""
        width = self.network.widths[i]
        if self.plan.gradients:
            return Gradients(self.graph, width)
        return LoggedGradients(self.folder / f"blame-{i}", self.graph, width)

    def _settle(self, i: int) -> None:
        """Hand a layer's finished sums over to the host, which holds or writes them as any rows."""
        if isinstance(sums := self._blamed.get(i), Gradients):
            for p in range(self.graph.parts):
                self.host.put(len(self.network.convs) + i, p, sums.take(p))
            self._finish(i)

    def _taken(self, i: int, part: int) -> Floats:
        if i in self._blamed:
            return self._blamed[i].take(part)
        return self.host.take(len(self.network.convs) + i, part)

    def _finish(self, i: int) -> None:
        """A layer's gradients have been passed on."""
        if gone := self._blamed.pop(i, None):
            self._logged += gone.stats
            gone.close()

    def close(self) -> None:
        """Stop the thread and close the files."""
        self._moving.shutdown()
        for i in list(self._blamed):
            self._finish(i)
        self.host.close()
        self.graph.close()


class Checkpoints(Protocol):
    """Where training is saved after each epoch: `assay.data.Checkpointer` does."""

    def steps(self) -> list[int]:
        """Epochs that are saved whole."""

    def save(self, step: int, tree: Any) -> None:
        """Save; durable when it returns."""

    def restore(self, step: int | None = None, *, like: Any = None) -> Any:
        """A saved tree, the newest where none is named."""


@dataclass(frozen=True)
class Fitted:
    """A training: an entry for each epoch that was run; `resumed` epochs were saved already."""

    epochs: tuple[Epoch, ...]
    losses: tuple[float, ...]  # of all epochs, those before a restart included
    resumed: int
    plan: Plan
    parts: int
    amplification: float


def fit(
    network: Network, edges: Blocks, features: Path, labels: Int64s, *, memory: int, epochs: int = 10,
    lr: float = 0.01, weight_decay: float = 0.0, train: npt.NDArray[np.bool_] | None = None, parts: int | None = None,
    checkpoints: Checkpoints | None = None, progress: Progress = lambda done, total: None,
) -> Fitted:  # fmt: skip
    """Train a network on a whole graph, holding at most about `memory` bytes beside what the process has.

    `edges()` yields blocks of (source, target); `labels` are classes, below zero where unknown; `train` says which
    nodes the loss is taken over (all that have a label). With `checkpoints` every epoch is saved, and a training that
    was killed goes on behind its last one: what else lies on disk meanwhile is scratch.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rows(Path(folder, "x.npy"), np.eye(4, dtype=np.float32))
    ...     ring = np.array([(0, 1), (1, 2), (2, 3), (3, 0)])
    ...     network = Network("sage", (4, 8, 2))
    ...     labels = np.array([0, 1, 0, 1])
    ...     done = fit(network, lambda: iter([ring]), Path(folder, "x.npy"), labels, memory=1 << 26, epochs=30)
    >>> done.epochs[-1].accuracy
    1.0
    """
    with DiskArray.open(features) as rows, scratch() as folder:
        chosen = checked(network, rows, labels, train)
        optimizer = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
        graph, plan = planned(folder, (read := _Digested(edges)), len(rows), network, memory, parts)
        of = _identity(network, features, read.digest.digest(), labels, chosen, lr, weight_decay)
        losses = _resumed(checkpoints, network, optimizer, of, epochs)
        done = len(losses)
        trainer = Trainer(network, graph, plan, folder / "rows", labels, chosen)
        try:
            trainer.load(rows)
            ran = []
            for number in range(done, epochs):
                ran.append(trainer.epoch(lambda at, of, k=number - done: progress(k * of + at, (epochs - done) * of)))  # type: ignore[misc]
                optimizer.step()
                losses.append(ran[-1].loss)
                if checkpoints is not None:
                    tree = {"model": network, "optimizer": optimizer, "losses": np.array(losses), "of": of}
                    checkpoints.save(number + 1, tree)
        finally:
            trainer.close()
        return Fitted(tuple(ran), tuple(losses), done, plan, graph.parts, graph.amplification)


def checked(
    network: Network, rows: DiskArray, labels: Int64s, train: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_]:
    """The nodes to train on, if features, labels and network fit together; a ValueError tells what does not."""
    path = rows.file.path
    if len(rows.shape) != 2 or rows.dtype.kind != "f":
        raise ValueError(f"{path} holds {rows.dtype} of shape {rows.shape}; floats of shape (nodes, columns) expected")
    if rows.shape[1] != network.widths[0]:
        raise ValueError(f"{path} has {rows.shape[1]} columns; the network takes {network.widths[0]}")
    if labels.shape != (len(rows),):
        raise ValueError(f"labels have shape {labels.shape}, the features {len(rows):,} rows; a label a node expected")
    known = labels >= 0
    if labels.max(initial=-1) >= network.widths[-1]:
        raise ValueError(f"a label is {labels.max()}; the network has {network.widths[-1]} classes, 0 and up")
    chosen = known if train is None else train
    if chosen.shape != known.shape or not chosen.any() or (chosen & ~known).any():
        raise ValueError(
            f"{int(chosen.sum())} training nodes, {int((chosen & ~known).sum()) if chosen.shape == known.shape else 0} "
            "of them without a label; at least one, each with a label, expected"
        )
    return chosen


class _Digested:
    """Edges with a digest of them, whole when they were read."""

    def __init__(self, edges: Blocks) -> None:
        self._edges, self.digest = edges, hashlib.blake2b()

    def __call__(self) -> Iterator[Int64s]:
        self.digest = hashlib.blake2b()
        for block in self._edges():
            self.digest.update(np.ascontiguousarray(block, np.int64).data)
            yield block


def _identity(
    network: Network, features: Path, edges: bytes, labels: Int64s, train: npt.NDArray[np.bool_], lr: float,
    decay: float,
) -> str:  # fmt: skip
    """What a saved training must have been of to be continued."""
    facts = features.stat()
    about = (network.kind, network.widths, network.heads, network.seed, facts.st_size, facts.st_mtime_ns, lr, decay)
    digest = hashlib.blake2b(repr(about).encode() + edges, digest_size=16)
    for array in (labels, train):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _resumed(
    checkpoints: Checkpoints | None, network: Network, optimizer: torch.optim.Optimizer, of: str, epochs: int
) -> list[float]:
    """Load the newest epoch, if there is one; the losses so far. ValueError where it is none of this training's."""
    if checkpoints is None or not checkpoints.steps():
        return []
    told = checkpoints.restore(like=None)
    if told.get("of") != of:
        raise ValueError("the store holds a training of other data or settings; name another store, or an empty one")
    if len(told["losses"]) > epochs:
        raise ValueError(
            f"the store holds {len(told['losses'])} epochs of this training, and {epochs} are wanted; ask for as many, "
            "or name another store"
        )
    network.load_state_dict(told["model"])
    optimizer.load_state_dict(told["optimizer"])
    return [float(loss) for loss in told["losses"]]


def warm(kind: str) -> None:
    """Compile all that a kind of layer needs, on four nodes, so that neither its time nor its memory is measured."""
    ring = np.array([(0, 1), (1, 2), (2, 3), (3, 0)])
    with scratch() as folder:
        write_rows(folder / "x.npy", np.eye(4, dtype=np.float32))
        network, labels = Network(kind, (4, 8, 2)), np.array([0, 1, 0, 1])  # wider, then narrower: both orders
        graph, plan = planned(folder, lambda: iter([ring]), 4, network, 1 << 28, 2)
        trainer = Trainer(network, graph, plan, folder / "rows", labels, labels >= 0)
        with DiskArray.open(folder / "x.npy") as rows:
            trainer.load(rows)
        trainer.epoch()  # and no step: torch loads its compiler with an optimizer, which takes seconds
        trainer.close()


def gradients(network: Network) -> dict[str, Floats]:
    """Copies of the parameters' gradients."""
    return {name: p.grad.numpy().copy() for name, p in network.named_parameters() if p.grad is not None}


def difference(one: dict[str, Floats], other: dict[str, Floats]) -> float:
    """The largest distance of a parameter's two gradients, over the size of the second."""
    return max(
        float(np.linalg.norm(one[name] - right)) / max(float(np.linalg.norm(right)), 1e-12)
        for name, right in other.items()
    )


def widths_of(columns: int, hidden: int, layers: int, classes: int) -> Sequence[int]:
    """The widths of a network of so many layers.

    >>> widths_of(100, 256, 3, 47)
    [100, 256, 256, 47]
    """
    return [columns, *[hidden] * (layers - 1), classes]
