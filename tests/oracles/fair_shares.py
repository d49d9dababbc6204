"""Max-min fair sharing in exact fractions, one full link at a time, all flows anew at every event."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def rates(paths: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[Fraction | None]:
    """The rate of each flow; None for one without links."""
    found: list[Fraction | None] = [None] * len(paths)
    open_flows = {f for f, path in enumerate(paths) if path}
    room = {link: Fraction(c) for link, c in enumerate(capacity)}
    while open_flows:
        users = {link: [f for f in open_flows if link in paths[f]] for link in room}
        full = min((link for link in room if users[link]), key=lambda link: room[link] / len(users[link]))
        level = room[full] / len(users[full])
        for flow in users[full]:
            found[flow] = level
            open_flows.discard(flow)
            for link in paths[flow]:
                room[link] -= level
    return found


def deliver(
    paths: Sequence[Sequence[int]], nbytes: Sequence[int], capacity: Sequence[int], latency: Sequence[int],
    after: Sequence[Sequence[int]], queue: Sequence[int],
) -> list[Fraction]:  # fmt: skip
    """When each flow has arrived."""
    count = len(paths)
    left = [Fraction(n) for n in nbytes]
    gone: dict[int, Fraction] = {}
    now = Fraction(0)
    while len(gone) < count:
        arrived = {f for f, t in gone.items() if t + latency[f] <= now}
        behind = {f for f in range(count) if any(queue[g] == queue[f] and g not in gone for g in range(f))}
        active = [f for f in range(count) if f not in gone and set(after[f]) <= arrived and f not in behind]
        speed = dict(zip(active, rates([paths[f] for f in active], capacity), strict=True))
        at_once = [f for f in active if speed[f] is None or left[f] == 0]
        if at_once:
            gone |= dict.fromkeys(at_once, now)
            continue
        ends = [now + left[f] / speed[f] for f in active]  # type: ignore[operator]
        ends += [t + latency[f] for f, t in gone.items() if t + latency[f] > now]
        until = min(ends)
        for f in active:
            left[f] -= speed[f] * (until - now)  # type: ignore[operator]
            if left[f] == 0:
                gone[f] = until
        now = until
    return [gone[f] + latency[f] for f in range(count)]
