"""The voting dynamics in plain Python, one obvious step at a time, from the same random words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from assay.sim.random import key

_64 = 2**64


def splitmix(state: int) -> int:
    z = state % _64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % _64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % _64
    return z ^ z >> 31


class Word:
    """Word ``counter`` of a key, spent digit by digit."""

    def __init__(self, key: int, counter: int) -> None:
        self.fraction = splitmix(key + counter * 0x9E3779B97F4A7C15)

    def digit(self, n: int) -> int:
        value, self.fraction = divmod(self.fraction * n, _64)
        return value


@dataclass
class End:
    steps: int
    final: int
    low: int
    high: int
    censored: bool
    opinions: list[int]


def run(rows: list[list[int]], opinions: list[int], rule: str, seed: int, replica: int, max_steps: int) -> End:
    """``rows[u]`` lists the neighbours of u, ascending."""
    x = list(opinions)
    k = key(seed, "swarm", rule, replica)
    gap = 1 if rule == "average" else 0
    step = 0
    while max(x) - min(x) > gap and step < max_steps:
        interact(rows, x, rule, Word(k, 2 * step), Word(k, 2 * step + 1))
        step += 1
    counts = Counter(x)
    final = min(o for o in counts if counts[o] == max(counts.values()))
    return End(step, final, min(x), max(x), max(x) - min(x) > gap, x)


def interact(rows: list[list[int]], x: list[int], rule: str, word: Word, more: Word) -> None:
    if rule == "div-edge":
        edges = [(u, v) for u, row in enumerate(rows) for v in row]
        u, v = edges[word.digit(len(edges))]
    else:
        u = word.digit(len(rows))
        v = rows[u][word.digit(len(rows[u]))]
    if rule in ("div", "div-edge"):
        x[u] += (x[v] > x[u]) - (x[v] < x[u])
    elif rule == "pull":
        x[u] = x[v]
    elif rule == "average":
        total = x[u] + x[v]
        floor, ceil = total // 2, total - total // 2
        x[u], x[v] = (floor, ceil) if word.digit(2) == 0 else (ceil, floor)
    else:
        second = rows[u][more.digit(len(rows[u]))]
        third = rows[u][more.digit(len(rows[u]))]
        if rule == "median":
            x[u] = sorted([x[u], x[v], x[second]])[1]
        else:
            sampled = [x[v], x[second], x[third]]
            value, times = Counter(sampled).most_common(1)[0]
            x[u] = value if times > 1 else sampled[0]


def conductance(rows: list[list[int]]) -> float:
    """The least cut / volume over all sets of at most half of the volume."""
    half = sum(map(len, rows)) / 2
    best = float("inf")
    for size in range(1, len(rows)):
        for inside in map(set, combinations(range(len(rows)), size)):
            volume = sum(len(rows[u]) for u in inside)
            if 0 < volume <= half:
                best = min(best, sum(v not in inside for u in inside for v in rows[u]) / volume)
    return best
