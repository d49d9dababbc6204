"""Put what `h200_kernels.py` and `h200_bigint_div.py` wrote into the package: medians, spreads, and where from.

    python benchmarks/h200_store.py DATE FIRST.jsonl [SECOND.jsonl ...]

A part that several files have is taken from the last of them; one that none has stays as it was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).parents[1] / "src/assay/kernels/engine/h200.json"
KEPT = ("facts", "machine", "goldbach-tune", "goldbach-check", "goldbach-rival", "goldbach", "radius-check",
        "radius-fps", "cusparse", "merbit", "pagerank", "bigint-tune", "bigint-div")  # fmt: skip


def short(row: dict[str, Any]) -> dict[str, Any]:
    """Rounds as their median, tenth and nine tenths; numbers to five digits."""
    if isinstance(row.get("seconds"), list):
        low, middle, high = np.percentile(row["seconds"], [10, 50, 90])
        row |= {"seconds": middle, "low": low, "high": high, "rounds": len(row["seconds"])}
    row.pop("segments", None) if row.get("limit") != 10**12 else None
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def main() -> None:
    date, *files = sys.argv[1:]
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(TARGET.read_text())["rows"]:
        parts.setdefault(row["part"], []).append(row)
    for file in files:
        found: dict[str, list[dict[str, Any]]] = {}
        for line in Path(file).read_text().splitlines():
            row = json.loads(line)
            if row["part"] in KEPT:
                found.setdefault(row["part"], []).append(short(row))
        parts |= found
    rows = [row for part in KEPT for row in parts.get(part, [])]
    source = f"measured on one NVIDIA H200 on {date} by benchmarks/h200_kernels.py"
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    TARGET.write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
