"""One episode: pick an operator whose inputs are placed, pick its device, until all are placed; compiled.

What the networks say of operators does not change within an episode, so it is computed once before it (`select`, and
the hidden layer's part `own`). What changes is looked at for every choice: what lies on a device, how busy it is, when
the operator could end there, what would have to be sent. Data (what is there before anything runs) is not chosen: it
lies where it is first read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit

LIVE = 5  # numbers that tell of a device at a choice; two ends behind them are for rules


@njit(cache=True, nogil=True)
def look(
    v: int, indptr: Any, indices: Any, place: Any, clocks: Any, sent: Any, took: Any, sending: Any, out: Any
) -> None:
    """What tells of each device for operator v: how busy, inputs there when, ends when, seconds to bring them.

    `clocks` are the ends of operators, when devices are free, both also with ports (rows 2 and 3), and when ports are.
    An end is told against the earliest of all devices: first as if every message went at once, then with ports that
    send one at a time. All over the longest operator's seconds.
    """
    ends, busy, done, late, port = clocks
    devices = out.shape[0]
    scale = took.max()
    for d in range(devices):
        ready = there = brought = 0.0
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if place[u] < 0:  # data that nobody has read yet can lie anywhere
                continue
            if place[u] == d:
                ready, there = max(ready, ends[u]), max(there, done[u])
                continue
            ready = max(ready, ends[u] + sending[u])
            arrives = sent[u, d] if sent[u, d] > 0 else max(done[u], port[place[u]]) + sending[u]
            there = max(there, arrives)
            brought += sending[u]
        out[d, 0], out[d, 1], out[d, 3] = busy[d] - busy.mean(), ready - busy[d], brought
        out[d, LIVE] = max(ready, busy[d]) + took[v]
        out[d, LIVE + 1] = max(there, late[d]) + took[v]
    first, second = out[:, LIVE].min(), out[:, LIVE + 1].min()
    for d in range(devices):
        out[d, 2], out[d, 4] = out[d, LIVE] - first, out[d, LIVE + 1] - second
        for q in range(LIVE):
            out[d, q] = min(8.0, max(-8.0, out[d, q] / scale))


@njit(cache=True, nogil=True)
def _put(v: int, d: int, indptr: Any, indices: Any, place: Any, clocks: Any, sent: Any, took: Any, sending: Any,
         out: Any) -> None:  # fmt: skip
    """Place it: its inputs are sent where they have not been, in their order."""
    ends, busy, done, late, port = clocks
    there = 0.0
    for e in range(indptr[v], indptr[v + 1]):
        u = indices[e]
        if place[u] < 0:
            place[u] = d
        if place[u] != d and sent[u, d] == 0:
            sent[u, d] = max(done[u], port[place[u]]) + sending[u]
            port[place[u]] = sent[u, d]
        there = max(there, done[u] if place[u] == d else sent[u, d])
    place[v] = d
    ends[v] = busy[d] = out[d, LIVE]
    done[v] = late[d] = max(there, late[d]) + took[v]


@njit(cache=True, nogil=True)
def _drawn(logits: Any, count: int, temperature: float, chance: float) -> int:
    """An index by softmax; with no temperature the largest."""
    best = 0
    for i in range(1, count):
        if logits[i] > logits[best]:
            best = i
    if temperature <= 0:
        return best
    total = 0.0
    for i in range(count):
        total += np.exp((logits[i] - logits[best]) / temperature)
    left = chance * total
    for i in range(count):
        left -= np.exp((logits[i] - logits[best]) / temperature)
        if left <= 0:
            return i
    return best


@njit(cache=True, nogil=True)
def _first(indptr: Any, indices: Any, data: Any) -> Any:
    """For how many operators each one waits, those that wait for none, how many these are, and how many there are."""
    n = len(data)
    waits, able = np.zeros(n, np.int64), np.empty(n, np.int64)
    count = steps = 0
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            waits[v] += not data[indices[e]]
        if data[v]:
            continue
        steps += 1
        if waits[v] == 0:
            able[count] = v
            count += 1
    return waits, able, count, steps


@njit(cache=True, nogil=True)
def _score(own: Any, live: Any, total: Any, size: float, mean_in: Any, live_in: Any, last: Any) -> float:
    """What the second network thinks of an operator on a device that holds `size` others, whose sum is `total`."""
    score = 0.0
    for j in range(len(last)):
        x = own[j]
        for q in range(LIVE):
            x += live[q] * live_in[q, j]
        for q in range(len(total)):
            x += total[q] / max(1.0, size) * mean_in[q, j]
        score += max(0.0, x) * last[j]
    return score


@njit(cache=True, nogil=True)
def play(indptr: Any, indices: Any, at: Any, after: Any, data: Any, took: Any, sending: Any, bottom: Any, devices: int,
         select: Any, own: Any, hidden: Any, mean_in: Any, live_in: Any, last: Any, temperature: float, chances: Any,
         ties: Any, learned: Any) -> Any:  # fmt: skip
    """Order and devices, with what was looked at: live[t, d], and who could be chosen: able[until[t - 1]:until[t]].

    `learned[0]`: operators by the first network, else by the longest way on; `learned[1]`: devices by the second, else
    by the earliest end (with ports: `learned[2]`). Ties of those rules go by `ties`.
    """
    n, h = hidden.shape
    place, sent = np.full(n, -1, np.int64), np.zeros((n, devices))
    clocks = (np.zeros(n), np.zeros(devices), np.zeros(n), np.zeros(devices), np.zeros(devices))
    waits, able, count, steps = _first(indptr, indices, data)
    logits = np.empty(max(n, devices))
    order, chosen = np.empty(steps, np.int64), np.empty(steps, np.int64)
    live, until = np.zeros((steps, devices, LIVE + 2)), np.empty(steps, np.int64)
    seen, listed = np.empty(8 * n, np.int64), 0
    sums, sizes = np.zeros((devices, h)), np.zeros(devices)
    for t in range(steps):
        if listed + count > len(seen):
            seen = np.concatenate((seen, np.empty(len(seen) + count, np.int64)))
        for i in range(count):
            v = able[i]
            seen[listed] = v
            listed += 1
            logits[i] = select[v] if learned[0] else bottom[v] * (1 + 1e-9 * ties[v])
        until[t] = listed
        i = _drawn(logits, count, temperature if learned[0] else 0.0, chances[t, 0])
        v = able[i]
        count -= 1
        able[i] = able[count]
        look(v, indptr, indices, place, clocks, sent, took, sending, live[t])
        for d in range(devices):
            if learned[1]:
                logits[d] = _score(own[v], live[t, d], sums[d], sizes[d], mean_in, live_in, last)
            else:
                logits[d] = -live[t, d, LIVE + (1 if learned[2] else 0)] * (1 + 1e-9 * ties[(7 * t + d) % n])
        d = _drawn(logits, devices, temperature if learned[1] else 0.0, chances[t, 1])
        order[t], chosen[t] = v, d
        _put(v, d, indptr, indices, place, clocks, sent, took, sending, live[t])
        sums[d] += hidden[v]
        sizes[d] += 1
        for k in range(at[v], at[v + 1]):
            waits[after[k]] -= 1
            if waits[after[k]] == 0:
                able[count] = after[k]
                count += 1
    return order, chosen, place, live, seen[:listed], until
