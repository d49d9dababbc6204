"""What training on a step's trajectories takes: the best plan of the training engine, by the token."""

from __future__ import annotations

import math
from functools import lru_cache

from assay.sim.models import model
from assay.training.engine import cluster as clusters
from assay.training.engine import search as space
from assay.training.engine.step import simulate_many
from assay.training.interface import Job
from assay.workloads.trajectories import Trajectories

PACKED = 8192  # tokens of a sequence that trajectories are packed into


def seconds(name: str, device: str, gpus: int, work: Trajectories) -> tuple[float, str]:
    """Seconds of a training step on these trajectories, and the plan; infinitely many where the model does not fit.

    >>> from assay.workloads.trajectories import draw
    >>> one, other = (seconds("qwen3-8b", "a800", gpus, draw(64, seed=0))[0] for gpus in (8, 16))
    >>> one > other
    True
    """
    length = work.length.astype(float)
    seen = max(64.0, float((length**2).sum() / (2 * length.sum())))
    rounded = int(2 ** (round(2 * math.log2(seen)) / 2))  # answers are kept, for lengths that are nearly alike
    each, plan = _per_token(name, device, gpus, rounded)
    return each * float(length.sum()), plan


@lru_cache(maxsize=4096)
def _per_token(name: str, device: str, gpus: int, seen: int) -> tuple[float, str]:
    """Seconds that training takes for a token on so many GPUs, with the best plan, and the plan."""
    shape, cluster = model(name), clusters.read(f"{gpus}x{device}")
    job = Job(8 * gpus, PACKED, float(seen))
    plans = [
        plan
        for plan in space.plans(shape, cluster, job, zero=(1,), schedules=("1f1b",))
        if plan.layout.tp <= 8 and plan.layout.pp <= 8 and plan.mbs <= 4 and plan.layout.cp == 1
        and plan.layout.ep in (1, plan.layout.dp)
    ]  # fmt: skip
    fitting = [one for one in simulate_many(shape, cluster, plans, job) if one.fits] if plans else []
    if not fitting:
        return math.inf, ""
    best = min(fitting, key=lambda one: one.step)
    return best.step / job.tokens, best.plan.name
