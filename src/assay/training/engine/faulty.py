"""A job of many steps while ranks fail, slow down and come back, and links degrade.

Between two events every step takes as long as one on the machines as they are then; a step that an event falls into
goes on at the new pace for what is left of it. A rank that crashes stops everybody: the step is lost, the policy says
how long the restart takes and which plan goes on.

>>> faults = [Fault("slow", target=3, start=5.0, stop=25.0, factor=2.0)]
>>> plan, job = Plan(Layout(tp=2, pp=2, dp=2)), Job(64, 4096)
>>> calm, hit = (run("llama-3-8b", "8xh100", plan, job, 20, some) for some in ([], faults))
>>> hit.seconds > calm.seconds, hit.slowest > 1.2 * calm.slowest
(True, True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import numpy as np

from assay.record.errors import BadInput
from assay.sim.faults import Fault, active, instants
from assay.sim.models import Model, model
from assay.training.engine import cluster as clusters
from assay.training.engine.cluster import Cluster
from assay.training.engine.step import Unequal, simulate
from assay.training.interface import Job, Layout, Plan  # noqa: F401 - for the example

NETWORK = -1  # the target of a fault of the links between nodes


@dataclass(frozen=True)
class Action:
    """What a policy does about a crash: nobody computes for `wait` seconds, then `plan` goes on."""

    wait: float
    plan: Plan


class FaultPolicy(Protocol):
    """Answers crashes."""

    def on_crash(self, fault: Fault, plan: Plan) -> Action:
        """A rank is gone."""
        ...


@dataclass(frozen=True)
class Restart:
    """Start again from the last step's weights on a spare machine; `wait` is what that takes."""

    wait: float = 120.0

    def on_crash(self, fault: Fault, plan: Plan) -> Action:
        """The same plan, after a while.

        >>> Restart(60.0).on_crash(Fault("crash", 0, 1.0), Plan(Layout())).wait
        60.0
        """
        return Action(self.wait, plan)


@dataclass
class Run:
    """When each step ended, and what was lost to restarts and to steps done in vain."""

    ended: list[float] = field(default_factory=list)
    lost: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.ended[-1]

    @property
    def slowest(self) -> float:
        """The longest step."""
        return float(np.diff([0.0, *self.ended]).max())


def run(
    shape: Model | str, cluster: Cluster | str, plan: Plan, job: Job, steps: int, faults: Sequence[Fault],
    policy: FaultPolicy | None = None,
) -> Run:  # fmt: skip
    """So many steps, with what happens meanwhile.

    Raises:
        BadInput: a fault of a rank that is not there, or of a kind that a step knows nothing of.
    """
    shape = model(shape) if isinstance(shape, str) else shape
    cluster = clusters.read(cluster) if isinstance(cluster, str) else cluster
    for fault in faults:
        if fault.kind not in ("slow", "crash") or not NETWORK <= fault.target < cluster.ranks:
            known = f"a step knows slow and crash, of ranks below {cluster.ranks}"
            raise BadInput(f"{fault.kind} of {fault.target}: {known}")
    pace = _paces(shape, cluster, job)
    crashes = sorted((fault for fault in faults if fault.kind == "crash"), key=lambda fault: fault.start)
    slow, done, now = [fault for fault in faults if fault.kind == "slow"], Run(), 0.0
    left, began = 1.0, 0.0
    while len(done.ended) < steps:
        step = pace(plan, tuple(active(slow, now)))
        ahead = [*instants(slow, now)[:1], *(fault.start for fault in crashes[:1])]
        end = now + left * step
        upto = min([end, *ahead])
        left, now = max(0.0, left - (upto - now) / step), upto
        if crashes and crashes[0].start <= now and now < end:
            action = (policy or Restart()).on_crash(crashes.pop(0), plan)
            done.lost += now - began + action.wait
            now, left, plan = now + action.wait, 1.0, action.plan
            began = now
        elif upto == end:
            done.ended.append(now)
            left, began = 1.0, now
    return done


def _paces(shape: Model, cluster: Cluster, job: Job) -> Callable[[Plan, tuple[Fault, ...]], float]:
    """The step under a plan and some faults, each computed once."""

    @cache
    def pace(plan: Plan, some: tuple[Fault, ...]) -> float:
        factors, network = np.ones(cluster.ranks), 1.0
        for fault in some:
            if fault.target == NETWORK:
                network *= fault.factor
            else:
                factors[fault.target] *= fault.factor
        here = replace(cluster, outside=cluster.outside.derated(1 / network))
        unequal = Unequal(slow=factors) if (factors != 1).any() else None
        return simulate(shape, here, plan, job, unequal=unequal).step

    return pace
