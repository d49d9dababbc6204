"""Operations drawn for a terminal: a row for each process, a bar from call to return, time from left to right.

Time is not to scale: calls and returns are equally far apart, so that what overlaps is seen to overlap.

>>> print(draw([Operation(0, "write", "x", 1, None, 0.0, 9.0), Operation(1, "read", "x", None, 1, 5.0, 20.0)], [0, 1]))
p0  ├#0 write x 1─┤
p1       ├#1 read x → 1─┤
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.protocols.judges.judgement import name
from assay.workloads.histories import Operation

MOST = 24  # operations that still make a picture


def draw(history: Sequence[Operation], shown: Sequence[int], width: int = 100) -> str:
    """The operations as lines of text; one that never returned has an open end.

    Where whole names are too long for the width, the bars say less: what was asked, or only the operation's number.
    """
    chosen = sorted(shown, key=lambda i: history[i].invoke)[:MOST]
    whole = {i: name(history, i).replace(f" p{history[i].process} ", " ", 1) for i in chosen}
    for labels in (whole, {i: f"#{i} {history[i].f}" for i in chosen}, {i: f"#{i}" for i in chosen}):
        lines = _rows(history, chosen, labels)
        if all(len(line) <= width for line in lines):
            break
    if len(shown) > MOST:
        lines.append(f"… and {len(shown) - MOST} more operations")
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in lines)


def _rows(history: Sequence[Operation], chosen: Sequence[int], labels: dict[int, str]) -> list[str]:
    times = sorted({time for i in chosen for time in (history[i].invoke, history[i].complete) if abs(time) < math.inf})
    columns = _columns(history, chosen, labels, times)
    processes = sorted({history[i].process for i in chosen})
    head = max((len(str(process)) for process in processes), default=1) + 3
    lines = []
    for process in processes:
        row = ""
        for i in chosen:
            if history[i].process == process:
                row = row.ljust(columns[history[i].invoke]) + _bar(history[i], labels[i], columns)
        lines.append(f"p{process}".ljust(head) + row.rstrip())
    return lines


def _columns(
    history: Sequence[Operation], chosen: Sequence[int], labels: dict[int, str], times: Sequence[float]
) -> dict[float, int]:  # fmt: skip
    """Where each instant goes: far enough from the one before for every label to fit into its bar."""
    at: dict[float, int] = {-math.inf: 0}
    last = -5
    for time in times:
        last += 5
        for i in chosen:
            if history[i].complete == time:
                last = max(last, at.get(history[i].invoke, 0) + len(labels[i]) + 2)
        at[time] = last
    at[math.inf] = last + 5
    return at


def _bar(operation: Operation, label: str, columns: dict[float, int]) -> str:
    length = max(columns[operation.complete] - columns[operation.invoke], len(label) + 1)
    end = "┤" if operation.complete < math.inf else "┄"
    return "├" + label.ljust(length - 1, "─") + end
