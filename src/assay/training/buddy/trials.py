"""What the study asks: what a proxy saves five applications, and whether rows arrive once whatever is late."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from assay.record.timing import Gauge
from assay.training.buddy.apps import APPS
from assay.training.buddy.launch import ON_BOTH, Machine, Ran, Task, in_turns, run
from assay.training.buddy.ledger import EPOCHS

PASSES = (0, 1, 4, 16)  # of the histogram that reads memory so often for every batch
MODES = ("inline", "proxy", "bulk", ON_BOTH)
LONGER = {"histogram": 4, "gather": 4}  # whose steps are short: all take tens of milliseconds
LEDGER = Task("ledger", words=3)


def places() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A processor for the ranks and a spare one; none where there is only one."""
    able = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return ((able[0],), (able[1],)) if len(able) > 1 else ((), ())


def applied(scale: int, repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Five applications, and the histogram with more and more reading, by each way to communicate, in turns."""
    host, spare = places()
    tasks = [Task(app, scale * LONGER.get(app, 1)) for app in APPS]
    tasks += [Task("histogram", scale * LONGER["histogram"], passes) for passes in PASSES[1:]]
    turns = [(mode, task) for turn in range(repeats) for task in tasks for mode in MODES[:: -1 if turn % 2 else 1]]
    machine = Machine(host=host, spare=spare)
    with Gauge() as gauge:
        ran = in_turns(turns, machine, seed)
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        alone = APPS[task.app][1](machine.size, task.scale, seed)
        for mode in MODES:
            same = [one for one, turn in zip(ran, turns, strict=True) if turn == (mode, task)]
            right = all(np.array_equal(one.result, alone) for one in same)
            row = _row(task, mode, same, right) | {"free_cores": gauge.free if spare else 0.0}
            found[f"{task.app}, {task.passes} passes, {mode}"] = row
    return found


def _row(task: Task, mode: str, same: list[Ran], right: bool) -> dict[str, Any]:
    """Medians of an application's repetitions."""
    middle = {name: float(np.median([getattr(one, name) for one in same])) for name in ("seconds", "host", "agent")}
    first = same[0]
    return {
        "app": task.app, "passes": task.passes, "mode": mode, **middle,
        "bottleneck": max(middle["host"], middle["agent"]), "rows": first.rows, "packets": first.packets,
        "aggregation": first.rows / max(first.packets, 1), "memory_to_communication": first.touched / first.nbytes,
        "right": right,
    }  # fmt: skip


def fuzzed(nodes: int, per_node: int, mode: str, seed: int) -> dict[str, Any]:
    """Rows that are counted, with everybody pausing now and then."""
    machine = Machine(nodes, per_node, full=64, fuzz=0.05)
    (ran,) = run(mode, [LEDGER], machine, seed)
    seen = np.stack(ran.results)
    return {
        "once": bool((seen[:, 2 : 3 * EPOCHS : 3] == 1).all()), "strays": int(seen[:, -1].sum()),
        "rows": ran.rows, "packets": ran.packets,
    }  # fmt: skip
