"""Where a history lies in the lattice: the strongest configurations that it may have come from.

A history shows values, not views. A model holds for it if there are views and orders that explain its values and keep
the model's promises; the judges decide that. What they find is a point of the lattice or several, since two models may
each hold while no explanation keeps both. Real time is told apart: it comes from the operations' intervals, which no
process can see alone.

>>> from assay.workloads.histories import Operation
>>> stale = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(0, "write", "x", 2, None, 2.0, 3.0),
...     Operation(1, "read", "x", None, 1, 4.0, 5.0),
... ]
>>> found = place(stale)
>>> [str(where) for where in found.strongest.values()], [judgement.model for judgement in found.broken]
(['full · single refining causality'], ['linearizable'])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.protocols.judges import strongest
from assay.protocols.judges.judgement import Judgement
from assay.protocols.judges.lattice import NAMED, Configuration, Ordering
from assay.workloads.histories import Operation

JUDGED: dict[str, Configuration] = {
    **{model: NAMED[model] for model in strongest.STRONGER},
    # A register answers with one value, so to judge that a session does not go back is to judge its order as well.
    "monotonic-reads": Configuration(frozenset({"mono"}), Ordering("local")),
}
"""The coordinates of the models that histories are judged by."""


@dataclass(frozen=True)
class Placement:
    """The border between what a history may be and what it is not."""

    strongest: dict[str, Configuration]
    """The models that hold while nothing above them does, and where they lie."""
    broken: tuple[Judgement, ...]
    """The next ones up, each with the few operations that break it."""
    unknown: tuple[str, ...]
    """Models that the judges could not decide."""
    holds: frozenset[str]
    """All models that hold."""


def place(history: Sequence[Operation]) -> Placement:
    """Place a history of reads, writes and compare-and-sets whose written values are all different."""
    ladder = strongest.strongest(history)
    unknown = tuple(judgement.model for judgement in ladder.judgements if judgement.verdict == "unknown")
    holds = frozenset(judgement.model for judgement in ladder.judgements if judgement.holds)
    return Placement({model: JUDGED[model] for model in ladder.maximal}, ladder.broken, unknown, holds)
