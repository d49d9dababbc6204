"""Fail-stop by heartbeats: every rank counts up in shared memory, and who does not while others do has stopped.

Silence is measured in looks of the watcher in which somebody advanced, not in seconds: a machine that stood still for a
while, the watcher included, accuses nobody.

>>> beats = Heartbeats(ranks=2, patience=3)
>>> [sorted(beats.look([count, 7])) for count in range(5)]
[[], [], [], [1], [1]]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks

EVERY = 0.01  # seconds between two beats, and between two looks
PATIENCE = 60  # looks
IMPORTS = ("torch", "assay.training.resihp.job")  # what ranks begin with: 26 that each import them take 20 s
LONGEST = 6000  # looks after which a rank that was not found counts as missed


class Heartbeats:
    """What a watcher remembers of every rank's count."""

    def __init__(self, ranks: int, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._last: list[int] = [-1] * ranks
        self._silent = [0] * ranks

    def look(self, counts: Sequence[int]) -> set[int]:
        """Who has been silent for too long, after one more look."""
        moved = [now != before for now, before in zip(counts, self._last, strict=True)]
        for rank, now in enumerate(counts):
            if moved[rank]:
                self._silent[rank] = 0
            elif any(moved):
                self._silent[rank] += 1
            self._last[rank] = int(now)
        return {rank for rank, silent in enumerate(self._silent) if silent >= self.patience}


def beating(counts: Any, index: int, over: threading.Event) -> threading.Thread:
    """A thread that beats for a rank, whatever that does meanwhile, until it is told that it is over."""

    def beat() -> None:
        while not over.wait(EVERY):
            counts[index] += 1

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    return thread


def _idle(rank: Rank) -> None:
    """A rank that does nothing but live."""
    counts, leave = rank.array("counts"), rank.array("leave")
    rank.meet(600.0)
    over = threading.Event()
    thread = beating(counts, rank.index, over)
    while not leave[0]:
        time.sleep(EVERY)
    over.set()
    thread.join()


def stops(ranks: int, faults: int, seed: int) -> dict[str, Any]:
    """Real processes, some of them killed or frozen at drawn moments: who was found, and who was accused in vain."""
    random = stream(seed, "resihp", "stops", ranks)
    hit = random.permutation(ranks)[:faults].tolist()
    when = dict(zip(hit, np.sort(random.integers(10, 10 + PATIENCE, faults)).tolist(), strict=True))
    frozen = {rank for rank in hit if random.random() < 0.5}
    accused: set[int] = set()
    late: dict[int, int] = {}
    arrays = {"counts": np.zeros(ranks, np.int64), "leave": np.zeros(1, np.int64)}
    with Ranks(ranks, _idle, arrays=arrays, imports=IMPORTS) as running:
        counts = running.array("counts")
        while not (counts > 0).all():
            time.sleep(EVERY)
        beats = Heartbeats(ranks)
        for turn in range(LONGEST):
            for rank in (one for one in hit if when[one] == turn):
                running.stop(rank) if rank in frozen else running.kill(rank)
            for rank in beats.look(counts.tolist()):
                if turn >= when.get(rank, LONGEST):
                    late.setdefault(rank, turn - when[rank])
                else:
                    accused.add(rank)
            if len(late) == faults:
                break
            time.sleep(EVERY)
        running.array("leave")[0] = 1
    return {"found": len(late), "faults": faults, "accused": len(accused), "looks": max(late.values(), default=LONGEST)}
