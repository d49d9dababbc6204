"""From the records of all ranks: which of six kinds of trouble it is, and which rank to look at.

A hang, first the operation that is stuck (the oldest one under way), then three questions in this order:

- **H2, inconsistent**: did all who called it call the same thing? Whoever is in the minority is the suspect. This
  comes first, because a rank that called with a smaller size runs ahead and makes all others look late.
- **H1, not entered**: has somebody not called it at all?
- **H3, stuck inside**: all called the same and nothing moves. A rank that stopped sends no more; the one after it gets
  one step further, the next another, and so on round the ring. The fewest completed Sends are the suspect's.

A slow-down is split by one figure. Who enters `late` makes all others wait, so its own round is short; a slow wire
makes everybody's round long. With the longest and the shortest duration of a round and what is usual,
P = (longest - shortest) / (longest - usual) = late / (late + transfer). Near 1 it is **S1**, a late rank, and the one
with the *shortest* round is to blame; near 0 it is **S2**, a slow wire, and the sender to blame is the one that takes
long to send while the next rank waits to receive; between them **S3**, both. Only durations are used, each by its own
rank's clock.

>>> import numpy as np
>>> share([0.10, 0.04, 0.10, 0.10], base=0.04)
1.0
>>> share([0.10, 0.10, 0.10, 0.10], base=0.04)
0.0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.observe.ccl.detect import FACTOR, Symptom
from assay.observe.ccl.probe import HISTORY, KINDS, Records
from assay.observe.interface import Diagnosis, Suspect

ALPHA, BETA = 0.2, 0.8  # where a slow-down stops being the wire's alone, and begins to be a rank's alone
H1, H2, H3, S1, S2, S3 = CLASSES = ("H1", "H2", "H3", "S1", "S2", "S3")
MEANING = {
    H1: "a rank has not entered the collective",
    H2: "ranks called different collectives",
    H3: "all entered, and one is stuck inside",
    S1: "a rank comes late",
    S2: "a rank's sending is slow",
    S3: "a rank comes late and a rank's sending is slow",
}


def locate(records: Records, symptom: Symptom, earlier: Records | None = None) -> Diagnosis:
    """Who is behind a symptom. `earlier` is a pull from before: what moved since is not stuck."""
    if symptom.kind == "hang":
        return hang(records, earlier)
    return slow(records, symptom.base or 0.0)


def share(durations: ArrayLike, base: float) -> float:
    """P: how much of a slow round is due to lateness, from every rank's duration and the usual one.

    >>> late, transfer, usual = 0.03, 0.01, 0.05
    >>> round(share([usual + transfer, usual + transfer + late], usual), 6)
    0.75
    """
    took = np.asarray(durations, float)
    longest = float(took.max())
    if longest <= base:
        return 0.0
    return float(min(1.0, (longest - took.min()) / (longest - base)))


# ---------------------------------------------------------------------------------------------------------- hangs


def hang(records: Records, earlier: Records | None = None) -> Diagnosis:
    """The class and the suspects of a hang; none where nothing is under way."""
    under_way = records.entered > records.finished
    if not under_way.any():
        return Diagnosis(why="no operation is under way")
    stuck = int(records.entered[under_way].min())
    signatures, known = records.signatures(stuck)
    if len(odd := minority(signatures, known)):
        return _blamed(H2, [(rank, 1.0) for rank in odd], _call(signatures, odd))
    behind = np.flatnonzero(records.entered < stuck)
    if len(behind):
        return _blamed(H1, [(int(rank), float(stuck - records.entered[rank])) for rank in behind], "enter")
    moving = earlier is not None and bool((records.sends != earlier.sends).any())
    return _stuck_inside(records, S2 if moving else H3)


def minority(signatures: NDArray[np.int64], known: NDArray[np.bool_]) -> list[int]:
    """The ranks whose signature is not the most common one; all, if no signature is more common than another.

    >>> minority(np.array([[0, 1, 8], [0, 1, 8], [0, 1, 4]]), np.array([True, True, True]))
    [2]
    """
    ranks = np.flatnonzero(known)
    kinds, which, counts = np.unique(signatures[ranks], axis=0, return_inverse=True, return_counts=True)
    if len(kinds) < 2:
        return []
    most = counts == counts.max()
    odd = ranks if most.sum() > 1 else ranks[~most[which.reshape(-1)]]
    return [int(rank) for rank in odd]


def _stuck_inside(records: Records, label: str) -> Diagnosis:
    """The fewest Sends, over all channels; on a tie the first in the ring's order, and the link after it.

    The rank before one that died cannot send either. But it has received more than it could pass on, and what it did
    send was not taken: it is held up, and not the suspect. (Where slices still move, some are always on their way.)
    """
    sends, recvs = records.sends.sum(1), records.recvs.sum(1)
    held = (recvs > sends) & (np.roll(recvs, -1) < sends) & (label == H3)
    least = (sends == sends[~held].min()) & ~held  # not all can be held: each has received more than the next
    first = np.flatnonzero(least & ~np.roll(least, 1))
    if not len(first):
        return Diagnosis(label=label, why="no rank has sent less than another: nothing has moved yet")
    ahead = np.roll(sends, 1) - sends
    order = first[np.argsort(-ahead[first], kind="stable")]
    suspects = [(int(rank), float(ahead[rank])) for rank in order]
    after = (suspects[0][0] + 1) % len(records)
    tied = [(after, 0.0)] if least[after] and after not in order else []
    return _blamed(label, suspects + tied, f"send to {after}")


# ------------------------------------------------------------------------------------------------------ slow-downs


def slow(records: Records, base: float, rounds: int = 5) -> Diagnosis:
    """The class and the suspects of a slow-down, from the last rounds that all ranks finished, if they were slow.

    The round in which it began is left out where there are others: ranks still leave it one after the other, as the
    trouble travels round the ring, and only the next one shows them waiting for each other.
    """
    streak = _streak(records, base)
    if not streak or base <= 0:
        return Diagnosis(why="no round that all ranks finished was slow")
    steady = (streak[1:] or streak)[-rounds:]
    took = np.array([records.past(k)["duration"] for k in steady], float) / 1e9
    part = float(np.median([share(row, base) for row in took]))
    label = S1 if part >= BETA else S2 if part <= ALPHA else S3
    typical = np.median(took, 0)
    ahead = typical.max() - typical  # how much less than the slowest each waited: its own lateness
    total = float(typical.max() - base)
    lateness = min(float(ahead.max()), total)
    late = [(int(r), float(ahead[r]), "enter") for r in np.argsort(-ahead) if ahead[r] >= ahead.max() / 2]
    sender, held = slow_sender(records, steady)
    wire = [(sender, held, f"send to {(sender + 1) % len(records)}")]
    chosen = {S1: late, S2: wire, S3: late + wire}[label]
    suspects = tuple(Suspect(str(rank), what, score, label, MEANING[label]) for rank, score, what in chosen)
    return Diagnosis(suspects, {"late": lateness, "transfer": total - lateness}, total, label)


def _streak(records: Records, base: float) -> list[int]:
    """The newest rounds that were slow without a break, oldest first."""
    found: list[int] = []
    for operation in reversed(records.common(HISTORY)):
        past = records.past(operation)
        if not past["known"].all() or past["duration"].max() / 1e9 <= FACTOR * base:
            break
        found.insert(0, operation)
    return found


def slow_sender(records: Records, operations: Sequence[int]) -> tuple[int, float]:
    """The rank that spends most time in Send while the next one waits in Recv, and that time in seconds."""
    sending = np.median([records.past(k)["send_time"] for k in operations], 0)
    waiting = np.median([records.past(k)["recv_time"] for k in operations], 0)
    held = np.minimum(sending, np.roll(waiting, -1))
    return int(np.argmax(held)), float(held.max()) / 1e9


# ---------------------------------------------------------------------------------------------------------- words


def _blamed(label: str, found: Sequence[tuple[int, float]], indicator: str) -> Diagnosis:
    suspects = tuple(Suspect(str(rank), indicator, score, label, MEANING[label]) for rank, score in found)
    return Diagnosis(suspects, label=label)


def _call(signatures: NDArray[np.int64], odd: Sequence[int]) -> str:
    kind, _, count = signatures[odd[0]]
    name = KINDS[int(kind)] if 0 <= kind < len(KINDS) else f"kind {kind}"
    return f"{name} of {count:,}"
