"""What the applications do row by row, compiled: a handler's time is that of its rows, however few come at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit

BINS = 1 << 14  # of a histogram, a rank's
TABLE = 1 << 17  # of values to gather: a rank's megabyte


@njit(cache=True, counted=False)
def count(rows: Any, bins: Any) -> None:
    """One more in the bin of every row."""
    for i in range(len(rows)):
        bins[rows[i, 0]] += 1


@njit(cache=True)
def binned(keys: Any) -> Any:
    """Whose bin each of some keys belongs into, and which of theirs."""
    to, rows = np.empty(len(keys), np.int64), np.empty((len(keys), 1), np.int64)
    for i in range(len(keys)):
        to[i] = keys[i] // BINS
        rows[i, 0] = keys[i] % BINS
    return to, rows


@njit(cache=True)
def turned(entries: Any, own: int) -> Any:
    """To whom the columns of entries belong, and entries with column and row exchanged."""
    to, rows = np.empty(len(entries), np.int64), np.empty_like(entries)
    for i in range(len(entries)):
        to[i] = entries[i, 1] // own
        rows[i, 0], rows[i, 1], rows[i, 2] = entries[i, 1], entries[i, 0], entries[i, 2]
    return to, rows


@njit(cache=True)
def dealt(rows: Any, word: int, lowest: int, keys: int) -> Any:
    """Rows in the order of one of their words, otherwise as they were; and where those of every key begin."""
    first = np.zeros(keys + 1, np.int64)
    for i in range(len(rows)):
        first[rows[i, word] - lowest + 1] += 1
    for key in range(keys):
        first[key + 1] += first[key]
    place, out = first.copy(), np.empty_like(rows)
    for i in range(len(rows)):
        key = rows[i, word] - lowest
        for w in range(rows.shape[1]):
            out[place[key], w] = rows[i, w]
        place[key] += 1
    return out, first


@njit(cache=True)
def lowered(rows: Any, labels: Any, lowest: int, marked: Any) -> Any:
    """Labels of vertices fall to what rows say, where that is less; which ones did, each once."""
    changed, found = np.empty(len(rows), np.int64), 0
    for i in range(len(rows)):
        at = rows[i, 0] - lowest
        if rows[i, 1] < labels[at]:
            labels[at] = rows[i, 1]
            if not marked[at]:
                marked[at] = True
                changed[found] = at
                found += 1
    for k in range(found):
        marked[changed[k]] = False
    return changed[:found]


@njit(cache=True)
def told(changed: Any, labels: Any, first: Any, pairs: Any, own: int) -> Any:
    """To whom the neighbours of vertices belong, and what these are told: their number and the label."""
    total = 0
    for k in range(len(changed)):
        total += first[changed[k] + 1] - first[changed[k]]
    to, rows, at = np.empty(total, np.int64), np.empty((total, 2), np.int64), 0
    for k in range(len(changed)):
        for edge in range(first[changed[k]], first[changed[k] + 1]):
            to[at], rows[at, 0], rows[at, 1] = pairs[edge, 1] // own, pairs[edge, 1], labels[changed[k]]
            at += 1
    return to, rows


@njit(cache=True)
def asked(wanted: Any, first: int, rank: int) -> Any:
    """To whom questions for values of a table go, and what they say: which, for which place, and who asks."""
    to, rows = np.empty(len(wanted), np.int64), np.empty((len(wanted), 3), np.int64)
    for i in range(len(wanted)):
        to[i] = wanted[i] // TABLE
        rows[i, 0], rows[i, 1], rows[i, 2] = wanted[i] % TABLE, first + i, rank
    return to, rows


@njit(cache=True)
def answered(rows: Any, table: Any) -> Any:
    """To whom values of a table go, and with what: the place where each is wanted, and the value."""
    to, reply = np.empty(len(rows), np.int64), np.empty((len(rows), 3), np.int64)
    for i in range(len(rows)):
        to[i], reply[i, 0], reply[i, 1], reply[i, 2] = rows[i, 2], rows[i, 1], table[rows[i, 0]], 0
    return to, reply


@njit(cache=True, counted=False)
def store(rows: Any, found: Any) -> None:
    """Values where they are wanted."""
    for i in range(len(rows)):
        found[rows[i, 0]] = rows[i, 1]
