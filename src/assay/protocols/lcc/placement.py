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

Then what a store can know of causality, by what it keeps of it: the ablation behind "detection is prevention".

Writes are ordered by clocks that go wrong. Where a later write gets the lower stamp, the order is inverted: the effect
is buried under its cause. :func:`detected` is what a store can prove from the edges that it kept; :func:`prevented` is
what does not happen if it orders by the same edges first and by the clock second.

>>> writes = [Write((0, 1), "x", 1, (0, 0), 1, 9.0), Write((1, 1), "x", 2, (1, 0), 2, 5.0)]  # the second saw the first
>>> inverted(writes, stamps(writes))
{((0, 1), (1, 1))}
>>> detected(writes, "nothing"), detected(writes, "causes") == prevented(writes, "causes")
(set(), True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.protocols.judges import lattice
from assay.protocols.judges.judgement import Judgement
from assay.protocols.judges.lattice import NAMED, Configuration, Ordering
from assay.protocols.nodes.stores import Write, WriteId
from assay.workloads.histories import Operation

JUDGED: dict[str, Configuration] = {
    **{model: NAMED[model] for model in lattice.STRONGER},
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
    ladder = lattice.strongest(history)
    unknown = tuple(judgement.model for judgement in ladder.judgements if judgement.verdict == "unknown")
    holds = frozenset(judgement.model for judgement in ladder.judgements if judgement.holds)
    return Placement({model: JUDGED[model] for model in ladder.maximal}, ladder.broken, unknown, holds)


KEEPS = ("nothing", "writer", "replaced", "causes")
"""No edges; a replica's own writes in order; which write of the key was replaced; all that the writer had seen."""
Pair = tuple[WriteId, WriteId]


def edges(writes: Sequence[Write], keeps: str) -> set[Pair]:
    """The pairs (cause, effect) that such a store still has."""
    if keeps == "causes":
        return {(a.id, b.id) for b in writes for a in writes if b.follows(a)}
    if keeps == "writer":
        return {((w.id[0], w.id[1] - 1), w.id) for w in writes if w.id[1] > 1}
    if keeps == "replaced":
        return {(before, w.id) for w in writes if (before := _replaced(writes, w)) is not None}
    if keeps == "nothing":
        return set()
    raise ValueError(f"no kind of metadata '{keeps}'; one of {', '.join(KEEPS)} expected")


def _replaced(writes: Sequence[Write], write: Write) -> WriteId | None:
    """What its writer saw as the value of the key."""
    seen = [other for other in writes if other.key == write.key and write.follows(other)]
    return max(seen, key=lambda other: (other.wall, other.id)).id if seen else None


def stamps(writes: Sequence[Write], known: Iterable[Pair] = ()) -> dict[WriteId, float]:
    """Each write's place in the order: its clock's, or just above its known causes if the clock is behind them."""
    causes: dict[WriteId, list[WriteId]] = {}
    for cause, effect in known:
        causes.setdefault(effect, []).append(cause)
    placed: dict[WriteId, float] = {}
    for write in sorted(writes, key=lambda one: (one.lamport, one.id)):  # causes before effects
        above = [placed[cause] + 1e-6 for cause in causes.get(write.id, ())]
        placed[write.id] = max([write.wall, *above])
    return placed


def inverted(writes: Sequence[Write], order: Mapping[WriteId, float]) -> set[Pair]:
    """The truth: pairs on one key, cause and effect, in which the effect is placed before its cause."""
    return {
        (a.id, b.id) for b in writes for a in writes
        if a.key == b.key and b.follows(a) and order[b.id] < order[a.id]
    }  # fmt: skip


def detected(writes: Sequence[Write], keeps: str) -> set[Pair]:
    """Inversions of the clocks' order that follow from what was kept."""
    order = stamps(writes)
    by_id = {write.id: write for write in writes}
    past: dict[WriteId, set[WriteId]] = {name: set() for name in by_id}
    known = edges(writes, keeps)
    for write in sorted(writes, key=lambda one: (one.lamport, one.id)):
        for cause, effect in known:
            if effect == write.id:
                past[effect] |= {cause, *past[cause]}
    return {
        (cause, effect) for effect, causes in past.items() for cause in causes
        if by_id[cause].key == by_id[effect].key and order[effect] < order[cause]
    }  # fmt: skip


def prevented(writes: Sequence[Write], keeps: str) -> set[Pair]:
    """Inversions of the clocks' order that are gone if what was kept is used to order."""
    return inverted(writes, stamps(writes)) - inverted(writes, stamps(writes, edges(writes, keeps)))
