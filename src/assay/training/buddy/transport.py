"""Monte Carlo transport over domains of cells, as large and as often left as those of Quicksilver's first problem.

What is taken from that problem (LLNL's proxy application, CORAL-2): a rank's domain has 16 x 16 x 16 cells of one
centimetre, with neighbours on all six sides; 230 groups of energy, 20 isotopes with 9 reactions each; a total section
of 1.5 / cm, of which absorption, fission and scattering are 4 : 5 : 100; a step of 2 ns, in which a neutron of 10 MeV
(the source's mean) flies 8.7 cm; ten batches a step; a particle is sent with its whole state (136 bytes there, 120
here). So there are two messages for three particles in a step. Every segment reads a section and adds to a tally of its
cell and group, 7.5 MB each, and every collision reads sections of reactions until it has chosen one. Of a fission one
particle goes on, and weights are left out.

`setting` halves the domain's edge so often, which is what strong scaling does: less work between two messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream
from assay.training.buddy import walk
from assay.training.buddy.client import Comm
from assay.training.buddy.rings import Ints

EDGE = 16
BATCHES = 10
PARTICLES = 2048  # of a rank, for every unit of scale: at 64 about the problem's 40 a cell
LINE = 64  # bytes that one word brings along
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Domain:
    """What a rank begins with; tables of reactions, headings and free paths are everybody's."""

    edge: int
    born: Ints
    total: Floats
    flux: Ints  # where tallies are kept, on the same pages in every mode
    micro: Ints
    headings: Floats
    paths: Floats


def domain(rank: int, size: int, scale: int, seed: int, setting: int = 0) -> Domain:
    """A rank's cells and particles."""
    edge, shared, own = EDGE >> setting, stream(seed, "buddy", "physics"), stream(seed, "buddy", "domain", rank)
    headings = shared.normal(size=(1024, 3))
    headings /= np.sqrt((headings**2).sum(axis=1, keepdims=True))
    paths = -np.log((np.arange(4096) + 0.5) / 4096)
    weight = np.tile(np.repeat([0.04, 0.05, 1.0], walk.REACTIONS // 3), walk.ISOTOPES) * shared.uniform(
        0.8, 1.2, (walk.GROUPS, walk.ISOTOPES * walk.REACTIONS)
    )
    micro = (weight / weight.sum(axis=1, keepdims=True) * walk.WHOLE).astype(np.int64)
    micro[:, -1] += walk.WHOLE - micro.sum(axis=1)
    total = 1.5 * own.uniform(0.8, 1.2, edge**3 * walk.GROUPS)
    count = PARTICLES * scale
    born = np.zeros((count, walk.WORDS), np.int64)
    real = born.view(np.float64)
    born[:, walk.NUMBER] = rank * count + np.arange(count)
    born[:, walk.STATE] = own.integers(-(1 << 62), 1 << 62, count)
    born[:, walk.CELL] = own.integers(0, edge**3, count)
    decades = -np.log10(own.uniform(1e-6, 1.0, count))  # below 20 MeV; groups part 10.3 of them
    born[:, walk.GROUP] = np.maximum(0, walk.GROUPS - 1 - decades / 10.3 * walk.GROUPS)
    real[:, walk.PLACE : walk.PLACE + 3] = own.uniform(size=(count, 3))
    real[:, walk.HEADING : walk.HEADING + 3] = headings[own.integers(0, len(headings), count)]
    real[:, walk.FREE] = paths[own.integers(0, len(paths), count)]
    real[:, walk.LEFT] = 8.7
    return Domain(edge, born, total, np.zeros(len(total), np.int64), micro, headings, paths)


def monte_carlo(comm: Comm, given: Domain, setting: int = 0) -> Ints:
    """Particles fly through cells until they are absorbed or the step ends; who leaves the domain goes to a neighbour.

    Upwards through any of three sides lies the next rank, downwards the one before.
    """
    flux, ended = given.flux, np.zeros((2, given.edge**3), np.int64)
    flux[:] = 0

    def track(bank: Ints) -> None:
        out = np.empty(len(bank), np.int64)
        gone, segments, collisions, scanned = walk.walk(
            bank, bank.view(np.float64), given.edge, given.total, given.micro, given.headings, given.paths, flux, ended,
            out,
        )  # fmt: skip
        comm.touched += bank.nbytes + 2 * LINE * segments + 2 * LINE * collisions + 8 * scanned + gone * walk.WORDS * 8
        if gone:
            comm.send((comm.rank + out[:gone]) % comm.size, bank[:gone])

    comm.on(0, track)
    for some in np.array_split(given.born, BATCHES):
        track(some.copy())
        comm.poll()
    comm.quiet()
    comm.touched += 2 * flux.nbytes
    return np.concatenate([flux.reshape(-1, walk.GROUPS).sum(axis=1), ended.ravel()])


def monte_carlo_alone(size: int, scale: int, seed: int, setting: int = 0) -> Ints:
    """The same by one process, with arrays: one segment of all particles at a time."""
    domains = [domain(rank, size, scale, seed, setting) for rank in range(size)]
    cells = domains[0].edge ** 3
    bank = np.concatenate([one.born for one in domains])
    bank[:, walk.CELL] += np.repeat(np.arange(size), [len(one.born) for one in domains]) * cells
    total = np.concatenate([one.total for one in domains])
    flux, ended = np.zeros(size * cells * walk.GROUPS, np.int64), np.zeros((2, size * cells), np.int64)
    while len(bank):
        bank, path, at, census, absorbed = _segment(bank, domains[0], total, size)
        np.add.at(flux, at, (path * walk.FINE).astype(np.int64))
        np.add.at(ended[walk.CENSUS], bank[census, walk.CELL], 1)
        np.add.at(ended[walk.ABSORBED], bank[absorbed, walk.CELL], 1)
        bank = bank[~census & ~absorbed]
    summed = flux.reshape(size, cells, walk.GROUPS).sum(axis=2)
    each = [np.concatenate([summed[rank], ended.reshape(2, size, cells)[:, rank].ravel()]) for rank in range(size)]
    return np.concatenate(each)


def _segment(bank: Ints, given: Domain, total: Floats, size: int) -> tuple[Ints, Floats, Ints, Any, Any]:
    """Every particle's next one: they afterwards, how far it was, where it is tallied, and who has ended."""
    bank = bank.copy()
    real = bank.view(np.float64)
    at = bank[:, walk.CELL] * walk.GROUPS + bank[:, walk.GROUP]
    place, heading = real[:, walk.PLACE : walk.PLACE + 3], real[:, walk.HEADING : walk.HEADING + 3]
    far = np.where(heading > 0, 1.0 - place, -place) / heading
    axis, facet, collision = far.argmin(axis=1), far.min(axis=1), real[:, walk.FREE] / total[at]
    path = np.minimum(real[:, walk.LEFT], np.minimum(collision, facet))
    place += heading * path[:, None]
    real[:, walk.FREE] -= path * total[at]
    census = real[:, walk.LEFT] <= path
    real[:, walk.LEFT] -= path
    collides = ~census & (collision <= facet)
    crosses = ~census & ~collides
    bank[:, walk.SEGMENTS] += 1
    _cross(bank, crosses, axis, given.edge, size)
    return bank, path, at, census, _collide(bank, collides, given)


def _cross(bank: Ints, crosses: Any, axis: Ints, edge: int, size: int) -> None:
    """Into the next cell, of whichever domain."""
    who, along, real = np.flatnonzero(crosses), axis[crosses], bank.view(np.float64)
    up = real[who, walk.HEADING + along] > 0
    real[who, walk.PLACE + along] = np.where(up, 0.0, 1.0)
    rank, cell = np.divmod(bank[who, walk.CELL], edge**3)
    three = np.column_stack(np.unravel_index(cell, (edge,) * 3))
    three[np.arange(len(who)), along] += np.where(up, 1, -1)
    rank = (rank + (three == edge).any(axis=1) - (three < 0).any(axis=1)) % size
    bank[who, walk.CELL] = rank * edge**3 + np.ravel_multi_index(tuple(three.T % edge), (edge,) * 3)


def _collide(bank: Ints, collides: Any, given: Domain) -> Any:
    """Reactions and what comes of them; who is absorbed."""
    who, real = np.flatnonzero(collides), bank.view(np.float64)
    bank[who, walk.COLLISIONS] += 1
    bank[who, walk.STATE] = bank[who, walk.STATE] * walk.FACTOR + walk.ADDEND
    drawn = (bank[who, walk.STATE] >> 40) & (walk.WHOLE - 1)
    upto = given.micro.cumsum(axis=1) + walk.WHOLE * np.arange(walk.GROUPS)[:, None]  # of all groups, one after another
    found = np.searchsorted(upto.ravel(), drawn + walk.WHOLE * bank[who, walk.GROUP], side="right")
    kind = found % walk.REACTIONS // (walk.REACTIONS // 3)
    absorbed = np.zeros(len(bank), bool)
    absorbed[who[kind == 0]] = True
    who, kind = who[kind > 0], kind[kind > 0]
    bank[who, walk.STATE] = bank[who, walk.STATE] * walk.FACTOR + walk.ADDEND
    drawn = bank[who, walk.STATE]
    real[who, walk.HEADING : walk.HEADING + 3] = given.headings[(drawn >> 50) & (len(given.headings) - 1)]
    real[who, walk.FREE] = given.paths[(drawn >> 36) & (len(given.paths) - 1)]
    less = np.maximum(0, bank[who, walk.GROUP] - ((drawn >> 30) & 3))
    bank[who, walk.GROUP] = np.where(kind == 1, walk.GROUPS - 1, less)
    return absorbed
