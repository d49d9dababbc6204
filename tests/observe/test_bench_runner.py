"""Running base and head: real worktrees, real processes, and an error wherever something did not run."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from assay.observe.bench import checkouts, children, compare, instructions, store
from assay.observe.bench import config as bench_config
from assay.observe.bench.checkouts import Checkout
from assay.observe.bench.judge import Comparison, Judgement
from assay.observe.bench.processes import Bench, DidNotRun, Worker, run_command, workers
from assay.observe.bench.runner import WARM_UP, Pairs, calibrate, first_and_second, pair, rounds, rule
from assay.observe.ci_bench import lab
from assay.record.errors import BadInput

QUICK = "rounds = 2\nsample = 0.0001\npairs = 10\nseconds = 60.0\ninstructions = 'never'\n"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: in the second `work` is gone and `slow` is new."""
    root = tmp_path / "repository"
    (root / "src" / "pack").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(root))
    source = root / "src" / "pack" / "__init__.py"
    for body in (
        "def work(n=50):\n    return sum(range(n))\n\ndef same():\n    return 1\n",
        "def slow():\n    raise ValueError('broken here')\n\ndef same():\n    return 1\n",
    ):
        source.write_text(body)
        (root / "bench.toml").write_text(QUICK + "[benchmark.same]\ncall = 'pack:same'\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", "x")
    return root


def compared(root: Path, benchmark: str, base: str = "HEAD~1", head: str = "HEAD", extra: str = "") -> Comparison:
    (root / "bench.toml").write_text(f"{QUICK}{extra}[benchmark.b]\n{benchmark}\n")
    session = compare.compare(root / "bench.toml", base, head, (), lambda done, total: None)
    return session.comparisons[0]


def test_equal_code_gives_pairs_around_zero_and_no_error(repository: Path) -> None:
    one = compared(repository, 'call = "pack:same"')
    assert one.error == "" and one.time is not None and one.time.pairs == 10
    assert one.base is not None and one.base > 0


@pytest.mark.parametrize(
    ("benchmark", "says"),
    [
        ('call = "pack:work"', "has no attribute 'work'"),
        ('call = "pack:slow"', "has no attribute 'slow'"),
        ('call = "nowhere:f"', "No module named 'nowhere'"),
        ('call = "json:dumps"\nargs = [1]', "not from the checkout"),
        ('call = "pack:__doc__"', "cannot be called"),
        ('command = ["false"]', "ended with code 1"),
        ('command = ["sh", "-c", "echo gone wrong >&2; exit 3"]', "gone wrong"),
        ('command = ["no-such-program"]', "cannot start 'no-such-program'"),
        ('command = ["sh", "-c", "kill -9 $$"]', "ended with code -9"),
    ],
)
def test_a_benchmark_that_did_not_run_is_an_error_with_its_reason(repository: Path, benchmark: str, says: str) -> None:
    one = compared(repository, benchmark)
    assert one.decision == "error" and says in one.error and "at " in one.error
    assert one.time is None and one.base is None


def test_an_error_in_head_alone_names_head(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    assert f"at {head[:12]}" in compared(repository, 'call = "pack:work"').error
    raised = compared(repository, 'call = "pack:slow"', base="HEAD")
    assert "ValueError: broken here" in raised.error


def test_errors_end_in_code_two_and_regressions_in_one(repository: Path) -> None:
    config = bench_config.load(repository / "bench.toml")
    checkout = Checkout(repository, "c" * 40)
    failed = Comparison("b", None, None, None, error="x")
    session = compare.Session(config, checkout, checkout, [failed], {}, 1.0)
    assert compare.exit_code(session) == 2
    assert compare.as_json(session)["benchmarks"][0]["decision"] == "error"


def test_a_process_that_hangs_is_killed_with_its_children(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "child"
    words = f"['sh', '-c', 'sleep 300 & echo $! > \"{mark}\"; wait']"
    one = compared(repository, f"command = {words}\ntimeout = 1.0")
    assert "did not end within 1 s" in one.error
    child = int(mark.read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}/stat").exists() or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child survived")


def test_a_function_that_never_returns_is_an_error(repository: Path) -> None:
    (repository / "src" / "pack" / "__init__.py").write_text("import time\ndef f():\n    time.sleep(300)\n")
    assert "no answer within 1 s" in compared(repository, 'call = "pack:f"\ntimeout = 1.0', base=".", head=".").error


def test_what_the_code_prints_is_not_taken_for_an_answer(repository: Path) -> None:
    noisy = 'import sys\ndef f():\n    print(\'{"wall": 1e9, "cpu": 0}\')\n    sys.stdin.read()\n'
    (repository / "src" / "pack" / "__init__.py").write_text(noisy)
    one = compared(repository, 'call = "pack:f"', base=".", head=".")
    assert one.error == "" and one.base is not None and one.base < 1e6


def test_setup_and_arguments_reach_the_function(repository: Path) -> None:
    body = "def make():\n    return [1, 2]\n\ndef f(data, n):\n    assert data == [1, 2] and n == 7\n"
    (repository / "src" / "pack" / "__init__.py").write_text(body)
    one = compared(repository, 'call = "pack:f"\nsetup = "pack:make"\nargs = [7]', base=".", head=".")
    assert one.error == ""


def test_an_installed_copy_does_not_answer_for_the_checkout(repository: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed" / "lib9"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (repository / "python" / "lib9").mkdir(parents=True)
    (repository / "python" / "lib9" / "__init__.py").write_text("")
    (repository / "run9.py").write_text("import sys\n" f"sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
                                        "import lib9\ndef f():\n    pass\n")  # fmt: skip
    one = compared(repository, 'call = "run9:f"', base=".", head=".", extra="path = ['python']\n")
    assert "though the checkout has it in python/lib9" in one.error


def test_a_failing_build_is_an_error_of_every_benchmark(repository: Path) -> None:
    one = compared(repository, 'call = "pack:same"', extra="prepare = [['sh', '-c', 'echo no compiler >&2; exit 1']]\n")
    assert one.decision == "error" and "no compiler" in one.error


def test_the_build_runs_in_each_checkout_and_not_in_the_users_tree(repository: Path) -> None:
    prepare = "prepare = [['sh', '-c', 'cp src/pack/__init__.py built9.py']]\n"
    assert compared(repository, 'call = "built9:same"', extra=prepare).error == ""
    assert not (repository / "built9.py").exists()


def test_the_users_repository_is_left_as_it_was(repository: Path) -> None:
    before = git(repository, "worktree", "list")
    compared(repository, 'call = "pack:same"')
    assert git(repository, "worktree", "list") == before
    assert git(repository, "status", "--porcelain", "src") == ""


def test_a_session_at_work_and_worktrees_of_others_are_not_swept_away(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--detach", str(tmp_path / "away"), "HEAD")
    shutil.rmtree(tmp_path / "away")  # on a disk that is not mounted, say
    with checkouts.session() as folder, checkouts.checkouts(repository, ("HEAD",), folder) as (checkout,):
        listed = git(repository, "worktree", "list")
        checkouts.sweep(repository)
        assert git(repository, "worktree", "list") == listed
        assert (checkout.root / "bench.toml").exists()
    assert str(tmp_path / "away") in git(repository, "worktree", "list")


def test_a_worktree_whose_folder_is_gone_or_that_is_half_made_is_swept_away(repository: Path, tmp_path: Path) -> None:
    before = git(repository, "worktree", "list")
    left = [tmp_path / f"{checkouts.PREFIX}{name}" / "side0" for name in ("gone", "half")]
    for root in left:
        git(repository, "worktree", "add", "--detach", "--lock", str(root), "HEAD")  # locked: as while git makes it
    shutil.rmtree(left[0].parent)
    (left[1].parent / checkouts.OWNER).touch()
    (left[1] / ".git").unlink()
    checkouts.sweep(repository)
    assert git(repository, "worktree", "list") == before
    assert not left[1].parent.exists()


def test_a_signal_waits_until_what_must_not_be_cut_short_is_done() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), children.interruptible():
        with children.held_back():
            signal.raise_signal(signal.SIGTERM)
            done.append("held")
        done.append("never")
    assert done == ["held"]


def test_a_second_signal_does_not_disturb_who_cleans_up_after_the_first() -> None:
    before = [signal.getsignal(number) for number in children.SIGNALS]
    cleaned = []
    with pytest.raises(KeyboardInterrupt), children.interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned.append(children.run(["echo", "removed"], 60.0).stdout)
    assert cleaned == ["removed\n"]
    assert [signal.getsignal(number) for number in children.SIGNALS] == before


def test_after_an_interruption_other_threads_start_nothing_more() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt), children.interruptible():
        running = pool.submit(children.run, ["sleep", "300"], 400.0)
        while not children._now.alive:
            assert not running.done()
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert running.result(60.0).returncode == -signal.SIGKILL
            with pytest.raises(InterruptedError):
                pool.submit(children.run, ["true"], 60.0).result(60.0)
    assert children.run(["true"], 60.0).returncode == 0


def test_a_changed_tree_is_marked_and_a_clean_one_is_not(repository: Path) -> None:
    assert not checkouts.working_tree(repository).dirty
    (repository / "src" / "pack" / "__init__.py").write_text("def same():\n    return 2\n")
    dirty = checkouts.working_tree(repository)
    assert dirty.dirty and str(dirty).endswith("+dirty")


@pytest.mark.parametrize("ref", ["nowhere", "--help", "HEAD~99", ""])
def test_what_is_no_commit_is_refused(repository: Path, ref: str) -> None:
    with pytest.raises(BadInput, match="is no commit"):
        checkouts.resolve(repository, ref)


def test_a_folder_outside_any_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # wherever temporary folders are
    with pytest.raises(BadInput, match="git rev-parse"):
        checkouts.top(tmp_path)


def test_a_commit_that_a_shallow_clone_lacks_is_said_to_be_missing_there(repository: Path, tmp_path: Path) -> None:
    checkouts.git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(tmp_path / "clone"))
    with pytest.raises(BadInput, match="git fetch --unshallow"):
        checkouts.resolve(tmp_path / "clone", "HEAD~1")
    checkouts.git(tmp_path, "init", "-q", str(tmp_path / "new"))
    with pytest.raises(BadInput, match="no commit at all yet"):
        checkouts.resolve(tmp_path / "new", "HEAD")


@dataclass
class Clock:
    """A worker whose first call is slow, and all later ones take so long each."""

    seconds: float
    first: float = 0.0
    asked: int = 0

    def run(self, calls: int) -> dict[str, float]:
        taken = calls * self.seconds + (self.first if not self.asked else 0.0)
        self.asked += 1
        return {"wall": taken, "cpu": taken}


def test_a_slow_first_call_does_not_make_the_timed_pieces_short() -> None:
    calls, piece, threaded = calibrate(cast(Worker, Clock(1e-6, first=2.0)), sample=0.001)
    assert calls >= 1000 and piece >= 0.001 and not threaded


def test_slow_work_gets_fewer_rounds_so_that_the_judge_gets_its_pairs(repository: Path) -> None:
    config = bench_config.load(repository / "bench.toml")
    config = msgspec.structs.replace(config, seconds=120.0, rounds=30, pairs=60)
    most = rule(config).looks[-1]
    for seconds in (1e-6, 0.01, 0.1, 0.3):
        calls, piece, _ = calibrate(cast(Worker, Clock(seconds)), config.sample)
        turns = WARM_UP + rounds(config, piece, 2 * most)
        assert 2 * most * turns * piece <= 1.2 * config.seconds, f"{calls} calls of {seconds} s"


def test_the_pairs_answer_is_the_median_of_the_rounds() -> None:
    pairs = Pairs()
    pairs.add([1.0, 1.0, 1.0], [2.0, 2.0, 400.0])
    assert pairs.log_ratios == [pytest.approx(math.log(2))] and pairs.base == [1.0]


def bench_of(folder: Path, session: Path, name: str = "simulate") -> Bench:
    config = bench_config.load(folder / "bench.toml")
    return Bench(name, config.benchmark[name], config, checkouts.working_tree(folder), session)


def test_sides_take_turns_and_change_who_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.history(tmp_path / "r", [])
    base, head = (bench_of(tmp_path / "r", tmp_path) for _ in range(2))
    asked: list[int] = []

    def record(original: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
        def run(worker: object, calls: int) -> dict[str, float]:
            asked.append(id(worker.bench))  # type: ignore[attr-defined]
            return original(worker, calls)

        return run

    monkeypatch.setattr(Worker, "run", record(Worker.run))
    for number in range(2):
        asked.clear()
        pair(base, head, Pairs(calls=1), number)
        sides = (id(base), id(head))
        first, second = (sides[side] for side in first_and_second("simulate", number))
        assert asked[:4] == [first, second, second, first]
        assert asked.count(id(base)) == asked.count(id(head))


def test_a_coin_says_who_goes_first() -> None:
    firsts = [first_and_second("b", number)[0] for number in range(400)]
    assert 160 < sum(firsts) < 240 and firsts == [first_and_second("b", number)[0] for number in range(400)]


def test_both_sides_of_a_pair_have_the_same_hash_seed(tmp_path: Path) -> None:
    lab.history(tmp_path / "r", [])
    bench = bench_of(tmp_path / "r", tmp_path)
    assert bench.env(3)["PYTHONHASHSEED"] == "3"


def test_a_worker_leaves_no_process_behind(tmp_path: Path) -> None:
    lab.history(tmp_path / "r", [])
    with workers((bench_of(tmp_path / "r", tmp_path),), 0) as (worker,):
        assert worker.run(1)["wall"] > 0
        pid = worker.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_that_dies_says_its_last_words(tmp_path: Path) -> None:
    lab.history(tmp_path / "r", [])
    (tmp_path / "r" / "spiking" / "network.py").write_text(
        "import os, sys\ndef simulate():\n    print('out of luck', file=sys.stderr, flush=True)\n    os._exit(9)\n"
    )
    with workers((bench_of(tmp_path / "r", tmp_path),), 0) as (worker,), pytest.raises(DidNotRun, match="out of luck"):
        worker.run(1)


def test_a_commands_processor_time_is_that_of_its_children(repository: Path, tmp_path: Path) -> None:
    (repository / "bench.toml").write_text(
        QUICK + "[benchmark.b]\ncommand = ['sh', '-c', 'python3 -c \"sum(range(3000000))\"']\n"
    )
    used = run_command(bench_of(repository, tmp_path, "b"), 0)
    assert used["cpu"] > 0.005 and used["wall"] > 0.005


def test_planted_work_is_real_and_counted_exactly(tmp_path: Path) -> None:
    commits = lab.history(tmp_path / "a", [0.05, 0.0, 0.02])
    again = lab.history(tmp_path / "b", [0.05, 0.0, 0.02])
    assert [commit.name for commit in commits] == [commit.name for commit in again]
    assert [commit.work for commit in commits] == [1000, 1050, 1050, 1071]
    assert [round(commit.change, 3) for commit in commits] == [0.0, 0.05, 0.0, 0.02]
    for commit in commits:
        assert f"STEPS = {commit.work}" in git(tmp_path / "a", "show", f"{commit.name}:spiking/network.py")


def counted(folder: Path, change: float) -> Judgement:
    commits = lab.history(folder, [change])
    config = bench_config.load(folder / "bench.toml")
    refs = [commit.name for commit in commits]
    with checkouts.session() as session, checkouts.checkouts(folder, refs, session) as sides:
        base, head = (Bench("simulate", config.benchmark["simulate"], config, side, session) for side in sides)
        return instructions.compare(base, head, 1, [0])


@pytest.fixture
def counter() -> None:
    if why := instructions.counter().why:
        pytest.skip(why)


@pytest.mark.usefixtures("counter")
def test_instructions_of_a_program_show_two_per_cent(tmp_path: Path) -> None:
    def count(turns: int) -> int:
        loop = f"i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"
        return instructions.counter().count(["sh", "-c", loop], dict(os.environ), tmp_path, b"", 120)

    start, base, head = count(0), count(3000), count(3060)
    assert (head - start) / (base - start) == pytest.approx(1.02, abs=0.002)


@pytest.mark.slow
@pytest.mark.usefixtures("counter")
def test_instructions_show_two_per_cent_where_time_cannot(tmp_path: Path) -> None:
    judgement = counted(tmp_path / "r", 0.02)
    assert judgement.decision == "regression" and judgement.change == pytest.approx(0.02, abs=0.002)


@pytest.mark.slow
@pytest.mark.usefixtures("counter")
def test_instructions_of_equal_code_are_equal(tmp_path: Path) -> None:
    judgement = counted(tmp_path / "r", 0.0)
    assert judgement.decision == "no change" and abs(judgement.change) < 0.001


@pytest.mark.usefixtures("counter")
def test_a_count_cut_short_leaves_nothing_of_the_program_or_of_valgrind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # as TMPDIR would have been from the start
    program = ["sh", "-c", 'while :; do true > "$TMPDIR/left"; sleep 0; done']  # starts programs when it is killed
    with pytest.raises(instructions.NotCounted, match="did not end within"):
        instructions.counter().count(program, {**os.environ, "TMPDIR": str(tmp_path)}, tmp_path, b"", 3)
    assert list(tmp_path.iterdir()) == []


def test_without_a_counter_the_comparison_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "counter", lambda: instructions.Counter("", "valgrind is not installed"))
    (repository / "bench.toml").write_text(QUICK.replace("never", "always") + "[benchmark.b]\ncall = 'pack:same'\n")
    session = compare.compare(repository / "bench.toml", "HEAD", "HEAD", (), lambda done, total: None)
    assert "valgrind is not installed" in session.comparisons[0].note
    assert session.comparisons[0].instructions is None


def test_a_run_stores_every_benchmark_with_its_environment(repository: Path) -> None:
    text = QUICK + "[benchmark.good]\ncall = 'pack:same'\n[benchmark.bad]\ncall = 'pack:slow'\n"
    (repository / "bench.toml").write_text(text)
    ((path, run),) = store.run(repository / "bench.toml", ".", None, (), lambda done, total: None)
    assert path.exists() and path.parent == repository / "bench-history"
    assert len(run.results["good"].seconds) == 10 and run.results["good"].error == ""
    assert run.results["bad"].seconds == [] and "broken here" in run.results["bad"].error
    assert {"cpu", "governor", "kernel", "libraries", "load"} <= set(run.fingerprint)
    assert run.dirty  # bench.toml differs from its commit
    assert msgspec.convert(run.config, bench_config.Config).digest == run.digest
    assert np.all(np.array(run.results["good"].seconds) > 0)
