"""Microsoft's DiskANN by its Python wheel, in an environment of its own: `benchmarks/data_navis.py --diskann` asks it.

    python diskann_run.py FOLDER FIRST DEGREE BREADTH K WIDTHS

Its index on disk can be built and searched, not added to; its index in memory takes insertions. The first FIRST vectors
of FOLDER/vectors.npy go into both; the disk's is searched by walks of the WIDTHS until 0.95 of the K nearest are found,
the rest of the stream goes into the other one. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter, process_time

import diskannpy  # type: ignore[import-not-found]
import numpy as np

THREADS = 2


def main(folder: Path, sizes: list[int], widths: list[int]) -> None:
    """Build, search, insert; say how fast."""
    first, degree, breadth, k = sizes
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    truth = np.load(folder / f"truth-{first}.npz")["ids"]
    asked = np.ascontiguousarray(vectors[-len(truth) :])
    rest = np.ascontiguousarray(vectors[first : -len(truth)])
    place = folder / "diskann"
    said: dict[str, float] = {"vectors": first}
    if not (place / "built").exists():
        place.mkdir(exist_ok=True)
        began = process_time()
        diskannpy.build_disk_index(
            np.ascontiguousarray(vectors[:first]), "l2", str(place), complexity=breadth, graph_degree=degree,
            search_memory_maximum=48 * first / 2**30, build_memory_maximum=8.0, num_threads=THREADS,
        )  # fmt: skip
        (place / "built").write_text(f"{process_time() - began:.0f}")
    said["build_cpu_s"] = float((place / "built").read_text())
    disk = diskannpy.StaticDiskIndex(str(place), num_threads=THREADS, num_nodes_to_cache=0)
    for width in widths:
        found = disk.batch_search(asked, k, width, THREADS).identifiers
        share = float(np.mean([len(set(a) & set(b)) / k for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))
        if share >= 0.95 or width == widths[-1]:
            break
    began = perf_counter()
    disk.batch_search(asked, k, width, THREADS)
    said |= {"recall": share, "breadth": width, "searches_per_s": len(asked) / (perf_counter() - began)}
    live = diskannpy.DynamicMemoryIndex(
        "l2", np.float32, vectors.shape[1], len(vectors) + 1, complexity=breadth, graph_degree=degree,
        num_threads=THREADS,
    )  # fmt: skip
    live.batch_insert(np.ascontiguousarray(vectors[:first]), np.arange(1, first + 1, dtype=np.uint32), THREADS)
    began, spent = perf_counter(), process_time()
    live.batch_insert(rest, np.arange(first + 1, first + 1 + len(rest), dtype=np.uint32), THREADS)
    said |= {
        "memory_inserts_per_s": len(rest) / (perf_counter() - began),
        "memory_inserts_per_cpu_s": len(rest) / (process_time() - spent),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:6]], [int(word) for word in sys.argv[6].split(",")])
