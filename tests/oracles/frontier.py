"""The frontier as the paper writes it: three loops, nothing clever."""

from __future__ import annotations

from collections.abc import Sequence

Step = Sequence[Sequence[int]]  # ranks, stages


def frontier(step: Step, valid: Sequence[bool] | None = None) -> tuple[list[int], list[int], list[list[int]]]:
    """Advances, leaders and slack of one step."""
    ranks = [r for r in range(len(step)) if valid is None or valid[r]]
    stages = len(step[0])
    spent = {r: [sum(step[r][: s + 1]) for s in range(stages)] for r in ranks}
    advances, leaders, before = [], [], 0
    for s in range(stages):
        if not ranks:
            advances.append(0)
            leaders.append(-1)
            continue
        front = max(spent[r][s] for r in ranks)
        leaders.append(next(r for r in ranks if spent[r][s] == front))
        advances.append(front - before)
        before = front
    fronts = [max((spent[r][s] for r in ranks), default=0) for s in range(stages)]
    slack = [[fronts[s] - spent[r][s] if r in spent else -1 for s in range(stages)] for r in range(len(step))]
    return advances, leaders, slack


def synchronised(
    own: Step, synchronising: int, entry: Sequence[int] | None = None
) -> tuple[list[list[int]], list[int]]:
    """What ranks with this own work would record of a step in which all leave one stage together.

    Returns the recorded durations and how late each rank is when the next step begins, beside the earliest.
    """
    late = list(entry or [0] * len(own))
    arrive = [late[r] + sum(own[r][:synchronising]) for r in range(len(own))]
    leave = max(arrive[r] + own[r][synchronising] for r in range(len(own)))
    recorded = [[*own[r][:synchronising], leave - arrive[r], *own[r][synchronising + 1 :]] for r in range(len(own))]
    ends = [leave + sum(own[r][synchronising + 1 :]) for r in range(len(own))]
    return recorded, [end - min(ends) for end in ends]
