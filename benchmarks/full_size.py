"""Run studies at full size and keep what they measured in `src/assay/record/full_size.toml`.

    python benchmarks/full_size.py             # every built paper that has no full-size result at this version
    python benchmarks/full_size.py KEY …       # only these
    python benchmarks/full_size.py --keep      # run nothing, keep what the store has

Each paper's entry is written as soon as it is measured, with the digest of its code. A run that is killed goes on
where it was: papers that are measured at this version are left alone, and of the one that was under way the finished
cases are taken over. Papers of which the store has no newer result keep the entry that the file has, which says that
it is stale if their code has changed.

Results are estimates with their machine; verdicts are made when they are read. A full size takes at most ten minutes on
two cores.
"""

from __future__ import annotations

import sys

from assay.record import catalogue, full_size, sources, store
from assay.record.errors import AssayError, Interrupted
from assay.record.runner import run
from assay.record.store import write_whole
from assay.record.types import Result

LONGEST = 600.0


def newest(key: str) -> Result | None:
    """The store's newest result at full size, unless the file has a newer one."""
    found = next((result for _, result in store.stored(key) if result.size == "full"), None)
    kept = full_size.runs().get(key)
    return None if found and kept and found.started < kept.started else found


def measure(key: str) -> None:
    """Run a study unless it is measured at this version."""
    version = sources.digest(catalogue.paper(key).module)
    kept, found = full_size.runs().get(key), newest(key)
    if version in (kept and kept.source, found and found.source):
        return
    try:
        result = run(key, size="full")
    except Interrupted:
        raise
    except AssayError as error:
        print(f"{key}: {error}", file=sys.stderr)
        return
    slow = "  longer than ten minutes: cut it" if result.seconds > LONGEST else ""
    resumed = f", {result.resumed} cases resumed" if result.resumed else ""
    print(f"{key}: {result.seconds:.0f} s{resumed}, {result.headline}{slow}", flush=True)


def keep(keys: list[str]) -> None:
    """Write what the store has of these papers beside the file's other entries."""
    results = [result for key in keys if (result := newest(key))]
    before = full_size.FILE.read_text(encoding="utf-8") if full_size.FILE.exists() else ""
    write_whole(full_size.FILE, full_size.as_toml(results, before).encode())
    full_size.runs.cache_clear()


def main(words: list[str]) -> None:
    built = [paper.key for paper in catalogue.papers().values() if catalogue.is_built(paper)]
    keys = [word for word in words if not word.startswith("--")] or built
    for key in [] if "--keep" in words else keys:
        measure(key)
        keep([key])
    keep(built if "--keep" in words else [])
    runs = full_size.runs()
    stale = sum(one.stale for one in runs.values())
    print(f"{len(runs)} of {len(built)} papers in {full_size.FILE.name}, {stale} of them stale")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AssayError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
