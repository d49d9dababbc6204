"""The same job over MPI: `mpirun --with-ft ulfm` starts the replicas, and lets the others live when one is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from assay.sim.ranks import RankFailed
from assay.training.engine import mpi
from assay.training.recover.job import IMPORTS, PATIENCE, Kill, Outcome, Training, joined, train

BEGAN, DIES = "began", "dies"  # what replicas leave word of


def run(training: Training, kills: Sequence[Kill] = (), outside: Sequence[tuple[int, float]] = ()) -> Outcome:
    """The job over ULFM, with these deaths in it.

    Args:
        training: what is trained.
        kills: replicas that end themselves, at a point of a step or somewhat later.
        outside: replicas that this process kills, and how many seconds after all of them have begun to train.

    Raises:
        NotMeasured: there is no Open MPI with ULFM here.
        RankFailed: a replica raised, or the job hung.
    """
    asked = {"training": asdict(training), "kills": [asdict(kill) for kill in kills]}
    target = "assay.training.recover.ulfm_job:replica"
    with mpi.Job(target, training.replicas, asked, limit=PATIENCE, imports=IMPORTS) as job:
        over = threading.Event()
        killer = threading.Thread(target=_kill, args=(job, outside, over), daemon=True)
        killer.start()
        try:
            answers = job.survivors()
        finally:
            over.set()
            killer.join()
        deaths = {**job.noted(DIES), **job.killed}
    return joined(answers, [when for rank, when in deaths.items() if rank not in answers])


def _kill(job: mpi.Job, outside: Sequence[tuple[int, float]], over: threading.Event) -> None:
    """From another process: whatever the replica does just then."""
    while len(job.noted(BEGAN)) < job.ranks and not over.wait(mpi.TICK):
        pass
    began = time.monotonic()
    for rank, after in sorted(outside, key=lambda one: one[1]):
        if over.wait(max(0.0, began + after - time.monotonic())):
            return
        with suppress(RankFailed):  # all were gone by then
            job.kill(rank)


def replica(asked: dict[str, Any]) -> dict[str, Any]:
    """One of them."""
    import torch

    from assay.training.recover.ulfm import Ulfm

    torch.set_num_threads(1)
    training = Training(**asked["training"])
    backend = Ulfm(training.timeout)
    mpi.note(BEGAN)
    mine = [kill for some in asked["kills"] if (kill := Kill(**some)).rank == backend.rank]
    return train(training, backend, mine, dies=lambda: mpi.note(DIES))
