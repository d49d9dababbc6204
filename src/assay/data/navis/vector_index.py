"""The index in a folder of yours, with plain calls."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.engine.version_log import Damaged
from assay.data.interface import NotFound
from assay.data.navis.disk import LocalDisk
from assay.data.navis.index import BATCH, Navis
from assay.data.navis.records import Config
from assay.data.store.blocking import wait
from assay.data.store.directory import DirStore
from assay.data.vectors.files import read_vectors
from assay.record.errors import BadInput

Progress = Callable[[int, int], None]
MEMORY = 256 << 20
CHECKED = 1 << 14  # rows that are looked at together
ATTEMPTS = 4  # of a reader that comes while the writer tidies up


class VectorIndex:
    """Nearest neighbours of vectors on disk, in a bounded memory, that can be added to while they are searched.

    One process writes, any number read; threads share an index. An insertion is durable when it returns. Memory holds
    about 80 bytes a vector (a code, its places) and `memory` for edge lists.

    >>> import tempfile
    >>> rows = np.random.default_rng(0).normal(size=(300, 24)).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with VectorIndex.build(folder, rows[:200]) as index:
    ...         new = index.insert(rows[200:])
    ...     with VectorIndex(folder) as index:  # it is all there again
    ...         ids, squared = index.search(rows[250], k=3)
    ...         len(index), int(ids[0, 0]), float(squared[0, 0])
    (300, 250, 0.0)
    """

    def __init__(
        self, folder: str | Path, *, write: bool = False, memory: int = MEMORY, workers: int = 4, _new: bool = False
    ) -> None:
        self.folder = Path(folder)
        if not _new and not (self.folder / "log-state").is_dir():
            raise BadInput(f"there is no index in {folder}; build it: assay data vec build {folder} VECTORS")
        store = DirStore(self.folder)
        self._lock = _locked(self.folder) if write or _new else -1
        self.inside = Navis(memory // 2, memory // 2, workers)
        for attempt in range(ATTEMPTS):
            try:
                wait(self.inside.open(store, LocalDisk(self.folder / "pages")))
                break
            except NotFound:  # the writer wrote a newer state meanwhile, and let go of the old one's pages
                if attempt == ATTEMPTS - 1:
                    raise

    @classmethod
    def build(
        cls, folder: str | Path, vectors: npt.NDArray[Any], ids: npt.NDArray[np.int64] | None = None, *,
        memory: int = MEMORY, workers: int = 4, progress: Progress = lambda done, total: None, **layout: Any,
    ) -> VectorIndex:  # fmt: skip
        """A new index of vectors; ids are their numbers where none are given. `layout`: see `Config`."""
        rows = _floats(vectors)
        if len(rows) < 2:
            raise BadInput(f"{len(rows)} vectors; two or more expected to begin with")
        made = cls(folder, memory=memory, workers=workers, _new=True)
        if made.inside.exists:
            made.close()
            raise BadInput(f"there is an index in {folder} already; insert into it, or name another folder")
        numbers = np.arange(len(rows)) if ids is None else np.asarray(ids, np.int64)
        if len(np.unique(numbers)) != len(rows):
            raise BadInput(f"{len(rows)} vectors and {len(np.unique(numbers))} different ids; one for each expected")
        wait(made.inside.build(rows, numbers, Config(rows.shape[1], **layout), progress=progress))
        return made

    def __enter__(self) -> VectorIndex:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        nodes = self.inside.nodes
        return 0 if nodes is None else nodes.count - int(nodes.dead[: nodes.count].sum())

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.inside.config.width

    def next_id(self) -> int:
        """The least number above all ids."""
        assert self.inside.nodes is not None
        return int(self.inside.nodes.ids[: self.inside.nodes.count].max(initial=-1)) + 1

    def insert(self, vectors: npt.NDArray[Any], ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Add vectors, durable when it returns; their ids, numbered on where none are given. Known ids are left."""
        self._writes()
        rows = _floats(np.atleast_2d(vectors))
        numbers = self.next_id() + np.arange(len(rows)) if ids is None else np.asarray(ids, np.int64)
        wait(self.inside.insert(numbers, rows))
        return numbers

    def insert_file(self, path: Path, progress: Progress = lambda done, total: None) -> tuple[int, int]:
        """Add a file's vectors, going on where a run before stopped: (rows that were there, rows added)."""
        self._writes()
        rows = read_vectors(path)
        _fit(path, rows, self.width)  # before the first of them is in
        source = _fingerprint(path)
        there = self.inside.sources.get(source, 0)
        for first in range(there, len(rows), BATCH):
            part = _floats(rows[first : first + BATCH])
            numbers = self.next_id() + np.arange(len(part))
            wait(self.inside.insert(numbers, part, source=source, rows=first + len(part)))
            progress(first + len(part) - there, len(rows) - there)
        return there, len(rows) - there

    def delete(self, ids: npt.ArrayLike) -> int:
        """Forget ids; how many were there."""
        self._writes()
        return wait(self.inside.delete(np.atleast_1d(np.asarray(ids, np.int64))))

    def search(
        self, queries: npt.ArrayLike, k: int = 10, breadth: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and squared distances of the nearest, one row a query. More `breadth` finds more, and takes longer."""
        rows = np.asarray(queries, np.float32)
        for _ in range(ATTEMPTS if self._lock < 0 else 0):
            try:
                return self.inside.search(rows, k, breadth)
            except Damaged:  # perhaps the writer has used a page again since this was opened
                wait(self.inside.reload())
        return self.inside.search(rows, k, breadth)

    def close(self) -> None:
        """A writer lays what changed into pages, so that the next one opens quickly; nothing depends on it."""
        nodes = self.inside.nodes
        try:
            if self._lock >= 0 and nodes is not None and nodes.used:
                wait(self.inside.checkpoint())
        finally:
            self.inside.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _writes(self) -> None:
        if self._lock < 0:
            raise BadInput("this index was opened to be searched; VectorIndex(folder, write=True) can be changed")


def _locked(folder: Path) -> int:
    lock = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise BadInput(f"another process is writing to {folder}; wait for it, or search meanwhile") from None
    return lock


def _fit(path: Path, rows: npt.NDArray[Any], width: int) -> None:
    """Refuse a file of another width, or with a number that is none, and say where."""
    if rows.shape[1] != width:
        raise BadInput(f"{path} has vectors of {rows.shape[1]} numbers; {width} expected, as in the index")
    for first in range(0, len(rows), CHECKED):
        odd = ~np.isfinite(np.asarray(rows[first : first + CHECKED], np.float32)).all(axis=1)
        if odd.any():
            raise BadInput(
                f"{path}: row {first + int(odd.argmax())} has a number that is not finite; finite ones expected"
            )


def _floats(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows = np.ascontiguousarray(vectors, np.float32)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise BadInput(f"vectors of shape {rows.shape}, or with NaN or infinity among them; finite (n, d) expected")
    return rows


def _fingerprint(path: Path) -> str:
    """A file by its size, its beginning and its end: enough to know it again."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(1 << 16)
        file.seek(max(size - (1 << 16), 0))
        return f"{path.name}:{size}:{blake2b(begin + file.read(), digest_size=8).hexdigest()}"
