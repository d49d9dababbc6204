"""The rivals of the lattice: right in what they say, and silent about the rest."""

from __future__ import annotations

import pytest

from assay.protocols.judges.lattice import STRONGER
from assay.protocols.lcc import rivals
from assay.workloads import planted_histories as planted


@pytest.mark.parametrize("plant", ["none", *planted.PLANTS])
def test_cycles_and_the_checker_say_nothing_that_the_judges_do_not(plant: str) -> None:
    for seed in range(3):
        history = planted.registers(30, seed=seed)
        if plant != "none":
            history, _ = planted.plant(history, plant, seed)
        everything = rivals.flat(history).broken
        assert rivals.lattice(history).broken == everything
        assert rivals.linearizability(history).broken == everything & {"linearizable"}
        assert rivals.cycles(history).broken <= everything & {"linearizable", "sequential"}


@pytest.mark.parametrize("plant", ["store-buffer", "long-fork", "reordered-writes", "own-write-missed", "lost-cause"])
def test_cycles_find_what_breaks_one_order_for_all(plant: str) -> None:
    history, _ = planted.plant(planted.registers(20, seed=1), plant, 1)
    assert rivals.cycles(history).broken == {"linearizable", "sequential"}


def test_cycles_tell_real_time_from_program_order() -> None:
    history, _ = planted.plant(planted.registers(20, seed=1), "stale-read", 1)
    assert rivals.cycles(history).broken == {"linearizable"}
    assert rivals.cycles(planted.registers(20, seed=1)).broken == frozenset()


def test_the_lattice_asks_fewer_the_more_holds() -> None:
    clean = planted.registers(30, seed=2)
    spoiled, _ = planted.plant(clean, "own-write-missed", 2)
    assert rivals.lattice(clean).asked < rivals.lattice(spoiled).asked <= rivals.flat(spoiled).asked == len(STRONGER)
