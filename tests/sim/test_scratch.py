"""Folders of processes that were killed go with the next one; those in use stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from assay.sim import scratch as module
from assay.sim.scratch import scratch

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from assay.sim.scratch import scratch
with scratch() as folder:
    (folder / "store").write_text("so far")
    print(folder, flush=True)
    sys.stdin.read()
"""

STUDY = """
import signal, sys, tempfile, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
tempfile.tempdir = sys.argv[1]
from assay.cli.main import main
from assay.record import runner
from assay.sim.scratch import scratch

def run(*_, **__):
    with scratch() as folder:
        print(folder, flush=True)
        time.sleep(60)

runner.run = run
sys.argv = ["assay", "run", "div"]
main()
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_in_use_stays_and_that_of_a_killed_process_goes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch() as ours:
            assert theirs.exists() and ours.exists() and ours != theirs
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (theirs / "store").exists() and not ours.exists()
    with scratch() as ours:
        assert not theirs.exists() and ours.exists()
    assert not list(tmp_path.iterdir())


def test_it_goes_with_an_error_and_with_what_lies_in_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch() as folder:
        (folder / "rank-0").mkdir()
        (folder / "rank-0" / "trace.json").write_text("{")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_one_that_is_swept_before_it_is_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp
    swept: list[str] = []

    def mkdtemp(prefix: str) -> str:
        name = made(prefix=prefix)
        if not swept:
            swept.append(name)
            module.sweep()
        return name

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch() as folder:
        assert folder.exists() and str(folder) not in swept


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_study_that_is_told_to_end_takes_its_folder_along(number: signal.Signals, tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUDY, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).exists()
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode == 130 and not list(tmp_path.iterdir())
