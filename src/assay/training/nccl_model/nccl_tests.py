"""Measured times of a collective: the output of nccl-tests as it is printed, or a CSV with sizes and times.

nccl-tests prints, below a header with its ranks and their GPUs, a line a size: size, count, type, redop, root, then
time in microseconds and two bandwidths, out of place and in place. The out-of-place time is taken. Sizes are those of
the whole vector, for an all-gather too.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.hardware import devices

OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "sendrecv": "send",
}  # fmt: skip
SIZES = ("size", "size(b)", "bytes", "nbytes")
TIMES = ("time", "time(us)", "time_us", "us")
LEAST = 4  # sizes that a fit and its check need


@dataclass(frozen=True, eq=False)
class Measured:
    """A collective's times, and what the file tells of the ranks; empty where it does not."""

    sizes: NDArray[np.float64]  # bytes of the whole vector, ascending
    seconds: NDArray[np.float64]
    op: str = ""
    nodes: int = 0
    per_node: int = 0
    gpu: str = ""

    def held(self, op: str, ranks: int) -> NDArray[np.float64]:
        """What one rank holds before the collective."""
        return self.sizes / ranks if op == "all_gather" else self.sizes


def read(path: Path) -> Measured:
    """The times in a file.

    Raises:
        BadInput: no times, or too few; the message says what was expected.
    """
    text = reading.text(path, "the output of nccl-tests, or a CSV, expected")
    rows = _columns(path, text) if re.search(r"^[^#\n]*,", text, re.MULTILINE) else _printed(path, text)
    if len(rows) < LEAST:
        raise BadInput(f"{path}: {len(rows)} sizes with times; at least {LEAST} expected")
    best: dict[float, list[float]] = {}
    for size, seconds in rows:
        best.setdefault(size, []).append(seconds)
    sizes = np.array(sorted(best))
    return Measured(sizes, np.array([float(np.median(best[size])) for size in sizes]), *_ranks(text))


def _printed(path: Path, text: str) -> list[tuple[float, float]]:
    rows = []
    time = 5 if re.search(r"\bredop\s+root\s+time\b", text) else 4  # older versions have no root
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if len(words) > time + 2 and words[0].isdigit() and words[0] != "0":
            rows.append(_pair(f"{path}, line {number}", words[0], words[time]))
    return rows


def _columns(path: Path, text: str) -> list[tuple[float, float]]:
    lines = list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))
    head = [name.strip().lower().replace(" ", "") for name in lines[0]]
    size, time = (next((head.index(name) for name in names if name in head), -1) for names in (SIZES, TIMES))
    if min(size, time) < 0:
        raise BadInput(f"{path}: the columns are {', '.join(head)[:80]}; size (bytes) and time (microseconds) expected")
    rows = []
    for number, words in enumerate(lines[1:], 2):
        if words and len(words) <= max(size, time):
            raise BadInput(f"{path}, row {number}: {len(words)} columns; {len(head)} expected")
        if words:
            rows.append(_pair(f"{path}, row {number}", words[size], words[time]))
    return rows


def _pair(where: str, size: str, time: str) -> tuple[float, float]:
    try:
        nbytes, seconds = float(size), float(time) * 1e-6
    except ValueError:
        raise BadInput(f"{where}: size {size!r} and time {time!r}; bytes and microseconds expected") from None
    if not (0 < nbytes < np.inf and 0 < seconds < np.inf):
        raise BadInput(f"{where}: size {size} and time {time}; numbers above 0 expected")
    return nbytes, seconds


def _ranks(text: str) -> tuple[str, int, int, str]:
    """The collective, nodes, ranks a node and GPU that the header tells."""
    named = re.search(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|alltoall|sendrecv|reduce)_perf\b", text)
    found = re.findall(r"^#\s+Rank\s+\d+.*\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)$", text, re.MULTILINE)
    hosts = [host for host, _ in found]
    counts = [hosts.count(host) for host in dict.fromkeys(hosts)]
    gpu = ""
    for word in re.findall(r"[a-z]+\d+\w*", found[0][1].lower()) if found else []:
        gpu = gpu or next((d.name for d in devices() if d.name == word), "")
    even = bool(counts) and min(counts) == max(counts)
    return OPS[named[1]] if named else "", len(counts), counts[0] if even else 0, gpu
