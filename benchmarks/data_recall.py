"""Recall and pace on four kinds of vectors at equal recall: navis on disk beside hnswlib, usearch and DiskANN.

    python benchmarks/data_recall.py --folder /tmp/recall --rows 15000
    python benchmarks/data_recall.py --folder /tmp/recall --rows 15000 --peers /opt/peers/bin/python

Kinds: two hundred Gaussian clusters of 128 dimensions that lie far apart; texts (the Python sources of this machine, in
pieces of twenty lines: hashed words by TF-IDF, on 128 directions by latent semantics); duplicates, ten of each, some as
near as rounding; and a drifting stream. Each contender is asked with its defaults, then by wider and wider walks until
0.95 of the ten nearest are found; of vectors as near as the tenth, any are right. `searches_per_cpu_s` counts seconds
of the processor, for others may use the machine, too. navis reads from disk and is durable; the others are in memory.
A `--peers` Python runs those of the peers that it can import (`benchmarks/envs/recall.txt`; `diskann.txt`, whose wheel
wants an older NumPy).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

KINDS = ("clusters", "texts", "duplicates", "drift")
PEERS = ("usearch", "hnswlib", "diskannpy")
QUERIES, K, ENOUGH = 200, 10, 0.95
BREADTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
CONNECTIVITY, EFFORT = 16, 128  # of the peers: their own defaults for edges, usearch's for building


def clusters(rows: int, random: Any) -> Any:
    """Far apart."""
    centres = 10 * random.normal(size=(200, 128))
    return centres[random.integers(0, 200, rows)] + random.normal(size=(rows, 128))


def texts(rows: int, random: Any) -> Any:
    """This machine's own sources."""
    from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
    from sklearn.feature_extraction.text import (  # type: ignore[import-untyped]
        HashingVectorizer,
        TfidfTransformer,
    )

    roots = {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]}
    pieces: list[str] = []
    for path in sorted(path for root in roots for path in Path(root).rglob("*.py")):
        lines = path.read_text(errors="ignore").splitlines()
        pieces += ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
        if len(pieces) > 12 * rows:
            break
    pieces = [piece for piece in pieces if len(piece) > 200]
    some = [pieces[i] for i in random.permutation(len(pieces))[:rows]]
    counts = HashingVectorizer(n_features=1 << 16, alternate_sign=False).transform(some)
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    found = TruncatedSVD(128, random_state=0, n_iter=2).fit_transform(weighted)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


def duplicates(rows: int, random: Any) -> Any:
    """Ten of each."""
    base = random.normal(size=(max(rows // 10, 1), 64))
    found = base[random.integers(0, len(base), rows)]
    found[::3] += 1e-3 * random.normal(size=found[::3].shape)
    return found


def drift(rows: int, random: Any) -> Any:
    """Every row a little further."""
    from assay.data.vectors import drifting

    return drifting(rows, 96, clusters=64, seed=int(random.integers(1000))).vectors


def made(folder: Path, kind: str, rows: int) -> Path:
    """Vectors, queries, and how far the tenth nearest is: made once."""
    from assay.data.vectors import brute_force

    path = folder / f"{kind}-{rows}.npz"
    if not path.exists():
        make: dict[str, Callable[[int, Any], Any]] = {
            "clusters": clusters, "texts": texts, "duplicates": duplicates, "drift": drift,
        }  # fmt: skip
        found = np.ascontiguousarray(make[kind](rows + QUERIES, np.random.default_rng(7)), np.float32)
        vectors, asked = found[:-QUERIES], found[-QUERIES:]
        far = brute_force(vectors, asked, K)[1]
        np.savez(path, vectors=vectors, asked=asked, last=far[:, -1:])
    return path


def contender(name: str, vectors: Any, folder: Path) -> tuple[Callable[[Any, int | None], Any], float]:
    """Searches by breadth (None: its default), and the processor's seconds that building took."""
    began = process_time()
    if name == "navis":
        from assay.data import VectorIndex

        ours = VectorIndex.build(folder / "navis", vectors)
        return lambda asked, breadth: ours.search(asked, K, breadth)[0], process_time() - began
    if name == "usearch":
        from usearch.index import Index

        index: Any = Index(ndim=vectors.shape[1], metric="l2sq")
        index.add(np.arange(len(vectors)), vectors)
        first = index.expansion_search

        def by_usearch(asked: Any, breadth: int | None) -> Any:
            index.expansion_search = breadth or first
            return np.asarray(index.search(asked, K).keys)

        return by_usearch, process_time() - began
    if name == "hnswlib":
        import hnswlib  # type: ignore[import-untyped]

        graph = hnswlib.Index("l2", vectors.shape[1])
        graph.init_index(len(vectors), M=CONNECTIVITY, ef_construction=EFFORT)
        graph.add_items(vectors)

        def by_hnswlib(asked: Any, breadth: int | None) -> Any:
            graph.set_ef(breadth or 10)
            return graph.knn_query(asked, K)[0].astype(np.int64)

        return by_hnswlib, process_time() - began
    import diskannpy  # type: ignore[import-not-found]

    diskannpy.build_memory_index(
        vectors, "l2", str(folder), complexity=EFFORT, graph_degree=2 * CONNECTIVITY, num_threads=2, alpha=1.2,
        use_pq_build=False, num_pq_bytes=8, use_opq=False,
    )  # fmt: skip
    static = diskannpy.StaticMemoryIndex(str(folder), num_threads=2, initial_search_complexity=max(BREADTHS))
    return lambda asked, breadth: static.batch_search(asked, K, breadth or 64, 2).identifiers, process_time() - began


def measured(name: str, kind: str, path: Path) -> dict[str, Any]:
    """One contender on one kind."""
    from tempfile import TemporaryDirectory

    kept = np.load(path)
    vectors, asked, last = (np.ascontiguousarray(kept[name]) for name in ("vectors", "asked", "last"))

    def share(ids: Any) -> float:
        far = ((vectors[np.asarray(ids).astype(np.int64)] - asked[:, None]) ** 2).sum(axis=2)
        return float((far <= last * (1 + 1e-5) + 1e-6).mean())

    with TemporaryDirectory(dir=path.parent) as folder:
        search, build = contender(name, vectors, Path(folder))
        told: dict[str, Any] = {"kind": kind, "contender": name, "recall_at_defaults": share(search(asked, None))}
        for breadth in BREADTHS:
            if (found := share(search(asked, breadth))) >= ENOUGH:
                break
        began, worked = perf_counter(), process_time()
        search(asked, breadth)
        clock, cpu = perf_counter() - began, process_time() - worked
    return told | {
        "breadth": breadth, "recall": found, "searches_per_s": round(QUERIES / clock),
        "searches_per_cpu_s": round(QUERIES / max(cpu, 1e-6)), "build_cpu_s": round(build, 1),
    }  # fmt: skip


def main() -> None:
    """Every contender on every kind, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--peers", action="append", default=[], help="a Python that has other peers; may be repeated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.one:
        name, kind, path = given.one.split(":", 2)
        if name == "navis" or find_spec(name):
            print(json.dumps(measured(name, kind, Path(path))), flush=True)
        return
    for kind in given.kinds.split(","):
        path = made(given.folder, kind, given.rows)
        subprocess.run(
            [sys.executable, __file__, "--folder", given.folder, "--one", f"navis:{kind}:{path}"], check=True
        )
        for python in [sys.executable, *given.peers]:
            for name in PEERS:
                asked = [python, __file__, "--folder", given.folder, "--one", f"{name}:{kind}:{path}"]
                ended = subprocess.run(asked, check=False)
                if ended.returncode:
                    print(json.dumps({"kind": kind, "contender": name, "failed": ended.returncode}), flush=True)


if __name__ == "__main__":
    main()
