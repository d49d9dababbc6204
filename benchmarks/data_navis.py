"""Insertions into an index on disk: navis beside DiskANN's packed nodes, and usearch in memory, slice by slice in turn.

    python benchmarks/data_navis.py --folder /data/navis --rows 1000000 --width 128 --inserts 20000 --memory 64MB

Vectors drift: new clusters appear all along. What was done lies in the folder; stopped, or at the end of `--seconds`,
the same command goes on with the next slice, and tells all that was measured so far. Reads are of 4 KiB, past the page
cache, and include those of checkpoints; `peak` is the process's largest size while an index inserted.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from assay.data.navis import building, trials
from assay.data.navis.disk import LocalDisk
from assay.data.navis.index import Navis
from assay.data.navis.records import Config
from assay.data.store.blocking import wait
from assay.data.store.directory import DirStore
from assay.data.vectors.generate import drifting
from assay.data.vectors.graph import brute_force, recall
from assay.data.vectors.product import ProductCode
from assay.sim.memory import Peak, parse_size

QUERIES, K = 200, 10


def vectors_of(folder: Path, rows: int, width: int) -> Any:
    """Made once, mapped then; the last are queries."""
    path = folder / "vectors.npy"
    if not path.exists():
        np.save(folder / "half.npy", drifting(rows + QUERIES, width, clusters=64, seed=7).vectors)
        (folder / "half.npy").rename(path)
    return np.load(path, mmap_mode="r")


def base_of(folder: Path, vectors: Any) -> building.Base:
    """The first graph and the codes, made once and shared by all."""
    path = folder / "base.npz"
    if not path.exists():
        made = building.base(np.asarray(vectors), trials.DEGREE, trials.BREADTH, 1.2, progress=_told)
        np.savez(
            folder / "half.npz", root=np.array(made.root), centres=made.code.centres, codes=made.codes,
            lists=made.lists, parents=made.parents,
        )  # fmt: skip
        (folder / "half.npz").rename(path)
    kept = np.load(path)
    code = ProductCode(kept["centres"], vectors.shape[1])
    return building.Base(code, kept["codes"], kept["lists"], int(kept["root"]), kept["parents"])


def _told(done: int, total: int) -> None:
    print(f"\rgraph: {done:,} of {total:,} nodes", end="" if done < total else "\n", flush=True)


def index_of(folder: Path, name: str, base: building.Base, first: Any, memory: int) -> Navis:
    """An index as it was left, or a new one."""
    index = Navis(memory // 2, memory // 2)
    wait(index.open(DirStore(folder / name), LocalDisk(folder / name / "pages")))
    if not index.exists:
        config = Config(first.shape[1], trials.DEGREE, trials.BREADTH, trials.SEARCH, **trials.DESIGNS[name])
        wait(index.build(first, np.arange(len(first)), config, base=base))
    return index


def measured(index: Navis, vectors: Any, start: int, stop: int, truth: Any) -> dict[str, float]:
    """Insert a slice and search."""
    before = dict(vars(index.did))
    with Peak() as peak:
        began = perf_counter()
        wait(index.insert(np.arange(start, stop), np.asarray(vectors[start:stop])))
        took = perf_counter() - began
    did = {name: count - before[name] for name, count in vars(index.did).items()}
    began = perf_counter()
    found = index.search(np.asarray(vectors[-QUERIES:]), K)[0]
    looked = perf_counter() - began
    n = stop - start
    return {
        "inserts_per_s": n / took, "searches_per_s": QUERIES / looked, "recall": recall(found, truth),
        "reads_per_insert": (did["insert_reads"] + did["flush_reads"]) / n, "hops": did["insert_hops"] / n,
        "kib_written": (4 * did["flush_writes"] + did["log_bytes"] / 1024) / n, "peak_mb": peak.peak / 1e6,
    }  # fmt: skip


def in_memory(folder: Path, vectors: Any, base: int, slices: list[tuple[int, int]]) -> None:
    """usearch, once: it is not durable, so that it cannot go on."""
    made = trials.InMemory(np.asarray(vectors[:base]))
    for start, stop in slices:
        began = perf_counter()
        made.insert(np.arange(start, stop), np.asarray(vectors[start:stop]))
        took = perf_counter() - began
        asked = np.asarray(vectors[-QUERIES:])
        began = perf_counter()
        found = made.search(asked, K)
        looked = perf_counter() - began
        right = recall(found, brute_force(np.asarray(vectors[:stop]), asked, K)[0])
        row = {"inserts_per_s": (stop - start) / took, "searches_per_s": QUERIES / looked, "recall": right}
        _keep(folder, {"design": trials.RAM, "start": start, **row})


def _keep(folder: Path, row: dict[str, Any]) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(
        " ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--inserts", type=int, default=4000)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--memory", default="16MB", help="for edge lists and changes, of each index")
    parser.add_argument("--seconds", type=float, default=200.0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    end = perf_counter() + given.seconds
    vectors = vectors_of(given.folder, given.rows, given.width)
    first = given.rows - given.inserts
    base = base_of(given.folder, vectors[:first])
    cuts = np.linspace(first, given.rows, given.slices + 1).astype(int).tolist()
    slices = list(itertools.pairwise(cuts))
    log = given.folder / "rows.jsonl"
    done = (
        {(row["design"], row["start"]) for row in map(json.loads, log.read_text().splitlines())}
        if log.exists()
        else set()
    )
    trials.warm(given.width)
    if (trials.RAM, slices[-1][0]) not in done and perf_counter() < end:
        in_memory(given.folder, vectors, first, slices)
    for number, (start, stop) in enumerate(slices):
        truth = brute_force(np.asarray(vectors[:stop]), np.asarray(vectors[-QUERIES:]), K, block=50)[0]
        names = [trials.PACKED, trials.OURS] if number % 2 else [trials.OURS, trials.PACKED]
        for name in names:
            if (name, start) in done or perf_counter() > end:
                continue
            index = index_of(given.folder, name, base, np.asarray(vectors[:first]), parse_size(given.memory))
            row = measured(index, vectors, start, stop, truth)
            wait(index.checkpoint())
            index.close()
            _keep(given.folder, {"design": name, "start": start, **row})
    print("all slices are done" if perf_counter() < end else "time is up; run it again to go on")


if __name__ == "__main__":
    main()
