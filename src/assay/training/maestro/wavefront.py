"""In which order the samples of one global batch go through the sections, so that the critical one never waits.

A sample needs some auxiliary sections (an image its encoder, a distilled text its teacher) before the critical section
can take it; each section works through its samples in the same order. The order is built by insertion: samples that
need nothing come first and cover the wait for the others; those are inserted, the longest auxiliary work first, each at
the place where the critical section ends earliest. Ends for all places of one sample are found together, from how early
everything before a place can be done and how long everything after it takes, so that the whole order costs as many
operations as pairs of samples. Then every sample is taken out and put back where that helps, a few rounds; so are those
of Johnson's order, the best there is for one auxiliary section, and of the samples' own, and the best of the three is
taken: it is never worse than the samples' own.

That critical work comes first and that the order is built by insertion in quadratic time is the paper's; which sample
is inserted next, the places' ends and the rounds are a reconstruction.

>>> images, texts = np.array([[5.0], [0.0], [0.0]]), np.array([4.0, 4.0, 4.0])
>>> wavefront(images, texts).tolist()  # two texts cover the image's encoder
[1, 2, 0]
>>> idle(images, texts, np.arange(3)), idle(images, texts, wavefront(images, texts))
(5.0, 0.0)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.training.interface import Floats, Ints

QUEUE = 8  # outputs of an auxiliary section that may wait for the critical one
ROUNDS = 3  # times that samples are taken out and put back at most


def wavefront(
    auxiliary: Floats, critical: Floats, before: Floats | None = None, after: Floats | None = None
) -> Ints:  # fmt: skip
    """The order of a global batch.

    Args:
        auxiliary: seconds [sample, section] of each auxiliary section; 0 where a sample does not need it.
        critical: seconds of each sample in the critical section.
        before: [section, section], above 0 where the first one's output goes into the second; sections are listed so
            that what goes into one comes before it. All go straight into the critical one where it is left out.
        after: seconds [sample, section] of the way back, once the critical section is done with a sample; then what
            ends earliest is the last of those, not the critical section.
    """
    work, needs = np.ascontiguousarray(auxiliary, float), _needs(auxiliary, before)
    back = np.zeros_like(work) if after is None else np.ascontiguousarray(after, float)
    total = work.sum(axis=1)
    queue = np.lexsort((np.arange(len(total)), -total))  # text-only ones last in it, and taken out
    order = np.flatnonzero(total == 0)
    last = np.asarray(critical, float)
    given = work, last, back, needs
    starts = [_inserted(*given, order, queue[total[queue] > 0]), johnson(work, last), np.arange(len(total))]
    tried = [_improved(*given, start.copy(), ROUNDS) for start in starts]
    if after is None:
        return np.asarray(min(tried, key=lambda one: _end(*given, one)))
    none = np.zeros_like(work)  # ways back share a section with the ways there: also try as if there were none
    tried += [_improved(work, last, none, needs, start, ROUNDS) for start in starts]
    return np.asarray(min(tried, key=lambda one: _played(work, back, last, one, QUEUE)[1]))


def arrival(auxiliary: Floats, critical: Floats, before: Any = None, after: Any = None) -> Ints:
    """The samples' own order."""
    return np.arange(len(critical))


def longest_first(auxiliary: Floats, critical: Floats, before: Any = None, after: Any = None) -> Ints:
    """By their work in all sections, the longest first."""
    return np.argsort(-(np.asarray(auxiliary).sum(axis=1) + critical), kind="stable")


def johnson(auxiliary: Floats, critical: Floats, before: Any = None, after: Any = None) -> Ints:
    """Johnson's rule (1954), the best order there is for one auxiliary section; several count as their slowest."""
    first = np.asarray(auxiliary).max(axis=1) if np.shape(auxiliary)[1] else np.zeros(len(critical))
    early = first < critical
    return np.concatenate([
        np.flatnonzero(early)[np.argsort(first[early], kind="stable")],
        np.flatnonzero(~early)[np.argsort(-np.asarray(critical)[~early], kind="stable")],
    ])  # fmt: skip


ORDERS = {"wavefront": wavefront, "arrival": arrival, "longest first": longest_first, "johnson": johnson}


def idle(auxiliary: Floats, critical: Floats, order: Ints, before: Floats | None = None) -> float:
    """Seconds that the critical section waits for others, by the time it has taken all samples in this order."""
    work, needs = np.ascontiguousarray(auxiliary, float), _needs(auxiliary, before)
    end = _end(work, np.asarray(critical, float), np.zeros_like(work), needs, np.asarray(order, np.int64))
    return max(0.0, float(end - np.sum(critical)))


def _needs(auxiliary: Floats, before: Floats | None) -> Any:
    sections = np.shape(auxiliary)[1]
    return np.zeros((sections, sections)) if before is None else np.asarray(before, float)


@njit(cache=True)
def _end(work: Any, critical: Any, back: Any, needs: Any, order: Any) -> Any:
    """When the critical section has taken all samples, and ways back are over that do not delay anything else."""
    sections = work.shape[1]
    free, done, home, end = np.zeros(sections), np.zeros(sections), np.zeros(sections), 0.0
    for i in order:
        ready = 0.0
        for s in range(sections):
            done[s] = 0.0
            if work[i, s] > 0:
                start = free[s]
                for p in range(s):
                    if needs[p, s] > 0:
                        start = max(start, done[p])
                done[s] = free[s] = start + work[i, s]
                ready = max(ready, done[s])
        end = max(end, ready) + critical[i]
        for s in range(sections):
            if back[i, s] > 0:
                home[s] = max(home[s], end) + back[i, s]
    for s in range(sections):
        end = max(end, home[s])
    return end


@njit(cache=True)
def _inserted(work: Any, critical: Any, back: Any, needs: Any, first: Any, queue: Any) -> Any:
    """Each of the queue at its best place among those that are there."""
    order = np.empty(len(first) + len(queue), np.int64)
    size = len(first)
    order[:size] = first
    for i in queue:
        at, _ = _place(work, critical, back, needs, order[:size], i)
        for k in range(size, at, -1):
            order[k] = order[k - 1]
        order[at] = i
        size += 1
    return order


@njit(cache=True)
def _improved(work: Any, critical: Any, back: Any, needs: Any, order: Any, rounds: int) -> Any:
    """Take out and put back every sample, as long as that helps."""
    best, n = _end(work, critical, back, needs, order), len(order)
    for _ in range(rounds):
        before = best
        for i in range(n):
            rest = order[order != i]
            at, end = _place(work, critical, back, needs, rest, i)
            if end < best - 1e-12 * best:
                order[:at] = rest[:at]
                order[at] = i
                order[at + 1 :] = rest[at:]
                best = end
        if best >= before:
            break
    return order


@njit(cache=True)
def _before(work: Any, critical: Any, back: Any, needs: Any, order: Any) -> Any:
    """Before every place of an order: when sections are free, their ways back over, and the critical one free."""
    n, sections = len(order), work.shape[1]
    free, home, ends = np.zeros((n + 1, sections)), np.zeros((n + 1, sections)), np.zeros(n + 1)
    done = np.zeros(sections)
    for k in range(n):
        j, ready = order[k], 0.0
        for s in range(sections):
            done[s], free[k + 1, s] = 0.0, free[k, s]
            if work[j, s] > 0:
                start = free[k, s]
                for p in range(s):
                    if needs[p, s] > 0:
                        start = max(start, done[p])
                done[s] = free[k + 1, s] = start + work[j, s]
                ready = max(ready, done[s])
        ends[k + 1] = max(ends[k], ready) + critical[j]
        for s in range(sections):
            home[k + 1, s] = max(home[k, s], ends[k + 1]) + back[j, s] if back[j, s] > 0 else home[k, s]
    return free, home, ends


@njit(cache=True)
def _place(work: Any, critical: Any, back: Any, needs: Any, order: Any, i: int) -> Any:
    """Where a sample goes into an order, and when everything then ends; the first of equal places."""
    n, sections = len(order), work.shape[1]
    free, home, ends = _before(work, critical, back, needs, order)
    done = np.zeros(sections)
    rest = np.zeros(sections)  # the longest way from a section's being free at a place to the end
    ways = np.zeros(sections)  # the same of its ways back
    last = 0.0  # the same of the critical section
    best, place = np.inf, n
    through = np.zeros(sections)
    for k in range(n, -1, -1):
        if k < n:
            j = order[k]
            onward = last
            for s in range(sections):
                ways[s] += back[j, s]
                if back[j, s] > 0:
                    onward = max(onward, ways[s])
            last = critical[j] + onward
            for s in range(sections - 1, -1, -1):
                through[s] = 0.0
                if work[j, s] > 0:
                    onward = max(last, rest[s])
                    for t in range(s + 1, sections):
                        if needs[s, t] > 0 and work[j, t] > 0:
                            onward = max(onward, through[t])
                    through[s] = work[j, s] + onward
            for s in range(sections):
                if work[j, s] > 0:
                    rest[s] = through[s]
        ready, total = 0.0, 0.0
        for s in range(sections):
            done[s] = 0.0
            now = free[k, s]
            if work[i, s] > 0:
                for p in range(s):
                    if needs[p, s] > 0:
                        now = max(now, done[p])
                done[s] = now = now + work[i, s]
                ready = max(ready, now)
            total = max(total, now + rest[s])
        end = max(ends[k], ready) + critical[i]
        total = max(total, end + last)
        for s in range(sections):
            start = max(home[k, s], end) if back[i, s] > 0 else home[k, s]
            total = max(total, start + back[i, s] + ways[s])
        if total <= best:
            best, place = total, k
    return place, best


@njit(cache=True)
def _played(work: Any, back: Any, critical: Any, order: Any, queue: int) -> Any:
    """A batch with bounded queues and auxiliary backward passes: when the critical section ends, and when all ends.

    An auxiliary section runs ahead of the critical one by `queue` of its samples at most. Forward passes come first;
    while the queue is full, backward passes run of samples that the critical section is done with. A section without
    backward passes does not wait for new weights: its queue is full when a batch begins, and again when it ends.
    """
    n, sections = len(order), work.shape[1]
    free, end = np.zeros(sections), 0.0
    taken = np.zeros((sections, n))  # when the critical section took a section's k-th sample
    count = np.zeros(sections, np.int64)
    owed = np.zeros((sections, n))  # when its k-th backward pass may start, and what it takes
    size = np.zeros((sections, n))
    paid = np.zeros(sections, np.int64)
    trained = np.zeros(sections, np.bool_)
    for s in range(sections):
        trained[s] = back[:, s].max() > 0 if n else False
    for i in order:
        ready = 0.0
        for s in range(sections):
            if work[i, s] <= 0:
                continue
            k = count[s]
            if not trained[s] and k < queue:
                continue
            room = taken[s, k - queue] if k >= queue else 0.0
            while paid[s] < k and free[s] < room and owed[s, paid[s]] < room:
                free[s] = max(free[s], owed[s, paid[s]]) + size[s, paid[s]]
                paid[s] += 1
            free[s] = max(free[s], room) + work[i, s]
            ready = max(ready, free[s])
        start = max(end, ready)
        end = start + critical[i]
        for s in range(sections):
            if work[i, s] > 0:
                taken[s, count[s]], owed[s, count[s]], size[s, count[s]] = start, end, back[i, s]
                count[s] += 1
    over = end
    for s in range(sections):
        while paid[s] < count[s]:
            free[s] = max(free[s], owed[s, paid[s]]) + size[s, paid[s]]
            paid[s] += 1
        over = max(over, free[s], work[:, s].sum())  # also of those that fill the queue for the next batch
    return end, over


def played(auxiliary: Floats, back: Floats, critical: Floats, order: Ints, queue: int = QUEUE) -> tuple[float, float]:
    """Seconds until the critical section is done with a batch, and until everything is.

    Args:
        auxiliary: seconds forward [sample, section].
        back: seconds of the way back, after the critical section's; 0 where a section is not trained.
        critical: seconds of each sample in the critical section.
        order: of the samples.
        queue: outputs of an auxiliary section that may wait for the critical one.
    """
    both = (np.ascontiguousarray(part, float) for part in (auxiliary, back))
    end, over = _played(*both, np.asarray(critical, float), np.asarray(order, np.int64), queue)
    return float(end), float(over)
