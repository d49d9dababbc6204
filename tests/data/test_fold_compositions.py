"""FOLD with other papers' parts: candidates from an index on disk, and a corpus that is cut up by band."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.data import Fold, MemStore, VectorIndex, dedup, repartition
from assay.data.fold import Settings, generate, judged, sketched, truth
from assay.data.fold.bands import band_keys
from assay.data.fold.graph import Found
from assay.data.fold.sketch import jaccard

TAU, NEAR = 0.7, 8


def bits_of(bitmaps: NDArray[np.uint64]) -> NDArray[np.float32]:
    return np.unpackbits(bitmaps.view(np.uint8), axis=1).astype(np.float32)


class OnDisk:
    """Bitmaps in an index on disk: their squared distance is the number of bits in which they differ."""

    def __init__(self, folder: Path, first: int = 64) -> None:
        self.folder, self.first, self.size = folder, first, 0
        self.index: VectorIndex | None = None
        self.early = np.zeros((0, 0), np.float32)  # an index on disk needs some vectors to begin with
        self.counts = np.zeros(0, np.float32)

    @property
    def nbytes(self) -> int:
        return self.early.nbytes + self.counts.nbytes

    def search(self, vectors: NDArray[Any]) -> Found:
        rows = bits_of(vectors)
        ids, far = np.full((len(rows), NEAR), -1, np.int32), np.full((len(rows), NEAR), 2, np.float32)
        k = min(NEAR, self.size)
        if not k or not len(rows):
            return Found(ids, far)
        if self.index is None:
            apart = np.abs(rows[:, None] - self.early[None]).sum(2)
            found = np.argsort(apart, axis=1)[:, :k]
            differ = np.take_along_axis(apart, found, axis=1)
        else:
            found, differ = self.index.search(rows, k=k)
        ids[:, :k] = found
        far[:, :k] = 2 * differ / (rows.sum(1)[:, None] + self.counts[found] + differ)
        return Found(ids, far)

    def add(self, vectors: NDArray[Any], found: Found) -> None:
        rows = bits_of(vectors)
        self.counts = np.concatenate([self.counts, rows.sum(1)])
        self.size += len(rows)
        if self.index is not None:
            self.index.insert(rows, np.arange(self.size - len(rows), self.size))
            return
        self.early = np.concatenate([self.early.reshape(-1, rows.shape[1]), rows])
        if len(self.early) >= self.first:
            self.index = VectorIndex.build(self.folder, self.early, workers=1)
            self.early = self.early[:0]


def corpus(documents: int) -> tuple[list[str], NDArray[np.bool_]]:
    texts = [text for some in generate.corpus(documents, 3) for text in some]
    docs = sketched(texts)
    of, _ = truth.exact(docs.counts, docs.shingles, TAU)
    return texts, of >= 0


def deduplicated(texts: list[str], folder: Path, documents: int, batch: int) -> None:
    store, made = MemStore(), list[OnDisk]()

    def candidates() -> OnDisk:
        made.append(OnDisk(folder / f"index-{len(made)}"))
        return made[-1]

    keep = list[NDArray[np.bool_]]()
    fold = Fold(Settings(), candidates=candidates)
    asyncio.run(fold.open(store))
    for first in range(0, documents, batch):
        if first == documents // 2:  # whoever opens it again reads the log, and fills an index of its own
            fold = Fold(Settings(), candidates=candidates)
            asyncio.run(fold.open(store))
        some = range(first, first + batch)
        keep.append(asyncio.run(fold.observe([str(i) for i in some], texts[first : first + batch])))
    told = judged(np.concatenate(keep), corpus(documents)[1])
    assert len(made) == 2 and made[-1].size == int(np.concatenate(keep).sum())
    assert told["recall"] >= 0.93 and told["precision"] >= 0.98, told
    assert made[-1].index is not None and made[-1].index.inside.did.search_reads > 0, "it was looked up on disk"
    for one in made:
        if one.index is not None:
            one.index.close()


def test_candidates_from_an_index_on_disk(tmp_path: Path) -> None:
    deduplicated(corpus(240)[0], tmp_path, 240, 40)


@pytest.mark.slow
def test_candidates_from_an_index_on_disk_among_more_documents(tmp_path: Path) -> None:
    deduplicated(corpus(4000)[0], tmp_path, 4000, 500)


def test_a_corpus_is_cut_up_by_band_and_each_part_finds_its_pairs(tmp_path: Path) -> None:
    texts, duplicate = corpus(300)
    docs = sketched(texts)
    keys = band_keys(docs.slots, 28, 4)
    lines = [json.dumps({"band": f"{band}-{key:x}", "document": number})
             for number, row in enumerate(keys.tolist()) for band, key in enumerate(row)]  # fmt: skip
    (tmp_path / "bands.jsonl").write_text("\n".join(lines) + "\n")
    repartition([tmp_path / "bands.jsonl"], "band", tmp_path / "parts", parts=8)
    pairs = set[tuple[int, int]]()
    whereabouts = defaultdict(set)
    for part in sorted((tmp_path / "parts").glob("part-*.jsonl")):
        members = defaultdict(list)
        for row in map(json.loads, part.read_text().splitlines()):
            members[row["band"]].append(row["document"])
            whereabouts[row["band"]].add(part.name)
        pairs |= {pair for inside in members.values() for pair in combinations(inside, 2)}
    assert {len(parts) for parts in whereabouts.values()} == {1}, "all of a band are in one part"
    near = defaultdict(list)
    for one, other in sorted(pairs):
        near[other].append(one)
    keep = np.ones(len(texts), np.bool_)
    for number in range(len(texts)):
        others = (one for one in near[number] if keep[one])
        keep[number] = not any(jaccard(docs.shingles_of(number), docs.shingles_of(one)) >= TAU for one in others)
    assert np.array_equal(keep, dedup(texts, by="bands")), "as one process decides that holds all bands"
    told = judged(keep, duplicate)
    assert told["recall"] >= 0.93 and told["precision"] >= 0.98
