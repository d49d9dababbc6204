"""What else one does with a mixed cluster: equal shares, shares by data sheet, the slow devices left out, luck."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.training.hexiseq.machines import Machines
from assay.training.hexiseq.pace import Clockwork, Pace, Split, Work, laid
from assay.training.hexiseq.scheduler import asked, cuts, filled, schedule, symmetric, whole_heads
from assay.training.hexiseq.shares import intervals

Answer = tuple[Split, Pace]
OVER = {"gain": "usp", "over_peak": "compute only", "over_fast": "slow left out", "over_luck": "random moves"}


def fastest(clock: Clockwork, splits: Iterable[Split]) -> Answer | None:
    """The fastest of some splits that fit; where none does, none."""
    answers = [(split, clock.pace(split)) for split in splits]
    fitting = [answer for answer in answers if answer[1].fits]
    return min(fitting, key=lambda answer: answer[1].seconds) if fitting else None


def by_peak(clock: Clockwork, cut: int) -> Split:
    """Equal groups of neighbours; tokens and whole heads by data sheets, whatever links and memory say."""
    on, job = clock.on, clock.job
    group, heads = np.arange(on.ranks) // cut, np.zeros(on.ranks, np.int64)
    for j in range(on.ranks // cut):
        ranks = np.flatnonzero(group == j)
        heads[ranks] = job.shared * whole_heads(on.peak[ranks], job.kv_heads)
    tokens = filled(on.peak, job.seq, np.inf)
    assert tokens is not None
    return Split(group, tokens, heads)


def lucky(clock: Clockwork, start: Split, looks: int, seed: int) -> Answer:
    """Random moves from a split, kept where they make the step no longer: the same costs, looked at as often."""
    random, job = stream(seed, "hexiseq", "luck"), clock.job
    order, ptr = laid(start.group)
    tokens, heads = start.tokens.copy(), start.heads.copy()
    who = random.integers(0, len(order), (looks, 2))
    sizes = (job.seq * 10 ** random.uniform(-4, -1.5, looks)).astype(np.int64)
    sizes[random.random(looks) < 0.5] = 0  # then a head moves, where both are of one group
    unit = job.shared if (heads % job.shared == 0).all() else 0
    _move(order, ptr, tokens, heads, unit, who, sizes, start.group, clock.on.memory, *clock.arrays())
    split = Split(start.group, tokens, heads)
    return split, clock.pace(split)


@njit(cache=True, nogil=True)
def _move(
    order: Any, ptr: Any, tokens: Any, heads: Any, unit: int, who: Any, sizes: Any, group: Any, memory: Any, node: Any,
    rank: Any, job: Any,
) -> None:  # fmt: skip
    now, _ = asked(order, ptr, tokens, heads, memory, node, rank, job)
    for look in range(len(sizes)):
        a, b = who[look]
        shares = heads if sizes[look] == 0 and group[a] == group[b] else tokens
        moved = min(unit if sizes[look] == 0 and group[a] == group[b] else max(1, sizes[look]), shares[a])
        shares[a] -= moved
        shares[b] += moved
        found, _ = asked(order, ptr, tokens, heads, memory, node, rank, job)
        if found <= now:
            now = found
        else:
            shares[a] += moved
            shares[b] -= moved


def slow_left_out(on: Machines, job: Work) -> Answer | None:
    """The best symmetric split on the fastest kinds alone, as many kinds as is best."""
    found = []
    for count in range(1, len(on.kinds)):
        clock = Clockwork(on.only(on.kinds[:count]), job)
        if answer := fastest(clock, [symmetric(clock, cut) for cut in cuts(clock)]):
            found.append(answer)
    return min(found, key=lambda answer: answer[1].seconds) if found else None


def systems(on: Machines, job: Work, seed: int = 0) -> dict[str, dict[str, Any]]:
    """HexiSeq and its rivals, each at its best: tokens a second, and how unequal shares are."""
    clock = Clockwork(on, job)
    ours = schedule(clock)
    ours.split.check(job)
    sizes = cuts(clock)
    usp = fastest(clock, [symmetric(clock, cut) for cut in sizes])
    start = usp[0] if usp else ours.split
    answers: dict[str, Answer | None] = {
        "hexiseq": (ours.split, ours.pace), "usp": usp, "ring": fastest(clock, [symmetric(clock, 1)]),
        "ulysses": fastest(clock, [symmetric(clock, on.ranks)]) if on.ranks in sizes else None,
        "compute only": fastest(clock, [by_peak(clock, cut) for cut in sizes if cut <= job.kv_heads]),
        "slow left out": slow_left_out(on, job), "random moves": lucky(clock, start, ours.tried, seed),
    }  # fmt: skip
    table = {name: _row(answer, job) for name, answer in answers.items()}
    for name, rival in OVER.items():
        theirs = answers[rival]
        table["hexiseq"][name] = theirs[1].seconds / ours.pace.seconds if theirs else None
    table["hexiseq"]["looks"] = table["random moves"]["looks"] = ours.tried
    return table


def _row(answer: Answer | None, job: Work) -> dict[str, Any]:
    blank = dict.fromkeys(("tokens_s", *OVER, "seconds", "groups", "tokens_apart", "sub_rings", "memory", "looks"))
    if answer is None:
        return blank | {"fits": False}
    split, pace = answer
    whole = bool((split.heads % job.shared == 0).all())
    return blank | {
        "tokens_s": job.seq / pace.seconds, "seconds": pace.seconds, "groups": split.groups,
        "tokens_apart": float(split.tokens.max() / max(1, split.tokens.min())),
        "sub_rings": len(intervals(split, job.kv_heads)) if whole and split.groups > 1 else None,
        "memory": float(pace.memory.max()), "fits": True,
    }  # fmt: skip
