"""What a paper's study needs, and whether this machine has it: asked before anything runs.

A paper's module declares both as plain values, read off its source: `needs = ("torch",)` for extras without which the
study cannot run, `replays = ("azure-2023-conv",)` for traces without which some of its claims stay open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.record import catalogue, traces
from assay.record.extras import EXTRAS, install_command
from assay.record.types import Paper


@dataclass(frozen=True, slots=True)
class Readiness:
    """A paper, the extras it cannot run without that are missing here, and the traces that claims of it lack."""

    paper: Paper
    extras: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether its study can run here."""
        return not self.extras


def readiness(paper: Paper) -> Readiness:
    """What a built paper lacks here; nothing of it is imported.

    >>> readiness(catalogue.paper("div")).runs
    True
    """
    absent = {extra.name for extra in EXTRAS if extra.missing}
    extras = tuple(name for name in catalogue.declared(paper.key, "needs") if name in absent)
    lacking = tuple(name for name in catalogue.declared(paper.key, "replays") if traces.named(name).path is None)
    return Readiness(paper, extras, lacking)


def cures(found: Sequence[Readiness]) -> list[str]:
    """What some papers lack and the command for it, each command once."""
    lines = []
    if stuck := [one for one in found if not one.runs]:
        names = sorted({extra for one in stuck for extra in one.extras})
        keys = ", ".join(one.paper.key for one in stuck)
        lines.append(f"cannot run without {_listed(names)}: {keys}; {install_command(','.join(names))}")
    if partly := [one for one in found if one.runs and one.traces]:
        names = sorted({name for one in partly for name in one.traces})
        keys = ", ".join(one.paper.key for one in partly)
        fetched = [name for name in names if traces.named(name).fetchable]
        by_hand = [f"{name}: {traces.named(name).cure}" for name in names if name not in fetched]
        how = "; ".join([f"assay traces get {' '.join(fetched)}"] * bool(fetched) + by_hand)
        lines.append(f"some claims stay open without a trace: {keys}; {how}")
    return lines


def _listed(names: Sequence[str]) -> str:
    return f"the extra{'s' if len(names) > 1 else ''} {', '.join(names)}"
