"""`assay watch` as a process, beside real jobs of several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.watch import command
from assay.live.monitor import MARK, VARIABLE

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs 'torch'")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in (MARK, VARIABLE, "RANK", "WORLD_SIZE")}

PLAIN = """
import os, sys, time
from assay.live import monitor
for _ in range(int(sys.argv[1])):
    with monitor.stage("data"):
        time.sleep(0.002)
    monitor.step()
sys.exit(int(sys.argv[2]))
"""

# Three ranks; "compute" is sleep, so that two cores do not measure their own scheduler. The gradients are averaged
# for real. One rank's dataset is slow, or one rank dies and the others go on without it.
DDP = """
import os, signal, subprocess, sys, time

def train(rank, meeting, steps, stall, death):
    import torch
    from torch import distributed
    from assay.live import monitor

    torch.set_num_threads(1)
    alone = False
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=3)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            time.sleep(0.002 + (stall if rank == 2 and not alone else 0.0))
            return torch.ones(16)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            time.sleep(0.005)
            return self.layer(x)

    model = torch.nn.parallel.DistributedDataParallel(Net())
    model, optimizer, loader = monitor.wrap(
        model, torch.optim.SGD(model.parameters(), lr=0.01), torch.utils.data.DataLoader(Data(), batch_size=1)
    )
    for step, batch in enumerate(loader):
        if rank == 1 and step == death:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if alone:
                with model.no_sync():
                    model(batch).sum().backward()
            else:
                model(batch).sum().backward()
        except RuntimeError:
            alone = True
        optimizer.step()
        optimizer.zero_grad()
    if not alone:
        distributed.destroy_process_group()
    sys.stdout.flush()
    monitor.stop()
    os._exit(0)

if __name__ == "__main__":
    meeting, steps, stall, death, *rank = sys.argv[1:]
    if rank:
        train(int(rank[0]), meeting, int(steps), float(stall), int(death))
    ranks = [subprocess.Popen([sys.executable, *sys.argv, str(rank)]) for rank in range(3)]
    sys.exit(sum(process.wait() != 0 for process in ranks))
"""


def watch(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay.cli.main", "watch", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | more, capture_output=True, text=True, timeout=240)


def job(folder: Path, text: str) -> str:
    path = folder / "job.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


@contextmanager
def watcher(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A watcher in the background, and what the job's ASSAY_WATCH must be."""
    command = [sys.executable, "-m", "assay.cli.main", "watch", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    guard = threading.Timer(240.0, process.kill)
    guard.start()
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "ASSAY_WATCH=" in line)
        yield process, line.strip().rpartition("=")[2]
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


# ------------------------------------------------------------------------------------------------ real DDP jobs


@needs_torch
def test_a_stalled_rank_is_named_and_a_killed_one_is_gone_while_the_others_go_on(tmp_path: Path) -> None:
    script = job(tmp_path, DDP)
    seen: list[Any] = []
    with watcher("--json", "--window", "20") as (process, place):
        ranks = subprocess.Popen(
            [sys.executable, script, str(tmp_path / "meet"), "300", "0.06", "60"], env=ENVIRONMENT | {VARIABLE: place}
        )
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(json.loads(line))
            if seen[-1]["last_step"] > 110 and any(r["rank"] == 1 and r["state"] == "gone" for r in seen[-1]["ranks"]):
                break
        assert ranks.wait(120) == 1  # of the three, one did not end well
        process.send_signal(signal.SIGINT)
        last = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    before = [one for one in seen if one["kind"] == "window" and one["last_step"] < 60]
    named = [(one["suspects"][0]["rank"], one["suspects"][0]["stage"]) for one in before if one["suspects"]]
    assert (2, "data") in named and all("sync" in one["accounting"] for one in before)
    assert all(sum(one["accounting"].values()) == one["total"] for one in seen)
    after = [one for one in seen if one["kind"] == "window" and one["first_step"] > 60]
    assert after and all(row["rank"] != 1 for one in after for row in one["ranks"] if row["stages"])
    assert seen[-1]["ranks"][1]["state"] == "gone"
    assert last["kind"] == "end" and last["expected"] == 3 and last["ranks"][1]["last_step"] < 60


# ------------------------------------------------------------------------------------------------ run


@pytest.mark.parametrize("code", [0, 3])
def test_run_ends_with_the_jobs_exit_code_and_keeps_json_clean(tmp_path: Path, code: int) -> None:
    text = PLAIN.replace("sys.exit", "print('from the job'); sys.exit")
    done = watch("--json", "--window", "10", "run", "--", sys.executable, job(tmp_path, text), "45", str(code))
    assert done.returncode == code, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert seen[-1]["kind"] == "end" and seen[-1]["last_step"] == 44
    assert [one["last_step"] for one in seen if one["kind"] == "window"] == [9, 19, 29, 39]
    assert "from the job" in done.stderr


def test_run_without_a_monitor_in_the_job_says_how_to_get_one(tmp_path: Path) -> None:
    done = watch("run", "--", sys.executable, "-c", "print('hello')")
    assert done.returncode == 0 and "hello" in done.stdout and "nobody reports yet" in done.stdout


def test_run_of_what_cannot_be_started_is_one_line(refused: Callable[..., str]) -> None:
    told = refused("watch", "run", "--", "/no/such/program")
    assert told == "assay: cannot start '/no/such/program': no such file or directory"


def test_a_job_killed_by_a_signal_gives_the_shells_code(tmp_path: Path) -> None:
    done = watch("run", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 137


# ------------------------------------------------------------------------------------------------ a folder, a port


def test_a_folder_of_a_finished_job_is_summarised_once(tmp_path: Path) -> None:
    script, folder = job(tmp_path, PLAIN), tmp_path / "watch"
    for rank in ("0", "1"):
        environment = ENVIRONMENT | {VARIABLE: str(folder), "RANK": rank, "WORLD_SIZE": "2"}
        subprocess.run([sys.executable, script, "30", "0"], env=environment, check=True, timeout=60)
    seen = json.loads(watch(str(folder), "--once", "--json").stdout)
    assert (seen["expected"], seen["first_step"], seen["last_step"], seen["over"]) == (2, 1, 29, True)
    text = CliRunner().invoke(command, [str(folder), "--once"]).stdout
    assert "the job is over" in text and "■ ended" in text and "data" in text


def test_metrics_are_there_while_it_watches(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay.cli.main", "watch", "--port", "0", "--json", "--metrics-port", "0"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = process.stderr.readline().strip().removeprefix("metrics: ")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"assay_ranks_expected 0\n" in answer.read()
    finally:
        process.kill()
        process.communicate()


def test_a_job_without_its_watcher_ends_as_usual(tmp_path: Path) -> None:
    script = job(tmp_path, PLAIN)
    (tmp_path / "file").write_text("")
    for place in ("", "127.0.0.1:9", "no-such-host.invalid:9099", "nonsense", str(tmp_path / "file" / "below")):
        done = subprocess.run(
            [sys.executable, script, "5", "0"], env=ENVIRONMENT | {VARIABLE: place}, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout == "" and done.stderr.count("\n") <= 1
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "b"), "one folder, or 'run -- COMMAND', would be right"),
        (("run",), "one folder, or 'run -- COMMAND', would be right"),
        (("--window", "1"), "between 2 and"),
        (("--host", "no-such-host.invalid"), "cannot listen on no-such-host.invalid"),
        (("--reference", "-3"), "between 2 and"),
    ],
)
def test_bad_input_is_one_line(refused: Callable[..., str], arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("watch", "--port", "0", *arguments)


def test_a_job_that_reports_nothing_more_ends_the_watch_after_the_seconds_given() -> None:
    done = watch("--port", "0", "--json", "--once", "--seconds", "0.2")
    assert done.returncode == 0 and json.loads(done.stdout)["reporting"] == 0


# ------------------------------------------------------------------------------------------------ hangs

# Two ranks, each a process, that agree to hang: rank 1 never leaves its data, rank 0 waits for it.
HANG = """
import os, sys, time
from assay.live import monitor
for step in range(40):
    with monitor.stage("data"):
        time.sleep(0.002 if step < 30 or os.environ["RANK"] == "0" else 600)
    with monitor.stage("backward"):
        time.sleep(0.002 if step < 30 else 600)
    monitor.step()
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is called stuck after half a second, so that no test waits for half a minute."""
    monkeypatch.setattr("assay.live.watch.summary._STUCK", 0.5)
    monkeypatch.setattr("assay.live.watch.summary._FIRST", 60.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", [["--json"], []])
def test_one_summary_of_a_job_that_hangs_names_the_rank_and_ends_in_one(tmp_path: Path, form: list[str]) -> None:
    script, folder = job(tmp_path, HANG), tmp_path / "watch"
    folder.mkdir()
    ranks = [
        subprocess.Popen([sys.executable, script],
                         env=ENVIRONMENT | {VARIABLE: str(folder), "RANK": rank, "WORLD_SIZE": "2"})
        for rank in "01"
    ]  # fmt: skip
    try:
        done = CliRunner().invoke(command, [str(folder), "--once", *form])
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert done.exit_code == 1, done.output
    assert "the job hangs" in done.stderr
    if form:
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["hang"], last["label"], [one["rank"] for one in last["suspects"]]) == (True, "hang", [1])
    else:
        assert "rank 1" in done.stdout and "nobody stands out" not in done.stdout


def test_run_ends_the_job_after_the_seconds_given(tmp_path: Path) -> None:
    done = watch("--seconds", "1.5", "run", "--", sys.executable, "-c", "import time; time.sleep(600)")
    assert done.returncode == 128 + signal.SIGTERM
    assert "ended after 1.5 s" in done.stderr


# Two ranks under a launcher: rank 0 waits for rank 1 in every backward pass, and rank 1 is frozen in its data.
FROZEN = """
import os, signal, subprocess, sys
from assay.live import monitor
if "RANK" not in os.environ:
    reading, writing = os.pipe()
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], pass_fds=(end,),
                         env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "PIPE": str(end)})
        for rank, end in enumerate((reading, writing))
    ]
    print(*(rank.pid for rank in ranks), flush=True)
    sys.exit(max(rank.wait() for rank in ranks))
rank, pipe = int(os.environ["RANK"]), int(os.environ["PIPE"])
for step in range(10**6):
    with monitor.stage("data"):
        if rank == 1 and step >= 300 and monitor._running.speaker.sent:
            os.kill(os.getpid(), signal.SIGSTOP)
    with monitor.stage("backward"):
        if rank:
            os.write(pipe, b"x")
        else:
            os.read(pipe, 1)
    monitor.step()
"""


SOON = """
import assay.live.watch.job as job, assay.live.watch.summary as summary
summary._STUCK, summary._GIVEN_UP, job.GRACE = 4.0, 1.5, 2.0  # seconds, so that nobody waits for half a minute
from assay.cli.watch import command
command()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks the system for its processes")
@pytest.mark.parametrize("told", [["--json"], []])
def test_a_job_that_hangs_is_ended_by_once_and_the_frozen_rank_is_named(told: list[str], tmp_path: Path) -> None:
    """The launcher waits for a rank that hears no signal: neither is left behind, and who waited is not to blame."""
    (script := tmp_path / "frozen.py").write_text(FROZEN)
    words = [sys.executable, "-c", SOON, "--once", *told, "run", "--", sys.executable, str(script)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stderr
    assert "it will not go on" in done.stderr
    if told:
        (line,) = done.stdout.splitlines()
        end = json.loads(line)
        assert (end["kind"], end["label"]) == ("end", "hang")
        assert [one["rank"] for one in end["suspects"]] == [1]
        assert [row["state"] for row in end["ranks"]][1] == "stopped"  # as it was, and not as it was ended
    else:
        assert "rank 1 was frozen" in done.stdout
    ranks = (done.stderr if told else done.stdout).splitlines()[0].split()
    assert len(ranks) == 2
    assert not any(Path(f"/proc/{pid}/fd").exists() and _running(pid) for pid in ranks)


def _running(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2][0] not in "ZX"
