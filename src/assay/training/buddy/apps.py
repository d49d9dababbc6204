"""Five small applications that really compute and communicate, each with what one process would find.

Messages are rows of whole numbers, handled in batches. Every result is exact: sums of counts, sets, minima, bits of
floats that are only moved. `scale` multiplies the work, `passes` how often the histogram reads memory for every batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from assay.sim.random import stream
from assay.training.buddy.client import Comm
from assay.training.buddy.rings import Ints

BATCH = 8192
BINS = 1 << 14  # a rank's
TABLE = 1 << 17  # of cross sections, and of values to gather: a rank's megabyte
CELLS = 256


def _keys(rank: int, size: int, scale: int, seed: int) -> Ints:
    return stream(seed, "buddy", "histogram", rank).integers(0, BINS * size, BATCH * scale)


def histogram(comm: Comm, scale: int, seed: int, passes: int = 0) -> Ints:
    """Counts of keys, each bin with its owner; before every batch memory is read so many times."""
    bins, resident = np.zeros(BINS, np.int64), np.arange(1 << 16)

    def add(rows: Ints) -> None:
        bins[:] += np.bincount(rows[:, 0], minlength=BINS)
        comm.touched += rows.nbytes + 2 * bins.nbytes

    comm.on(0, add)
    for keys in np.split(_keys(comm.rank, comm.size, scale, seed), scale):
        for _ in range(passes):
            resident.sum()
            comm.touched += resident.nbytes
        comm.send(keys // BINS, keys % BINS)
        comm.touched += keys.nbytes
        comm.poll()
    comm.quiet()
    return bins


def histogram_alone(size: int, scale: int, seed: int) -> Ints:
    """The same by one process."""
    keys = np.concatenate([_keys(rank, size, scale, seed) for rank in range(size)])
    return np.bincount(keys, minlength=BINS * size)


def _entries(rank: int, size: int, scale: int, seed: int) -> Ints:
    """Of a rank's block of rows of a sparse matrix: row, column, value, each place once."""
    random, rows = stream(seed, "buddy", "transpose", rank), 512 * scale
    places = np.unique(random.integers(0, rows * rows * size, 4 * BATCH * scale // 2))
    row, column = rank * rows + places // (rows * size), places % (rows * size)
    return np.column_stack([row, column, random.integers(-(1 << 60), 1 << 60, len(places))])


def transpose(comm: Comm, scale: int, seed: int) -> Ints:
    """A sparse matrix by columns: every entry goes to its column's owner, who sorts what came."""
    got: list[Ints] = []
    comm.on(0, got.append)
    entries, rows = _entries(comm.rank, comm.size, scale, seed), 512 * scale
    for some in np.array_split(entries, scale):
        comm.send(some[:, 1] // rows, some[:, [1, 0, 2]])
        comm.touched += some.nbytes
        comm.poll()
    comm.quiet()
    return _sorted(comm, got)


def _sorted(comm: Comm, got: list[Ints]) -> Ints:
    every = np.concatenate(got) if got else np.zeros((0, 3), np.int64)
    comm.touched += 12 * every.nbytes  # a sort by two keys passes over it some times
    return np.asarray(every[np.lexsort((every[:, 1], every[:, 0]))]).ravel()


def transpose_alone(size: int, scale: int, seed: int) -> Ints:
    """The same by one process."""
    every = np.concatenate([_entries(rank, size, scale, seed) for rank in range(size)])[:, [1, 0, 2]]
    return np.asarray(every[np.lexsort((every[:, 1], every[:, 0]))]).ravel()


def _mixed(number: Ints, step: Ints) -> Ints:
    """Drawn bits of a particle's step, whoever tracks it."""
    bits = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= step.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(31)
    bits *= np.uint64(0x94D049BB133111EB)
    return np.asarray((bits ^ (bits >> np.uint64(29))) >> np.uint64(1)).astype(np.int64)


def _track(bank: Ints, lower: int, upper: int, table: Ints, tally: Ints, touch: Callable[[int], None]) -> Ints:
    """Particles (number, cell, step) until each is absorbed or outside lower ... upper; those outside."""
    gone = []
    while len(bank):
        drawn = _mixed(bank[:, 0], bank[:, 2])
        section = table[drawn % TABLE] + table[(drawn >> 20) % TABLE] + table[(drawn >> 37) % TABLE]
        touch(4 * bank.nbytes + 3 * 64 * len(bank))  # a gathered word brings a cache line
        absorbed = section % 32 == 0
        tally += np.bincount(bank[absorbed, 1] - lower, minlength=len(tally))
        moved = bank[~absorbed]
        moved[:, 1] += np.where(section[~absorbed] & 1, 1, -1)
        moved[:, 2] += 1
        inside = (moved[:, 1] >= lower) & (moved[:, 1] < upper)
        gone.append(moved[~inside])
        bank = moved[inside]
    return np.concatenate(gone) if gone else bank


def _sections(seed: int) -> Ints:
    return stream(seed, "buddy", "sections").integers(0, 1 << 30, TABLE)


def _born(rank: int, size: int, scale: int, seed: int) -> Ints:
    count, random = BATCH * scale // 4, stream(seed, "buddy", "particles", rank)
    cells = rank * CELLS + random.integers(0, CELLS, count)
    return np.column_stack([rank * count + np.arange(count), cells, np.zeros(count, np.int64)])


def monte_carlo(comm: Comm, scale: int, seed: int) -> Ints:
    """Particles walk over a row of cells until they are absorbed; who leaves a rank's cells goes to its neighbour."""
    lower, upper, last = comm.rank * CELLS, (comm.rank + 1) * CELLS, comm.size * CELLS
    table, tally = _sections(seed), np.zeros(CELLS, np.int64)

    def touch(nbytes: int) -> None:
        comm.touched += nbytes

    def track(rows: Ints) -> None:
        left = _track(rows.copy(), lower, upper, table, tally, touch)
        left = left[(left[:, 1] >= 0) & (left[:, 1] < last)]
        if len(left):
            comm.send(left[:, 1] // CELLS, left)

    comm.on(0, track)
    for some in np.array_split(_born(comm.rank, comm.size, scale, seed), max(1, scale // 2)):
        track(some)
        comm.poll()
    comm.quiet()
    return tally


def monte_carlo_alone(size: int, scale: int, seed: int) -> Ints:
    """The same by one process."""
    tally = np.zeros(size * CELLS, np.int64)
    bank = np.concatenate([_born(rank, size, scale, seed) for rank in range(size)])
    _track(bank, 0, size * CELLS, _sections(seed), tally, lambda nbytes: None)
    return tally


def _edges(rank: int, size: int, scale: int, seed: int) -> Ints:
    """Of a rank's vertices: from, to; about one edge a vertex, so that there are many components."""
    own = BATCH * scale // 4
    random = stream(seed, "buddy", "edges", rank)
    return np.column_stack([rank * own + random.integers(0, own, own // 2), random.integers(0, own * size, own // 2)])


def components(comm: Comm, scale: int, seed: int) -> Ints:
    """Every vertex with the least number of its component: labels that fall are passed on to neighbours at once."""
    own = BATCH * scale // 4
    lower = comm.rank * own
    labels = lower + np.arange(own)
    near: list[Ints] = []
    comm.on(1, near.append)  # edges that others found to end here
    edges = _edges(comm.rank, comm.size, scale, seed)
    comm.send(edges[:, 1] // own, edges[:, ::-1], tag=1)
    comm.quiet()
    pairs = np.concatenate([edges, *near])
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    first = np.searchsorted(pairs[:, 0], lower + np.arange(own + 1))
    comm.touched += 4 * pairs.nbytes

    def spread(changed: Ints) -> None:
        counts = first[changed + 1] - first[changed]
        at = np.repeat(first[changed], counts) + np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        to = pairs[at, 1]
        comm.touched += 3 * at.nbytes
        if len(to):
            comm.send(to // own, np.column_stack([to, np.repeat(labels[changed], counts)]))

    def lower_labels(rows: Ints) -> None:
        at = rows[:, 0] - lower
        before = labels[at]
        np.minimum.at(labels, at, rows[:, 1])
        comm.touched += 4 * rows.nbytes
        spread(np.unique(at[labels[at] < before]))

    comm.on(0, lower_labels)
    comm.quiet()  # nobody sends labels to who has no handler yet
    spread(np.arange(own))
    comm.quiet()
    return labels


def components_alone(size: int, scale: int, seed: int) -> Ints:
    """The same by one process."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.concatenate([_edges(rank, size, scale, seed) for rank in range(size)])
    n = BATCH * scale // 4 * size
    _, found = connected_components(coo_array((np.ones(len(edges)), edges.T), shape=(n, n)), directed=False)
    least = np.full(found.max() + 1, n)
    np.minimum.at(least, found, np.arange(n))
    return np.asarray(least[found])


def _asked(rank: int, size: int, scale: int, seed: int) -> Ints:
    return stream(seed, "buddy", "gather", rank).integers(0, TABLE * size, BATCH * scale // 2)


def gather(comm: Comm, scale: int, seed: int) -> Ints:
    """Values of a table that lies spread over all ranks: a question to the owner, and its answer."""
    table = stream(seed, "buddy", "table", comm.rank).integers(0, 1 << 60, TABLE)
    asked = _asked(comm.rank, comm.size, scale, seed)
    found = np.full(len(asked), -1)

    def answer(rows: Ints) -> None:
        reply = np.column_stack([rows[:, 1], table[rows[:, 0]]])
        comm.touched += 64 * len(rows)
        comm.send(rows[:, 2], np.column_stack([reply, np.zeros(len(rows), np.int64)]), tag=1)

    def store(rows: Ints) -> None:
        found[rows[:, 0]] = rows[:, 1]
        comm.touched += 64 * len(rows)

    comm.on(0, answer)
    comm.on(1, store)
    for places in np.array_split(np.arange(len(asked)), max(1, scale // 2)):
        want = asked[places]
        comm.send(want // TABLE, np.column_stack([want % TABLE, places, np.full(len(places), comm.rank)]))
        comm.poll()
    comm.quiet()
    return found


def gather_alone(size: int, scale: int, seed: int) -> Ints:
    """The same by one process."""
    table = np.concatenate([stream(seed, "buddy", "table", rank).integers(0, 1 << 60, TABLE) for rank in range(size)])
    return np.asarray(table[np.concatenate([_asked(rank, size, scale, seed) for rank in range(size)])])


App = Callable[..., Ints]
APPS: dict[str, tuple[App, Callable[[int, int, int], Ints], int]] = {
    "histogram": (histogram, histogram_alone, 1),
    "transpose": (transpose, transpose_alone, 3),
    "monte-carlo": (monte_carlo, monte_carlo_alone, 3),
    "components": (components, components_alone, 2),
    "gather": (gather, gather_alone, 3),
}  # what it runs, what one process finds, words of a payload
