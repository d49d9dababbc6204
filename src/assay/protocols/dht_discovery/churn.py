"""Nodes that come and go: lists of changes (time, node, up), drawn or read from a trace.

>>> changes = sessions(range(3), seconds=100.0, mean_up=20.0, mean_down=5.0, seed=1)
>>> changes[0][1:], all(0 <= time < 100 for time, _, _ in changes)
((0, False), True)
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from assay.protocols.interface import NodeId
from assay.record import reading
from assay.sim.streams import stream

Change = tuple[float, NodeId, bool]


def sessions(
    nodes: Iterable[NodeId], seconds: float, mean_up: float, mean_down: float, *, seed: int = 0, shape: float = 1.0,
    start: float = 0.0, day: float = 0.0,
) -> list[Change]:  # fmt: skip
    """Every node is there at `start`, leaves after a session, comes back after a pause, and so on.

    Sessions are Weibull with this shape: 1 is memoryless (Poisson churn), 0.5 has the long tail that measurements of
    peer-to-peer systems show. With `day`, sessions that begin at night (the second half of it) are half as long.
    """
    if min(mean_up, mean_down) <= 0 or shape <= 0:
        raise ValueError("sessions, pauses and the shape must be above 0")
    scale = mean_up / math.gamma(1 + 1 / shape)
    changes: list[Change] = []
    for node in nodes:
        random = stream(seed, "churn", node)
        time, up = start, True
        while time < seconds:
            night = day and (time % day) > day / 2
            factor = 0.5 if night and up else 1.0
            time += factor * (scale * random.weibull(shape) if up else random.exponential(mean_down))
            up = not up
            if time < seconds:
                changes.append((float(time), node, up))
    return sorted(changes)


def read(path: str | Path) -> list[Change]:
    """A trace: CSV with the columns node,up,down, in seconds; an empty `down` means to the end.

    Whoever appears with `up` above 0 is not there before.
    """
    changes: list[Change] = []
    stays: dict[NodeId, list[tuple[float, float, int]]] = {}
    right = "a CSV with the columns node,up,down expected"
    with io.StringIO(reading.text(Path(path), right), newline="") as file:
        rows = csv.DictReader(file)
        if not {"node", "up", "down"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path}:1: columns {', '.join(rows.fieldnames or ()) or 'none'}; {right}")
        for row in rows:
            try:
                node, up = int(row["node"]), float(row["up"])
                down = float(row["down"]) if row["down"].strip() else math.inf
                if not (node >= 0 and 0 <= up < down):
                    raise ValueError
            except (ValueError, TypeError, AttributeError):
                wanted = "a node number and 0 <= up < down, in seconds, expected"
                raise ValueError(f"{path}:{rows.line_num}: {dict(row)}; {wanted}") from None
            stays.setdefault(node, []).append((up, down, rows.line_num))
            if up > 0:
                changes.append((up, node, True))
            if down < math.inf:
                changes.append((down, node, False))
    for node, times in stays.items():
        for (_, down, _), (up, _, line) in pairwise(sorted(times)):
            if up < down:
                raise ValueError(f"{path}:{line}: node {node} comes up at {up:g} s, but is up until {down:g} s already")
    return sorted(changes)
