"""`assay bench`: compare, run and watch on a real repository."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from assay.cli.bench import command
from assay.observe.bench import checkouts, history, instructions
from assay.observe.bench.history import Measured, Run
from assay.observe.ci_bench import lab
from assay.record.errors import BadInput
from assay.sim.random import stream

QUICK = "rounds = 3\nsample = 0.0001\npairs = 20\ninstructions = 'never'\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    lab.history(tmp_path / "r", [0.0, 7.0])
    (tmp_path / "r" / "bench.toml").write_text(QUICK + lab.CONFIG.replace("min_change = 0.01\n", ""))
    return tmp_path / "r"


def invoke(repository: Path, *words: str) -> Result:
    name, *rest = words
    return CliRunner().invoke(command, [name, "--config", str(repository / "bench.toml"), *rest])


def test_a_regression_ends_in_one_and_says_how_large(repository: Path) -> None:
    result = invoke(repository, "compare", "HEAD~1", "HEAD", "--json")
    answer = json.loads(result.stdout)
    (one,) = answer["benchmarks"]
    assert result.exit_code == 1 and one["decision"] == "regression"  # eight times the work: no noise hides that
    assert one["time"]["change"] > 1.0 and one["time"]["low"] > 0
    assert answer["head"]["dirty"] is False and len(answer["digest"]) == 20 and "cpu" in answer["fingerprint"]


def test_an_improvement_ends_in_zero_and_is_told_in_a_table(repository: Path) -> None:
    result = invoke(repository, "compare", "HEAD", "HEAD~1")
    assert result.exit_code == 0
    assert "✓ improvement" in result.output and "simulate" in result.output
    assert "probability below 0.01" in result.output


def test_a_benchmark_that_did_not_run_ends_in_two(repository: Path) -> None:
    with (repository / "bench.toml").open("a") as file:
        file.write('[benchmark.gone]\ncall = "spiking.network:gone"\n')
    result = invoke(repository, "compare", "HEAD~1", "HEAD~1", "--only", "gone")
    assert result.exit_code == 2 and "! error" in result.output and "gone" in result.output


def test_the_working_tree_is_a_side_too_and_marked_when_dirty(repository: Path) -> None:
    source = repository / "spiking" / "network.py"
    source.write_text(source.read_text().replace("STEPS = 8000", "STEPS = 8001"))
    result = invoke(repository, "compare", "HEAD~1", ".")
    assert result.exit_code == 1 and "+dirty" in result.output and "uncommitted changes" in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("compare", "HEAD", "nowhere"), "is no commit"),
        (("compare", "HEAD", "HEAD", "--only", "nothing"), "no benchmark 'nothing'"),
        (("compare", "HEAD", "HEAD", "--min-change", "-1"), "smallest change"),
        (("watch",), "no run in"),
        (("watch", "nowhere.csv"), "cannot read"),
        (("run", "--at", "nowhere"), "is no commit"),
    ],
)
def test_bad_input_is_one_line(repository: Path, words: tuple[str, ...], says: str) -> None:
    result = invoke(repository, *words)
    assert isinstance(result.exception, BadInput) and says in str(result.exception)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["run", "--config", str(tmp_path / "bench.toml")])
    assert isinstance(result.exception, BadInput) and "cannot read" in str(result.exception)


def test_runs_of_past_commits_are_stored_once_and_watched(repository: Path, tmp_path: Path) -> None:
    first = json.loads(invoke(repository, "run", "--last", "3", "--json").stdout)
    assert len(first) == 3 and all(not entry["run"]["dirty"] for entry in first)
    assert "nothing to measure" in invoke(repository, "run", "--last", "3").output
    page = tmp_path / "page.html"
    result = invoke(repository, "watch", "--html", str(page))
    assert result.exit_code == 0 and "simulate" in result.output and page.read_text().count("<svg") == 1


def test_watch_finds_the_step_in_a_history_and_names_the_commits(tmp_path: Path) -> None:
    commits = lab.history(tmp_path / "r", [0.0] * 14 + [0.1] + [0.0] * 10)
    noise = stream(0, "test", "watch").normal(1, 0.01, len(commits))
    for commit, factor in zip(commits, noise, strict=True):
        measured = {"simulate": Measured([commit.work * 1e-6 * float(factor)])}
        stored = Run(commit.name, False, "2026-01-01T00:00:00Z", {}, "d", {}, "m", measured)
        history.save(tmp_path / "r" / "bench-history", stored)
    result = invoke(tmp_path / "r", "watch", "--json")
    (change,) = json.loads(result.stdout)["changes"]
    assert change["kind"] == "regression" and change["after"] == commits[15].name and change["suspects"] == 1
    assert "✗ regression" in invoke(tmp_path / "r", "watch").output


def test_watch_bisects_what_was_not_measured(tmp_path: Path) -> None:
    commits = lab.history(tmp_path / "r", [0.0] * 9 + [7.0] + [0.0] * 9)
    (tmp_path / "r" / "bench.toml").write_text(QUICK + lab.CONFIG.replace("min_change = 0.01\n", ""))
    noise = stream(1, "test", "bisect").normal(1, 0.01, len(commits))
    for position, commit in enumerate(commits):
        if position in (7, 8, 9, 10, 11):
            continue
        measured = {"simulate": Measured([commit.work * 1e-6 * float(noise[position])])}
        stored = Run(commit.name, False, "2026-01-01T00:00:00Z", {}, "d", {}, "m", measured)
        history.save(tmp_path / "r" / "bench-history", stored)
    (wide,) = json.loads(invoke(tmp_path / "r", "watch", "--json").stdout)["changes"]
    assert wide["suspects"] == 6
    (narrow,) = json.loads(invoke(tmp_path / "r", "watch", "--json", "--bisect").stdout)["changes"]
    assert (narrow["before"], narrow["after"], narrow["suspects"]) == (commits[9].name, commits[10].name, 1)


@pytest.mark.parametrize("name", ["compare", "run", "watch"])
def test_help_has_an_example(name: str) -> None:
    assert "Example:" in CliRunner().invoke(command, [name, "--help"]).output


# ------------------------------------------------------------------------------------------------ interruption

# As the installed command, but with Ctrl-C switched on: a shell's background jobs inherit that it is ignored.
ASSAY = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from assay.cli.main import main; main()"
)
PATIENCE = 60.0  # seconds until something that must happen is given up on


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # nobody has to reap it
    except (FileNotFoundError, ProcessLookupError):
        return True


def worktrees(repository: Path) -> list[str]:
    return checkouts.git(repository, "worktree", "list", "--porcelain").splitlines()


@dataclass
class Hanging:
    """A repository, and a script in it that notes its process and never ends, beside a child that does not either."""

    repository: Path
    mark: Path
    temporary: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def configure(self, text: str) -> None:
        (self.repository / "bench.toml").write_text(QUICK + text)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the command line and wait until it hangs where it should."""
        name, *rest = words
        command = [sys.executable, "-c", ASSAY, "bench", name, "--config", str(self.repository / "bench.toml"), *rest]
        process = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(self.temporary)}, stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        until(lambda: process.poll() is not None or len(self.pids()) >= 2, "the benchmark hangs")
        assert process.poll() is None
        return process

    def pids(self) -> list[int]:
        text = self.mark.read_text() if self.mark.exists() else ""
        return [int(word) for word in text.split()] if text.endswith("\n") else []


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    made = Hanging(tmp_path / "r", tmp_path / "mark", tmp_path / "temporary")
    lab.history(made.repository, [0.0, 0.0])
    made.temporary.mkdir()
    script = tmp_path / "hang"
    script.write_text(f"#!/bin/sh\nsleep 300 &\necho $$ $! >> '{made.mark}'\nwait\n")
    script.chmod(0o755)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
    for pid in made.pids():  # what the code under test should have ended
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def hang_in(hanging: Hanging, stage: str) -> tuple[str, ...]:
    """Make one stage of a session hang; the words that lead to it."""
    script = hanging.mark.with_name("hang")
    command = f"[benchmark.simulate]\ncommand = ['{script}']\ntimeout = 200.0\n"
    hanging.configure(command)
    if stage == "checkout":
        (hanging.repository / ".git" / "hooks").mkdir(exist_ok=True)
        (hanging.repository / ".git" / "hooks" / "post-checkout").symlink_to(script)
    elif stage == "prepare":
        hanging.configure(f"prepare = [['{script}']]\n{command}")
    elif stage in ("call", "instructions"):
        when = "True" if stage == "call" else "'--calls' in sys.argv"
        body = f"import subprocess, sys\ndef hang():\n    if {when}:\n        subprocess.run(['{script}'])\n"
        (hanging.repository / "spiking" / "hang.py").write_text(body)
        hanging.configure("[benchmark.simulate]\ncall = 'spiking.hang:hang'\n")
        checkouts.git(hanging.repository, "add", "--all")
        who = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        checkouts.git(hanging.repository, *who, "commit", "--quiet", "--message", "x")
        if stage == "instructions":
            return "compare", "HEAD", "HEAD", "--instructions", "always"
    elif stage == "bisect":
        _store_steps(hanging.repository)
        return "watch", "--bisect"
    return ("run", "--at", "HEAD") if stage == "run" else ("compare", "HEAD", "HEAD")


def _store_steps(repository: Path) -> None:
    """A history with a step, and commits within it that were not measured."""
    commits = checkouts.first_parents(repository)
    noise = stream(1, "test", "bisect").normal(1, 0.01, len(commits))
    middle = len(commits) // 2
    for position, commit in enumerate(commits):
        if abs(position - middle) > 1:
            seconds = (1.0 if position < middle else 8.0) * float(noise[position])
            stored = Run(commit, False, "2026-01-01T00:00:00Z", {}, "d", {}, "m", {"simulate": Measured([seconds])})
            history.save(repository / "bench-history", stored)


STAGES = ("run", "checkout", "prepare", "call", "command", "instructions", "bisect")
TWICE = [pytest.param(stage, signal.SIGINT, id=f"{stage}-SIGINT") for stage in STAGES] + [
    pytest.param(stage, signal.SIGTERM, id=f"{stage}-SIGTERM", marks=[pytest.mark.slow] * (stage == "instructions"))
    for stage in STAGES
]


@pytest.mark.parametrize(("stage", "number"), TWICE)
def test_an_interrupted_session_leaves_no_worktree_folder_or_process(
    hanging: Hanging, stage: str, number: signal.Signals
) -> None:
    if stage == "instructions" and not instructions.counter().source:
        pytest.skip(instructions.counter().why)
    if stage == "bisect":
        shutil.rmtree(hanging.repository)
        lab.history(hanging.repository, [0.0] * 20)
    words = hang_in(hanging, stage)
    before = worktrees(hanging.repository)
    process = hanging.start(*words)
    assert worktrees(hanging.repository) != before
    process.send_signal(number)
    assert process.wait(PATIENCE) == 130
    assert worktrees(hanging.repository) == before
    assert list(hanging.temporary.iterdir()) == []
    until(lambda: all(map(gone, hanging.pids())), "its processes are gone")


def test_the_next_session_removes_what_a_killed_one_left(hanging: Hanging) -> None:
    before = worktrees(hanging.repository)
    process = hanging.start(*hang_in(hanging, "command"))
    process.kill()
    process.wait(PATIENCE)
    assert worktrees(hanging.repository) != before  # nobody could clean up
    assert len(list(hanging.temporary.iterdir())) == 1
    hanging.configure("[benchmark.simulate]\ncommand = ['true']\n")
    assert invoke(hanging.repository, "run", "--at", "HEAD").exit_code == 0
    assert worktrees(hanging.repository) == before
    assert list(hanging.temporary.iterdir()) == []
