"""Five small applications that really compute and communicate, each with what one process would find.

Messages are rows of whole numbers, handled in batches by compiled loops, so that a row costs the same in a batch of few
as in one of many. Every result is exact: sums of counts, sets, minima, bits of floats that are only moved. `scale`
multiplies the work; `setting` is how often the histogram reads memory for every batch, and how often the domains of
Monte Carlo transport are halved. Input is made before the clock begins.

What an application touches is counted by one rule: what is read or written in order by its bytes, and a word somewhere
in a table by the cache line that it brings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from assay.sim.random import stream
from assay.training.buddy import loops, transport, walk
from assay.training.buddy.client import Comm
from assay.training.buddy.loops import BINS, TABLE
from assay.training.buddy.rings import Ints
from assay.training.buddy.transport import LINE

BATCH = 8192


def _keys(rank: int, size: int, scale: int, seed: int, setting: int = 0) -> tuple[Ints, Ints]:
    """A rank's keys, and half a megabyte to read, which lies on the same pages in every mode."""
    return stream(seed, "buddy", "histogram", rank).integers(0, BINS * size, BATCH * scale), np.arange(1 << 16)


def histogram(comm: Comm, given: tuple[Ints, Ints], setting: int = 0) -> Ints:
    """Counts of keys, each bin with its owner; before every batch memory is read so many times."""
    mine, resident = given
    bins = np.zeros(BINS, np.int64)

    def add(rows: Ints) -> None:
        loops.count(rows, bins)
        comm.touched += rows.nbytes + LINE * len(rows)

    comm.on(0, add)
    for keys in np.split(mine, len(mine) // BATCH):
        for _ in range(setting):
            resident.sum()
            comm.touched += resident.nbytes
        comm.send(*loops.binned(keys))
        comm.touched += 3 * keys.nbytes
        comm.poll()
    comm.quiet()
    return bins


def histogram_alone(size: int, scale: int, seed: int, setting: int = 0) -> Ints:
    """The same by one process."""
    keys = np.concatenate([_keys(rank, size, scale, seed)[0] for rank in range(size)])
    return np.bincount(keys, minlength=BINS * size)


def _entries(rank: int, size: int, scale: int, seed: int, setting: int = 0) -> tuple[Ints, int]:
    """Of a rank's block of rows of a sparse matrix: row, column, value, each place once; and how many rows."""
    random, rows = stream(seed, "buddy", "transpose", rank), 512 * scale
    places = np.unique(random.integers(0, rows * rows * size, 4 * BATCH * scale // 2))
    row, column = rank * rows + places // (rows * size), places % (rows * size)
    return np.column_stack([row, column, random.integers(-(1 << 60), 1 << 60, len(places))]), rows


def transpose(comm: Comm, given: tuple[Ints, int], setting: int = 0) -> Ints:
    """A sparse matrix by columns: every entry goes to its column's owner, who puts in order what came."""
    got: list[Ints] = []
    comm.on(0, got.append)
    entries, rows = given
    for some in np.array_split(entries, max(1, len(entries) // (2 * BATCH))):
        comm.send(*loops.turned(some, rows))
        comm.touched += 2 * some.nbytes + 8 * len(some)
        comm.poll()
    comm.quiet()
    every = np.concatenate(got) if got else np.zeros((0, 3), np.int64)
    comm.touched += 2 * every.nbytes
    for word, lowest, keys in ((1, 0, rows * comm.size), (0, comm.rank * rows, rows)):  # first by row, then by column
        every, first = loops.dealt(every, word, lowest, keys)
        comm.touched += 2 * every.nbytes + LINE * len(every) + 2 * first.nbytes
    return every.ravel()


def transpose_alone(size: int, scale: int, seed: int, setting: int = 0) -> Ints:
    """The same by one process."""
    every = np.concatenate([_entries(rank, size, scale, seed)[0] for rank in range(size)])[:, [1, 0, 2]]
    return np.asarray(every[np.lexsort((every[:, 1], every[:, 0]))]).ravel()


def _edges(rank: int, size: int, scale: int, seed: int, setting: int = 0) -> tuple[Ints, int]:
    """Of a rank's vertices: from, to; about one edge a vertex, so that there are many components. And how many."""
    own, random = BATCH * scale // 4, stream(seed, "buddy", "edges", rank)
    return np.column_stack(
        [rank * own + random.integers(0, own, own // 2), random.integers(0, own * size, own // 2)]
    ), own


def components(comm: Comm, given: tuple[Ints, int], setting: int = 0) -> Ints:
    """Every vertex with the least number of its component: labels that fall are passed on to neighbours at once."""
    edges, own = given
    lowest = comm.rank * own
    labels, marked = lowest + np.arange(own), np.zeros(own, np.bool_)
    near: list[Ints] = []
    comm.on(1, near.append)  # edges that others found to end here
    comm.send(edges[:, 1] // own, edges[:, ::-1], tag=1)
    comm.quiet()
    pairs, first = loops.dealt(np.concatenate([edges, *near]), 0, lowest, own)
    comm.touched += 4 * pairs.nbytes + LINE * len(pairs) + 2 * first.nbytes

    def spread(changed: Ints) -> None:
        to, rows = loops.told(changed, labels, first, pairs, own)
        comm.touched += 2 * LINE * len(changed) + to.nbytes + rows.nbytes
        if len(to):
            comm.send(to, rows)

    def lower_labels(rows: Ints) -> None:
        comm.touched += rows.nbytes + LINE * len(rows)
        spread(loops.lowered(rows, labels, lowest, marked))

    comm.on(0, lower_labels)
    comm.quiet()  # nobody sends labels to who has no handler yet
    spread(np.arange(own))
    comm.quiet()
    return labels


def components_alone(size: int, scale: int, seed: int, setting: int = 0) -> Ints:
    """The same by one process."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.concatenate([_edges(rank, size, scale, seed)[0] for rank in range(size)])
    n = BATCH * scale // 4 * size
    _, found = connected_components(coo_array((np.ones(len(edges)), edges.T), shape=(n, n)), directed=False)
    least = np.full(found.max() + 1, n)
    np.minimum.at(least, found, np.arange(n))
    return np.asarray(least[found])


def _asked(rank: int, size: int, scale: int, seed: int, setting: int = 0) -> tuple[Ints, Ints]:
    """A rank's part of a table, and what it wants to know of all of it."""
    table = stream(seed, "buddy", "table", rank).integers(0, 1 << 60, TABLE)
    return table, stream(seed, "buddy", "gather", rank).integers(0, TABLE * size, BATCH * scale // 2)


def gather(comm: Comm, given: tuple[Ints, Ints], setting: int = 0) -> Ints:
    """Values of a table that lies spread over all ranks: a question to the owner, and its answer."""
    table, asked = given
    found = np.full(len(asked), -1)

    def answer(rows: Ints) -> None:
        to, reply = loops.answered(rows, table)
        comm.touched += rows.nbytes + LINE * len(rows) + to.nbytes + reply.nbytes
        comm.send(to, reply, tag=1)

    def keep(rows: Ints) -> None:
        loops.store(rows, found)
        comm.touched += rows.nbytes + LINE * len(rows)

    comm.on(0, answer)
    comm.on(1, keep)
    for first in range(0, len(asked), BATCH):
        want = asked[first : first + BATCH]
        comm.send(*loops.asked(want, first, comm.rank))
        comm.touched += 5 * want.nbytes
        comm.poll()
    comm.quiet()
    return found


def gather_alone(size: int, scale: int, seed: int, setting: int = 0) -> Ints:
    """The same by one process."""
    tables, wanted = zip(*(_asked(rank, size, scale, seed) for rank in range(size)), strict=True)
    return np.asarray(np.concatenate(tables)[np.concatenate(wanted)])


class App(NamedTuple):
    """What a rank is given and runs on that, what one process finds, and how many words a payload has.

    `given` is a function of rank, size, scale, seed and setting; `alone` of the same without a rank.
    """

    given: Callable[..., Any]
    run: Callable[..., Ints]
    alone: Callable[..., Ints]
    words: int


APPS = {
    "histogram": App(_keys, histogram, histogram_alone, 1),
    "transpose": App(_entries, transpose, transpose_alone, 3),
    "monte-carlo": App(transport.domain, transport.monte_carlo, transport.monte_carlo_alone, walk.WORDS),
    "components": App(_edges, components, components_alone, 2),
    "gather": App(_asked, gather, gather_alone, 3),
}
