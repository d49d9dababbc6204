"""FOLD beside datasketch, rensa and tables of bands: the same documents in turns, judged by exact similarity.

    python benchmarks/data_fold.py quality --documents 100000 --methods fold,bands-28,datasketch,rensa
    python benchmarks/data_fold.py memory --documents 60000 --methods fold,fold-bands,datasketch,rensa
    python benchmarks/data_fold.py growth --folder /tmp/grown --seconds 200 --by graph

`growth` goes on where it stopped, for a million kept documents take a while; each run tells the pace of what it did.
Peers: pip install -r benchmarks/envs/dedup.txt
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.fold import (
    TAU,
    Durable,
    Settings,
    contenders,
    dedup,
    generate,
    judged,
    side_by_side,
    sketched,
    texts_of,
    truth,
)  # fmt: skip
from assay.sim.scratch import scratch

BATCH = 2000


@click.group()
def main() -> None:
    """Measure."""


@main.command()
@click.option("--corpus", type=click.Choice(["generated", "machine"]), default="generated")
@click.option("--documents", default=100_000)
@click.option("--methods", default="fold,fold-minhash,graph-slots,bands-14,bands-28,datasketch,rensa")
@click.option("--seed", default=0)
def quality(corpus: str, documents: int, methods: str, seed: int) -> None:
    """Recall, precision and pace, everybody on the same batches in turns; the pace is that of the last quarter."""
    texts = texts_of(corpus, documents, seed)
    docs = sketched(texts)
    of, _ = truth.exact(docs.counts, docs.shingles, TAU)
    del docs
    print(json.dumps({"corpus": corpus, "documents": len(texts), "duplicates": int((of >= 0).sum())}), flush=True)
    with scratch() as folder:
        known, first = contenders(folder / "timed"), contenders(folder / "compiled")
        for name in methods.split(","):
            first[name]().observe(texts[:300])
        for name, one in side_by_side(texts, {name: known[name] for name in methods.split(",")}, BATCH).items():
            late = max(1, len(one["seconds"]) // 4)
            pace = {
                "documents_s": round(1 / float(np.median(one["seconds"][-late:]))),
                "documents_processor_s": round(1 / float(np.median(one["worked"][-late:]))),
            }
            print(json.dumps({"method": name, **judged(one["keep"], of >= 0), **pace}), flush=True)


@main.command()
@click.option("--documents", default=60_000)
@click.option("--methods", default="fold,fold-bands,bands-28,datasketch,rensa")
def memory(documents: int, methods: str) -> None:
    """Resident memory that each kept document costs, every method in a process of its own."""
    for name in methods.split(","):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(json.dumps({"method": name, **pool.apply(_held, (name, documents))}), flush=True)


def _held(name: str, documents: int) -> dict[str, Any]:
    with scratch() as folder:
        method = contenders(folder)[name]()
        batches = generate.corpus(documents, 3, batch=BATCH)
        for some in islice(batches, 2):  # what compiling and libraries take is there before
            method.observe(some)
        gc.collect()
        before, kept = _resident(), 0
        for some in batches:
            kept += int(method.observe(some).sum())
        del some
        gc.collect()
        return {"kept": kept, "bytes_document": round((_resident() - before) / kept)}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@main.command()
@click.option("--documents", default=1_400_000, help="A million of them is kept.")
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--seconds", default=200.0, help="Stop after so long; the next run goes on.")
@click.option("--by", type=click.Choice(["graph", "bands"]), default="graph")
def growth(documents: int, folder: Path, seconds: float, by: str) -> None:
    """The pace as the index grows; the generator's own time is not counted."""
    began = time.perf_counter()
    dedup(["compile what has to be compiled"] * 2, by=by)
    method = Durable(folder, Settings(by=by))
    done = method.fold.seen
    method.number = done
    opened = time.perf_counter() - began
    print(json.dumps({"seen": done, "kept": method.fold.kept, "opened_s": round(opened, 1)}), flush=True)
    took, busy, count = 0.0, 0.0, 0
    for number, some in enumerate(generate.corpus(documents, 5, batch=BATCH)):
        if number * BATCH < done:
            continue
        start, worked = time.perf_counter(), time.process_time()
        method.observe(some)
        took, busy = took + time.perf_counter() - start, busy + time.process_time() - worked
        count += len(some)
        if count >= 10 * BATCH:
            pace = {"documents_s": round(count / took), "processor_us": round(1e6 * busy / count)}
            print(json.dumps({"seen": (number + 1) * BATCH, "kept": method.fold.kept, **pace}), flush=True)
            took, busy, count = 0.0, 0.0, 0
        if time.perf_counter() - began > seconds:
            break
    method.save()


if __name__ == "__main__":
    main()
