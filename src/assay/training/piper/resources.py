"""Memory, compute and traffic of a mixture of experts on every PP x EP mesh, and the rivals' choices by the same costs.

Piper's mesh: stages of a pipeline, and within each stage expert parallelism over ranks that are data-parallel for the
rest; no tensor parallelism. Rivals: X-MoE (expert parallelism and data parallelism over all ranks, all-to-alls flat,
attention cut over tp where it helps), the same with the widest expert parallelism there is (flat EP), and DeepSpeed-TED
(tensor, expert and data parallelism). Everyone chooses expert parallelism (but flat EP), microbatch, recomputation and
schedule; what does not fit is dropped, and the shortest step wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from assay.sim.models import Experts, Model
from assay.training.engine import search
from assay.training.engine.cluster import Cluster
from assay.training.engine.costs import RECOMPUTE, check, stage_costs
from assay.training.engine.graph import step_graph
from assay.training.engine.schedules import named
from assay.training.engine.step import Outcome, memory_of, simulate_many
from assay.training.interface import Floats, Job, Layout, Plan
from assay.training.piper.network import MOST, Network

SCHEDULES = ("1f1b", "interleaved")
SIZES = {  # layers, width, heads, experts, of which a token uses, width of an expert
    "10B": (24, 2048, 16, 64, 6, 1024), "55B": (28, 4096, 32, 128, 6, 1216), "201B": (28, 5120, 40, 256, 8, 1792),
    "545B": (60, 7168, 56, 256, 8, 1600),
}  # fmt: skip


def mixture(size: str) -> Model:
    """A mixture of experts of the paper's sizes; widths and depths are those customary for them (inferred).

    >>> [round(mixture(size).params / 1e9) for size in SIZES]
    [10, 56, 201, 541]
    """
    layers, hidden, heads, count, top_k, ffn = SIZES[size]
    mixed = Experts(count, top_k, ffn)
    return Model(f"moe-{size}", hidden, 51_200, True, layers, 0, 0, 0, layers, heads, heads, hidden // heads,
                 4 * hidden, experts=mixed)  # fmt: skip


def memory(shape: Model, cluster: Cluster, plan: Plan, job: Job) -> Floats:
    """Bytes of a rank of each stage at its peak: weights, gradients, the optimizer's share, activations in flight.

    >>> from assay.training.piper.network import frontier
    >>> plans = [Plan(Layout(pp=pp, dp=64 // pp, ep=8)) for pp in (1, 8)]
    >>> one, eight = (memory(mixture("55B"), frontier(64), plan, Job(64, 4096)).max() for plan in plans)
    >>> bool(eight < one)
    True
    """
    m = check(shape, cluster, plan, job)
    order = named(plan.schedule, plan.layout.vpp)
    return memory_of(step_graph(order, plan.layout.pp, m), stage_costs(shape, cluster, plan, job))


def widest(shape: Model, ranks: int, most: int = MOST) -> int:
    """Over how many ranks, and no more than `most`, experts can be dealt."""
    assert shape.experts is not None
    return max(d for d in search.divisors(shape.experts.count, min(ranks, most)) if ranks % d == 0)


May = Callable[[Layout, int], bool]
METHODS: dict[str, tuple[bool, May]] = {  # whether HALO may be used; which layouts, given the widest EP
    "piper": (True, lambda cut, wide: cut.tp == cut.etp == 1),
    "piper, flat": (False, lambda cut, wide: cut.tp == cut.etp == 1),
    "x-moe": (False, lambda cut, wide: cut.pp == cut.etp == 1),
    "x-moe, halo": (True, lambda cut, wide: cut.pp == cut.etp == 1),
    "flat ep": (False, lambda cut, wide: cut.pp == cut.etp == 1 and cut.ep == wide),
    "ted": (False, lambda cut, wide: cut.pp == 1 and cut.etp == cut.tp),
}


def possible(shape: Model, cluster: Cluster, job: Job, most: int = MOST, micro: int = 4) -> list[Plan]:
    """Every plan that one of the methods may use, its all-to-alls among at most so many ranks."""
    found = search.plans(shape, cluster, job, zero=(1,), schedules=SCHEDULES)
    wide = widest(shape, cluster.ranks, most)
    return [
        plan
        for plan in found
        if plan.mbs <= micro and plan.layout.cp == 1 and plan.layout.ep * plan.layout.etp <= most
        and any(may(plan.layout, wide) for _, may in METHODS.values())
    ]  # fmt: skip


def fitting(
    shape: Model, cluster: Cluster, job: Job, plans: Sequence[Plan], networks: dict[bool, Network], most: int = MOST
) -> dict[str, list[Outcome]]:
    """What fits of each method, the shortest step first; more is recomputed only where less does not fit.

    `networks`: of all-to-alls that may be HALO, and of flat ones.
    """
    found: dict[str, list[Outcome]] = {}
    known: dict[tuple[bool, Plan], Outcome] = {}
    for name, (halo, may) in METHODS.items():
        on = replace(cluster, collectives=networks[halo])
        left, fits = [plan for plan in plans if may(plan.layout, widest(shape, cluster.ranks, most))], []
        for recompute in RECOMPUTE:
            asked = [plan for plan in left if plan.recompute == recompute]
            new = [plan for plan in asked if (halo, plan) not in known]
            known |= {(halo, one.plan): one for one in simulate_many(shape, on, new, job)}
            fit = [known[halo, plan] for plan in asked if known[halo, plan].fits]
            done = {replace(one.plan, recompute="") for one in fit}
            left = [plan for plan in left if replace(plan, recompute="") not in done]
            fits += fit
        found[name] = sorted(fits, key=lambda one: one.step)
    return found


def traffic(shape: Model, plan: Plan, job: Job, item: float = 2.0) -> float:
    """Bytes that a rank hands to one of a layer's all-to-alls.

    >>> round(traffic(mixture("545B"), Plan(Layout(dp=128, ep=128)), Job(128, 4096)) / 1e6)
    470
    """
    assert shape.experts is not None
    tokens = plan.mbs * job.seq / (plan.layout.cp * plan.layout.tp)
    return float(np.prod([tokens, shape.experts.top_k, shape.hidden, item]))
