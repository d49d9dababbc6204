"""A pipeline schedule of one's own: all stages do one forward pass more ahead than 1F1B, to hide slow links."""

import numpy as np


class Eager:
    """Runs beside the others: `assay compare training --policy examples/schedule.py:Eager`."""

    key = "eager"
    chunks, split, flush = 1, False, True

    def virtual(self, chunk, stage, pp):
        """Stages in a row."""
        return stage

    def check(self, pp, m):
        """Any number of microbatches will do."""

    def slots(self, stage, pp, m):
        """Rows (what, chunk, microbatch, joined): 0 is forward, 1 backward."""
        warm = min(m, 2 * (pp - stage) - 1)
        order = [(0, 0, i, 0) for i in range(warm)]
        for i in range(m - warm):
            order += [(1, 0, i, 0), (0, 0, warm + i, 0)]
        return np.array(order + [(1, 0, i, 0) for i in range(m - warm, m)])
