"""Checkpointers on one state: assay, torch's two, safetensors, npz, Orbax; interleaved, every save synced.

.venv/bin/pip install -r benchmarks/envs/orbax.txt
.venv/bin/python benchmarks/data_checkpoints.py [MEGABYTES [ARRAYS [ROUNDS]]]
"""

from __future__ import annotations

import sys

from assay.data.orbax import trial


def main() -> None:
    told = [int(word) for word in sys.argv[1:4]]
    megabytes, arrays, rounds = (*told, *(2000, 96, 3)[len(told) :])
    rows = trial(megabytes, arrays, rounds, seed=0)
    print(f"{megabytes:,} MB in {arrays} arrays, medians of {rounds} rounds; memory in times of the state")
    print(
        "load: from disk; cached: from the page cache; resume: from disk into a job's arrays; blocks: share of a save"
    )
    heads = "".join(f"{word:>9}" for word in ("save", "load", "cached", "resume", "blocks", "first"))
    print(f"  {'':<12}{heads}{'memory: save':>14}{'load':>7}{'async':>7}")
    for name, row in rows.items():
        seconds = "".join(f"{row[column]:>7.2f} s" for column in ("save", "load", "load_warm", "resume"))
        shares = "".join(f"{_share(row[column]):>9}" for column in ("blocks", "blocks_first"))
        memory = f"{row['save_memory']:>14.2f}{row['load_memory']:>7.2f}{_times(row['async_memory']):>7}"
        print(f"  {name:<12}{seconds}{shares}{memory}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
