"""A training step of one plan, or of many: when it ends, where the time goes, what it needs in memory.

>>> outcome = simulate("llama-3-8b", "8xh100", Plan(Layout(tp=2, pp=2, dp=2)), Job(batch=64, seq=4096))
>>> outcome.fits, 0.2 < outcome.mfu < 0.7
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.sim.dag import BLOCK
from assay.sim.models import Model, model
from assay.training.engine import cluster as clusters
from assay.training.engine.cluster import Cluster, uncounted, usable
from assay.training.engine.costs import StageCosts, check, model_flops, stage_costs
from assay.training.engine.folding import Folded, fold
from assay.training.engine.graph import COMP, GATHER, REDUCE, StepGraph, price_vector, step_graph
from assay.training.engine.schedules import B, named
from assay.training.interface import Floats, Job, Layout, Plan, Schedule

ROUNDS = 3  # steps in a row of a schedule that never drains: the last of them is the steady state


@dataclass(frozen=True)
class Outcome:
    """What a step of a plan comes to. Shares are of the step, averaged over the ranks."""

    plan: Plan
    cluster: Cluster
    job: Job
    microbatches: int
    step: float
    mfu: float
    compute: float  # share of the step in which a rank computes, the optimizer included
    exchange: float  # share that it waits for exchanges within layers
    data: float  # share that gradients and weights on their way add to the step
    memory: Floats  # bytes of each stage's ranks at their peak, as counted
    graph: StepGraph = field(repr=False, compare=False)
    prices: Floats = field(repr=False, compare=False)
    own: Floats | None = field(default=None, repr=False, compare=False)  # durations, where ranks differ

    @property
    def seconds(self) -> Floats:
        """How long every operation of the graph takes."""
        return durations(self.graph, self.prices) if self.own is None else self.own

    @property
    def bubble(self) -> float:
        """The share that a rank waits for other stages."""
        return max(0.0, round(1.0 - self.compute - self.exchange - self.data, 12))

    @property
    def held(self) -> float:
        """Bytes of the fullest rank: what is counted, and what counts are known to fall short of."""
        return float(self.memory.max()) * uncounted()

    @property
    def fits(self) -> bool:
        """Whether the fullest rank has the memory."""
        return bool(self.memory.max() <= usable(self.cluster.device))

    @property
    def tokens_per_second(self) -> float:
        """Of the whole cluster."""
        return self.job.tokens / self.step

    @property
    def usd_per_billion(self) -> float:
        """Dollars for a billion tokens."""
        return self.cluster.ranks * self.cluster.device.usd_per_hour / 3600.0 * 1e9 / self.tokens_per_second

    def row(self) -> dict[str, Any]:
        """As one line of a table."""
        layout = self.plan.layout
        return {
            "layout": layout.name, "schedule": self.plan.schedule, "mbs": self.plan.mbs,
            "microbatches": self.microbatches, "recompute": self.plan.recompute, "zero": self.plan.zero,
            "step": self.step, "mfu": self.mfu, "tokens_per_second": self.tokens_per_second,
            "memory": self.held, "bubble": self.bubble, "exchange": self.exchange, "data": self.data,
            "usd_per_billion": self.usd_per_billion, "fits": self.fits,
        }  # fmt: skip


@dataclass(frozen=True)
class Unequal:
    """Where ranks differ: how many times as long each takes, and how much work each copy's microbatches hold.

    `slow[rank]` in the order tp, cp, dp, pp (tp changes fastest); `work[dp, microbatch]`; 1 is what the plan says.
    """

    slow: Floats | None = None
    work: Floats | None = None


def simulate(
    shape: Model | str, cluster: Cluster | str, plan: Plan, job: Job, *, unequal: Unequal | None = None,
    folded: bool = True, schedule: Schedule | None = None,
) -> Outcome:  # fmt: skip
    """One step of one plan.

    Args:
        shape: the model, its name or its config.json.
        cluster: as `cluster.read` takes it.
        plan: how it is cut and ordered.
        job: what it trains on.
        unequal: ranks or microbatches that differ.
        folded: simulate alike ranks once; without it all of them, which gives the same and takes longer.
        schedule: one of your own, in place of the plan's by name.

    Raises:
        BadInput: a plan that cannot be.
    """
    shape = model(shape) if isinstance(shape, str) else shape
    cluster = clusters.read(cluster) if isinstance(cluster, str) else cluster
    order = schedule or named(plan.schedule, plan.layout.vpp)
    m = check(shape, cluster, plan, job)
    costs = stage_costs(shape, cluster, plan, job, order)
    graph, seconds, weight = timed(costs, plan.layout, order, m, unequal=unequal, folded=folded)
    return _outcome(shape, cluster, plan, job, graph, costs, seconds, weight)


def timed(
    costs: StageCosts, layout: Layout, order: Schedule, m: int, *, unequal: Unequal | None = None, folded: bool = True
) -> tuple[StepGraph, Floats, Floats]:
    """The graph of a step, the seconds of its operations, and what share of the ranks each column stands for."""
    columns, factor = _columns(layout, m, unequal, folded)
    inner, data = (tuple(columns.groups[kind].tolist()) for kind in ("inner", "data"))
    graph = step_graph(order, layout.pp, m * (1 if order.flush else ROUNDS), inner, data)
    seconds = durations(graph, prices_of(graph, costs)) if factor is None else _unequal(graph, costs, factor)
    return graph, seconds, columns.count / columns.count.sum()


def prices_of(graph: StepGraph, costs: StageCosts) -> Floats:
    """A plan's prices for this graph."""
    return price_vector(
        graph.prices, forward=costs.forward, inputs=costs.inputs, weights=costs.weights, send=costs.send,
        wires_forward=costs.wires_forward, wires_backward=costs.wires_backward, gather=costs.gather,
        reduce=costs.reduce, update=costs.update, layers=costs.layers, split=graph.schedule.split,
        dispatch_forward=costs.dispatch_forward, dispatch_backward=costs.dispatch_backward,
    )  # fmt: skip


def durations(graph: StepGraph, prices: Floats) -> Floats:
    """Seconds of every operation: [operations], or [operations, layouts] for prices of several."""
    return np.asarray(prices[..., graph.price].T + prices[..., graph.wires].T)


def _columns(layout: Layout, m: int, unequal: Unequal | None, folded: bool) -> tuple[Folded, Floats | None]:
    """Pipelines that differ, who exchanges with whom, and how many times as long each one's passes take."""
    wide = layout.tp * layout.cp
    count = wide * layout.dp
    inner = np.arange(count).reshape(-1, math.lcm(wide, layout.etp * layout.ecp * layout.ep))
    data = np.arange(count).reshape(layout.dp, layout.cp, layout.tp).transpose(2, 0, 1).reshape(layout.tp, -1)
    if unequal is None and folded:
        none = np.zeros(1, np.int64)
        return Folded(np.zeros(count, np.int64), none, np.array([count]), {"inner": none, "data": none}), None
    given = unequal or Unequal()
    slow = (
        np.ones((layout.pp, count)) if given.slow is None else np.asarray(given.slow, float).reshape(layout.pp, count)
    )
    work = np.ones((layout.dp, m)) if given.work is None else np.asarray(given.work, float).reshape(layout.dp, m)
    own = np.column_stack([slow.T, np.repeat(work, wide, axis=0)])
    signature = own if folded else np.arange(count)
    found = fold(signature, inner=inner, data=data)
    return found, own[found.first]


def _unequal(graph: StepGraph, costs: StageCosts, factor: Floats) -> Floats:
    """Durations where every column has its own speed on each stage and its own work in each microbatch."""
    prices = prices_of(graph, costs)
    times = np.ones(len(graph.kind))
    comp = graph.kind == COMP
    column, stage, mb = graph.column[comp], graph.stage[comp], graph.mb[comp]
    times[comp] = factor[column, stage] * factor[column, graph.pp + mb]
    return np.asarray(prices[graph.price] * times + prices[graph.wires])


def _outcome(
    shape: Model, cluster: Cluster, plan: Plan, job: Job, graph: StepGraph, costs: StageCosts, seconds: Floats,
    weight: Floats,
) -> Outcome:  # fmt: skip
    comp = graph.kind == COMP
    prices = prices_of(graph, costs)
    computing = seconds[comp] - prices[graph.wires[comp]]
    mean = float((computing * weight[graph.column[comp]]).sum()) / graph.pp / _rounds(graph)
    return replace(_told(shape, cluster, plan, job, graph, costs, *_solved(graph, seconds), mean, prices), own=seconds)


def _told(
    shape: Model, cluster: Cluster, plan: Plan, job: Job, graph: StepGraph, costs: StageCosts, step: float, free: float,
    computing: float, prices: Floats,
) -> Outcome:  # fmt: skip
    """`free` is the step if gradients and weights moved in no time; `computing` a rank's mean seconds at work."""
    m = graph.m // _rounds(graph)
    exchange = m * float((costs.wires_forward + costs.wires_backward).sum()) / graph.pp
    if graph.prices.joined:  # some of it hides behind other passes
        exchange = float(prices @ graph.exchanges) / graph.pp
    update = float(costs.update.sum()) / graph.pp if graph.schedule.flush else 0.0
    peak = cluster.ranks * cluster.device.flops(cluster.precision.dtype)
    return Outcome(
        plan, cluster, job, m, step, model_flops(shape, job) / (step * peak), (computing + update) / step,
        exchange / step, (step - free) / step, memory_of(graph, costs) + _stashed(graph, costs, cluster), graph,
        prices,
    )  # fmt: skip


def _solved(graph: StepGraph, seconds: Floats) -> tuple[Any, Any]:
    """The step's end, and what it would be if gradients and weights moved in no time; arrays for several layouts."""
    moving = (graph.kind == GATHER) | (graph.kind == REDUCE)
    if not graph.schedule.flush:
        period = _period(graph, seconds)
        return period, period
    if seconds.ndim == 1:
        return float(graph.dag.ends(seconds).max()), float(graph.dag.ends(np.where(moving, 0.0, seconds)).max())
    still = np.where(moving[:, None], 0.0, seconds)
    return graph.dag.last_of_columns(seconds), graph.dag.last_of_columns(still)


def _rounds(graph: StepGraph) -> int:
    """Steps that one graph holds: several where they are not divided by a flush."""
    return 1 if graph.schedule.flush else ROUNDS


def _period(graph: StepGraph, seconds: Floats) -> float:
    """Seconds from one step's last backward pass to the next one's, where steps follow each other without a break."""
    ends = graph.dag.ends(seconds)
    done = (graph.kind == COMP) & (graph.what == B) & (graph.part == 0)
    each = graph.m // ROUNDS
    late, early = (ends[done & (graph.mb == mb)].max() for mb in (graph.m - 1, graph.m - 1 - each))
    return float(late - early)


def simulate_many(shape: Model, cluster: Cluster, plans: Sequence[Plan], job: Job) -> list[Outcome]:
    """The same for many plans that `check` has found possible; those with the same graph are swept together.

    >>> from assay.sim.models import model
    >>> plans = [Plan(Layout(tp=2, pp=2, dp=2)), Plan(Layout(tp=1, pp=2, dp=4))]
    >>> both = simulate_many(model("llama-3-8b"), clusters.read("8xh100"), plans, Job(64, 4096))
    >>> both[1].step == simulate("llama-3-8b", "8xh100", plans[1], Job(64, 4096)).step
    True
    """
    alike: dict[tuple[str, int, int, int], list[int]] = {}
    for at, plan in enumerate(plans):
        m = check(shape, cluster, plan, job)
        alike.setdefault((plan.schedule, plan.layout.vpp, plan.layout.pp, m), []).append(at)
    found: dict[int, Outcome] = {}
    for (name, vpp, pp, m), members in alike.items():
        if not named(name, vpp).flush:
            found |= {at: simulate(shape, cluster, plans[at], job) for at in members}
            continue
        graph = step_graph(named(name, vpp), pp, m)
        for first in range(0, len(members), BLOCK):
            some = members[first : first + BLOCK]
            costs = [stage_costs(shape, cluster, plans[at], job) for at in some]
            prices = np.stack([prices_of(graph, cost) for cost in costs])
            steps, free = _solved(graph, np.ascontiguousarray(durations(graph, prices)))
            for at, cost, step, still, priced in zip(some, costs, steps, free, prices, strict=True):
                computing = m * float((cost.forward + cost.inputs + cost.weights).sum()) / pp
                found[at] = _told(shape, cluster, plans[at], job, graph, cost, float(step), float(still), computing,
                                  priced)  # fmt: skip
    return [found[at] for at in range(len(plans))]


def _stashed(graph: StepGraph, costs: StageCosts, cluster: Cluster) -> Floats:
    """Bytes of old weights: without a flush, a stage keeps those that its microbatches in flight began with."""
    if graph.schedule.flush:
        return np.zeros(graph.pp)
    weights = costs.gradient_bytes * cluster.precision.item / cluster.precision.gradient
    return np.asarray(weights * (graph.pp - 1 - np.arange(graph.pp)))


def memory_of(graph: StepGraph, costs: StageCosts) -> Floats:
    """Bytes of a rank of each stage at its fullest: state, activations in flight, and what a backward pass needs."""
    running = np.asarray(_running(graph.slots, costs.kept, costs.passing, graph.schedule.split))
    chunks = [[graph.schedule.virtual(c, s, graph.pp) for c in range(graph.schedule.chunks)] for s in range(graph.pp)]
    return np.asarray(costs.state[np.array(chunks)].sum(axis=1) + running.max(axis=1))


@njit(cache=True)
def _running(slots: Any, kept: Any, passing: Any, split: bool) -> Any:
    """Bytes of activations during every slot of every stage: the memory curve in the schedule's order.

    Where the gradients of weights are put off, what they are computed from is kept until then.
    """
    pp, n = slots.shape[0], slots.shape[1]
    curve = np.zeros((pp, n))
    for s in range(pp):
        now = 0.0
        for k in range(n):
            what, part, cut = slots[s, k, 0], slots[s, k, 4], slots[s, k, 5]
            if what == 0 and cut != 2:
                now += kept[part]
            curve[s, k] = now + (passing[part] if what == 1 else 0.0)
            if what == (2 if split else 1) and cut != 1:
                now -= kept[part]
    return curve
