"""Where a case runs cannot change what it returns."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.record import pool
from assay.record.lab import Lab
from tests.conftest import Package


def doubled(x: int, seed: int) -> dict[str, int]:
    return {"twice": 2 * x + seed}


def compared(x: int, seed: int) -> dict[str, dict[str, int]]:
    return {"slow": {"steps": 10 * x}, "fast": {"steps": x}}


def whoami(x: int, seed: int) -> dict[str, int]:
    return {"pid": os.getpid()}


def shapeless(x: int, seed: int) -> int:
    return x


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_rows_come_in_the_order_of_cases_and_seeds(workers: int) -> None:
    table = Lab("demo", seeds=(0, 1, 2), workers=workers).run(doubled, [{"x": 5}, {"x": 1}])
    assert table.columns == ["x", "seed", "twice"]
    assert table.rows() == [(5, 0, 10), (5, 1, 11), (5, 2, 12), (1, 0, 2), (1, 1, 3), (1, 2, 4)]


def test_methods_compared_side_by_side_become_rows() -> None:
    table = Lab("demo", seeds=(0,)).run(compared, [{"x": 7}], per="method", alone=True)
    assert table.columns == ["x", "method", "seed", "steps"]
    assert table.rows() == [(7, "slow", 0, 70), (7, "fast", 0, 7)]


def test_an_outcome_that_is_no_dict_is_refused() -> None:
    from assay.record.errors import StudyFailed

    with pytest.raises(StudyFailed, match="must return a dict"):
        Lab("demo", seeds=(0,)).run(shapeless, [{"x": 7}])


def test_workers_use_one_thread() -> None:
    ((_, threads),) = pool.local([pool.Task("os:getenv", {"key": "OMP_NUM_THREADS"})], workers=1)
    assert threads == "1"


def test_a_crew_keeps_its_workers_from_one_experiment_to_the_next() -> None:
    tasks = [pool.Task("os:getpid", {}) for _ in range(6)]
    with pool.Crew(2) as crew:
        first, second, one = ({pid for _, pid in crew.run(tasks, most)} for most in (None, 2, 1))
    assert first | second | one <= first | second and 1 <= len(first | second) <= 2 and len(one) == 1
    for pid in first | second:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_abandoned_half_way_is_ended_and_the_crew_works_on() -> None:
    with pool.Crew(2) as crew:
        running = crew.run([pool.Task("os:getpid", {}), pool.Task("time:sleep", {"seconds": 60})])  # the second raises
        next(running)
        running.close()
        slow = crew.run([pool.Task("os:getpid", {}), pool.Task("signal:pause", {})])
        assert next(slow)[0] == 0
        slow.close()  # the one that pauses would never end
        assert [position for position, _ in crew.run([pool.Task("os:getpid", {})])] == [0]


def test_a_timed_case_gets_a_process_of_its_own() -> None:
    with pool.Crew(1) as crew:
        lab = Lab("demo", seeds=(0,), workers=1, crew=crew)
        kept = lab.run(whoami, [{"x": 1}, {"x": 2}])["pid"].to_list()
        alone = lab.run(whoami, [{"x": 3}], alone=True)["pid"].to_list()
        again = lab.run(whoami, [{"x": 4}])["pid"].to_list()
    assert len({*kept, *again}) == 1 and alone[0] not in kept


def test_who_was_timed_first_works_on_for_others_afterwards_but_is_not_timed_again() -> None:
    with pool.Crew(1) as crew:
        lab = Lab("demo", seeds=(0,), workers=1, crew=crew)
        timed, others, again = (
            lab.run(whoami, [{"x": x}], alone=alone)["pid"].to_list() for x, alone in ((1, True), (2, False), (3, True))
        )
    assert timed == others != again


def test_progress_counts_every_case() -> None:
    seen: list[tuple[int, int]] = []
    lab = Lab("demo", seeds=(0, 1), progress=lambda done, total: seen.append((done, total)))
    lab.run(doubled, [{"x": 1}, {"x": 2}])
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'assay[ray]'")


@needs_ray
@pytest.mark.alone  # Ray starts a dozen processes
def test_a_local_ray_gives_the_same_values(with_third: Package) -> None:
    here = with_third.json("run", "third-paper")
    there = with_third.json("run", "third-paper", "--on", "ray")
    assert there["on"] == "ray"
    assert there["table"] == here["table"]
    assert there["claims"] == here["claims"]


@needs_ray
@pytest.mark.alone  # Ray starts a dozen processes
@pytest.mark.slow
def test_a_ray_cluster_behind_an_address_gives_the_same_values(with_third: Package) -> None:
    here = with_third.json("run", "third-paper")
    ray = Path(sys.executable).with_name("ray")
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    # No PYTHONPATH: the cluster does not know the third paper until the run ships it.
    head = [str(ray), "start", "--head", "--port=6398", "--ray-client-server-port=10001", "--include-dashboard=false"]
    subprocess.run(head, env=environment, check=True, capture_output=True)
    try:
        there = with_third.json("run", "third-paper", "--on", "ray://127.0.0.1:10001", RAY_AUTH_MODE="disabled")
    finally:
        subprocess.run([str(ray), "stop", "--force"], env=environment, check=False, capture_output=True)
    assert there["table"] == here["table"]


@needs_ray
@pytest.mark.alone  # Ray starts a dozen processes
def test_a_case_that_raises_on_ray_is_one_line(with_third: Package) -> None:
    said = with_third.assay("run", "third-paper", "--on", "ray", code=1, TRIAL_TROUBLE="raise").stderr.strip()
    assert "ValueError: the third case is" in said
    assert len(said.splitlines()) == 1


@needs_ray
@pytest.mark.alone  # Ray starts a dozen processes
def test_a_ray_that_is_not_there(with_third: Package, tmp_path: Path) -> None:
    said = with_third.assay("run", "third-paper", "--on", "ray://127.0.0.1:9", code=2).stderr.strip()
    assert said.startswith("assay: cannot reach Ray at 'ray://127.0.0.1:9'")
    assert len(said.splitlines()) == 1
