"""The paper's setting by the room's engine: 512 GPUs lose half of their replicas, one in about five steps.

A step takes what the engine says for so many replicas with so many microbatches each. A replica dies while gradients
are summed, the worst moment: its whole share is computed. What follows is arithmetic, rule by rule:

- recover: notice, mend the groups, compute the dead one's microbatches among the survivors, sum.
- drop and go: notice, mend, sum what survivors have; the batch is smaller from then on.
- spares: half of the replicas hold weights and wait; one steps in and computes the dead one's share.
- restart: notice, start anew on the survivors, load, and do all steps since the last checkpoint again. It checkpoints
  as often as suits it best, by a copy to the host that is written to disk behind the next steps.

Noticing takes all of them the time-out. That starting 512 processes anew takes a minute (20 s and 180 s are in the
table), that a group of NCCL is built within two seconds and that disks write 20 GB/s are assumptions. How large the
paper's batches were is not known to us; they are set so that losing half of the replicas takes `recover` the GPU-hours
that the paper names, which is calibration on a number that no claim is about.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from assay.sim.collectives import ring_all_reduce
from assay.sim.models import model
from assay.sim.random import stream
from assay.training.engine.cluster import read
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

NOTICE, MEND, DISK, HOST = 5.0, 2.0, 20e9, 20e9  # seconds, seconds, bytes a second to disk, and from a GPU to its host
STATE = 14  # bytes of a checkpoint for each parameter: weights in half precision, masters and two moments
EVERY = (1, 2, 3, 5, 10, 20)  # steps between checkpoints, of which restart gets the best
SYSTEMS = ("recover", "drop-and-go", "spares", "restart")
HOUR = 3600.0


@dataclass(frozen=True)
class Fleet:
    """Replicas of a model on 8 GPUs each: `3d` cuts one by tp4 pp2, `hsdp` shards it over all eight."""

    layout: str = "3d"
    batch: int = 1024  # microbatches: of one sequence, or of one a GPU under hsdp
    again: float = 60.0  # seconds to start all processes anew
    gpus: int = 512
    name: str = "llama-2-7b"
    device: str = "a100"
    network: str = "ib200"
    seq: int = 4096
    each: int = 8

    @property
    def replicas(self) -> int:
        """In the beginning."""
        return self.gpus // self.each

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.seq * (1 if self.layout == "3d" else self.each)

    @cached_property
    def state(self) -> float:
        """Bytes of a checkpoint."""
        return STATE * float(model(self.name).params)

    def share(self, replicas: int) -> int:
        """Microbatches of the replica that has the most."""
        return -(-self.batch // replicas)

    def pace(self, replicas: int, microbatches: int) -> float:
        """Seconds of a step with so many microbatches on each of so many replicas."""
        return _pace(self, replicas, microbatches)


@lru_cache(maxsize=4096)
def _pace(fleet: Fleet, replicas: int, m: int) -> float:
    if fleet.layout == "3d":
        plan = Plan(Layout(tp=4, pp=2, dp=replicas))
        machines = f"{fleet.each * replicas}x{fleet.device}:{fleet.network}"
        return simulate(fleet.name, machines, plan, Job(replicas * m, fleet.seq)).step
    cluster = read(f"{fleet.each}x{fleet.device}:{fleet.network}")
    plan = Plan(Layout(dp=fleet.each), zero=3, recompute="full")
    inner = simulate(fleet.name, cluster, plan, Job(m * fleet.each, fleet.seq))
    gradients = 2.0 * float(model(fleet.name).params) / fleet.each
    return inner.step + float(ring_all_reduce(replicas, gradients, cluster.outside))


@dataclass
class Ran:
    """Where a job stands."""

    tokens: float = 0.0
    seconds: float = 0.0
    gpu_seconds: float = 0.0
    steps: int = 0
    deaths: int = 0
    smallest: int = 0  # microbatches of the smallest step
    every: int = 0  # steps between checkpoints

    @property
    def effective(self) -> float:
        """Tokens for a second of a GPU that is alive."""
        return self.tokens / self.gpu_seconds

    def spend(self, seconds: float, gpus: int) -> None:
        """Time goes by."""
        self.seconds += seconds
        self.gpu_seconds += seconds * gpus


@lru_cache(maxsize=16)
def calibrated(layout: str, gpu_hours: float) -> int:
    """Microbatches of a step with which surviving the loss of half, one in five steps, takes so many GPU-hours."""
    low, high = 1, 4096  # shares of a replica
    fleet = Fleet(layout)
    deaths = list(range(5, 5 * fleet.replicas // 2 + 1, 5))
    while low < high:
        middle = (low + high) // 2
        took = run(replace(fleet, batch=middle * fleet.replicas), "recover", deaths).gpu_seconds
        low, high = (middle + 1, high) if took < gpu_hours * HOUR else (low, middle)
    return low * fleet.replicas


def failures(fleet: Fleet, seed: int) -> list[int]:
    """The steps at whose end a replica dies, until half are gone; five apart on average."""
    random = stream(seed, "recover", "fleet", fleet.layout)
    gaps = random.geometric(0.2, fleet.replicas // 2)
    return [int(step) for step in gaps.cumsum()]


def run(fleet: Fleet, system: str, deaths: list[int], budget: float | None = None) -> Ran:
    """Until the last death is survived, or so many seconds of GPUs are spent."""
    if system != "restart":
        return _run(fleet, system, deaths, budget, 0)
    found = [_run(fleet, system, deaths, budget, every) for every in EVERY]
    return max(found, key=lambda ran: ran.effective)


def _run(fleet: Fleet, system: str, deaths: list[int], budget: float | None, every: int) -> Ran:
    ran = Ran(smallest=fleet.batch, every=every)
    waiting = fleet.replicas // 2 if system == "spares" else 0
    working = fleet.replicas - waiting
    quota, left = fleet.share(working), deque(deaths)
    saved = 0, 0.0  # steps and tokens of the last checkpoint
    while left if budget is None else ran.gpu_seconds < budget:
        m = quota if system == "drop-and-go" else fleet.share(working)
        ran.spend(fleet.pace(working, m), (working + waiting) * fleet.each)
        step, counted = ran.steps + 1, min(fleet.batch, working * m)
        if left and step >= left[0]:
            left.popleft()
            ran.deaths += 1
            waiting, working = (waiting - 1, working) if waiting else (0, working - 1)
            ran.spend(_mending(fleet, system, working, m), (working + waiting) * fleet.each)
            if system == "restart":
                ran.steps, ran.tokens = saved
                continue
            counted = min(fleet.batch, working * m) if system == "drop-and-go" else counted
        ran.steps, ran.tokens, ran.smallest = step, ran.tokens + counted * fleet.tokens, min(ran.smallest, counted)
        if every and step % every == 0:
            ran.spend(_saving(fleet, every * fleet.pace(working, m)), working * fleet.each)
            saved = step, ran.tokens
    return ran


def _mending(fleet: Fleet, system: str, working: int, m: int) -> float:
    """Seconds from a death in the sum until the step is over, or until steps can begin again."""
    if system == "restart":
        return NOTICE + fleet.again + fleet.state / DISK
    if system == "drop-and-go":
        return NOTICE + MEND
    missing = -(-m // working) if system == "recover" else m  # a spare is one
    return NOTICE + MEND + fleet.pace(working, missing)


def _saving(fleet: Fleet, between: float) -> float:
    """Seconds that a checkpoint holds steps up: the copy to the host, and what of the writing is still going on."""
    return fleet.state / fleet.each / HOST + max(0.0, fleet.state / DISK - between)
