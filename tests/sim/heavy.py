"""A module that holds much, for tests of what processes inherit: only where it is named to a server."""

from __future__ import annotations

import multiprocessing

from assay.sim.ranks import Rank

BYTES = 300 << 20
HELD = bytearray(b"1") * BYTES if multiprocessing.parent_process() is None else b""


def size(rank: Rank) -> int:
    """Nothing much."""
    return BYTES
