"""Which events of a trace belong together: beginnings and ends, calls and kernels, the collectives of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.workloads.json_scan import JIT

_PER_STEP = 1 << 20  # numbers that the collectives of one step may take
Ints = NDArray[np.int64]


@njit(**JIT)
def paired_ends(thread: Any, begins: Any) -> Any:
    """For each beginning the index of its end, -1 if there is none: the last one open in the thread is closed first."""
    partner = np.full(len(thread), -1, np.int64)
    below = np.full(len(thread), -1, np.int64)
    open_one = np.full(len(thread) + 1, -1, np.int64)
    for i in range(len(thread)):
        last = open_one[thread[i]]
        if begins[i]:
            below[i], open_one[thread[i]] = last, i
        elif last >= 0:
            partner[last], open_one[thread[i]] = i, below[last]
    return partner


def pairs(one: Ints, other: Ints) -> tuple[list[tuple[int, int]], Ints]:
    """The pairs that occur, in order, and which of them each row is."""
    ones, one_code = np.unique(one, return_inverse=True)
    others, other_code = np.unique(other, return_inverse=True)
    codes, inverse = np.unique(one_code * max(1, len(others)) + other_code, return_inverse=True)
    found = [(int(ones[code // len(others)]), int(others[code % len(others)])) for code in codes]
    return found, inverse.astype(np.int64)


def launches(correlation: Ints, device: NDArray[np.bool_], ids: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Indices of calls and of the kernels that they launched."""
    linked = np.flatnonzero(correlation > 0)
    both = pl.DataFrame({"correlation": correlation[linked], "row": linked, "device": device[linked]})
    calls = both.filter(~pl.col("device")).unique("correlation", keep="first")
    joined = both.filter(pl.col("device")).join(calls, on="correlation", suffix="_call", maintain_order="left")
    return joined["row_call"].to_numpy(), joined["row"].to_numpy()


def places(group: Ints, step: Ints, when: Ints) -> Ints:
    """The number of each collective: its place among those of its group and step, by time."""
    rows = pl.DataFrame({"group": group, "step": step, "when": when}).with_row_index("row")
    placed = rows.sort("when", "row").with_columns(place=pl.int_range(pl.len()).over("group", "step")).sort("row")
    place: Ints = placed["place"].to_numpy().astype(np.int64)
    return np.maximum(step, 0) * _PER_STEP + place
