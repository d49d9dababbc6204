"""What the study asks: what a proxy saves five applications, and whether rows arrive once whatever is late."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from assay.record.timing import Gauge
from assay.training.buddy.apps import APPS
from assay.training.buddy.launch import ON_BOTH, Machine, Ran, Task, in_turns, run
from assay.training.buddy.ledger import EPOCHS

SWEEPS = {"histogram": (0, 1, 4, 16, 64), "monte-carlo": (0, 1, 3)}  # of settings: see apps
MODES = ("inline", "proxy", "bulk", ON_BOTH)  # of the first setting; of the others the first two
LONGER = {"histogram": 4, "gather": 4}  # whose steps are short: all take tens of milliseconds
LEDGER = Task("ledger", words=3)


def places() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A processor for the ranks and a spare one; none where there is only one."""
    able = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return ((able[0],), (able[1],)) if len(able) > 1 else ((), ())


def applied(scale: int, repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Five applications, two of them with less and less to communicate, by each way to do so, in turns.

    Two repetitions, there and back, have the same processes, and the next two others: which pages a process was given
    makes it faster or slower for as long as it lives.
    """
    host, spare = places()
    tasks = [Task(app, scale * LONGER.get(app, 1), setting) for app in APPS for setting in SWEEPS.get(app, (0,))]
    pairs = [(mode, task) for task in tasks for mode in MODES[: 2 if task.setting else None]]
    turns = [*pairs, *pairs[::-1]]
    machine = Machine(host=host, spare=spare)
    with Gauge() as gauge:
        ran = [in_turns(turns, machine, seed) for _ in range(repeats // 2)]
    found: dict[str, dict[str, Any]] = {}
    alone = {task: APPS[task.app].alone(machine.size, task.scale, seed, task.setting) for task in tasks}
    for mode, task in pairs:
        same = [one for some in ran for one, turn in zip(some, turns, strict=True) if turn == (mode, task)]
        right = all(np.array_equal(one.result, alone[task]) for one in same)
        row = _row(task, mode, same, right) | {"free_cores": gauge.free if spare else 0.0}
        found[f"{task.app}, {task.setting}, {mode}"] = row
    return found


def _row(task: Task, mode: str, same: list[Ran], right: bool) -> dict[str, Any]:
    """Medians of an application's repetitions."""
    middle = {name: float(np.median([getattr(one, name) for one in same])) for name in ("seconds", "host", "agent")}
    first = same[0]
    return {
        "app": task.app, "setting": task.setting, "mode": mode, **middle,
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
