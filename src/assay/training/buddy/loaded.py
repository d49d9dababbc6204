"""Imported in the process that ranks are forked from: compiled code is loaded there, once, and not by each of them."""

from __future__ import annotations

import numpy as np

from assay.training.buddy import loops, transport
from assay.training.buddy.client import split
from assay.training.buddy.rings import write
from assay.training.buddy.router import bucket, bucket_new
from assay.training.buddy.walk import walk


def load() -> None:
    """Run what is compiled once."""
    rows, one = np.zeros((1, 2), np.int64), np.zeros(1, np.int64)
    bucket(rows, one)
    bucket_new(one, one.reshape(1, 1), 0, one)
    write(rows, 0, one, one.reshape(1, 1), 0)
    split([rows], one, 1)
    loops.count(rows, one)
    loops.binned(one)
    loops.turned(np.zeros((1, 3), np.int64), 1)
    loops.dealt(rows, 0, 0, 1)
    loops.told(loops.lowered(rows, one, 0, np.zeros(1, np.bool_)), one, np.zeros(2, np.int64), rows, 1)
    loops.asked(one, 0, 0)
    loops.answered(np.zeros((1, 3), np.int64), one)
    loops.store(rows, one)
    cells = transport.domain(0, 1, 0, 0, 4)
    walk(
        cells.born, cells.born.view(np.float64), cells.edge, cells.total, cells.micro, cells.headings, cells.paths,
        cells.flux, np.zeros((2, 1), np.int64), one,
    )  # fmt: skip


load()
