"""A million drifting vectors, more of them inserted and searched: navis, DiskANN's packed nodes, usearch in memory.

    python benchmarks/data_navis.py --folder /data/navis --rows 1000000 --width 96 --inserts 8000 --budget 320MB

A slice of the stream goes into each of them in turn, the last part of it while it is searched. Every turn is a process
of its own, and navis and packed may take no more private memory than `--budget` above what Python and the compiled
code take before the index is opened (Linux's RLIMIT_DATA: an allocation beyond it fails); `--memory` of that is for
edge lists and changes. usearch holds everything and may. Pages are of 4 KiB and read past the page cache; reads include
those of checkpoints. `searches_per_s` is that of the narrowest walk that finds 0.95 of the ten nearest, `breadth`,
where one does.

What was done lies in the folder: stopped, or at the end of `--seconds`, the same command goes on. `--diskann` asks
Microsoft's DiskANN, too, in an environment of its own: its index on disk is searched, and cannot be added to; what
it inserts, it inserts in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
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
from routers import environment

QUERIES, K = 200, 10
BREADTHS = (32, 64, 96, 128, 192, 256, 384)
ENOUGH = 0.95
MEANWHILE = 0.25  # of a slice is inserted while it is searched


# ------------------------------------------------------------------------------------------------- what is made once


def vectors_of(folder: Path, rows: int, width: int) -> Any:
    """Made once, mapped then; the last are queries."""
    path = folder / "vectors.npy"
    if not path.exists():
        np.save(folder / "half.npy", drifting(rows + QUERIES, width, clusters=64, seed=7).vectors)
        (folder / "half.npy").rename(path)
    return np.load(path, mmap_mode="r")


def base_of(folder: Path, vectors: Any) -> building.Base:
    """The first graph, then the codes, made once and shared by all on disk."""
    graph, path = folder / "graph.npz", folder / "base.npz"
    if not graph.exists():
        began = perf_counter()
        lists, root, levels = building.vamana(vectors, trials.DEGREE, trials.BREADTH, trials.ALPHA, progress=_told)
        print(f"graph of {len(vectors):,} vectors in {perf_counter() - began:.0f} s", flush=True)
        _saved(graph, root=np.array(root), lists=lists, **_named(levels))
    if not path.exists():
        kept = np.load(graph)
        made = building.finished(vectors, kept["lists"], int(kept["root"]), _levels(kept))
        _saved(path, root=np.array(made.root), centres=made.code.centres, codes=made.codes, lists=made.lists,
               parents=made.parents, **_named(made.levels))  # fmt: skip
    kept = np.load(path)
    code = ProductCode(kept["centres"], vectors.shape[1])
    return building.Base(code, kept["codes"], kept["lists"], int(kept["root"]), kept["parents"], _levels(kept))


def _named(levels: Any) -> dict[str, Any]:
    return {
        f"{what}{i}": of for i, level in enumerate(levels) for what, of in zip(("nodes", "edges"), level, strict=True)
    }


def _levels(kept: Any) -> Any:
    if "nodes0" not in kept:
        raise SystemExit("the folder holds a graph of an earlier version; name another --folder")
    return tuple((kept[f"nodes{i}"], kept[f"edges{i}"]) for i in range(sum(name.startswith("nodes") for name in kept)))


def _saved(path: Path, **arrays: Any) -> None:
    np.savez(path.with_suffix(".half.npz"), **arrays)
    path.with_suffix(".half.npz").rename(path)


def _told(done: int, total: int) -> None:
    print(f"\rgraph: {done:,} of {total:,} nodes", end="" if done < total else "\n", flush=True)


def build(folder: Path, name: str, vectors: Any, first: int) -> None:
    """A contender with the first vectors, unless it is there."""
    if (folder / f"{name}.built").exists():
        return
    began = perf_counter()
    rows = np.asarray(vectors[:first])
    if name == trials.RAM:
        InMemory(rows=rows).save(folder)
    else:
        index = Navis()
        wait(index.open(DirStore(folder / name), LocalDisk(folder / name / "pages")))
        config = Config(
            rows.shape[1], trials.DEGREE, trials.BREADTH, trials.SEARCH, trials.ALPHA, **trials.DESIGNS[name]
        )
        wait(index.build(rows, np.arange(first), config, base=base_of(folder, rows)))
        index.close()
    (folder / f"{name}.built").write_text(f"{perf_counter() - began:.0f} s\n")
    print(f"{name} built in {perf_counter() - began:.0f} s", flush=True)


def truth_of(folder: Path, vectors: Any, stop: int) -> tuple[Any, Any]:
    """The ten nearest to each query among the first so many, and how far the tenth is."""
    path = folder / f"truth-{stop}.npz"
    if not path.exists():
        asked = np.asarray(vectors[-QUERIES:])
        ids, far = brute_force(np.asarray(vectors[:stop]), asked, K, block=20)
        _saved(path, ids=ids, last=far[:, -1])
    kept = np.load(path)
    return kept["ids"], kept["last"]


# --------------------------------------------------------------------------------------------------------- contenders


class OnDisk:
    """An index as it was left, opened within so many bytes."""

    def __init__(self, folder: Path, name: str, memory: int) -> None:
        self.index = Navis(memory // 2, memory // 2)
        wait(self.index.open(DirStore(folder / name), LocalDisk(folder / name / "pages")))

    def insert(self, ids: Any, rows: Any) -> None:
        """Durable, and laid into pages, when it returns."""
        wait(self.index.insert(ids, rows))
        wait(self.index.checkpoint())

    def search(self, queries: Any, breadth: int) -> tuple[Any, Any]:
        """Ids and squared distances."""
        return self.index.search(queries, K, breadth)

    def did(self) -> dict[str, int]:
        """Counts so far."""
        return dict(vars(self.index.did))

    def save(self, folder: Path) -> None:
        """It is all there."""
        self.index.close()


class InMemory:
    """usearch, all in memory; between turns it lies in a file."""

    def __init__(self, folder: Path | None = None, rows: Any = None) -> None:
        from usearch.index import Index

        if rows is not None:
            self.index: Any = trials.InMemory(rows).index
        else:
            assert folder is not None
            loaded = Index.restore(folder / "usearch.index")
            assert loaded is not None
            self.index = loaded

    def insert(self, ids: Any, rows: Any) -> None:
        """In memory."""
        self.index.add(ids, rows, threads=2)

    def search(self, queries: Any, breadth: int) -> tuple[Any, Any]:
        """Ids and squared distances."""
        self.index.expansion_search = breadth
        found = self.index.search(np.atleast_2d(queries), K, threads=2)
        return np.asarray(found.keys).reshape(-1, K), np.asarray(found.distances).reshape(-1, K)

    def did(self) -> dict[str, int]:
        """Nothing is read."""
        return {}

    def save(self, folder: Path) -> None:
        """For the next turn."""
        self.index.save(folder / "half.index")
        (folder / "half.index").rename(folder / "usearch.index")


# --------------------------------------------------------------------------------------------------------------- a turn


def turn(folder: Path, name: str, start: int, stop: int, memory: int, budget: int) -> dict[str, Any]:
    """A slice into one contender, and searches: in a process that does nothing else."""
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    asked = np.asarray(vectors[-QUERIES:])
    alone = alone_until(start, stop)
    right, last = truth_of(folder, vectors, alone)
    if name != trials.RAM:
        trials.warm(vectors.shape[1], (name,))
        impose(budget)
    with Peak() as peak:
        made: Any = InMemory(folder) if name == trials.RAM else OnDisk(folder, name, memory)
        before = made.did()
        began = perf_counter()
        made.insert(np.arange(start, alone), np.asarray(vectors[start:alone]))
        took = perf_counter() - began
        did = {count: value - before[count] for count, value in made.did().items()}
        if did.get("inserts", alone - start) < alone - start:
            raise SystemExit(f"{name}: a turn was stopped half way; delete {folder / name}.built and {folder / name}")
        searched = widened(made, asked, right)
        during = meanwhile(made, vectors, alone, stop, asked, last, int(searched["breadth"]))
        made.save(folder)
    n = alone - start
    reads = (did.get("insert_reads", 0) + did.get("flush_reads", 0)) / n
    return {
        "design": name, "start": start, "inserts_per_s": n / took, "reads_per_insert": reads,
        "kib_read_per_insert": 4 * reads,
        "kib_written_per_insert": (4 * did.get("flush_writes", 0) + did.get("log_bytes", 0) / 1024) / n,
        "hops": did.get("insert_hops", 0) / n, **searched, **during, "grown_mb": peak.grown / 1e6,
    }  # fmt: skip


def alone_until(start: int, stop: int) -> int:
    """Where in a slice the searches begin."""
    return stop - int(MEANWHILE * (stop - start))


def impose(budget: int) -> None:
    """From now on this process gets no more than so many bytes of private memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    threading.stack_size(1 << 20)  # a thread's stack counts whole, used or not
    resource.setrlimit(resource.RLIMIT_DATA, (now + budget, now + budget))


def widened(made: Any, asked: Any, right: Any) -> dict[str, float]:
    """Wider and wider walks until enough is found; each is timed when it has been asked once before."""
    for breadth in BREADTHS:
        found = made.search(asked, breadth)[0]
        share = recall(found, right)
        print(f"breadth {breadth}: recall {share:.3f}", flush=True)
        if share >= ENOUGH or breadth == BREADTHS[-1]:
            break
    before = made.did().get("search_reads", 0)
    began = perf_counter()
    made.search(asked, breadth)
    took = perf_counter() - began
    reads = (made.did().get("search_reads", 0) - before) / len(asked)
    return {"breadth": breadth, "recall": share, "searches_per_s": len(asked) / took, "reads_per_search": reads}


def meanwhile(made: Any, vectors: Any, start: int, stop: int, asked: Any, last: Any, breadth: int) -> dict[str, float]:
    """Search one after the other while another thread inserts."""
    ended: list[float] = []
    began = perf_counter()

    def insert() -> None:
        made.insert(np.arange(start, stop), np.asarray(vectors[start:stop]))
        ended.append(perf_counter() - began)

    other = threading.Thread(target=insert)
    other.start()
    took: list[float] = []
    right: list[float] = []
    while not took or other.is_alive():
        i = len(took) % len(asked)
        at = perf_counter()
        far = made.search(asked[i], breadth)[1][0]
        took.append(perf_counter() - at)
        # New vectors can only push out farther ones: ten as near as the ten before them are as right.
        right.append(float((far <= last[i] * (1 + 1e-4)).mean()))
    other.join()
    return {
        "inserts_per_s_meanwhile": (stop - start) / ended[0], "searches_per_s_meanwhile": len(took) / sum(took),
        "recall_meanwhile": float(np.mean(right)), "searches_meanwhile": len(took),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- the run


def summary(rows: list[dict[str, Any]]) -> None:
    """Medians over the slices, and how many times packed each is."""
    names = [name for name in (trials.OURS, trials.PACKED, trials.RAM) if any(row["design"] == name for row in rows)]
    columns = [column for column in rows[0] if column not in ("design", "start")]
    middle = {
        name: {column: median(row[column] for row in rows if row["design"] == name) for column in columns}
        for name in names
    }
    print("\n" + "".join(f"{word:>14}" for word in ["", *names, "navis/packed"]))
    for column in columns:
        values = [middle[name][column] for name in names]
        ratio = ""
        if {trials.OURS, trials.PACKED} <= set(names) and middle[trials.PACKED][column]:
            ratio = f"{middle[trials.OURS][column] / middle[trials.PACKED][column]:.2f}"
        print(f"{column:<26}" + "".join(f"{value:>14.4g}" for value in values) + f"{ratio:>14}")


def diskann(folder: Path, vectors: Any, first: int) -> None:
    """DiskANN's own index on the first vectors, searched from disk; the rest inserted into the one in memory."""
    truth_of(folder, vectors, first)
    peer = Path(__file__).parent / "peers" / "diskann_run.py"
    sizes = [first, trials.DEGREE, trials.BREADTH, K]
    where = [str(environment("diskann") / "python"), str(peer), str(folder)]
    command = [*where, *map(str, sizes), ",".join(map(str, BREADTHS))]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    said = next(line for line in reversed(lines) if line.startswith("{"))  # the library may have the last word
    print("diskannpy " + ", ".join(f"{name} {value:.4g}" for name, value in json.loads(said).items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--inserts", type=int, default=4000)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--memory", default="32MB", help="for edge lists and changes, of each index on disk")
    parser.add_argument("--budget", default="128MB", help="for all that an index on disk takes")
    parser.add_argument("--without-usearch", action="store_true", help="which takes longest to build")
    parser.add_argument("--diskann", action="store_true", help="Microsoft's DiskANN, too (installs it on first use)")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder: Path = given.folder
    if given.turn:
        name, start, stop = given.turn.split(":")
        row = turn(folder, name, int(start), int(stop), parse_size(given.memory), parse_size(given.budget))
        with (folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return
    folder.mkdir(parents=True, exist_ok=True)
    end = perf_counter() + given.seconds
    vectors = vectors_of(folder, given.rows, given.width)
    first = given.rows - given.inserts
    designs = (trials.OURS, trials.PACKED, trials.RAM)[: 2 if given.without_usearch else 3]
    for name in designs:
        build(folder, name, vectors, first)
    if given.diskann:
        diskann(folder, vectors, first)
    log = folder / "rows.jsonl"
    log.touch()
    cuts = np.linspace(first, given.rows, given.slices + 1).astype(int).tolist()
    for start, stop in itertools.pairwise(cuts):  # now, for it takes more memory than a turn may
        truth_of(folder, vectors, alone_until(start, stop))
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        for name in designs[number % len(designs) :] + designs[: number % len(designs)]:
            done = {(row["design"], row["start"]) for row in map(json.loads, log.read_text().splitlines())}
            if (name, start) in done or perf_counter() > end:
                continue
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--turn", f"{name}:{start}:{stop}"], check=True)
            print(log.read_text().splitlines()[-1], flush=True)
    summary([json.loads(line) for line in log.read_text().splitlines()])
    print("\nall slices are done" if perf_counter() < end else "\ntime is up; run it again to go on")


if __name__ == "__main__":
    main()
