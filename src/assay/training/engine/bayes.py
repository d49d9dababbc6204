"""Bayesian search over plans: ask for what a forest of trees thinks might be fastest, learn from the answer, repeat.

A random forest predicts the logarithm of a plan's tokens a second from its settings; its trees disagree where little is
known. The next plans asked for are those with the best mean plus a multiple of that disagreement, as in the recipe of
SuperMUC (DeepHyper's default). Plans that do not fit into memory count as slow as the slowest, so the search learns to
stay away from them, and never returns one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.training.engine.step import Outcome
from assay.training.interface import Floats, Plan

SHARE = 0.15  # of all plans that may be asked for
FIRST = 24  # asked for blindly
AT_ONCE = 8
TREES = 24
BOLD = 1.0  # how much disagreement is worth
MOST_SPLITS = 4096  # of a tree
SLOW = 3.0  # an outcome without memory counts as so many times the slowest that fits


def features(plans: Sequence[Plan]) -> Floats:
    """A plan as numbers: sizes as logarithms, the rest by their order."""
    names = sorted({plan.schedule for plan in plans})
    recompute = ("none", "selective", "full")
    cut_experts = any(plan.layout.etp * plan.layout.ecp > 1 for plan in plans)  # else it would be columns of zeros
    return np.array([
        [*np.log2([cut.tp, cut.cp, cut.pp, cut.dp, cut.ep, cut.vpp, plan.mbs]), names.index(plan.schedule),
         recompute.index(plan.recompute), plan.zero, *(np.log2([cut.etp, cut.ecp]) if cut_experts else ())]
        for plan in plans for cut in (plan.layout,)
    ])  # fmt: skip


def bayes(
    plans: Sequence[Plan], ask: Callable[[list[Plan]], list[Outcome]], progress: Callable[[int, int], None],
    *, share: float = SHARE, seed: int = 0,
) -> list[Outcome]:  # fmt: skip
    """Outcomes of at most `share` of the plans, chosen one handful after the other."""
    random = stream(seed, "training", "bayes")
    x, budget = features(plans), max(FIRST, int(share * len(plans)))
    chosen = random.permutation(len(plans))[: min(FIRST, budget)].tolist()
    outcomes = ask([plans[i] for i in chosen])
    while len(chosen) < min(budget, len(plans)):
        progress(len(chosen), budget)
        y = _worth(outcomes)
        guesses = _forest(x[chosen], y, x, random)
        hope = guesses.mean(axis=0) + BOLD * guesses.std(axis=0)
        hope[chosen] = -np.inf
        best = np.argsort(-hope, kind="stable")[: min(max(AT_ONCE, len(chosen) // 10), budget - len(chosen))].tolist()
        outcomes += ask([plans[i] for i in best])
        chosen += best
    return outcomes


def _worth(outcomes: Sequence[Outcome]) -> Floats:
    steps = np.array([one.step for one in outcomes])
    fits = np.array([one.fits for one in outcomes])
    worst = steps[fits].max() if fits.any() else steps.max()
    return -np.log(np.where(fits, steps, SLOW * worst))


def _forest(x: Floats, y: Floats, queries: Floats, random: np.random.Generator) -> Floats:
    """What each of some randomised trees, grown on as many draws of the samples, says about the queries."""
    out = np.empty((TREES, len(queries)))
    for tree in out:
        rows = random.integers(0, len(y), len(y))
        order = np.argsort(random.random((MOST_SPLITS, x.shape[1])), axis=1)
        _tree(x[rows], y[rows], queries, order[:, : (x.shape[1] + 1) // 2], tree)
    return out


@njit(cache=True)
def _tree(x: Any, y: Any, queries: Any, order: Any, out: Any) -> None:
    """Split at the best cut of some features, drawn anew for each split, until samples are few or alike."""
    member, asked = np.zeros(len(y), np.int64), np.zeros(len(queries), np.int64)
    leaves, at = 1, 0
    while at < leaves:
        rows = np.flatnonzero(member == at)
        feature, cut = -1, 0.0
        if len(rows) >= 4 and leaves < len(order):
            feature, cut = _split(x, y, rows, order[leaves])
        if feature < 0:
            out[asked == at] = y[rows].mean()
            at += 1
            continue
        for i in rows:  # what lies beyond the cut becomes a leaf of its own; this one is looked at again
            if x[i, feature] > cut:
                member[i] = leaves
        for q in range(len(asked)):
            if asked[q] == at and queries[q, feature] > cut:
                asked[q] = leaves
        leaves += 1


@njit(cache=True)
def _split(x: Any, y: Any, rows: Any, features: Any) -> Any:
    """The feature and the cut that leave the least spread; -1 where nothing can be gained."""
    total, square = y[rows].sum(), (y[rows] ** 2).sum()
    least = square - total * total / len(rows) - 1e-12
    found, where = -1, 0.0
    for feature in features:
        by_value = np.argsort(x[rows, feature])
        left, left_square = 0.0, 0.0
        for k in range(len(rows) - 1):
            i, j = rows[by_value[k]], rows[by_value[k + 1]]
            left += y[i]
            left_square += y[i] * y[i]
            if x[i, feature] == x[j, feature]:
                continue
            n, right = k + 1, total - left
            loss = left_square - left * left / n + (square - left_square) - right * right / (len(rows) - n)
            if loss < least:
                least, found, where = loss, feature, (x[i, feature] + x[j, feature]) / 2
    return found, where
