"""Whichever replicated process is killed, at whichever call: the result is that of a job in which nobody died."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from assay.training.engine import mpi
from assay.training.partreper import Interrupted, launch, model, trials
from assay.training.partreper.launch import Kill, Ran, Task

pytestmark = [
    pytest.mark.skipif(mpi.mpirun() is None, reason="needs the extra mpi"),
    pytest.mark.alone,  # up to six processes that meet all the time
]
RANKS, TWINS = 4, (0, 1)
PAIRS = ((0, 4), (1, 5))
STEPS = 3


def task(kernel: str) -> Task:
    return Task(kernel, trials.SMALL[kernel] // 12 * 12, STEPS, seed=5)


@cache
def calm(kernels: tuple[str, ...], ranks: int = RANKS, twins: tuple[int, ...] = TWINS) -> Ran:
    return launch.run([task(kernel) for kernel in kernels], ranks, twins)


def survives(kernels: tuple[str, ...], kills: list[Kill], ranks: int = RANKS, twins: tuple[int, ...] = TWINS) -> int:
    """Run with these deaths, compare, and say how many processes really died."""
    ran = launch.run([task(kernel) for kernel in kernels], ranks, twins, kills)
    assert trials.same(ran, calm(kernels, ranks, twins), ranks), (kernels, kills)
    assert set(ran.died) <= {who for who, _, _ in kills}
    return len(ran.died)


def calls(kernel: str, who: int) -> int:
    return int(calm((kernel,)).reports[who]["points"]["call"])


EVERY = tuple(trials.SMALL)


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Of a test's own: one that was there before, such as a server of forks, may stay."""
    before = children()
    yield
    assert children() <= before


def test_a_job_with_deaths_of_two_pairs_finds_what_a_calm_one_finds() -> None:
    """The quick twin of the fuzz below: all programs in one job of three ranks, two of them replicated."""
    report = calm(EVERY, 3, TWINS).reports
    assert {who: one["rank"] for who, one in report.items()} == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}
    for rank, twin in ((0, 3), (1, 4)):  # both carriers end in the same state, whoever came first for rank 0
        assert report[rank]["state"] == report[twin]["state"]
    assert calm(EVERY, 3, TWINS).result(EVERY.index("farm"))[0][1] == 1.0  # served as often as counted
    assert survives(EVERY, [(1, "call", 20), (3, "recovery", 2)], 3, TWINS) == 2


def test_messages_are_one_for_each_carrier_and_a_rank_without_a_replica_is_named() -> None:
    tasks = [task(kernel) for kernel in ("heat", "is")]
    wanted = sum((model.messages(one.kernel, 2, STEPS) for one in tasks), np.zeros((2, 2), np.int64))
    ran = launch.run(tasks, 2, (1,))
    assert ran.total("sent") + ran.total("collective") == model.copies(wanted, (1,))
    assert ran.total("logical") == wanted.sum() and ran.total("resent") == ran.total("replayed") == 0
    with pytest.raises(Interrupted, match="rank 0 died and has no replica left") as end:
        launch.run(tasks, 2, (1,), [(0, "call", 7)])
    assert end.value.rank == 0


@pytest.mark.slow
def test_messages_are_as_counted_for_every_program_and_degree() -> None:
    for kernel in ("cg", "ep", "is", "ft", "heat"):
        for ranks, twins in ((3, (1,)), (4, (0, 2)), (2, (0, 1))):
            ran = launch.run([task(kernel)], ranks, twins)
            wanted = model.copies(model.messages(kernel, ranks, STEPS), twins)
            assert ran.total("sent") + ran.total("collective") == wanted, (kernel, ranks, twins)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", EVERY)
def test_any_replicated_process_may_die_at_any_call(kernel: str) -> None:
    """Every program, each of four victims, at drawn calls and wire messages; two pairs; a death within recovery."""
    draw = random.Random(kernel)
    died = 0
    for who in (0, 1, 4, 5):
        some = calls(kernel, who)
        for at in sorted({0, some - 1, *(draw.randrange(some) for _ in range(4))}):
            died += survives((kernel,), [(who, "call", at)])
        died += survives(
            (kernel,), [(who, "send", draw.randrange(int(calm((kernel,)).reports[who]["points"]["send"])))]
        )
    for first, second in ((0, 1), (1, 0), (0, 1), (1, 0)):
        one, other = draw.choice(PAIRS[first]), draw.choice(PAIRS[second])
        died += survives((kernel,), [(who, "call", draw.randrange(calls(kernel, who))) for who in (one, other)])
    for stage in range(5):
        one, other = draw.choice(PAIRS[stage % 2]), draw.choice(PAIRS[1 - stage % 2])
        died += survives(
            (kernel,), [(one, "call", draw.randrange(calls(kernel, one) // 2)), (other, "recovery", stage)]
        )
    print(f"{kernel}: {died} processes died")


@pytest.mark.slow
def test_both_of_a_pair_are_too_many_and_a_death_of_the_unreplicated_is_told_at_every_call() -> None:
    for kills in ([(0, "call", 9), (4, "call", 12)], [(2, "call", 0)], [(3, "call", 30)], [(2, "send", 11)]):
        with pytest.raises(Interrupted) as end:
            launch.run([task("cg"), task("heat")], RANKS, TWINS, kills)
        assert end.value.rank == kills[0][0]
