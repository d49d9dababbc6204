"""How often `assay bench compare` cries wolf, and how often it finds a planted change, on this machine.

.venv/bin/python benchmarks/ci_nulls.py --comparisons 200 --change 0       [--seconds 450] [--keep FILE.jsonl]
.venv/bin/python benchmarks/ci_nulls.py --comparisons 40  --change 0.05    [--seconds 450] [--keep FILE.jsonl]
.venv/bin/python benchmarks/ci_nulls.py --comparisons 20  --change 0.02 --instructions [--keep FILE.jsonl]
.venv/bin/python benchmarks/ci_nulls.py --summary FILE.jsonl

Each comparison is a whole one: two worktrees, fresh processes, the sequential test. With `--change 0` base and head are
the same commit. The summary has exact binomial intervals. `--keep` appends a line for each comparison, so that a
measurement may be cut into pieces; it stops by itself after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.observe.bench import checkouts, compare
from assay.observe.bench import config as bench_config
from assay.observe.ci_bench import lab
from assay.record import intervals


def comparisons(change: float, instructions: bool, limit: int, seconds: float, first: int) -> Iterator[dict[str, Any]]:
    """One comparison after the other, each from a history of its own."""
    begun = time.monotonic()
    for number in range(first, first + limit):
        if time.monotonic() - begun > seconds:
            return
        with tempfile.TemporaryDirectory() as name:
            repository = Path(name) / "repository"
            commits = lab.history(repository, [change] if change else [], number)
            config = bench_config.load(repository / "bench.toml")
            config = msgspec.structs.replace(config, instructions="always" if instructions else "never")
            refs = [commits[0].name, commits[-1].name]
            with (
                checkouts.session() as folder,
                checkouts.checkouts(repository, refs, folder) as (base, head),
            ):
                (one,) = compare.side_by_side(config, base, head, folder, lambda done, total: None)
        row = {"change": change, "number": number, "load": os.getloadavg()[0], **msgspec.to_builtins(one)}
        yield row | {"decision": one.decision, "by": one.by}


def summarise(rows: list[dict[str, Any]]) -> None:
    """A line for each planted change, by time and by instructions."""
    for change in sorted({row["change"] for row in rows}):
        chosen = [row for row in rows if row["change"] == change]
        for kind in ("time", "instructions"):
            judged = [row for row in chosen if row[kind]]
            if judged:
                print(_line(change, kind, judged))


def _line(change: float, kind: str, rows: list[dict[str, Any]]) -> str:
    decisions = [row[kind]["decision"] for row in rows]
    if change:
        hits, word = decisions.count("regression"), "found"
    else:
        hits, word = sum(d in ("regression", "improvement") for d in decisions), "false alarms"
    share = intervals.clopper_pearson(hits, len(rows))
    low, middle, high = np.percentile([row[kind]["change"] for row in rows], [25, 50, 75])
    seen = np.nanmedian([row[kind]["resolvable"] or np.nan for row in rows])
    pairs, took, load = (
        np.median(values) for values in zip(*((r[kind]["pairs"], r["seconds"], r["load"]) for r in rows), strict=True)
    )
    return (
        f"planted {change:+.1%} by {kind}: {word} {hits} of {len(rows)} = {share.value:.1%} "
        f"(95 % {share.low:.2%} … {share.high:.2%}); undecided {decisions.count('undecided')}; "
        f"estimate {middle:+.2%} (middle half {low:+.2%} … {high:+.2%}); resolves {seen:.1%}; pairs {pairs:.0f}; "
        f"{took:.1f} s a comparison, load {load:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--change", type=float, default=0.0)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--summary", type=Path)
    asked = parser.parse_args()
    if asked.summary:
        summarise([json.loads(line) for line in asked.summary.read_text().splitlines()])
        return
    before = asked.keep.read_text().splitlines() if asked.keep and asked.keep.exists() else []
    rows = []
    for row in comparisons(asked.change, asked.instructions, asked.comparisons, asked.seconds, len(before)):
        rows.append(row)
        print(f"\r{len(rows)} of {asked.comparisons}", end="", flush=True)
        if asked.keep:
            with asked.keep.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print()
    summarise(rows)


if __name__ == "__main__":
    main()
