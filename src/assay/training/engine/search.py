"""Which layouts are worth asking about, and which of them is best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.training.engine.cluster import Cluster
from assay.training.engine.costs import RECOMPUTE, check
from assay.training.engine.schedules import named
from assay.training.interface import Job, Layout, Plan

MOST_STAGES = 32
MICRO = (1, 2, 4, 8)
MOST_A_RANK = 16_384  # sequences of a step
CONTEXT = 8192  # sequences up to this are not cut over several ranks
SCHEDULES = ("1f1b", "interleaved", "zb-h1", "dualpipe")


def divisors(n: int, most: int) -> list[int]:
    """All of them up to `most`.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def layouts(shape: Model, cluster: Cluster, job: Job) -> Iterator[Layout]:
    """Every way to lay the model over all ranks: tensor parallelism up to two nodes, stages up to the layers."""
    alike = shape.heads if shape.latent is not None or not shape.attention_layers else shape.kv_heads
    for tp in (d for d in divisors(alike, 2 * cluster.per_node) if cluster.ranks % d == 0):
        for cp in contexts(job.seq):
            if cluster.ranks % (tp * cp) or (cp > 1 and job.seq % (2 * cp)):
                continue
            for pp in divisors(cluster.ranks // (tp * cp), min(MOST_STAGES, shape.layers)):
                dp = cluster.ranks // (tp * cp * pp)
                stage = tp * cp * dp
                experts = shape.experts.count if shape.experts else 1
                for ep in (
                    d for d in divisors(experts, stage) if stage % d == 0 and (d == 1 or d >= tp or tp % d == 0)
                ):
                    yield Layout(tp, cp, pp, dp, ep)
                    if shape.experts is not None:
                        yield from _cut_experts(Layout(tp, cp, pp, dp, ep), shape.experts.ffn, cluster.per_node)


def contexts(seq: int) -> list[int]:
    """Over how many ranks a sequence is cut: up to 8, and on while each has half of `CONTEXT` tokens.

    >>> contexts(4096), contexts(16_384), contexts(131_072)
    ([1], [1, 2, 4, 8], [1, 2, 4, 8, 16, 32])
    """
    if seq <= CONTEXT:
        return [1]
    return [cp for cp in (2**power for power in range(11)) if cp <= 8 or 2 * seq >= cp * CONTEXT]


def _cut_experts(layout: Layout, ffn: int, per_node: int) -> Iterator[Layout]:
    """The same with experts cut over ranks of a node, and with experts that follow attention's mesh."""
    for etp in divisors(per_node, per_node)[1:]:
        if ffn % etp == 0 and (layout.tp * layout.cp * layout.dp) % (etp * layout.ep) == 0:
            yield replace(layout, etp=etp)
    if layout.cp > 1 and layout.dp % layout.ep == 0 and ffn % layout.tp == 0:
        yield replace(layout, etp=layout.tp, ecp=layout.cp)


def plans(
    shape: Model, cluster: Cluster, job: Job, zero: tuple[int, ...] = (1, 2, 3), schedules: tuple[str, ...] = SCHEDULES
) -> list[Plan]:
    """Every plan that is possible: layouts, schedules, microbatch sizes, recomputation, sharding.

    >>> from assay.sim.models import model
    >>> from assay.training.engine.cluster import read
    >>> len(plans(model("llama-3-8b"), read("8xh100"), Job(64, 4096))) > 300
    True
    """
    found = []
    if job.batch > MOST_A_RANK * cluster.ranks:
        raise BadInput(
            f"a batch of {job.batch:,} sequences is {job.batch // cluster.ranks:,} for each of {cluster.ranks:,} "
            f"ranks; at most {MOST_A_RANK:,} are simulated"
        )
    for layout in layouts(shape, cluster, job):
        for mbs, recompute in product(MICRO, RECOMPUTE):
            for schedule, vpp in _orders(shape, layout, schedules):
                cut = replace(layout, vpp=vpp)
                for stage in zero if layout.pp == 1 and layout.dp > 1 else zero[:1]:
                    plan = Plan(cut, schedule, mbs, recompute, stage)
                    if _possible(shape, cluster, plan, job):
                        found.append(plan)
    return found


def _orders(shape: Model, layout: Layout, schedules: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if layout.pp == 1:
        yield "1f1b", 1  # no pipeline: every order is this one
        return
    for schedule in schedules:
        if schedule == "interleaved":
            yield from ((schedule, vpp) for vpp in (2, 4) if layout.pp * vpp <= shape.layers)
        else:
            yield schedule, 1


def _possible(shape: Model, cluster: Cluster, plan: Plan, job: Job) -> bool:
    try:
        m = check(shape, cluster, plan, job)
        named(plan.schedule, plan.layout.vpp).check(plan.layout.pp, m)
    except BadInput:
        return False
    return True
