"""The index in a folder of yours, with plain calls."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.engine.version_log import Damaged
from assay.data.interface import NotFound
from assay.data.navis import pages
from assay.data.navis.compaction import compact
from assay.data.navis.disk import LocalDisk
from assay.data.navis.index import BATCH, LINE, Navis
from assay.data.navis.metrics import METRICS, asked, inward, length, outward
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
    about 120 bytes a vector (a code, its places) and `memory` for edge lists.

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
        self.folder, self._process = Path(folder), os.getpid()
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
        memory: int = MEMORY, workers: int = 4, progress: Progress = lambda done, total: None,
        source: Path | None = None, metric: str = "l2", longest: float | None = None, tags: Sequence[str] = (),
        **layout: Any,
    ) -> VectorIndex:  # fmt: skip
        """A new index of vectors; ids are their numbers where none are given. `layout`: see `Config`.

        `metric`: l2, cosine or ip (the inner product), for which `longest` bounds the length of all that will come;
        what is there, where it is not given. `tags`: a word for each vector, by which a search may be restricted.

        `source` is the file they are from: :meth:`insert_file` goes on behind them when it has grown.
        """
        rows = _floats(vectors)
        if len(rows) < 2:
            raise BadInput(f"{len(rows)} vectors; two or more expected to begin with")
        made = cls(folder, memory=memory, workers=workers, _new=True)
        if made.inside.exists:
            made.close()
            raise BadInput(f"there is an index in {folder} already; insert into it, or name another folder")
        numbers = np.arange(len(rows)) if ids is None else _numbers(ids)
        if len(np.unique(numbers)) != len(rows):
            raise BadInput(f"{len(rows)} vectors and {len(np.unique(numbers))} different ids; one for each expected")
        if int(numbers.min()) < 0:
            raise BadInput(f"an id is {int(numbers.min())}; numbers from 0 on expected")
        if metric not in METRICS:
            raise BadInput(f"'{metric}' is no metric; one of {', '.join(METRICS)} expected")
        if metric == "ip":
            most = float(length(rows).max())
            layout["longest"] = longest or most or 1.0
        config = Config(rows.shape[1] + (metric == "ip"), metric=metric, **layout)
        kept = inward(rows, metric, config.longest)
        name = "" if source is None else _line(os.urandom(8).hex(), _digest(rows), source)
        wait(made.inside.build(kept, numbers, config, source=name, progress=progress, tags=_tags(tags, len(rows))))
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
        return self.inside.config.width - (self.metric == "ip")

    @property
    def metric(self) -> str:
        """What vectors are near by."""
        return self.inside.config.metric

    def next_id(self) -> int:
        """The least number above all ids that ever were."""
        return self.inside.next

    def insert(
        self, vectors: npt.NDArray[Any], ids: npt.NDArray[np.int64] | None = None, tags: Sequence[str] = ()
    ) -> npt.NDArray[np.int64]:
        """Add vectors, durable when it returns; their ids, numbered on where none are given.

        Known ids are left, and of an id that is given twice the first vector counts; one that was deleted comes back.
        """
        return self._put(vectors, ids, tags, over=False)

    def upsert(
        self, vectors: npt.NDArray[Any], ids: npt.NDArray[np.int64], tags: Sequence[str] = ()
    ) -> npt.NDArray[np.int64]:
        """Add vectors, in the place of those with their ids; of an id that is given twice the last one counts.

        At every moment, also of a crash, an id that was there is there: as it was, or as it is now.
        """
        return self._put(vectors, ids, tags, over=True)

    def _put(
        self, vectors: npt.NDArray[Any], ids: npt.NDArray[np.int64] | None, tags: Sequence[str], over: bool
    ) -> npt.NDArray[np.int64]:
        self._writes()
        rows = _floats(np.atleast_2d(vectors))
        numbers = self.next_id() + np.arange(len(rows)) if ids is None else _numbers(ids)
        self._fits(rows)
        wait(self.inside.insert(numbers, self._inward(rows), tags=_tags(tags, len(rows)), over=over))
        return numbers

    def _fits(self, rows: npt.NDArray[Any]) -> None:
        if rows.shape[1] != self.width:
            raise BadInput(f"vectors of {rows.shape[1]} numbers; {self.width} expected, as in the index")

    def _inward(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return inward(rows, self.metric, self.inside.config.longest)

    def insert_file(
        self, path: Path, progress: Progress = lambda done, total: None, tags: Sequence[str] = ()
    ) -> tuple[int, int]:
        """Add a file's vectors, going on where a run before stopped: (rows that were there, rows added).

        A file is known by its rows: it may have grown, or have another name. Where rows changed, none is added.
        """
        self._writes()
        rows = read_vectors(path)
        _fit(path, rows, self.width)  # before the first of them is in
        named = _tags(tags, len(rows))
        line, there = self._known(path, rows)
        for first in range(there, len(rows), CHECKED):
            self._inward(_floats(rows[first : first + CHECKED]))  # refuses before the first of them is in
        seen = _digest(rows[:there])
        for first in range(there, len(rows), BATCH):
            part = _floats(rows[first : first + BATCH])
            numbers = self.next_id() + np.arange(len(part))
            seen.update(part)
            name = _line(line, seen, path)
            some = named[first : first + BATCH]
            wait(self.inside.insert(numbers, self._inward(part), source=name, rows=first + len(part), tags=some))
            progress(first + len(part) - there, len(rows) - there)
        return there, len(rows) - there

    def _known(self, path: Path, rows: npt.NDArray[Any]) -> tuple[str, int]:
        """The line of runs that a file belongs to, and how many of its rows are in; a new line for a new file."""
        there = self.inside.sources.get(_fingerprint(path), 0)  # as an earlier version knew it
        line, here = "", str(path.resolve())
        changed = False
        for source, count in self.inside.sources.items():
            if not source.startswith(LINE):
                continue
            _, name, digest, was = source.split(":", 3)
            same = count <= len(rows) and _digest(rows[:count]).hexdigest() == digest
            changed |= was == here and not same
            if same and count > there:
                line, there = name, count
        if changed and not line:
            raise BadInput(f"{path}: rows that are in the index have changed; give the new file another name")
        return line or os.urandom(8).hex(), there

    def delete(self, ids: npt.ArrayLike) -> int:
        """Forget ids; how many were there."""
        self._writes()
        return wait(self.inside.delete(np.atleast_1d(_numbers(ids))))

    def search(
        self, queries: npt.ArrayLike, k: int = 10, breadth: int | None = None, tag: str | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and squared distances of the nearest (cosines, inner products of the largest), one row a query.

        More `breadth` finds more, and takes longer. With a `tag`, only vectors that have it; of a rare one, each is
        looked at. Where there are fewer, ids are -1.
        """
        rows = np.atleast_2d(np.asarray(queries, np.float32))
        inner = self._asked(rows)
        for _ in range(ATTEMPTS if self._lock < 0 else 0):
            try:
                ids, far = self.inside.search(inner, k, breadth, tag)
                break
            except Damaged:  # perhaps the writer has used a page again since this was opened
                wait(self.inside.reload())
        else:
            ids, far = self.inside.search(inner, k, breadth, tag)
        return ids, outward(far, rows, self.metric, self.inside.config.longest)

    def _asked(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self.inside.nodes is None or rows.shape[1] != self.width or not np.isfinite(rows).all():
            return rows  # the search says what is wrong
        return asked(rows, self.metric, self.inside.config.longest)

    def check(
        self, queries: npt.ArrayLike, k: int = 10, breadth: int | None = None, tag: str | None = None
    ) -> tuple[float, float]:
        """The share of the k nearest to queries that a search finds, by looking at every vector, and its error.

        Of vectors that are as near as the last, any are right. The error is the mean's, over queries.
        """
        rows = np.atleast_2d(np.asarray(queries, np.float32))
        found = self.inside.search(self._asked(rows), k, breadth, tag)[1]
        nodes = self.inside.nodes
        assert nodes is not None
        with self.inside.gate.walking():
            some = np.flatnonzero(~nodes.dead[: nodes.count] if tag is None else nodes.tagged(tag)).astype(np.int32)
            right = pages.nearest_of(self.inside, some, self._asked(rows), k)[1]
        least = min(k, len(some))
        if not least:
            raise BadInput(f"no vector has the tag '{tag}'; nothing to check")
        bound = right[:, least - 1 : least]
        shares = (found[:, :least] <= bound * (1 + 1e-4) + 1e-6 * np.abs(bound).max()).mean(axis=1)
        return float(shares.mean()), float(shares.std() / np.sqrt(len(shares)))

    def compact(self) -> int:
        """Build the graph anew without what was deleted or replaced; how many nodes went."""
        self._writes()
        nodes = self.inside.nodes
        before = 0 if nodes is None else nodes.count

        async def work() -> None:
            async with self.inside._turn:
                await compact(self.inside, dead=0.0)

        wait(work())
        return before - (0 if self.inside.nodes is None else self.inside.nodes.count)

    def refresh(self) -> None:
        """Of a reader: see what was committed since it was opened. A writer sees its own changes at once."""
        for attempt in range(ATTEMPTS if self._lock < 0 else 0):
            try:
                wait(self.inside.reload())
                return
            except NotFound:  # as when it is opened
                if attempt == ATTEMPTS - 1:
                    raise

    def close(self) -> None:
        """A writer lays what changed into pages, so that the next one opens quickly; nothing depends on it."""
        if self._process != os.getpid():  # forked: threads that it would wait for are in the parent
            return
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
        if self._process != os.getpid():
            raise BadInput("this process was forked from the one that writes to this index; insert there")


def _numbers(ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Ids as they are kept; 1.5 would become 1, which may be another vector's."""
    found = np.asarray(ids)
    if found.size and found.dtype.kind not in "iu":
        raise BadInput(f"ids of type {found.dtype}; whole numbers expected")
    if found.size and int(found.max()) > np.iinfo(np.int64).max:
        raise BadInput(f"an id is {int(found.max())}; numbers below 2**63 expected")
    return found.astype(np.int64)


def _tags(tags: Sequence[str], count: int) -> list[str]:
    if len(tags) and len(tags) != count:
        raise BadInput(f"{count} vectors and {len(tags)} tags; one for each expected, empty where there is none")
    return list(tags)


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


def _digest(rows: npt.NDArray[Any]) -> Any:
    """Of rows, to go on with."""
    seen = blake2b(digest_size=12)
    for first in range(0, len(rows), CHECKED):
        seen.update(np.ascontiguousarray(rows[first : first + CHECKED], np.float32).data)
    return seen


def _line(name: str, seen: Any, path: Path) -> str:
    """What a source is called in the log: a line of runs, the digest of the rows that are in, where they are from."""
    return f"{LINE}{name}:{seen.hexdigest()}:{path.resolve()}"


def _fingerprint(path: Path) -> str:
    """A file by its size, its beginning and its end, as earlier versions knew it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(1 << 16)
        file.seek(max(size - (1 << 16), 0))
        return f"{path.name}:{size}:{blake2b(begin + file.read(), digest_size=8).hexdigest()}"
