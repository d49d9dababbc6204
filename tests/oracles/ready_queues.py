"""Work-conserving devices, asked at every instant that matters, with lists only."""

from __future__ import annotations


def play(
    edges: list[tuple[int, int, float]], device: list[int], seconds: list[float], priority: list[float]
) -> list[float]:
    """When each operation ends."""
    n = len(seconds)
    ends: dict[int, float] = {}
    running: dict[int, int] = {}
    now = 0.0
    while len(ends) < n:
        for d, v in list(running.items()):
            if ends.get(v, now + 1) <= now:
                del running[d]
        known = {v for v, end in ends.items() if end <= now}
        for d in sorted(set(device)):
            if d in running:
                continue
            ready = [
                v
                for v in range(n)
                if device[v] == d
                and v not in ends
                and all(p in known and ends[p] + lag <= now for p, after, lag in edges if after == v)
            ]
            if ready:
                v = min(ready, key=lambda v: (-priority[v], v))
                running[d], ends[v] = v, now + seconds[v]
        later = [end for end in ends.values() if end > now]
        later += [ends[p] + lag for p, _, lag in edges if p in ends and ends[p] + lag > now]
        now = min(later)
    return [ends[v] for v in range(n)]
