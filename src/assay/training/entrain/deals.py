"""Who trains on what when: samples to microbatches by their encoder's work, and language work put off to later ones.

Everything stays within one global batch: a step trains on the samples that were drawn for it, each exactly once.

>>> deal = entrain(np.array([4.0, 3, 2, 1]), np.array([9.0, 1, 1, 1]), np.ones(4), copies=1, m=2, buffer=1.0)
>>> deal.encoder.tolist()
[[0, 0], [0, 1], [0, 1], [0, 0]]
>>> deal.moved  # the last sample's text follows in the second microbatch, beside those of the others
1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.sim.packing import longest_first
from assay.training.interface import Floats, Ints

ROUNDS = 40  # of local moves; a few are enough
BACKWARD = 2 / 3  # of an image's work


@dataclass(frozen=True)
class Deal:
    """For each sample a row (copy, microbatch): where its image is encoded, and where the language model trains on it.

    Both are the same but for samples put off, whose language work is in a later microbatch of the same copy.
    """

    encoder: Ints
    language: Ints

    @property
    def moved(self) -> int:
        """Samples that were put off."""
        return int((self.encoder[:, 1] != self.language[:, 1]).sum())


def together(places: Ints) -> Deal:
    """Nothing put off."""
    return Deal(places, places)


def entrain(
    sight: Floats, words: Floats, held: Floats, copies: int, m: int, buffer: float, *, defer: bool = True,
    stratify: bool = True,
) -> Deal:  # fmt: skip
    """Samples dealt by strata of their encoders' work, and then language work put off pairwise.

    Args:
        sight: seconds of each sample's image.
        words: seconds of each sample's language work.
        held: what a sample occupies while it is put off (bytes, tokens).
        copies: data-parallel copies of the model.
        m: microbatches of each.
        buffer: what may be put off at one time in a copy, in units of `held`.
        defer: without it nothing is put off.
        stratify: without it samples stay in the order drawn.
    """
    bins = strata(sight, copies * m) if stratify else np.arange(len(sight)) % (copies * m)
    load = np.bincount(bins, words, copies * m).astype(float)
    of_bin = np.empty((copies * m, 2), np.int64)
    of_bin[:, 0] = longest_first(load, np.argsort(-load, kind="stable"), copies, m)
    for copy in range(copies):
        mine = np.flatnonzero(of_bin[:, 0] == copy)
        of_bin[mine[paired(load[mine])], 1] = np.arange(m)
    encoder = of_bin[bins]
    if not defer:
        return together(encoder)
    language = encoder.copy()
    for copy in range(copies):
        mine = np.flatnonzero(encoder[:, 0] == copy)
        language[mine, 1] = put_off(words[mine], sight[mine], held[mine], encoder[mine, 1], m, buffer)
    return Deal(encoder, language)


def strata(work: Floats, bins: int) -> Ints:
    """The bin of each sample: the heaviest `bins` of them one to each, then the next, each to the lightest bin yet.

    >>> strata(np.array([8.0, 7, 6, 5, 4, 1]), 3).tolist()
    [0, 1, 2, 2, 1, 0]
    """
    order, found, load = np.argsort(-work, kind="stable"), np.empty(len(work), np.int64), np.zeros(bins)
    for first in range(0, len(work), bins):
        mine = order[first : first + bins]
        lightest = np.argsort(load, kind="stable")[: len(mine)]
        found[mine] = lightest
        load[lightest] += work[mine]
    return found


def paired(load: Floats) -> Ints:
    """An order in which each heavy microbatch is followed by the light one that evens it out best.

    >>> paired(np.array([1.0, 4.0, 2.0, 3.0])).tolist()
    [1, 0, 3, 2]
    """
    order = np.argsort(-load, kind="stable")
    found = np.empty_like(order)
    half = len(order) // 2
    found[: 2 * half : 2], found[1 : 2 * half : 2] = order[:half], order[::-1][:half]
    if len(order) % 2:
        found[-1] = order[half]
    return found


def put_off(words: Floats, sight: Floats, held: Floats, first: Ints, m: int, buffer: float) -> Ints:
    """The microbatch in which the language model trains on each sample of one copy: its own, `first`, or a later one.

    An image's backward pass follows its text, so moving a text moves that, too: what falls is the sum of squares of
    language work and, beside it, of the images' backward passes (two thirds of their work), each over its mean.
    """
    work = np.column_stack([words / max(words.sum(), 1e-30), BACKWARD * sight / max(sight.sum(), 1e-30)]) * m
    return np.asarray(_put_off(work, held, first, m, buffer, ROUNDS))


@njit(cache=True)
def _gain(sums: Any, a: int, b: int, more: Any) -> Any:
    """How much the sum of squares falls (halved) if `more` goes from a to b."""
    return more[0] * (sums[a, 0] - sums[b, 0] - more[0]) + more[1] * (sums[a, 1] - sums[b, 1] - more[1])


@njit(cache=True)
def _put_off(work: Any, held: Any, first: Any, m: int, buffer: float, rounds: int) -> Any:
    n = len(work)
    at, sums, waiting = first.copy(), np.zeros((m, 2)), np.zeros(m)  # waiting[t]: put off while t runs
    for i in range(n):
        sums[first[i]] += work[i]
    target = sums[:, 0].sum() / m
    for k in range(m):  # in order: of the heavy ones, samples that fit the excess go where there is a deficit
        while sums[k, 0] > target:
            best, who, where = 1e-12, -1, -1
            for i in range(n):
                if at[i] != k or first[i] != k:
                    continue
                for j in range(k + 1, m):
                    gain = _gain(sums, k, j, work[i])
                    if gain > best * (1 + 1e-9) and _room(waiting, held[i], k, j, buffer):
                        best, who, where = gain, i, j
            if who < 0:
                break
            _move(at, sums, waiting, work, held, first, who, where)
    for _ in range(rounds):
        changed = False
        for i in range(n):
            changed |= _better_place(at, sums, waiting, work, held, first, i, m, buffer)
            changed |= _better_swap(at, sums, waiting, work, held, first, i, buffer)
        if not changed:
            break
    return at


@njit(cache=True)
def _room(waiting: Any, size: float, begin: int, end: int, buffer: float) -> bool:
    most = 0.0
    for t in range(begin, end):
        most = max(most, waiting[t] + size)
    return most <= buffer * (1 + 1e-12)


@njit(cache=True)
def _move(at: Any, sums: Any, waiting: Any, work: Any, held: Any, first: Any, i: int, j: int) -> None:
    waiting[first[i] : at[i]] -= held[i]
    waiting[first[i] : j] += held[i]
    sums[at[i]] -= work[i]
    sums[j] += work[i]
    at[i] = j


@njit(cache=True)
def _better_place(
    at: Any, sums: Any, waiting: Any, work: Any, held: Any, first: Any, i: int, m: int, buffer: float
) -> bool:
    """Move one sample to where the sum of squares falls most; the nearest of equals."""
    best, where, now = 1e-12, -1, at[i]
    waiting[first[i] : now] -= held[i]
    for j in range(first[i], m):
        gain = _gain(sums, now, j, work[i]) if j != now else 0.0
        if gain > best * (1 + 1e-9) and _room(waiting, held[i], first[i], j, buffer):
            best, where = gain, j
    waiting[first[i] : now] += held[i]
    if where >= 0:
        _move(at, sums, waiting, work, held, first, i, where)
    return where >= 0


@njit(cache=True)
def _better_swap(
    at: Any, sums: Any, waiting: Any, work: Any, held: Any, first: Any, i: int, buffer: float
) -> bool:  # fmt: skip
    """Exchange one sample with another where both may go and the sum of squares falls most."""
    best, who = 1e-12, -1
    for h in range(len(work)):
        a, b = at[i], at[h]
        if a == b or first[i] > b or first[h] > a:
            continue
        gain = _gain(sums, a, b, work[i] - work[h])
        if gain <= best * (1 + 1e-9):
            continue
        waiting[first[i] : a] -= held[i]
        waiting[first[h] : b] -= held[h]
        fits = _room(waiting, held[i], first[i], b, buffer)
        waiting[first[i] : b] += held[i]
        fits = fits and _room(waiting, held[h], first[h], a, buffer)
        waiting[first[i] : b] -= held[i]
        waiting[first[i] : a] += held[i]
        waiting[first[h] : b] += held[h]
        if fits:
            best, who = gain, h
    if who >= 0:
        a, b = at[i], at[who]
        _move(at, sums, waiting, work, held, first, i, b)
        _move(at, sums, waiting, work, held, first, who, a)
    return who >= 0


def waiting(deal: Deal, held: Floats, copies: int, m: int) -> Floats:
    """What is put off while each microbatch runs, [copies, m].

    >>> late = Deal(np.array([[0, 0]]), np.array([[0, 2]]))
    >>> waiting(late, np.array([5.0]), 1, 3).tolist()
    [[5.0, 5.0, 0.0]]
    """
    found = np.zeros((copies, m + 1))
    np.add.at(found, (deal.encoder[:, 0], deal.encoder[:, 1]), held)
    np.add.at(found, (deal.language[:, 0], deal.language[:, 1]), -held)
    return np.asarray(found.cumsum(axis=1)[:, :m])


# ------------------------------------------------------------------------------------------------- rivals


def in_order(count: int, copies: int, m: int) -> Ints:
    """As drawn: sample after sample to copy after copy.

    >>> in_order(4, 2, 1).tolist()
    [[0, 0], [1, 0], [0, 0], [1, 0]]
    """
    at = np.arange(count)
    return np.column_stack([at % copies, at // copies % m])


def between_copies(sight: Floats, words: Floats, copies: int, m: int) -> Ints:
    """As DistTrain: within each round of microbatches the copies get equally much of both, longest first."""
    places = in_order(len(sight), copies, m)
    both = sight + words
    for mb in range(m):
        mine = np.flatnonzero(places[:, 1] == mb)
        most = -(-len(mine) // copies)
        places[mine, 0] = longest_first(both[mine], np.argsort(-both[mine], kind="stable"), copies, most)
    return places


def reordered(places: Ints, key: Floats, descending: bool = False) -> Ints:
    """The microbatches of every copy in the order of `key` [copies, m]."""
    rank = np.argsort(np.argsort(-key if descending else key, axis=1, kind="stable"), axis=1)
    return np.column_stack([places[:, 0], rank[places[:, 0], places[:, 1]]])


def both_ways(sight: Floats, words: Floats, copies: int, m: int) -> Ints:
    """Longest first in two dimensions, nothing put off: each to the microbatch whose larger share stays least."""
    bins, most = copies * m, -(-len(sight) // (copies * m))
    shares = np.column_stack([sight / max(sight.sum(), 1e-30), words / max(words.sum(), 1e-30)])
    place = np.asarray(_two_ways(shares, np.argsort(-shares.max(axis=1), kind="stable"), bins, most))
    return np.column_stack([place % copies, place // copies])


@njit(cache=True)
def _two_ways(shares: Any, order: Any, bins: int, most: int) -> Any:
    load, count = np.zeros((bins, 2)), np.zeros(bins, np.int64)
    found = np.empty(len(order), np.int64)
    for i in order:
        best, where = np.inf, -1
        for b in range(bins):
            level = max(load[b, 0] + shares[i, 0], load[b, 1] + shares[i, 1])
            if count[b] < most and level < best:
                best, where = level, b
        found[i] = where
        load[where] += shares[i]
        count[where] += 1
    return found
