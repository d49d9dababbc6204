"""Run studies at full size and keep what they measured in `src/assay/record/full_size.toml`.

    python benchmarks/full_size.py             # every built paper that has no full-size result at this version
    python benchmarks/full_size.py KEY …       # only these
    python benchmarks/full_size.py --keep      # run nothing, keep what the store has

Papers of which the store has no full-size result keep the entry that the file has.

Results are estimates with their machine; verdicts are made when they are read. A full size takes at most ten minutes on
two cores.
"""

from __future__ import annotations

import sys

from assay.record import catalogue, full_size, sources, store
from assay.record.errors import AssayError
from assay.record.runner import run
from assay.record.store import write_whole
from assay.record.types import Result

LONGEST = 600.0


def newest(key: str) -> Result | None:
    return next((result for _, result in store.stored(key) if result.size == "full"), None)


def measure(key: str) -> None:
    found = newest(key)
    if found and found.source == sources.digest(catalogue.paper(key).module):
        return
    try:
        result = run(key, size="full")
    except AssayError as error:
        print(f"{key}: {error}", file=sys.stderr)
        return
    slow = "  longer than ten minutes: cut it" if result.seconds > LONGEST else ""
    print(f"{key}: {result.seconds:.0f} s, {result.headline}{slow}", flush=True)


def main(words: list[str]) -> None:
    built = [paper.key for paper in catalogue.papers().values() if catalogue.is_built(paper)]
    for key in [] if "--keep" in words else words or built:
        measure(key)
    results = [result for key in built if (result := newest(key))]
    before = full_size.FILE.read_text(encoding="utf-8") if full_size.FILE.exists() else ""
    write_whole(full_size.FILE, full_size.as_toml(results, before).encode())
    full_size.runs.cache_clear()
    print(f"{len(full_size.runs())} of {len(built)} papers in {full_size.FILE.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
