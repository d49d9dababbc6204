"""Population protocols, slowly: one meeting at a time, and the exact Markov chain of the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.protocols.ordered_pp.population import Table

Config = tuple[int, ...]


def meetings(table: Table, counts: Config, steps: int, random: np.random.Generator) -> Config:
    """The counts after so many meetings between random agents, each an entry of a list."""
    agents = [state for state, count in enumerate(counts) for _ in range(count)]
    for _ in range(steps):
        a, b = random.choice(len(agents), 2, replace=False)
        agents[a], agents[b] = _outcome(table, agents[a], agents[b], random.random())
    seen = Counter(agents)
    return tuple(seen[state] for state in range(len(counts)))


def _outcome(table: Table, p: int, q: int, chance: float) -> tuple[int, int]:
    for p_next, q_next, share in outcomes(table, p, q):
        if chance < share:
            return p_next, q_next
        chance -= share
    return p_next, q_next


def outcomes(table: Table, p: int, q: int) -> list[tuple[int, int, float]]:
    pair = p * len(table.states) + q
    rows = range(table.start[pair], table.start[pair + 1])
    return [(int(table.first[row]), int(table.second[row]), float(table.chance[row])) for row in rows]


def step(table: Table, law: Mapping[Config, float]) -> dict[Config, float]:
    """The exact distribution of the counts one meeting later."""
    after: dict[Config, float] = {}
    for config, weight in law.items():
        n = sum(config)
        for p, at_p in enumerate(config):
            for q, at_q in enumerate(config):
                pairs = at_p * (at_q - (p == q))
                if not pairs:
                    continue
                for p_next, q_next, share in outcomes(table, p, q):
                    changed: list[Any] = list(config)
                    changed[p] -= 1
                    changed[q] -= 1
                    changed[p_next] += 1
                    changed[q_next] += 1
                    key = tuple(changed)
                    after[key] = after.get(key, 0.0) + weight * share * pairs / (n * (n - 1))
    return after


def law(table: Table, counts: Config, steps: int) -> dict[Config, float]:
    """The exact distribution of the counts after so many meetings."""
    now = {counts: 1.0}
    for _ in range(steps):
        now = step(table, now)
    return now
