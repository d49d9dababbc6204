"""The compiled part of Monte Carlo transport: particles one after the other, each until it ends or leaves the domain.

A particle is a row of 14 words, whole numbers or the bits of floats. Everything a walk draws comes from its own state,
and floats are only added, multiplied, divided and looked up, so it takes the same way whoever walks it.
"""

from __future__ import annotations

from typing import Any

from assay.sim.compiled import njit

NUMBER, STATE, CELL, GROUP, SEGMENTS, COLLISIONS, PLACE, HEADING, FREE, LEFT = 0, 1, 2, 3, 4, 5, 6, 9, 12, 13
WORDS = 14  # a place within its cell, a heading, free paths to the next collision, centimetres to the step's end
GROUPS = 230  # of energy
REACTIONS = 9  # of each of so many isotopes, in thirds: absorption, fission, scattering
ISOTOPES = 20
WHOLE = 1 << 20  # what sections of all reactions come to
FINE = 1 << 20  # of a tally: paths are added as whole numbers, so that their order does not matter
FACTOR, ADDEND = 6364136223846793005, 1442695040888963407  # of a congruential generator of 64 bits
ABSORBED, CENSUS, OUT = 0, 1, 2
STAYS = -1


@njit(cache=True, counted=False)
def walk(
    bank: Any, real: Any, edge: int, total: Any, micro: Any, headings: Any, paths: Any, flux: Any, ended: Any, out: Any
) -> Any:
    """Particles of `bank` (`real`: the same words as floats); those that leave are moved to its front.

    Args:
        bank: particles in this domain of edge**3 cells.
        real: its view.
        edge: cells.
        total: cross sections by cell and group.
        micro: of every group, the sections of all reactions of all isotopes.
        headings: that a collision may end in.
        paths: free paths to draw from.
        flux: by cell and group, added to.
        ended: absorbed and at the step's end by cell, added to.
        out: of each particle that leaves, whether upwards (1) or downwards (-1).

    Returns:
        How many leave, and how many segments, collisions and sections of reactions were seen.
    """
    gone = segments = collisions = scanned = 0
    for i in range(len(bank)):
        fate = STAYS
        while fate == STAYS:
            at = bank[i, CELL] * GROUPS + bank[i, GROUP]
            axis, facet = nearest(real, i)
            collision = real[i, FREE] / total[at]
            path = min(real[i, LEFT], min(collision, facet))
            flux[at] += int(path * FINE)
            segments += 1
            for k in range(3):
                real[i, PLACE + k] += real[i, HEADING + k] * path
            real[i, FREE] -= path * total[at]
            if real[i, LEFT] <= path:
                fate = CENSUS
            elif collision <= facet:
                real[i, LEFT] -= path
                reaction = collide(bank, i, micro)
                collisions, scanned = collisions + 1, scanned + reaction + 1
                if reaction % REACTIONS < REACTIONS // 3:
                    fate = ABSORBED
                else:
                    scatter(bank, real, i, reaction, headings, paths)
            else:
                real[i, LEFT] -= path
                side = cross(bank, real, i, axis, edge)
                if side:
                    fate, out[gone] = OUT, side
            bank[i, SEGMENTS] += 1
        if fate == OUT:
            for w in range(WORDS):
                bank[gone, w] = bank[i, w]
            gone += 1
        else:
            ended[fate, bank[i, CELL]] += 1
    return gone, segments, collisions, scanned


@njit(cache=True, counted=False)
def nearest(real: Any, i: int) -> Any:
    """The axis along which a particle meets a facet of its cell first, and how far it is."""
    axis, facet = 0, 1e300
    for k in range(3):
        place, heading = real[i, PLACE + k], real[i, HEADING + k]
        far = (1.0 - place) / heading if heading > 0 else -place / heading
        if far < facet:
            axis, facet = k, far
    return axis, facet


@njit(cache=True, counted=False)
def collide(bank: Any, i: int, micro: Any) -> int:
    """Which reaction it is: sections are taken off a drawn number until it is used up."""
    bank[i, COLLISIONS] += 1
    bank[i, STATE] = bank[i, STATE] * FACTOR + ADDEND
    drawn, group, reaction = (bank[i, STATE] >> 40) & (WHOLE - 1), bank[i, GROUP], -1
    while drawn >= 0:
        reaction += 1
        drawn -= micro[group, reaction]
    return reaction


@njit(cache=True, counted=False)
def scatter(bank: Any, real: Any, i: int, reaction: int, headings: Any, paths: Any) -> None:
    """Another heading, a free path and less energy; of a fission one goes on, with all of it."""
    bank[i, STATE] = bank[i, STATE] * FACTOR + ADDEND
    drawn = bank[i, STATE]
    for k in range(3):
        real[i, HEADING + k] = headings[(drawn >> 50) & (len(headings) - 1), k]
    real[i, FREE] = paths[(drawn >> 36) & (len(paths) - 1)]
    if reaction % REACTIONS < 2 * (REACTIONS // 3):
        bank[i, GROUP] = GROUPS - 1
    else:
        bank[i, GROUP] = max(0, bank[i, GROUP] - ((drawn >> 30) & 3))


@njit(cache=True, counted=False)
def cross(bank: Any, real: Any, i: int, axis: int, edge: int) -> int:
    """Into the next cell; whether that lies above (1) or below (-1) the domain, where it enters at the other side."""
    stride = 1 if axis == 2 else edge if axis == 1 else edge * edge
    along = bank[i, CELL] // stride % edge
    up = real[i, HEADING + axis] > 0
    real[i, PLACE + axis] = 0.0 if up else 1.0
    if up and along == edge - 1:
        bank[i, CELL] -= (edge - 1) * stride
        return 1
    if not up and along == 0:
        bank[i, CELL] += (edge - 1) * stride
        return -1
    bank[i, CELL] += stride if up else -stride
    return 0
