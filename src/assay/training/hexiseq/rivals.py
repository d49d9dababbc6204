"""What else one does with a mixed cluster: equal shares, shares by data sheet, the slow devices left out, luck."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.training.hexiseq.machines import Machines
from assay.training.hexiseq.pace import Clockwork, Pace, Split, Work, laid
from assay.training.hexiseq.scheduler import cuts, filled, schedule, symmetric, whole_heads

Answer = tuple[Split, Pace]


def fastest(clock: Clockwork, splits: Iterable[Split]) -> Answer | None:
    """The fastest of some splits that fit; where none does, none."""
    answers = [(split, clock.pace(split)) for split in splits]
    fitting = [answer for answer in answers if answer[1].fits]
    return min(fitting, key=lambda answer: answer[1].seconds) if fitting else None


def by_peak(clock: Clockwork, cut: int) -> Split:
    """Equal groups of neighbours; tokens and whole heads in proportion to data sheets, whatever links and memory say."""
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
    order, _ = laid(start.group)
    best, pace = start, clock.pace(start)
    whole = bool((start.heads % job.shared == 0).all())
    for _ in range(looks):
        tokens, heads = best.tokens.copy(), best.heads.copy()
        a, b = random.choice(order, 2, replace=False) if len(order) > 1 else (0, 0)
        if whole and start.group[a] == start.group[b] and random.random() < 0.5:
            moved = min(job.shared, int(heads[a]))
            heads[a], heads[b] = heads[a] - moved, heads[b] + moved
        else:
            moved = min(int(tokens[a]), int(job.seq * 10 ** random.uniform(-4, -1.5)))
            tokens[a], tokens[b] = tokens[a] - moved, tokens[b] + moved
        split = Split(start.group, tokens, heads)
        found = clock.pace(split)
        if found.fits and found.seconds <= pace.seconds:
            best, pace = split, found
    return best, pace


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
    table["hexiseq"] |= {"looks": ours.tried, "gain": _gain(ours.pace, usp)}
    table["random moves"]["looks"] = ours.tried
    return table


def _gain(pace: Pace, usp: Answer | None) -> float | None:
    """Over the best of equal shares: rings, Ulysses and all between."""
    return usp[1].seconds / pace.seconds if usp else None


def _row(answer: Answer | None, job: Work) -> dict[str, Any]:
    blank = dict.fromkeys(("gain", "tokens_s", "seconds", "groups", "tokens_apart", "head_splits", "memory", "looks"))
    if answer is None:
        return blank | {"fits": False}
    split, pace = answer
    uneven = sum(len(set(split.heads[split.group == j].tolist())) > 1 for j in range(split.groups))
    apart = float(split.tokens.max() / max(1, split.tokens.min()))
    return blank | {
        "tokens_s": job.seq / pace.seconds, "seconds": pace.seconds, "groups": split.groups, "tokens_apart": apart,
        "head_splits": uneven, "memory": float(pace.memory.max()), "fits": True,
    }  # fmt: skip
