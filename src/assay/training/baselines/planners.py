"""How people come to a plan without asking for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.sim.random import stream
from assay.training.engine.bayes import SHARE, bayes
from assay.training.interface import Plan

Ask = Callable[[Sequence[Plan]], Sequence[Any]]


@dataclass(frozen=True)
class Exhaustive:
    """All of them."""

    key = "exhaustive"

    def search(self, plans: Sequence[Plan], ask: Ask) -> None:
        """As in :class:`assay.training.interface.Planner`."""
        ask(plans)


@dataclass(frozen=True)
class Bayesian:
    """What a forest of trees hopes for, a share of all of them."""

    key = "bayes"
    share: float = SHARE

    def search(self, plans: Sequence[Plan], ask: Ask) -> None:
        """As in :class:`assay.training.interface.Planner`."""
        bayes(plans, lambda some: list(ask(some)), lambda done, total: None, share=self.share)


@dataclass(frozen=True)
class AtRandom:
    """As many as the Bayesian search, drawn blindly."""

    key = "random"
    share: float = SHARE
    seed: int = 0

    def search(self, plans: Sequence[Plan], ask: Ask) -> None:
        """As in :class:`assay.training.interface.Planner`."""
        drawn = stream(self.seed, "training", "random plans").permutation(len(plans))
        ask([plans[i] for i in drawn[: max(1, int(self.share * len(plans)))]])


@dataclass(frozen=True)
class RulesOfThumb:
    """Tensor parallelism up to eight ranks, 1F1B, the optimizer sharded; whatever stages and recomputation fit."""

    key = "rules-of-thumb"

    def search(self, plans: Sequence[Plan], ask: Ask) -> None:
        """As in :class:`assay.training.interface.Planner`."""
        plain = [plan for plan in plans if plan.schedule == "1f1b" and plan.zero == 1 and plan.layout.cp == 1]
        widest = max((plan.layout.tp for plan in plain if plan.layout.tp <= 8), default=1)
        ask([plan for plan in plain if plan.layout.tp == widest] or plans[:1])


PLANNERS = {one.key: one for one in (Exhaustive, Bayesian, AtRandom, RulesOfThumb)}
