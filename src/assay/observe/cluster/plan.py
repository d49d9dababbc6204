"""What happens in the model cluster, decided before any sample is drawn: sessions, saves, failures and false friends.

A failure is one of `FAULTS`. Which of its symptoms show, how strongly, how they grow and how long before the end is
drawn for each anew; `detached` has none, and nobody can see it coming. Disturbances are harmless: a job on the host, a
warm rack. They are there to be mistaken for failures.

>>> plan = make(seed=0, hours=72, nodes=8, failures=4)
>>> len(plan.failures), all(f.onset <= f.breaks < f.repaired for f in plan.failures)
(4, True)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from assay.observe.cluster.metrics import COLUMN, GPUS, METRICS
from assay.sim.random import stream

SCRAPE = 30  # seconds
HOUR = 3600 // SCRAPE  # scrapes


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of failure: its driver error (0: none), its symptoms, and how long they precede the end, in scrapes."""

    name: str
    xid: int
    symptoms: tuple[tuple[str, float], ...]
    """Metrics, and by how much each moves at the end: of its own unit, or events a scrape where it counts."""
    ahead: tuple[int, int]
    of_gpu: bool = True
    goes_dark: bool = False  # the GPU's metrics vanish when it breaks


_D = "DCGM_FI_DEV_"
FAULTS: tuple[Fault, ...] = (
    Fault("thermal drift", 62, ((f"{_D}GPU_TEMP", 14), (f"{_D}MEMORY_TEMP", 16), (f"{_D}FAN_SPEED", 18),
                                (f"{_D}SM_CLOCK", -160), (f"{_D}THERMAL_VIOLATION", 3)), (60, 480)),
    Fault("ecc storm", 48, ((f"{_D}ECC_SBE_VOL_TOTAL", 6), (f"{_D}ECC_SBE_AGG_TOTAL", 6),
                            (f"{_D}CORRECTABLE_REMAPPED_ROWS", 0.4), (f"{_D}RETIRED_SBE", 0.4)), (20, 240)),
    Fault("nvlink flap", 74, ((f"{_D}NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 20), (f"{_D}NVLINK_BANDWIDTH_TOTAL", -6e10),
                              (f"{_D}NVLINK_REPLAY_ERROR_COUNT_TOTAL", 8),
                              (f"{_D}NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1)), (10, 120)),
    Fault("pcie replay", 79, ((f"{_D}PCIE_REPLAY_COUNTER", 12), ("DCGM_FI_PROF_PCIE_TX_BYTES", -1.5e9),
                              ("DCGM_FI_PROF_PCIE_RX_BYTES", -1.1e9), (f"{_D}PCIE_LINK_WIDTH", -8)), (10, 160)),
    Fault("gsp timeout", 119, (("scrape_duration_seconds", 0.5), (f"{_D}POWER_USAGE", -120),
                               ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", -0.12)), (2, 12), goes_dark=True),
    Fault("detached", 79, (), (0, 0), goes_dark=True),
    Fault("nfs stall", 0, (("node_nfs_rpc_backlog", 25), ("node_procs_blocked", 6), ("node_nfs_rpc_retransmissions", 4),
                           ("node_nfs_xprt_sending_queue", 20)), (6, 60), of_gpu=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shift:
    """A column that moves away from where it should be, up to `by`; `power` bends the way, bursts break it up."""

    column: int
    by: float
    power: float
    burst: float  # the share of scrapes at which it shows


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure. Times are scrapes: symptoms from `onset`, broken at `breaks`, back in service at `repaired`."""

    fault: Fault
    node: int
    gpu: int
    onset: int
    breaks: int
    repaired: int
    severity: float
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something harmless on some nodes for a while."""

    nodes: tuple[int, ...]
    start: int
    end: int
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Plan:
    """All that will happen, in order of time."""

    sessions: tuple[tuple[int, int], ...]
    failures: tuple[Failure, ...]
    disturbances: tuple[Disturbance, ...]


def make(seed: int, hours: int, nodes: int, failures: int) -> Plan:
    """Draw everything; failures lie at least an eighth of their mean distance apart."""
    broken = tuple(_failures(seed, hours * HOUR, nodes, failures))
    return Plan(tuple(_sessions(seed, hours * HOUR, broken)), broken, tuple(_disturbances(seed, hours * HOUR, nodes)))


def _failures(seed: int, scrapes: int, nodes: int, count: int) -> list[Failure]:
    draw = stream(seed, "cluster504", "failures")
    # A few nodes fail again and again: hazards fall off with a node's rank in a hidden order.
    hazard = 1.0 / (1.0 + np.arange(nodes)) ** 1.2
    hazard = draw.permutation(hazard / hazard.sum())
    shuffled = (draw.permutation(len(FAULTS)) for _ in itertools.count())
    kinds = list(itertools.islice(itertools.chain.from_iterable(shuffled), count))
    found = []
    for i, kind in enumerate(kinds):
        slot = scrapes / count
        breaks = int(slot * (i + draw.uniform(0.5, 0.95)))
        found.append(_failure(draw, FAULTS[int(kind)], int(draw.choice(nodes, p=hazard)), breaks, int(slot)))
    return found


def _failure(draw: np.random.Generator, fault: Fault, node: int, breaks: int, room: int) -> Failure:
    gpu = int(draw.integers(GPUS)) if fault.of_gpu else -1
    severity = float(np.exp(draw.normal(0.0, 0.4)))
    ahead = min(int(math.exp(draw.uniform(*np.log(np.maximum(fault.ahead, 1))))), room // 3) if fault.symptoms else 0
    shown = [s for s in fault.symptoms if draw.random() < 0.7]
    shown = shown or [fault.symptoms[int(draw.integers(len(fault.symptoms)))]] if fault.symptoms else []
    shifts = []
    for name, by in shown:
        column = COLUMN[(name, gpu)] if (name, gpu) in COLUMN else COLUMN[(name, -1)]
        size = by * severity * draw.uniform(0.4, 1.3)
        shifts.append(
            Shift(column, float(size), float(draw.choice([0.0, 0.5, 1.0, 2.0])), float(draw.uniform(0.4, 1.0)))
        )
    repaired = breaks + max(int(draw.uniform(0.3, 4.0) * HOUR), 1)
    return Failure(fault, node, gpu, breaks - ahead, breaks, repaired, severity, tuple(shifts))


def _sessions(seed: int, scrapes: int, failures: tuple[Failure, ...]) -> list[tuple[int, int]]:
    """Training from one end to the next: a failure ends a session at once, others end by themselves."""
    draw = stream(seed, "cluster504", "sessions")
    ends = [failure.breaks for failure in failures]
    found, at = [], int(draw.integers(2, 20))
    while at < scrapes:
        end = at + max(int(draw.exponential(9 * HOUR)), HOUR // 2)
        end = min([end, scrapes, *(e for e in ends if e > at)])
        found.append((at, end))
        at = end + int(draw.integers(20, 60))  # ten minutes to half an hour until the next attempt
    return found


def _disturbances(seed: int, scrapes: int, nodes: int) -> list[Disturbance]:
    draw = stream(seed, "cluster504", "disturbances")
    host = [i for i, m in enumerate(METRICS) if m.family in ("host", "nic") and m.noise > 0]
    hot = [COLUMN[(f"{_D}GPU_TEMP", gpu)] for gpu in range(GPUS)] + [
        COLUMN[(f"{_D}FAN_SPEED", gpu)] for gpu in range(GPUS)
    ]
    found = []
    for _ in range(int(draw.poisson(4.0 * scrapes / (24 * HOUR)))):
        start = int(draw.integers(scrapes))
        end = start + int(draw.integers(4, 60))
        if draw.random() < 0.7:
            columns = draw.choice(host, size=int(draw.integers(1, 6)), replace=False)
            shifts = [Shift(int(c), float(METRICS[c].noise * draw.uniform(2, 9)), 0.0, 1.0) for c in columns]
            found.append(Disturbance((int(draw.integers(nodes)),), start, end, tuple(shifts)))
        else:
            first = int(draw.integers(nodes))
            rack = tuple(range(first // 8 * 8, min(first // 8 * 8 + 8, nodes)))
            by = float(draw.uniform(1.0, 4.0))
            found.append(Disturbance(rack, start, end + HOUR, tuple(Shift(c, by, 0.5, 1.0) for c in hot)))
    return sorted(found, key=lambda d: d.start)
