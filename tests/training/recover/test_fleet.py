"""512 GPUs by the engine: what each rule costs follows from what it does again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.training.recover import fleet
from assay.training.recover.fleet import Fleet, failures, run

SMALL = Fleet("3d", batch=128, gpus=64)
DEATHS = [5, 10, 15, 20]


def test_without_deaths_all_rules_that_use_all_gpus_take_a_steps_time_for_a_step() -> None:
    step = SMALL.pace(8, 16)
    found = run(SMALL, "recover", [], budget=10 * step * 64 - 1)
    assert (found.steps, found.seconds) == (10, pytest.approx(10 * step))


def test_the_batch_stays_with_recover_and_restart_and_shrinks_where_replicas_are_dropped() -> None:
    found = {system: run(SMALL, system, DEATHS) for system in fleet.SYSTEMS}
    assert {name: ran.smallest for name, ran in found.items()} == {
        "recover": 128, "spares": 128, "restart": 128, "drop-and-go": 64,
    }  # fmt: skip
    assert all(ran.deaths == 4 for ran in found.values())


def test_a_death_costs_recover_the_time_out_the_mending_and_the_missing_share() -> None:
    calm, hit = run(SMALL, "recover", [], 1.0), run(SMALL, "recover", [1])
    extra = fleet.NOTICE + fleet.MEND + SMALL.pace(7, -(-16 // 7))
    assert hit.seconds == pytest.approx(calm.seconds + extra)


def test_recovery_does_not_depend_on_checkpoints_and_restarts_choose_their_best_interval() -> None:
    best = run(SMALL, "restart", DEATHS)
    others = [fleet._run(SMALL, "restart", DEATHS, None, every) for every in fleet.EVERY]
    assert best.effective == max(ran.effective for ran in others)
    assert run(SMALL, "recover", DEATHS).every == 0


def test_slower_restarts_are_worse_and_leave_the_others_alone() -> None:
    slow = replace(SMALL, again=600.0)
    assert run(slow, "restart", DEATHS).effective < run(SMALL, "restart", DEATHS).effective
    assert run(slow, "recover", DEATHS).effective == run(SMALL, "recover", DEATHS).effective


def test_half_of_the_replicas_die_about_five_steps_apart() -> None:
    gaps = [failures(Fleet(), seed)[-1] / 32 for seed in range(40)]
    assert len(failures(Fleet(), 0)) == 32
    assert sum(gaps) / len(gaps) == pytest.approx(5, rel=0.1)


def test_batches_are_those_with_which_the_loss_of_half_takes_the_hours() -> None:
    batch = fleet.calibrated("3d", 234.0)
    deaths = list(range(5, 161, 5))
    took = [run(Fleet("3d", batch=n), "recover", deaths).gpu_seconds / fleet.HOUR for n in (batch - 64, batch)]
    assert took[0] < 234.0 <= took[1]
