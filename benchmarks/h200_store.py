"""Put what the scripts `h200_*.py` of kernels wrote into the package: medians and spreads, and where they come from.

    python benchmarks/h200_store.py DATE FIRST.jsonl [SECOND.jsonl ...]

A part that several files have is taken from the last of them; one that none has stays as it was. Of parts in GROUPS
(a matrix in one precision, a kind of measurement) only the groups that a file has are taken anew. How a run went (what
took how long, what failed) is not kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).parents[1] / "src/assay/kernels/engine/h200.json"
CUCO = Path(__file__).parents[1] / "src/assay/training/cuco/h200.json"  # another room's, with every round
PASSING = ("took", "done", "error", "failed")
GROUPS = {"merbit": ("matrix", "dtype"), "etap-mla": ("what",)}
GROUPS |= {f"falcongemm{part}": ("dtype",) for part in ("", "-profile", "-frontier", "-squares", "-prefill")}


def short(row: dict[str, Any]) -> dict[str, Any]:
    """Rounds as their median, tenth and nine tenths; numbers to five digits."""
    if isinstance(row.get("seconds"), list):
        low, middle, high = np.percentile(row["seconds"], [10, 50, 90])
        row |= {"seconds": middle, "low": low, "high": high, "rounds": len(row["seconds"])}
    row.pop("segments", None) if row.get("limit") != 10**12 else None
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def keep_cuco(source: str, rows: list[dict[str, Any]]) -> None:
    """What `h200_cuco.py` raced and searched, beside its paper."""
    found = {part: [row for row in rows if row["part"] == f"cuco-{part}"] for part in ("facts", "race", "search")}
    if found["race"]:
        lines = {
            part: ",\n".join(json.dumps(row, separators=(",", ":")) for row in each) for part, each in found.items()
        }
        parts = ",\n".join(f'"{part}": [\n{text}\n]' for part, text in lines.items())
        CUCO.write_text(f'{{"source": {json.dumps(source)},\n{parts}}}\n')


def group(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is replaced together: a part, or a group of it."""
    return (row["part"], *(row.get(name) for name in GROUPS.get(row["part"], ())))


def main() -> None:
    date, *files = sys.argv[1:]
    source = f"measured on one NVIDIA H200 on {date} by benchmarks/h200_*.py"
    every = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    keep_cuco(source, every)
    parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in json.loads(TARGET.read_text())["rows"]:
        parts.setdefault(group(row), []).append(row)
    for file in files:
        found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for line in Path(file).read_text().splitlines():
            row = json.loads(line)
            if row["part"].startswith("cuco-"):
                continue
            if row["part"].rpartition("-")[2] not in PASSING and row.get("what") not in PASSING:
                found.setdefault(group(row), []).append(short(row))
        parts |= found
    rows = [row for part in parts.values() for row in part]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    TARGET.write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
