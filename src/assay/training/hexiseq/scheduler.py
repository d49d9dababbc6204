"""Three levels: who swaps heads with whom, how many tokens each group gets, how tokens and heads lie within a group.

I.   The graph of bandwidths is cut at every threshold: nodes whose links are fast become groups, whole or in equal
     parts, differently for each kind of device; nodes may join, of one kind or across kinds.
II.  Tokens go to groups in proportion to what they compute, to its square root, and up to what they can hold.
III. From the best of these, quanta move: tokens between groups, tokens within the slowest group, a head of keys within
     it; the best move is made while the step gets shorter, then the quantum is halved.

Which thresholds, how many candidates are refined, and that tokens may also move between groups in the third level are
our reading. Symmetric splits are among the candidates, so the answer is never behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.compiled import njit
from assay.training.hexiseq.machines import Machines
from assay.training.hexiseq.pace import BUFFERS, Clockwork, Pace, Split, laid, solve
from assay.training.interface import Floats, Ints

REFINED = 6  # candidates that quanta move in
COARSE, FINE = 100, 3200  # parts of the sequence that the first and the last quantum are


@dataclass(frozen=True)
class Found:
    """The best split, what it takes, and how many were looked at."""

    split: Split
    pace: Pace
    groupings: int
    tried: int


def schedule(clock: Clockwork) -> Found:
    """The best split that the three levels find.

    Raises:
        BadInput: the sequence fits in no way.
    """
    seen: dict[bytes, tuple[float, Split]] = {}
    groupings = {group.tobytes(): group for group in candidates(clock)}
    known: dict[tuple[str, ...], _Group] = {}
    for group in groupings.values():
        for split in splits(clock, group, known):
            pace = clock.pace(split)
            if pace.fits:
                seen[split.group.tobytes() + split.tokens.tobytes() + split.heads.tobytes()] = pace.seconds, split
    for cut in cuts(clock):
        split = symmetric(clock, cut)
        pace = clock.pace(split)
        if pace.fits:
            seen[split.group.tobytes() + split.tokens.tobytes() + split.heads.tobytes()] = pace.seconds, split
    if not seen:
        raise BadInput(
            f"{clock.job.seq} tokens fit in no way into the memory of {clock.on.ranks} devices; take a shorter sequence"
        )
    best, tried = None, len(seen)
    for _, split in sorted(seen.values(), key=lambda pair: pair[0])[:REFINED]:
        refined, looks = descend(clock, split)
        tried += looks
        pace = clock.pace(refined)
        if best is None or pace.seconds < best[1].seconds:
            best = refined, pace
    assert best is not None
    return Found(*best, len(groupings), tried)


# ------------------------------------------------------------------------------------------- I: groups


def candidates(clock: Clockwork) -> Iterator[Ints]:
    """Groupings from links: parts of nodes, whole nodes, nodes that join."""
    on, most = clock.on, clock.job.kv_heads
    nodes = [np.flatnonzero(on.node == node) for node in np.unique(on.node)]
    kind = [on.kind[ranks[0]] for ranks in nodes]
    sizes = {
        k: sorted(
            {
                g
                for ranks, of in zip(nodes, kind, strict=True)
                if of == k
                for g in range(1, len(ranks) + 1)
                if len(ranks) % g == 0 and g <= most
            }
        )
        for k in on.kinds
    }
    for chosen in product(*(sizes[k] for k in on.kinds)):
        size = dict(zip(on.kinds, chosen, strict=True))
        yield _numbered(on, [part for ranks, of in zip(nodes, kind, strict=True)
                             for part in np.split(ranks, len(ranks) // size[of])])  # fmt: skip
    for together in _joins(nodes, kind):
        if max(len(part) for part in together) <= most:
            yield _numbered(on, together)


def _joins(nodes: Sequence[Ints], kind: Sequence[str]) -> Iterator[list[Ints]]:
    """Nodes that join: neighbours two by two and four by four, all of a kind, one of each kind, all."""
    for step in (2, 4):
        yield [np.concatenate(nodes[i : i + step]) for i in range(0, len(nodes), step)]
    kinds = list(dict.fromkeys(kind))
    by_kind = {k: [ranks for ranks, of in zip(nodes, kind, strict=True) if of == k] for k in kinds}
    yield [np.concatenate(some) for some in by_kind.values()]
    fewest = min(len(some) for some in by_kind.values())
    mixed = [np.concatenate([by_kind[k][i] for k in kinds]) for i in range(fewest)]
    left = [ranks for some in by_kind.values() for ranks in some[fewest:]]
    yield mixed + left
    for parts in (2, 4, 8):  # a part of a node of each kind
        if all(len(ranks) % parts == 0 for ranks in nodes):
            pieces = {k: [piece for ranks in some for piece in np.split(ranks, parts)] for k, some in by_kind.items()}
            yield [np.concatenate([pieces[k][i] for k in kinds]) for i in range(fewest * parts)] + [
                piece for ranks in left for piece in np.split(ranks, parts)
            ]
    yield [np.concatenate(nodes)]


def _numbered(on: Machines, parts: Sequence[Ints]) -> Ints:
    """The group of each rank, the ring going by the first ranks: neighbours share nodes where they can."""
    group = np.empty(on.ranks, np.int64)
    for number, part in enumerate(sorted(parts, key=lambda part: int(part[0]))):
        group[part] = number
    return group


# ------------------------------------------------------------------------------- II: tokens of the groups


def splits(clock: Clockwork, group: Ints, known: dict[tuple[str, ...], _Group]) -> Iterator[Split]:
    """Heads and tokens of a grouping by each rule; groups of the same devices are `known` from others."""
    on, job = clock.on, clock.job
    order, ptr = laid(group)
    parts = [order[a:b] for a, b in pairwise(ptr)]
    names = [tuple(on.kind[r] for r in ranks) for ranks in parts]
    for ranks, name in zip(parts, names, strict=True):
        if name not in known:
            known[name] = _group(clock, ranks)
    heads = np.zeros(on.ranks, np.int64)
    heads[order] = np.concatenate([known[name].heads for name in names])
    speed, room = (np.array([getattr(known[name], what) for name in names]) for what in ("speed", "room"))
    for weight, caps in ((speed, np.inf), (np.sqrt(speed), np.inf), (speed, room)):
        shares = filled(weight, job.seq, caps)
        if shares is None:
            continue
        tokens, dealt = np.zeros(on.ranks, np.int64), dict[Any, Ints]()
        for ranks, name, share in zip(parts, names, shares.tolist(), strict=True):
            if (name, share) not in dealt:
                dealt[name, share] = _within(clock, ranks, known[name].heads, share)
            tokens[ranks] = dealt[name, share]
        yield Split(group, tokens, heads)


@dataclass(frozen=True)
class _Group:
    heads: Ints
    speed: float  # tokens a second
    room: float  # tokens


def _group(clock: Clockwork, ranks: Ints) -> _Group:
    heads = clock.job.shared * whole_heads(clock.on.attention[ranks], clock.job.kv_heads)
    return _Group(heads, _speed(clock, ranks, heads), _room(clock, ranks, heads))


def _within(clock: Clockwork, ranks: Ints, heads: Ints, share: int) -> Ints:
    """A group's tokens by its ranks' products, within their memory where that is possible."""
    weight = clock.on.matrix[ranks]
    inside = filled(weight, share, _rank_room(clock, ranks, heads, float(share)))
    found = filled(weight, share, np.inf) if inside is None else inside
    assert found is not None
    return found


def whole_heads(speed: Floats, heads: int) -> Ints:
    """So many heads to ranks of these speeds, whole ones, that the slowest is done as early as can be.

    >>> whole_heads(np.array([3.0, 1.0]), 8).tolist(), whole_heads(np.array([3.0, 1.0]), 3).tolist()
    ([6, 2], [3, 0])
    """
    found = np.zeros(len(speed), np.int64)
    for _ in range(heads):
        found[np.argmin((found + 1) / speed)] += 1
    return found


def _speed(clock: Clockwork, ranks: Ints, heads: Ints) -> float:
    """Tokens a second of a group, attention with whole heads and products together."""
    job, on = clock.job, clock.on
    attention = job.seq / 2 * 4 * job.dim * float((heads / on.attention[ranks]).max())
    return 1.0 / (4.5 * attention + 4 * job.token_flops / float(on.matrix[ranks].sum()))


def _room(clock: Clockwork, ranks: Ints, heads: Ints) -> float:
    """Tokens that a group can hold."""
    low, high = 0.0, float(clock.job.seq)
    for _ in range(30):
        middle = (low + high) / 2
        fits = float(np.sum(_rank_room(clock, ranks, heads, middle))) >= middle
        low, high = (middle, high) if fits else (low, middle)
    return low


def _rank_room(clock: Clockwork, ranks: Ints, heads: Ints, length: float) -> Floats:
    """Own tokens that ranks can hold beside attention over the group's `length`."""
    job = clock.job
    keys = heads // job.shared
    beside = clock.state + length * job.dim * 8 * (heads + keys * (1 + BUFFERS))
    return np.asarray(np.maximum(0.0, (clock.on.memory[ranks] - beside) / (job.token_kept + job.token_passing)))


def filled(weight: Floats, total: int, most: Any) -> Ints | None:
    """`total` in whole shares by weight, none above `most`; None where they do not hold it all.

    >>> filled(np.array([3.0, 1.0]), 8, np.inf).tolist(), filled(np.array([3.0, 1.0]), 8, np.array([5, 9])).tolist()
    ([6, 2], [5, 3])
    """
    caps = np.floor(np.minimum(np.zeros(len(weight)) + most, total)).astype(np.int64)
    return np.asarray(_filled(weight, total, caps)) if caps.sum() >= total else None


@njit(cache=True, nogil=True)
def _filled(weight: Any, total: int, caps: Any) -> Any:
    n = len(weight)
    shares, free = np.zeros(n), np.ones(n, np.bool_)
    over = True
    while over:  # whoever is full gives the rest to the others
        over, left, sharing = False, float(total), 0.0
        for r in range(n):
            if free[r]:
                sharing += weight[r]
            else:
                left -= shares[r]
        for r in range(n):
            if free[r]:
                shares[r] = weight[r] / sharing * left
        for r in range(n):
            if free[r] and shares[r] > caps[r]:
                shares[r], free[r], over = caps[r], False, True
    found = np.floor(shares + 1e-9).astype(np.int64)
    missing = total - found.sum()
    for r in np.argsort(found - shares, kind="mergesort"):  # largest remainders first
        if missing > 0 and found[r] < caps[r]:
            found[r] += 1
            missing -= 1
    for r in range(n):
        part = min(missing, caps[r] - found[r])
        found[r] += part
        missing -= part
    return found


# ---------------------------------------------------------------------------------------- III: quanta


def descend(clock: Clockwork, split: Split) -> tuple[Split, int]:
    """Move quanta while the step gets shorter; also how many splits were looked at."""
    order, ptr = laid(split.group)
    tokens, heads = split.tokens.copy(), split.heads.copy()
    unit = clock.job.shared if (heads % clock.job.shared == 0).all() else 0
    tried = _descend(
        order, ptr, tokens, heads, unit, max(1, clock.job.seq // COARSE), max(1, clock.job.seq // FINE),
        clock.on.memory, *clock.arrays(),
    )  # fmt: skip
    return Split(split.group, tokens, heads), int(tried)


@njit(cache=True, nogil=True)
def asked(order: Any, ptr: Any, tokens: Any, heads: Any, memory: Any, node: Any, rank: Any, job: Any) -> Any:
    """Seconds, infinite where memory is exceeded, and the group that is done last."""
    seconds, busy, _, held = solve(order, ptr, tokens, heads, node, rank, job)
    for r in range(len(held)):
        if held[r] > memory[r]:
            return np.inf, 0
    return seconds, np.argmax(busy)


@njit(cache=True, nogil=True)
def _shift(order: Any, ptr: Any, tokens: Any, source: int, target: int, quantum: int) -> Any:
    """Tokens with a quantum moved from one group to another, taken and given by what ranks have."""
    moved = tokens.copy()
    for group, sign in ((source, -1), (target, 1)):
        ranks = order[ptr[group] : ptr[group + 1]]
        total = 0
        for r in ranks:
            total += tokens[r]
        left = quantum
        for r in ranks:
            part = min(left, quantum * tokens[r] // max(1, total))
            part = min(part, moved[r]) if sign < 0 else part
            moved[r] += sign * part
            left -= part
        for r in ranks:
            part = min(left, moved[r]) if sign < 0 else left
            moved[r] += sign * part
            left -= part
    return moved


@njit(cache=True, nogil=True)
def _best_move(
    order: Any, ptr: Any, tokens: Any, heads: Any, unit: int, quantum: int, source: int, memory: Any, node: Any,
    rank: Any, job: Any,
) -> Any:  # fmt: skip
    """The best of all moves out of one group, or within it: its seconds, tokens and heads; how many were tried."""
    k, tried = len(ptr) - 1, 0
    best, best_tokens, best_heads = np.inf, tokens, heads
    ranks = order[ptr[source] : ptr[source + 1]]
    have = 0
    for r in ranks:
        have += tokens[r]
    for target in range(k):
        if target != source and have >= quantum:
            moved = _shift(order, ptr, tokens, source, target, quantum)
            seconds, _ = asked(order, ptr, moved, heads, memory, node, rank, job)
            tried += 1
            if seconds < best:
                best, best_tokens, best_heads = seconds, moved, heads
    slow = dear = ranks[0]
    for r in ranks:
        if tokens[r] / rank[0, r] > tokens[slow] / rank[0, slow]:
            slow = r
        if heads[r] / rank[1, r] > heads[dear] / rank[1, dear]:
            dear = r
    for r in ranks:
        if r != slow and tokens[slow] >= quantum:
            moved = tokens.copy()
            moved[slow] -= quantum
            moved[r] += quantum
            seconds, _ = asked(order, ptr, moved, heads, memory, node, rank, job)
            tried += 1
            if seconds < best:
                best, best_tokens, best_heads = seconds, moved, heads
        if r != dear and unit > 0 and heads[dear] >= unit:
            given = heads.copy()
            given[dear] -= unit
            given[r] += unit
            seconds, _ = asked(order, ptr, tokens, given, memory, node, rank, job)
            tried += 1
            if seconds < best:
                best, best_tokens, best_heads = seconds, tokens, given
    return best, best_tokens, best_heads, tried


@njit(cache=True, nogil=True)
def _descend(
    order: Any, ptr: Any, tokens: Any, heads: Any, unit: int, quantum: int, finest: int, memory: Any, node: Any,
    rank: Any, job: Any,
) -> Any:  # fmt: skip
    tried, k = 1, len(ptr) - 1
    now, slowest = asked(order, ptr, tokens, heads, memory, node, rank, job)
    while True:
        best, moved, given, looks = _best_move(
            order, ptr, tokens, heads, unit, quantum, slowest, memory, node, rank, job
        )
        tried += looks
        if best >= now * (1 - 1e-7) and k <= 16:  # whoever is last may wait for others: they may give, too
            for source in range(k):
                if source != slowest:
                    other, other_moved, other_given, looks = _best_move(
                        order, ptr, tokens, heads, unit, quantum, source, memory, node, rank, job
                    )
                    tried += looks
                    if other < best:
                        best, moved, given = other, other_moved, other_given
        if best < now * (1 - 1e-7):
            tokens[:] = moved
            heads[:] = given
            now, slowest = asked(order, ptr, tokens, heads, memory, node, rank, job)
        elif quantum > finest:
            quantum = max(finest, quantum // 2)
        else:
            return tried


# --------------------------------------------------------------------------------------- symmetric splits


def cuts(clock: Clockwork) -> list[int]:
    """Sizes of equal groups in which all ranks can have equally many heads."""
    return [u for u in range(1, clock.on.ranks + 1) if clock.on.ranks % u == 0 and clock.job.heads % u == 0]


def symmetric(clock: Clockwork, cut: int) -> Split:
    """Equal shares: neighbouring ranks in groups of `cut`, each with as many heads and tokens as any other.

    Where a group is larger than there are heads of keys, those are there several times.
    """
    ranks = clock.on.ranks
    tokens = filled(np.ones(ranks), clock.job.seq, np.inf)
    assert tokens is not None
    return Split(np.arange(ranks) // cut, tokens, np.full(ranks, clock.job.heads // cut))
