"""Measurements of our own on machines that are not at hand: what ran there, when, checked how.

`benchmarks/h200_kernels.py` writes them on a GPU; `h200.json` beside this file keeps what it wrote. A study on a
machine without such a GPU answers from them, and says that it was measured there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from assay.kernels.interface import Machine

MACHINES = ("h200",)


@cache
def rows(name: str, part: str) -> tuple[dict[str, Any], ...]:
    """The measurements of one part on one machine, in the order they were made."""
    path = Path(__file__).with_name(f"{name}.json")
    return tuple(row for row in msgspec.json.decode(path.read_bytes())["rows"] if row["part"] == part)


@cache
def source(name: str) -> str:
    """On what, when and by what the measurements of a machine were made, in a sentence."""
    return str(msgspec.json.decode(Path(__file__).with_name(f"{name}.json").read_bytes())["source"])


def machine(name: str) -> Machine:
    """What the machine could do, measured in the same run."""
    found = {row["what"]: row["value"] for row in rows(name, "machine")}
    gathers = max(value for what, value in found.items() if what.startswith("gather"))
    peaks = {what.removeprefix("gemm "): value for what, value in found.items() if what.startswith("gemm ")}
    bandwidth = max(found["copy"], found["triad"], found["read"])
    return Machine(
        rows(name, "facts")[0]["gpu"], name, {0: bandwidth}, peaks, {0: gathers}, found["launch"], source(name), found
    )
