"""Ranks are real processes: they answer, fail aloud, can be killed or frozen, and never outlive the block."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from assay.record import timing
from assay.sim.ranks import Rank, RankFailed, Ranks, fill


def fail(rank: Rank) -> None:
    if rank.index == 1:
        raise ValueError("on purpose")
    time.sleep(30)


def sleep(rank: Rank) -> None:
    rank.array("ready")[rank.index] = 1
    time.sleep(60)


def threads(rank: Rank) -> str:
    return os.environ["OMP_NUM_THREADS"]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def started(ranks: Ranks) -> None:
    end = time.monotonic() + 60
    while not ranks.array("ready").all() and time.monotonic() < end:
        time.sleep(0.02)


def test_ranks_share_arrays_and_answer_in_order() -> None:
    with Ranks(3, fill, arrays={"out": np.zeros(3)}) as ranks:
        assert ranks.wait(60) == [0, 1, 2]
        assert ranks.array("out").tolist() == [1.0, 2.0, 3.0]
        pids = [row["pid"] for row in ranks.table]
    assert all(map(gone, pids))


def test_a_rank_computes_on_one_thread() -> None:
    with Ranks(1, threads) as ranks:
        assert ranks.wait(60) == ["1"]


def test_a_rank_that_raises_is_named() -> None:
    with Ranks(2, fail) as ranks, pytest.raises(RankFailed, match="rank 1: ValueError: on purpose"):
        ranks.wait(60)
    assert not any(row["alive"] for row in ranks.table)


def test_a_killed_rank_is_noticed_and_a_frozen_one_ends_with_the_block() -> None:
    with Ranks(2, sleep, arrays={"ready": np.zeros(2)}) as ranks:
        pids = [row["pid"] for row in ranks.table]
        started(ranks)
        ranks.stop(0)
        ranks.kill(1)
        with pytest.raises(RankFailed, match="rank 1 died with code -9"):
            ranks.wait(60)
    assert all(map(gone, pids))


def long_answer(rank: Rank) -> bytes:
    return bytes(1 << 20 if rank.index else 1)  # more than a pipe takes: it waits until somebody reads


@pytest.mark.parametrize("ask", ["survivors", "wait"])
def test_a_rank_that_is_killed_within_its_answer_has_given_none(ask: str) -> None:
    with Ranks(2, long_answer) as ranks:
        assert ranks._answers[1].poll(60)
        ranks.kill(1)
        ranks._processes[1].join()
        if ask == "survivors":
            lost: list[int] = []
            assert list(ranks.survivors(60, lost.append)) == [0]
            assert lost == [1]
        else:
            with pytest.raises(RankFailed, match="rank 1 died with code -9"):
                ranks.wait(60)


def test_ranks_that_share_a_slow_import_are_real_processes_all_the_same() -> None:
    imports = ["colorsys", "not_there_at_all"]  # a module that is missing is missed where it is wanted, not here
    with Ranks(2, threads, imports=imports) as ranks:
        assert ranks.wait(60) == ["1", "1"]
    with Ranks(2, sleep, arrays={"ready": np.zeros(2)}, imports=imports) as ranks:
        pids = [row["pid"] for row in ranks.table]
        started(ranks)
        ranks.stop(0)
        ranks.kill(1)
        with pytest.raises(RankFailed, match="rank 1 died with code -9"):
            ranks.wait(60)
        assert ranks.reason(1) == "it ended with code -9"
    assert len({os.getpid(), *pids}) == 3 and all(map(gone, pids))


def test_a_rank_that_is_gone_has_a_reason() -> None:
    with Ranks(2, fail) as ranks:
        end = time.monotonic() + 60
        while ranks.table[1]["alive"] and time.monotonic() < end:
            time.sleep(0.02)
        assert ranks.reason(1) == "ValueError: on purpose"


def test_a_rank_that_does_not_answer_is_late() -> None:
    with (
        Ranks(1, sleep, arrays={"ready": np.zeros(1)}) as ranks,
        pytest.raises(RankFailed, match="no answer from rank 0"),
    ):
        ranks.wait(0.1)


def loaded(rank: Rank) -> bool:
    return "colorsys" in sys.modules


PREPARED = """
from assay.sim.ranks import Ranks, prepare
from tests.sim.test_ranks import loaded
if __name__ == "__main__":
    prepare(["tests.sim.test_ranks", "colorsys", "no_such_module"])
    with Ranks(1, loaded, imports=["json"]) as ranks:
        assert ranks.wait(120) == [True]
"""


def test_what_was_prepared_is_there_for_the_first_ranks(tmp_path: Path) -> None:
    script = tmp_path / "prepared.py"
    script.write_text(PREPARED)
    place = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    subprocess.run([sys.executable, str(script)], env=os.environ | place, check=True, timeout=240)


def busy(rank: Rank) -> None:
    while time.process_time() < 0.1:
        pass
    rank.array("ready")[rank.index] = 1
    if rank.index:
        time.sleep(60)


@pytest.mark.parametrize("imports", [(), ("json",)])
def test_what_ranks_spend_is_our_own_whoever_started_them_and_however_they_end(imports: tuple[str, ...]) -> None:
    before = timing._processors()
    with Ranks(2, busy, arrays={"ready": np.zeros(2)}, imports=imports) as ranks:
        started(ranks)
    after = timing._processors()
    assert before is None or (after is not None and after[2] - before[2] >= 0.18)  # 0.1 each, counted in ticks
