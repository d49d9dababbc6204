"""Unequal shares of a sequence, slowly: every message of every pair of ranks and every head by itself; all splits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from assay.training.hexiseq.machines import Machines
from assay.training.hexiseq.pace import BUFFERS, ITEM, STATE, Split, Work


def _busiest(messages: list[tuple[int, int, float]], on: Machines) -> float:
    """Seconds of messages (from, to, bytes) that go at once: each port's bytes in and out, near and far apart."""
    worst = 0.0
    for rank in range(on.ranks):
        for end in (0, 1):
            mine = [m for m in messages if m[end] == rank]
            near = sum(m[2] for m in mine if on.node[m[0]] == on.node[m[1]])
            far = sum(m[2] for m in mine if on.node[m[0]] != on.node[m[1]])
            worst = max(worst, near / on.inside[rank], far / on.outside[rank])
    return worst


def _far(ranks: Any, on: Machines) -> float:
    return on.far if len({int(on.node[r]) for r in ranks}) > 1 else on.near


def _owned(split: Split, job: Work) -> dict[tuple[int, int], int]:
    """Who owns each head of queries in each group."""
    found: dict[tuple[int, int], int] = {}
    for j in range(split.groups):
        owners = [int(r) for r in np.flatnonzero(split.group == j) for _ in range(int(split.heads[r]))]
        found |= {(j, head): r for head, r in enumerate(owners)}
    return found


def _ring(split: Split, on: Machines, job: Work, ready: list[float], pair: list[float], ways: float) -> list[float]:
    k, lengths, owner = split.groups, split.lengths, _owned(split, job)
    latency = _far(range(on.ranks), on)

    def hop(j: int) -> float:  # heads of keys from the group before, a token
        messages = [
            (owner[(j - 1) % k, head * job.shared], owner[j, head * job.shared], 2 * ITEM * job.dim)
            for head in range(job.kv_heads)
        ]
        return _busiest(messages, on)

    there = {(j, 0): ready[j] for j in range(k)}
    done = {(j, -1): ready[j] for j in range(k)}
    for t in range(k):
        for j in range(k):
            i = (j - t) % k
            if t:
                begin = max(there[(j - 1) % k, t - 1], there[j, t - 1], done[j, t - 2])
                there[j, t] = begin + ways * (latency + lengths[i] * hop(j))
            done[j, t] = max(done[j, t - 1], there[j, t]) + lengths[j] * lengths[i] / 2 * pair[j]
    home = [latency + lengths[j] * hop(j) if ways > 1 and k > 1 else 0.0 for j in range(k)]
    return [done[j, k - 1] + home[j] for j in range(k)]


def seconds(split: Split, on: Machines, job: Work, gather: float) -> float:
    """A step, as :func:`assay.training.hexiseq.pace.solve` has it."""
    products, pair, before, after = [], [], [], []
    for j in range(split.groups):
        ranks = [int(r) for r in np.flatnonzero(split.group == j)]
        products.append(max(split.tokens[r] * job.token_flops / on.matrix[r] for r in ranks))
        pair.append(max(split.heads[r] * 4 * job.dim / on.attention[r] for r in ranks))
        pairs = [(a, b) for a in ranks for b in ranks if a != b]
        wide = {r: ITEM * job.dim * (split.heads[r] + 2 * -(-split.heads[r] // job.shared)) for r in ranks}
        there = [(a, b, split.tokens[a] * wide[b]) for a, b in pairs]
        back = [(b, a, split.tokens[a] * split.heads[b] * ITEM * job.dim) for a, b in pairs]
        latency = _far(ranks, on) if len(ranks) > 1 else 0.0
        before.append(latency + _busiest(there, on))
        after.append(latency + _busiest(back, on))
    passes = []
    for times, attention, ways in ((1, 1.0, 1.0), (2, 2.5, 2.0)):
        ready = [times * p + b for p, b in zip(products, before, strict=True)]
        done = _ring(split, on, job, ready, [attention * p for p in pair], ways)
        passes.append(max(max(d + a for d, a in zip(done, after, strict=True)), times * gather))
    last = max(3 * split.tokens[r] * job.last_flops / on.matrix[r] for r in range(on.ranks))
    return float(job.layers * (2 * passes[0] + passes[1]) + last)


def memory(split: Split, on: Machines, job: Work) -> list[float]:
    """Bytes of each rank."""
    found, longest = [], split.lengths.max() if split.groups > 1 else 0
    for r in range(on.ranks):
        keys, length = -(-split.heads[r] // job.shared), split.lengths[split.group[r]]
        state = STATE * job.params / on.ranks + 2 * ITEM * job.weights
        own = split.tokens[r] * (job.token_kept + job.token_passing)
        attention = 4 * ITEM * job.dim * (length * (split.heads[r] + keys) + BUFFERS * longest * keys)
        found.append(float(state + own + attention))
    return found


def _partitions(ranks: list[int]) -> Iterator[list[list[int]]]:
    if not ranks:
        yield []
        return
    for rest in _partitions(ranks[1:]):
        yield [[ranks[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [ranks[0], *part], *rest[i + 1 :]]


def _shares(total: int, parts: int, least: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        yield from ((first, *rest) for rest in _shares(total - first, parts - 1, least))


def every(ranks: int, job: Work, steps: int) -> Iterator[Split]:
    """All groupings, with tokens in so many equal steps (at least one a rank) and whole heads."""
    for parts in _partitions(list(range(ranks))):
        group = np.zeros(ranks, np.int64)
        for j, part in enumerate(sorted(parts)):
            group[part] = j
        ways = [[np.array(heads) for heads in _shares(job.kv_heads, len(part), 0)] for part in sorted(parts)]
        for chosen in product(*ways):
            heads = np.zeros(ranks, np.int64)
            for part, some in zip(sorted(parts), chosen, strict=True):
                heads[part] = some * job.shared
            for tokens in _shares(steps, ranks, 1):
                yield Split(group, np.array(tokens) * (job.seq // steps), heads)
