"""What the study asks of real processes: deaths and results, messages counted, and what the layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.record.timing import Gauge
from assay.training.partreper import launch, model
from assay.training.partreper.kernels import APPLICATIONS, NAS
from assay.training.partreper.launch import Interrupted, Kill, Ran, Task

SMALL = {"cg": 36, "ep": 1000, "is": 300, "ft": 24, "heat": 24, "farm": 50}
# Rows of CG, keys of IS and points of FT as in the NAS classes S and W, on two ranks; fewer steps of S.
CLASSES = {
    "S": {"cg": (1400, 50), "ep": (1 << 17, 2), "is": (1 << 15, 4), "ft": (512, 2), "heat": (512, 20),
          "farm": (20_000, 2)},
    "W": {"cg": (7000, 375), "ep": (1 << 20, 16), "is": (1 << 19, 10), "ft": (724, 6), "heat": (2048, 60),
          "farm": (200_000, 20)},
}  # fmt: skip


def medley(seed: int, steps: int = 6) -> list[Task]:
    """All programs, small, one after the other."""
    return [Task(name, size, steps, seed) for name, size in SMALL.items()]


def same(ran: Ran, calm: Ran, ranks: int) -> bool:
    """Whether every rank came to the end, and every process found bit by bit what the calm job found."""
    tasks = sum(name.startswith("result-") for name in next(iter(calm.reports.values())))
    alike = all(np.array_equal(one, calm.result(at)[0]) for at in range(tasks) for one in ran.result(at))
    return alike and {report["rank"] for report in ran.reports.values()} == set(range(ranks))


def deaths(case: str, points: dict[int, dict[str, int]], twins: Sequence[int], seed: int) -> list[Kill]:
    """Who dies where: one process, one of each of two pairs, or a second one within the recovery from the first."""
    from assay.sim.random import stream

    random = stream(seed, "partreper", case)
    ranks = max(points) + 1 - len(twins)
    pairs = [(rank, ranks + at) for at, rank in enumerate(twins)]
    chosen = [int(pairs[at][random.integers(2)]) for at in random.permutation(len(pairs))[:2]]
    kills: list[Kill] = [(who, "call", int(random.integers(points[who]["call"]))) for who in chosen]
    if case == "within recovery":
        return [kills[0], (chosen[1], "recovery", int(random.integers(5)))]
    if case == "inside a call":
        return [(chosen[0], "send", int(random.integers(points[chosen[0]]["send"])))]
    return kills if case == "two pairs" else kills[:1]


def survive(ranks: int, replicas: int, cases: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """A job in which nobody dies, and the same with deaths at drawn points."""
    twins, tasks = launch.replicate(ranks, replicas), medley(seed)
    calm = launch.run(tasks, ranks, twins)
    points = {who: report["points"] for who, report in calm.reports.items()}
    found = {"nobody dies": _row(calm, calm, ranks) | {"as_counted": counted(ranks, twins, seed)}}
    for case in cases:
        kills = deaths(case, points, twins, seed)
        ran = launch.run(tasks, ranks, twins, kills)
        found[case] = _row(ran, calm, ranks) | {"who": " ".join(f"{who}:{point}:{at}" for who, point, at in kills)}
    return found


def _row(ran: Ran, calm: Ran, ranks: int) -> dict[str, Any]:
    counts = ("sent", "collective", "control", "resent", "replayed", "dropped")
    mended = [one for report in ran.reports.values() for one in report["mending"]]
    return {
        "same": same(ran, calm, ranks), "died": len(ran.died), **{name: ran.total(name) for name in counts},
        "recovery": max(mended, default=None), "seconds": sum(ran.seconds(at) for at in range(len(SMALL))),
    }  # fmt: skip


def counted(ranks: int, twins: tuple[int, ...], seed: int) -> bool:
    """Whether the messages of a job in which nobody dies are as many as theory says."""
    tasks = [task for task in medley(seed) if task.kernel != "farm"]  # who asks first there is open
    ran = launch.run(tasks, ranks, twins)
    matrix = sum((model.messages(task.kernel, ranks, task.steps) for task in tasks), np.zeros((ranks, ranks), np.int64))
    return ran.total("sent") + ran.total("collective") == model.copies(matrix, twins)


def unreplicated(ranks: int, replicas: int, seed: int) -> dict[str, Any]:
    """A rank without a replica dies: is it told who, and by everybody?"""
    from assay.sim.random import stream

    random = stream(seed, "partreper", "unreplicated")
    victim = int(random.integers(replicas, ranks))
    try:
        launch.run(medley(seed), ranks, launch.replicate(ranks, replicas), [(victim, "call", int(random.integers(40)))])
    except Interrupted as end:
        return {"victim": victim, "told": end.rank == victim}
    return {"victim": victim, "told": False}


def restarted(ranks: int, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """One death in the heat program: plain MPI with checkpoints at Daly's interval, and a replica for everybody."""
    from assay.sim.random import stream

    random, task = stream(seed, "partreper", "restarted"), Task("heat", 64, steps, seed)
    victim, at = int(random.integers(ranks)), int(random.integers(steps // 2, steps))
    calm = launch.checkpointed(task, ranks, every=steps)
    between = calm.step * steps  # one death in a job of this length
    every = max(1, min(steps, round(model.daly(calm.saving, between) / calm.step)))
    hit = launch.checkpointed(task, ranks, every, kill=(victim, at))
    full = launch.run([task], ranks, tuple(range(ranks)), [(victim, "call", 6 * at)])
    return {
        "checkpoints": {"same": bool(np.array_equal(hit.result, calm.result)), "again": hit.computed - steps,
                        "every": every, "starts": hit.starts},
        "full replication": {"same": all(np.array_equal(one, calm.result) for one in full.result()), "again": 0,
                             "every": None, "starts": 1},
    }  # fmt: skip


def overhead(size: str, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Two ranks on two processors, no replicas: numbers, logs and the layer's own collectives against plain MPI."""
    tasks = [Task(name, *CLASSES[size][name], seed) for name in NAS + APPLICATIONS]
    found: dict[str, dict[str, Any]] = {}
    with Gauge() as gauge:
        shared = launch.run(tasks, 2, plain=True, settings=launch.SHARED, rounds=rounds)
        layer = launch.run(tasks, 2, both=True, rounds=rounds)
    for at, task in enumerate(tasks):
        plain, sockets, ours = (
            _median(ran, at, len(tasks), rounds, part)
            for ran, part in ((shared, "seconds"), (layer, "plain_seconds"), (layer, "seconds"))
        )
        for name, seconds in (("plain", plain), ("plain over sockets", sockets), ("partreper", ours)):
            row = {"kernel": task.kernel, "system": name, "seconds": seconds, "free_cores": gauge.free}
            found[f"{task.kernel}, {name}"] = row
    return found


def _median(ran: Ran, at: int, tasks: int, rounds: int, part: str) -> float:
    """Of the rounds; in each the slower rank counts."""
    turns = [max(report[part][turn * tasks + at] for report in ran.reports.values()) for turn in range(rounds)]
    return float(np.median(turns))


def crowded(ranks: int, replicas: int, seed: int) -> dict[str, Any]:
    """More processes than processors: what is lost here says nothing of a machine with a processor for each."""
    ran = launch.run(medley(seed), ranks, launch.replicate(ranks, replicas), rounds=2)
    plain = launch.run(medley(seed), ranks, plain=True, settings=launch.SHARED, rounds=2)
    took, alone = (sum(one.seconds(len(SMALL) + at) for at in range(len(SMALL))) for one in (ran, plain))
    return {"processes": ranks + replicas, "seconds": took, "plain_seconds": alone, "slowdown": took / alone}


def at_scale(processes: int, life_days: float, seed: int) -> dict[str, dict[str, Any]]:
    """Interrupts and work that counts, by how many ranks have a replica; nothing is drawn."""
    fleet = model.Fleet(life_days * model.DAY)
    found = {}
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        ranks, replicated = model.degrees(processes, fraction)
        found[f"{fraction:.0%}"] = {
            "fraction": fraction, "ranks": ranks,
            "interrupt": model.mean_time_to_interrupt(ranks, replicated, fleet.life),
            "same_ranks": model.mean_time_to_interrupt(processes, round(fraction * processes), fleet.life),
            "efficiency": model.efficiency(fleet, processes, fraction),
        }  # fmt: skip
    return found
