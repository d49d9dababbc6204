"""Whom FOLD is measured against: the same documents, the same order, the same similarity, everything else their own.

All of them keep their index in memory and lose it with the process; FOLD's commits every batch to disk. They decide on
112 slots; FOLD's defaults decide on the shingles themselves, so `fold-slots`, which decides as they do, is compared.
The graphs over other metrics have FOLD's links and effort; the band index is FOLD's own in-batch step over everything,
in flat arrays; `datasketch` and `rensa` are what people install, with the bands that their recall needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.data.fold.bands import Bands, band_keys
from assay.data.fold.decide import GROUP, Near, Settings
from assay.data.fold.graph import Graph
from assay.data.fold.index import Fold
from assay.data.fold.sketch import BITS, SLOTS, WORDS, agreement, bitmaps_of, sketched
from assay.data.store.blocking import wait
from assay.data.store.directory import DirStore
from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.sim.compiled import njit

TAU = 0.7


class Deduplicator(Protocol):
    """Decides batches in order."""

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which to keep."""


class Durable:
    """FOLD itself, in a folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.fold, self.number = Fold(settings), 0
        wait(self.fold.open(DirStore(folder)))

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """One batch, durable."""
        ids = [str(i) for i in range(self.number, self.number + len(texts))]
        self.number += len(texts)
        return wait(self.fold.observe(ids, texts))

    def save(self) -> None:
        """Fold the log and keep the graph, so that opening it again is quick."""
        wait(self.fold.save_graph())
        wait(self.fold.tidy())

    @property
    def nbytes(self) -> int:
        """Of the index."""
        return self.fold.nbytes


@njit(cache=True, nogil=True)
def _settle(slots: Any, candidates: Any, kept: Any, tau: float) -> Any:
    """Which of a group to keep: none that agrees with a candidate, or with one kept before it in the group."""
    keep = np.ones(len(slots), np.bool_)
    for i in range(len(slots)):
        for other in candidates[i]:
            if other < 0 or not keep[i]:
                break
            keep[i] = agreement(slots[i], kept[other]) < tau
        for j in range(i):
            if not keep[i]:
                break
            keep[i] = not keep[j] or agreement(slots[i], slots[j]) < tau
    return keep


class InMemory:
    """An index of candidates over some view of the slots, and the slots of everything kept to decide on them."""

    def __init__(self, index: Near, view: Callable[[Any], NDArray[Any]] = np.asarray, most: int = 64) -> None:
        self.index, self._view, self._most = index, view, most
        self._slots = np.empty((0, SLOTS), np.uint32)

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """A group at a time, each against all before it."""
        slots, keep = sketched(texts).slots, np.zeros(len(texts), np.bool_)
        for first in range(0, len(texts), GROUP):
            some = slots[first : first + GROUP]
            found = self.index.search(self._view(some))
            stay = _settle(some, found.ids[:, : self._most], self._slots, TAU)
            keep[first : first + GROUP] = stay
            size, last = self.index.size, self.index.size + int(stay.sum())
            if last > len(self._slots):
                longer = np.empty((max(4096, last + last // 2), SLOTS), np.uint32)
                longer[:size] = self._slots[:size]
                self._slots = longer
            self._slots[size:last] = some[stay]
            self.index.add(self._view(some[stay]), found.of(stay))
        return keep

    @property
    def nbytes(self) -> int:
        """Of the index and the slots."""
        return self.index.nbytes + 4 * SLOTS * self.index.size


def _other_graph(metric: str, settings: Settings) -> InMemory:
    """FOLD's graph over another metric: MinHash slots as they are, or the Hamming distance of bitmaps."""
    if metric == "slots":
        words, view = SLOTS // 2, lambda slots: np.ascontiguousarray(slots).view(np.uint64)
    else:
        words, view = settings.bits // 64, lambda slots: bitmaps_of(slots, settings.bits)
    return InMemory(Graph(words, metric=metric, links=settings.links, ef=settings.ef), view, settings.near)


class Rescan:
    """The batch pipeline: every batch sorts the bands of everything kept, and its own among them."""

    def __init__(self, bands: int = 14, rows: int = 8) -> None:
        self.bands, self.rows, self._kept = bands, rows, np.empty((0, SLOTS), np.uint32)

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Sort, group, compare within the groups."""
        whole = np.concatenate([self._kept, sketched(texts).slots])
        keys = band_keys(whole, self.bands, self.rows)
        keep = np.ones(len(whole), np.bool_)
        _within(keys, np.argsort(keys, axis=0, kind="stable"), whole, len(self._kept), TAU, keep)
        self._kept = whole[keep]
        return keep[len(whole) - len(texts) :]

    @property
    def nbytes(self) -> int:
        """Between batches; during one it holds the bands, too."""
        return self._kept.nbytes


@njit(cache=True)
def _within(keys: Any, order: Any, slots: Any, old: int, tau: float, keep: Any) -> None:
    docs, bands = keys.shape
    place = np.empty((docs, bands), np.int64)
    for b in range(bands):
        for i in range(docs):
            place[order[i, b], b] = i
    for d in range(old, docs):
        for b in range(bands):
            at = place[d, b] - 1
            while at >= 0 and keep[d] and keys[order[at, b], b] == keys[d, b]:
                other = order[at, b]
                keep[d] = not keep[other] or agreement(slots[d], slots[other]) < tau
                at -= 1


def shingle_strings(text: str) -> list[str]:
    """A document's word 5-grams, as a library wants them.

    >>> shingle_strings("a b c  d e f")
    ['a b c d e', 'b c d e f']
    """
    words = text.split()
    return [" ".join(words[i : i + WORDS]) for i in range(max(1, len(words) - WORDS + 1))]


class Datasketch:
    """`datasketch`: MinHash in NumPy, buckets in Python's dictionaries."""

    def __init__(self, bands: int = 14, rows: int = 8) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ModuleNotFoundError as error:
            raise BadInput(missing_module("datasketch", error)) from error
        self._make: Any = MinHash
        self._lsh = MinHashLSH(num_perm=SLOTS, params=(bands, rows))
        self._kept: dict[int, Any] = {}

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """One document at a time, as its manual has it."""
        keep = np.zeros(len(texts), np.bool_)
        sets = [[one.encode() for one in shingle_strings(text)] for text in texts]
        for i, sketch in enumerate(self._make.generator(sets, num_perm=SLOTS)):
            if not any(sketch.jaccard(self._kept[other]) >= TAU for other in self._lsh.query(sketch)):
                number = len(self._kept)
                self._kept[number] = sketch
                self._lsh.insert(number, sketch, check_duplication=False)
                keep[i] = True
        return keep


class Rensa:
    """`rensa`: MinHash and buckets in Rust."""

    def __init__(self, bands: int = 14) -> None:
        try:
            from rensa import RMinHash, RMinHashLSH
        except ModuleNotFoundError as error:
            raise BadInput(missing_module("rensa", error)) from error
        self._make: Any = RMinHash
        self._lsh = RMinHashLSH(threshold=TAU, num_perm=SLOTS, num_bands=bands)
        self._kept: list[Any] = []

    def observe(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Sketches in bulk, look-ups one by one."""
        keep = np.zeros(len(texts), np.bool_)
        for i, sketch in enumerate(self._make.from_token_sets(map(shingle_strings, texts), SLOTS, 42)):
            if not any(sketch.jaccard(self._kept[other]) >= TAU for other in self._lsh.query(sketch)):
                self._lsh.insert(len(self._kept), sketch)
                self._kept.append(sketch)
                keep[i] = True
        return keep


def contenders(folder: Path) -> dict[str, Callable[[], Deduplicator]]:
    """Everybody, by name; FOLD's indexes go into folders of their own there."""
    plain = Settings()
    variants = {
        "fold": plain,
        "fold-bands": Settings(by="bands"),
        "fold-slots": Settings(verify="minhash"),  # decides on what its rivals decide on
        "fold-bands-slots": Settings(by="bands", verify="minhash"),
        "fold-minhash": Settings(verify="minhash", bits=BITS),
        "fold-none": Settings(verify="none", bits=BITS),
        "fold-paper": Settings(verify="none", bits=BITS, cut="paper"),
    }
    made: dict[str, Callable[[], Deduplicator]] = {
        name: (lambda name=name, settings=settings: Durable(folder / name, settings))  # type: ignore[misc]
        for name, settings in variants.items()
    }
    return made | {
        "graph-slots": lambda: _other_graph("slots", plain),
        "graph-hamming": lambda: _other_graph("hamming", plain),
        "bands-14": lambda: InMemory(Bands(14, 8)),
        "bands-28": lambda: InMemory(Bands(28, 4)),
        "bands-capped": lambda: InMemory(Bands(14, 8, most=1)),
        "rescan": Rescan,
        "datasketch": lambda: Datasketch(28, 4),
        "rensa": lambda: Rensa(28),
    }
