"""Who may lay a mixture of experts out how: folded, Megatron without folding, TP+EP+DP, FSDP with and without EP.

All of them choose among the plans of one search, with the same costs, the same microbatches, and the memory of the same
devices; each takes the best that its rules allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.sim.models import Model
from assay.training.engine import search
from assay.training.engine.cluster import Cluster
from assay.training.engine.costs import RECOMPUTE
from assay.training.engine.step import Outcome, simulate_many
from assay.training.interface import Job, Layout, Plan

SCHEDULES = ("1f1b", "interleaved")  # what Megatron has
Progress = Callable[[int, int], None]


def _cut_by_data_only(layout: Layout) -> bool:
    return layout.tp == layout.cp == layout.pp == layout.etp == 1


METHODS: dict[str, Callable[[Plan], bool]] = {
    "folded": lambda plan: plan.zero < 3,
    "unfolded": lambda plan: plan.zero < 3 and not plan.layout.folded,
    "tp+ep+dp": lambda plan: plan.zero < 3 and not plan.layout.folded and plan.layout.pp == plan.layout.cp == 1,
    "fsdp+ep": lambda plan: plan.zero == 3 and _cut_by_data_only(plan.layout),
    "fsdp": lambda plan: plan.zero == 3 and _cut_by_data_only(plan.layout) and plan.layout.ep == 1,
}


def possible(shape: Model, cluster: Cluster, job: Job, micro: int = 8, any_etp: bool = True) -> list[Plan]:
    """Every plan with microbatches of at most so many sequences; the optimizer is sharded, or everything.

    Without `any_etp` experts are whole or cut as often as attention is.
    """
    found = search.plans(shape, cluster, job, zero=(1, 3), schedules=SCHEDULES)
    return [plan for plan in found if plan.mbs <= micro and (any_etp or plan.layout.etp in (1, plan.layout.tp))]


def fitting(
    shape: Model, cluster: Cluster, job: Job, plans: Sequence[Plan], progress: Progress = lambda done, total: None
) -> list[Outcome]:
    """Those that fit, fastest first, each computing again as little as it can.

    Recomputation never makes a step shorter, so a plan is asked for with more of it only if it does not fit with less.
    """
    found: list[Outcome] = []
    done: set[tuple[object, ...]] = set()
    for at, recompute in enumerate(RECOMPUTE):
        progress(at, len(RECOMPUTE))
        left = [plan for plan in plans if plan.recompute == recompute and _but_recompute(plan) not in done]
        fit = [one for one in simulate_many(shape, cluster, left, job) if one.fits]
        done |= {_but_recompute(one.plan) for one in fit}
        found += fit
    return sorted(found, key=lambda one: one.step)


def _but_recompute(plan: Plan) -> tuple[object, ...]:
    return plan.layout, plan.schedule, plan.mbs, plan.zero


def best_of_each(outcomes: Sequence[Outcome]) -> dict[str, Outcome | None]:
    """The fastest that each method may use; None where nothing of its kind fits.

    >>> from assay.sim.models import model
    >>> from assay.training.engine.cluster import read
    >>> shape, cluster, job = model("qwen3-30b-a3b"), read("8xh200"), Job(32, 4096)
    >>> found = best_of_each(fitting(shape, cluster, job, possible(shape, cluster, job, micro=1)))
    >>> found["folded"].step <= found["unfolded"].step
    True
    """
    return {name: next((one for one in outcomes if may(one.plan)), None) for name, may in METHODS.items()}
