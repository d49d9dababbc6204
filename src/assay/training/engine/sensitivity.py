"""Which of the shares that were assumed would, within what people report of them, make another plan win.

A share that was measured on the device, or on another product of the same chip, stays as it is; so does one that a
cluster's file gives. The others go to both ends of their range while the rest stays, and the best plans are priced
anew. Where another one wins there, the share at which the two change places is found by bisection.

>>> from assay.sim.models import model
>>> from assay.training.engine.cluster import read
>>> assumed(read("8xh100")), assumed(read("8xa100"))
(('links',), ('matrix', 'attention', 'memory', 'links'))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.sim.models import Model
from assay.training.engine.cluster import Cluster, Nccl, attained, measured_on
from assay.training.engine.step import simulate_many
from assay.training.interface import Job, Plan

# Shares of data sheets that people report: products and attention of kernels' authors, links of nccl-tests.
RANGES = {"matrix": (0.55, 0.9), "attention": (0.3, 0.75), "memory": (0.65, 0.95), "links": (0.5, 0.95)}
MOST = 24  # plans that are priced anew
HALVINGS = 7
TIE = 0.02  # a plan wins by more than this


@dataclass(frozen=True)
class Turn:
    """Another plan wins where one assumed share is beyond a value."""

    share: str
    assumed: float
    value: float  # at which both take equally long
    winner: Plan
    faster: float  # at the end of the range, as a share of the step

    @property
    def sentence(self) -> str:
        """In words."""
        side = "less" if self.value < self.assumed else "more"
        won = f"{self.faster:.0%}".replace("%", " %")
        return (
            f"With {self.share} at {self.value:.2f} of the data sheet or {side} (assumed: {self.assumed:.2f}) "
            f"{self.winner.name} would win, by up to {won}."
        )

    def row(self) -> dict[str, Any]:
        """As a line of an answer."""
        return {
            "share": self.share, "assumed": self.assumed, "changes_at": self.value, "winner": self.winner.name,
            "faster": self.faster,
        }  # fmt: skip


def assumed(cluster: Cluster) -> tuple[str, ...]:
    """The shares that nobody measured and no file gave."""
    known, usual = bool(measured_on(cluster.device.name)), attained(cluster.device.name)
    return tuple(
        name
        for name in RANGES
        if getattr(cluster.efficiency, name) == getattr(usual, name) and (name == "links" or not known)
    )


def at(cluster: Cluster, share: str, value: float) -> Cluster:
    """The same cluster where one share is another."""
    other = replace(cluster, efficiency=replace(cluster.efficiency, **{share: value}))
    return replace(other, collectives=Nccl.of(other)) if isinstance(cluster.collectives, Nccl) else other


def turns(shape: Model, cluster: Cluster, job: Job, plans: Sequence[Plan]) -> list[Turn]:
    """What would make another of these plans win than the first."""
    some, found = list(dict.fromkeys(plans))[:MOST], []
    for share in assumed(cluster) if len(some) > 1 else ():
        usual = getattr(cluster.efficiency, share)
        for end in RANGES[share]:
            if (end - usual) * (end - sum(RANGES[share]) / 2) <= 0:
                continue  # what is assumed lies beyond this end
            steps = [one.step for one in simulate_many(shape, at(cluster, share, end), some, job)]
            best = min(range(len(some)), key=steps.__getitem__)
            if steps[best] < (1 - TIE) * steps[0]:
                pair, near, far = [some[0], some[best]], usual, end
                for _ in range(HALVINGS):
                    middle = (near + far) / 2
                    first, other = simulate_many(shape, at(cluster, share, middle), pair, job)
                    near, far = (middle, far) if first.step <= other.step else (near, middle)
                found.append(Turn(share, usual, far, some[best], 1 - steps[best] / steps[0]))
    return found


def told(cluster: Cluster, found: Sequence[Turn]) -> str:
    """In words: what would change the winner, or that nothing would."""
    if found:
        return " ".join(turn.sentence for turn in found)
    shares = assumed(cluster)
    if not shares:
        return "No share is assumed."
    ranges = ", ".join(f"{name} {RANGES[name][0]} to {RANGES[name][1]}" for name in shares)
    return f"No assumed share changes the winner within what people report ({ranges} of the data sheet)."
