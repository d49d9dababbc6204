"""A second opinion on suspects: is the rank slow, or did it get the longer sequences? ResiHP's time model decides.

A job logs which sequences every rank got in every step (CSV with step, rank, lengths); `assay watch --lengths FILE`
reads it. Each suspect's time in the stage it is blamed for is held against what the other ranks took for theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from assay.live.watch.gather import Gathering
from assay.live.watch.summary import Named, Summary
from assay.observe.frontier.advances import synchronising_in
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.training.resihp import Iterations

SEQUENCES, SLOW = "long sequences", "slow"


class SecondOpinion:
    """Says of each suspect whether its sequences explain its time; the file is read again when it has grown."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise BadInput(f"{path}: no such folder; the job writes a CSV file with step, rank and lengths there")
        self.path = path
        self._size = -1
        self._read: Iterations | None = None
        if path.exists():
            self._known()  # what is wrong with it is better told now

    def __call__(self, seen: Summary, watched: Gathering) -> Summary:
        """The same summary with what was found in each suspect's `workload`."""
        if not seen.suspects or seen.hang or seen.last_step < 0:
            return seen
        return replace(seen, suspects=[self._judged(one, seen, watched) for one in seen.suspects])

    def _judged(self, one: Named, seen: Summary, watched: Gathering) -> Named:
        from assay.training.resihp import explain

        known, ranks = self._latest(), [row.rank for row in seen.ranks if row.stages]
        if known is None or one.stage not in watched.stages or one.rank not in ranks:
            return one
        if one.stage in synchronising_in(watched.stages):  # mostly waiting for others, whose time is not its own
            return one
        block = watched.block(ranks, seen.first_step, seen.last_step)
        place = {step: at for at, step in enumerate(known.steps)}
        both = [at for at, step in enumerate(block.steps.tolist()) if step in place]
        if not both or max(ranks) >= len(known.tokens):
            return one
        theirs = np.ix_(ranks, [place[int(block.steps[at])] for at in both])
        took = np.where(block.valid[both], block.durations[both, :, block.stages.index(one.stage)], 0).T / 1e9
        found = explain(known.tokens[theirs], known.squares[theirs], took, ranks.index(one.rank))
        if found is None:
            return one
        told = SLOW if found.slow else SEQUENCES
        return replace(one, workload=told, workload_ratio=found.ratio)

    def _latest(self) -> Iterations | None:
        """What is known so far: a job that is just writing a line is asked again the next time."""
        try:
            return self._known()
        except BadInput:
            return self._read

    def _known(self) -> Iterations | None:
        from assay.training.resihp import read_iterations

        size = self.path.stat().st_size if self.path.exists() else -1
        if size >= 0 and size != self._size:
            self._read, self._size = read_iterations(self.path, timed=False), size
        return self._read
