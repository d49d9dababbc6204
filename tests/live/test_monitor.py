"""What a job imports: what it measures, who reports, and that no watcher, however bad, is felt by the job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns, sleep

import pytest

from assay.live import monitor
from assay.live.watch import send as watch_send
from assay.live.watch import sources as watch_sources
from assay.live.watch.send import Files, Outlet, Speaker, outlet
from assay.live.watch.sources import Folder, Port
from assay.live.watch.wire import Report, encode
from assay.observe.frontier import collector as collector_module
from assay.observe.frontier.collector import MARKS, STAGES, Collector, Vectors
from assay.record.errors import BadInput

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", monitor.MARK, monitor.VARIABLE)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monitor.stop()
    yield
    monitor.stop()


def reports(folder: Path) -> list[Report]:
    return [said for _, said in Folder(folder).read()]


def rows(folder: Path) -> dict[int, dict[str, int]]:
    """Stage times by step."""
    found: dict[int, dict[str, int]] = {}
    for said in reports(folder):
        if said.vectors:
            vectors = Vectors.from_bytes(said.vectors)
            for place, row in enumerate(vectors.durations.tolist()):
                found[vectors.first_step + place] = dict(zip(vectors.stages, row, strict=True))
    return found


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES} | environment
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


# ------------------------------------------------------------------------------------------------ measuring


def test_stages_and_steps_arrive_with_their_rank(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=3, size=8)
    for _ in range(5):
        with monitor.stage("data"):
            sleep(0.002)
        with monitor.stage("forward"):
            pass
        monitor.step()
    monitor.stop()
    found = rows(tmp_path)
    assert sorted(found) == [0, 1, 2, 3, 4] and set(found[0]) == set(STAGES)
    assert all(row["data"] >= 2_000_000 and row["forward"] > 0 for row in found.values())
    assert {(said.rank, said.size, said.pid) for said in reports(tmp_path)} == {(3, 8, os.getpid())}


@pytest.mark.timed
def test_a_stage_that_does_nothing_takes_next_to_nothing(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)
    for _ in range(5):
        with monitor.stage("forward"):
            pass
        monitor.step()
    monitor.stop()
    assert all(row["forward"] < 2_000_000 for row in rows(tmp_path).values())


def test_a_row_adds_up_to_the_step_whatever_its_stages_did(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)
    began = perf_counter_ns()
    with monitor.stage("forward"), monitor.stage("data"):
        sleep(0.001)
    with monitor.stage("forward"):
        pass
    monitor.step()
    longest = perf_counter_ns() - began
    monitor.stop()
    (row,) = rows(tmp_path).values()
    assert 1_000_000 <= row["data"] <= sum(row.values())
    assert row["forward"] < longest - row["data"]


def test_an_exception_in_a_stage_reaches_the_job_and_ends_the_stage(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), monitor.stage("forward"):
            _ = 1 / 0
        sleep(0.002)
        monitor.step()
    monitor.stop()
    assert all(row["other"] >= 2_000_000 > row["forward"] for row in rows(tmp_path).values())


def test_a_stage_that_nobody_declared_is_said_once_and_counts_as_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)
    for _ in range(3):
        with monitor.stage("fwd"):
            sleep(0.001)
        monitor.step()
    monitor.stop()
    assert [record.message for record in caplog.records] == [
        "no stage 'fwd'; its time counts as 'other'. Stages are " + ", ".join(STAGES)
    ]
    assert all(row["other"] >= 1_000_000 for row in rows(tmp_path).values())


def test_stages_of_ones_own(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1, stages=("fetch", "compute", "rest"))
    with monitor.stage("compute"):
        sleep(0.001)
    monitor.step()
    monitor.stop()
    assert rows(tmp_path)[0]["compute"] >= 1_000_000


def test_what_another_thread_does_is_not_the_step(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)

    def write() -> None:
        with monitor.stage("checkpoint"):
            sleep(0.002)

    with monitor.stage("forward"):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    monitor.step()
    monitor.stop()
    row = rows(tmp_path)[0]
    assert row["checkpoint"] == 0 and row["forward"] >= 2_000_000


@pytest.mark.timed
def test_a_boundary_costs_less_than_a_microsecond_and_a_half(tmp_path: Path) -> None:
    monitor.start(str(tmp_path), rank=0, size=1)
    costs = []
    for _ in range(20):
        began = perf_counter_ns()
        for _ in range(5_000):
            with monitor.stage("forward"):
                pass
        costs.append((perf_counter_ns() - began) / 10_000)  # two boundaries each
    assert min(costs) <= 1_500


# ------------------------------------------------------------------------------------------------ who reports


def test_without_a_watcher_it_says_so_once_and_measures_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with monitor.stage("forward"):
            pass
        monitor.step()
    assert len(caplog.records) == 1 and "ASSAY_WATCH is not set" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "assay-monitor"]


@pytest.mark.parametrize("place", ["nowhere", "host:", "host:0", "host:99999", "a:b:c", ":x"])
def test_a_place_that_is_none_is_said_once_and_ends_nothing(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(monitor.VARIABLE, place)
    for _ in range(2):
        with monitor.stage("forward"):
            monitor.step()
    assert len(caplog.records) == 1 and "is no place to report to" in caplog.text
    with pytest.raises(BadInput):
        outlet(place)


@pytest.mark.parametrize(("rank", "size"), [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
def test_the_rank_is_what_the_launcher_says(rank: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rank, "5")
    monkeypatch.setenv(size, "16")
    assert monitor.identity() == (5, 16)


def test_a_rank_that_cannot_be_is_said_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not monitor.start(str(tmp_path), rank=4, size=4)
    with monitor.stage("data"):
        monitor.step()
    assert "rank 4 of 4" in caplog.text


def test_a_machine_without_threads_to_spare_is_said_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Speaker) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Speaker, "start", refuse)
    assert not monitor.start(str(tmp_path), rank=0, size=1)
    with monitor.stage("data"):
        monitor.step()
    assert "can't start new thread" in caplog.text


STEPS = """
from assay.live import monitor
def steps(n):
    for _ in range(n):
        with monitor.stage("data"):
            pass
        monitor.step()
"""


def test_children_of_a_rank_do_not_report_and_ranks_that_a_rank_started_do(tmp_path: Path) -> None:
    python(
        STEPS + """
import os, subprocess, sys
steps(2)
child = os.fork()
if child == 0:
    steps(50)
    os._exit(0)
os.waitpid(child, 0)
code = sys.argv[1] if len(sys.argv) > 1 else os.environ["STEPS"] + "steps(50)"
subprocess.run([sys.executable, "-c", code], check=True)
subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"RANK": "1"})
steps(1)
""",
        ASSAY_WATCH=str(tmp_path), RANK="0", WORLD_SIZE="2", STEPS=STEPS,
    )  # fmt: skip
    last = {said.rank: said.steps for said in reports(tmp_path)}
    assert last == {0: 3, 1: 50}
    assert len({said.pid for said in reports(tmp_path)}) == 2


def test_ranks_that_a_launcher_forks_after_its_imports_report_and_say_goodbye(tmp_path: Path) -> None:
    """As notebook launchers start them: multiprocessing, by fork, with the monitor already imported."""
    code = """
import multiprocessing, os
from assay.live import monitor
def rank(number):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    for _ in range(3):
        with monitor.stage("forward"):
            pass
        monitor.step()
started = [multiprocessing.get_context("fork").Process(target=rank, args=(number,)) for number in range(2)]
for one in started:
    one.start()
for one in started:
    one.join()
    assert one.exitcode == 0
"""
    python(code, ASSAY_WATCH=str(tmp_path))
    ends = [(said.rank, said.steps) for said in reports(tmp_path) if said.last]
    assert sorted(ends) == [(0, 3), (1, 3)]


def test_a_killed_rank_says_no_goodbye_and_a_failed_one_does(tmp_path: Path) -> None:
    for end in ("import os; os.kill(os.getpid(), 9)", "raise SystemExit(3)"):
        code = STEPS + "import time; steps(3); time.sleep(1.2)\n" + end
        environment = os.environ | {"ASSAY_WATCH": str(tmp_path), "RANK": str(len(end)), "WORLD_SIZE": "99"}
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    ended = {said.rank: said.last for said in reports(tmp_path)}
    assert sorted(ended.values()) == [False, True]


# ------------------------------------------------------------------------------------------------ sending


def a_port() -> int:
    """A port on which nobody listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def speaker(way: Outlet) -> Speaker:
    return Speaker(Collector(0, 2), way, lambda: (0, 2), lambda: False)


def steps(said: Speaker, many: int = 1) -> None:
    for _ in range(many):
        with said._collector.stage("forward"):
            pass
        said._collector.step()


def test_a_watcher_that_comes_late_dies_and_returns_gets_what_is_said_while_it_listens() -> None:
    port = a_port()
    said = speaker(outlet(f"127.0.0.1:{port}"))
    heard: list[int] = []
    for first in range(12):
        steps(said)
        if first in (3, 8):
            source = Port(port)
        said._try(last=False)
        if 3 <= first < 6 or first >= 8:
            source.wait(5.0)
            heard += [Vectors.from_bytes(one.vectors).first_step for _, one in source.read()]
        if first in (5, 11):
            source.close()
    assert heard == [3, 4, 5, 8, 9, 10, 11]
    assert 3 <= said.dropped <= 5  # the last one before a death may be lost unnoticed


class Held(Outlet):
    """A file system that hangs."""

    block = 1000

    def __init__(self) -> None:
        self.release, self.reached = threading.Event(), threading.Event()

    def send(self, record: bytes) -> None:
        self.reached.set()
        self.release.wait(60.0)

    def close(self) -> None:
        pass


def test_a_hung_file_system_holds_up_its_own_thread_only() -> None:
    way = Held()
    said = speaker(way)
    said.start()
    steps(said)
    assert way.reached.wait(10.0)
    steps(said, MARKS)
    assert len(said._collector._marks) <= MARKS
    said.finish()  # comes back although the thread is still held
    assert said.is_alive()
    way.release.set()
    said.join(60.0)
    assert said._collector.lost > MARKS // 2


class Broken(Held):
    """One that raises what nobody expects."""

    def send(self, record: bytes) -> None:
        self.reached.set()
        raise RuntimeError("not an OSError")


def test_nothing_that_goes_wrong_while_sending_ends_the_thread() -> None:
    way = Broken()
    said = speaker(way)
    said.start()
    assert way.reached.wait(10.0)
    way.reached.clear()
    assert way.reached.wait(10.0)
    said.finish()
    assert not said.is_alive()


def test_a_rank_keeps_its_number_when_its_process_group_is_destroyed(tmp_path: Path) -> None:
    told: list[tuple[int, int] | None] = [None, (3, 4), None, None]
    said = Speaker(Collector(0, 1), Files(tmp_path), lambda: told.pop(0), lambda: False)
    for step in range(3):
        said._try(last=step == 2)
        steps(said)
    assert {(one.rank, one.size) for one in reports(tmp_path)} == {(3, 4)}
    assert len({one.start for one in reports(tmp_path)}) == 1


def test_steps_that_follow_one_another_share_a_report_and_gaps_part_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "MARKS", 64)
    way = Files(tmp_path)
    said = speaker(way)
    steps(said, 10)
    said._collector.now()  # read so far
    steps(said, 100)  # pushes some out
    said._try(last=True)
    sent = [Vectors.from_bytes(one.vectors) for one in reports(tmp_path) if one.vectors]
    assert [(one.first_step, len(one.durations)) for one in sent] == [
        (0, 10),
        (110 - len(sent[1].durations), len(sent[1].durations)),
    ]
    assert 15 < len(sent[1].durations) < 22


def test_a_datagram_fits_an_ethernet_frame_even_with_many_steps() -> None:
    class Kept(Held):
        block = watch_send.Datagrams.block

        def send(self, record: bytes) -> None:
            sent.append(record)

    sent: list[bytes] = []
    way = Kept()
    said = speaker(way)
    steps(said, 1000)
    said._try(last=False)
    assert max(map(len, sent)) <= 1472 and len(sent) < 30


@pytest.mark.parametrize("now", [-1e6, 0.0, 0.3])
def test_on_a_machine_that_has_just_started_a_rank_speaks_and_a_watcher_looks_at_once(
    now: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    for module in (watch_send, watch_sources):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    monkeypatch.setattr(watch_sources, "sleep", slept.append)
    said = speaker(Files(tmp_path))
    said._try(last=False)  # nothing is finished yet: a sign of life
    said._try(last=False)  # too soon for another
    assert said.sent == 1
    watcher = Folder(tmp_path)
    watcher.wait(5.0)
    assert slept == [0.0] and [one.rank for _, one in watcher.read()] == [0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))
        way = watch_send.Datagrams(*port.getsockname())
        way.send(b"here")
        assert port.recv(10) == b"here"
        way.close()


def test_files_are_begun_anew_when_long_and_only_two_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = encode(Report(0, 1, 1, "a", 1, 0))
    monkeypatch.setattr(watch_send, "SEGMENT", 10 * len(record))
    way, source, read = Files(tmp_path), Folder(tmp_path), 0
    for _ in range(95):
        way.send(record)
        read += len(list(source.read()))
    way.close()
    assert read == 95 and len(list(tmp_path.iterdir())) == 2


def test_the_stage_in_which_a_rank_hangs_is_in_its_heartbeat() -> None:
    collector = Collector(0, 1)
    assert collector.doing()[0] == ""
    with collector.stage("backward"):
        stage, since = collector.doing()
    assert stage == "backward" and since >= 0.0
