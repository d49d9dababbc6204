"""What a function's image holds: importing this loads the compiled code, so whoever is forked from it starts warm."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from assay.data.graphflash.function import handle as handle
from assay.data.graphflash.parts import cut, join, network
from assay.data.graphflash.programs import PROGRAMS, Mail, Params

ARENAS, MAPPED_FROM = -8, -3  # mallopt's M_ARENA_MAX and M_MMAP_THRESHOLD


def frugal() -> None:
    """Let freed memory go back at once: a function that takes one part after the other must not keep the last one's.

    By itself malloc keeps what threads free in heaps of their own, and the more of it the larger the blocks are.
    """
    tune: Any = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if tune is not None:
        tune(ARENAS, 1)
        tune(MAPPED_FROM, 1 << 17)


def load() -> None:
    """Run every program on two small parts, with mail and without."""
    square = network([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], np.ones(5)).symmetric
    for program in PROGRAMS.values():
        for alone in cut(square, np.array([0, 0, 1, 1]), 2):
            part = join([alone], 1)
            keys = part.far if program.name in ("labels", "triangles") else part.own
            for local in (True, False):
                state = program.start(part, Params(n=4))
                program.turn(part, state, 0, Params(n=4), local)
                program.absorb(part, state, Mail(keys, keys.astype(np.float64)))


frugal()
load()
