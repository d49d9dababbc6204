"""What a function's image holds: importing this loads the compiled code, so whoever is forked from it starts warm."""

from __future__ import annotations

import numpy as np

from assay.data.graphflash.function import handle as handle
from assay.data.graphflash.parts import cut, join, network
from assay.data.graphflash.programs import NOTHING, PROGRAMS, Mail, Params


def load() -> None:
    """Run every program on two small parts, with mail and without."""
    square = network([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], np.ones(5)).symmetric
    for program in PROGRAMS.values():
        for alone in cut(square, np.array([0, 0, 1, 1]), 2):
            part = join([alone], 1)
            keys = part.far if program.name in ("labels", "triangles") else part.own
            for local in (True, False):
                state = program.start(part, Params(n=4))
                program.turn(part, state, NOTHING, 0, Params(n=4), local)
                program.turn(part, state, Mail(keys, keys.astype(np.float64)), 1, Params(n=4), local)


load()
