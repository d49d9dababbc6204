"""What happens when things go wrong: one clear line, the right exit code, and nothing finished is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path

import pytest

from assay.record.journal import Journal
from tests.conftest import Package


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("assay: ")
    return lines[0]


def trials(log: Path) -> list[tuple[int, int]]:
    return [(int(size), int(seed)) for size, seed, _ in map(str.split, log.read_text().splitlines())]


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_unknown_key(package: Package) -> None:
    said = one_line(package.assay("run", "radius-fsp", code=2).stderr)
    assert "radius-fps" in said  # the closest key is named


def test_paper_that_is_not_built(package: Package) -> None:
    assert "not built yet" in one_line(package.assay("run", "edgeserving", code=2).stderr)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run",), "KEYS"),
        (("frobnicate",), "No such command"),
        (("run", "div", "--seeds", "0"), "--seeds"),
        (("run", "div", "--seeds", "3,3"), "--seeds"),
        (("run", "div", "--seeds", "a,b"), "--seeds"),
        (("run", "div", "--seeds", "1,2", "--first-seed", "5"), "--first-seed"),
        (("record", "--since", "/dev/null"), "assay record --json"),
        (("run", "div", "--on", "mars"), "ray://HOST:PORT"),
        (("run", "div", "--plot", "picture.bmp"), ".svg"),
        (("list", "--room", "kitchen"), "kitchen"),
        (("compare", "kitchen"), "no room"),
        (("compare", "federated"), "no comparison yet"),
        (("feed", "no-such-file.xml"), "no-such-file.xml"),
    ],
)
def test_bad_arguments(package: Package, arguments: tuple[str, ...], word: str) -> None:
    assert word in one_line(package.assay(*arguments, code=2).stderr)


def test_study_that_raises_keeps_what_finished(with_third: Package, tmp_path: Path) -> None:
    log = tmp_path / "log"
    failed = with_third.assay("run", "third-paper", code=1, TRIAL_TROUBLE="raise", TRIAL_LOG=log)
    said = one_line(failed.stderr)
    assert "ValueError: the third case is" in said
    assert "third_paper.py:" in said
    assert "size=3, seed=1" in said
    assert "kept" in said
    before = trials(log)
    result = with_third.json("run", "third-paper", TRIAL_LOG=log)
    assert len(result["table"]) == 15
    assert result["resumed"] >= len(before) - 3  # all but the failing one and those in flight beside it
    assert len(trials(log)) < 2 * 15
    assert not list((with_third.home / "unfinished").glob("*/*/*/*.json"))


def test_fresh_measures_everything_again(with_third: Package, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with_third.assay("run", "third-paper", code=1, TRIAL_TROUBLE="raise")
    assert with_third.json("run", "third-paper", "--fresh", TRIAL_LOG=log)["resumed"] == 0
    assert len(trials(log)) == 15


def test_changed_code_is_not_resumed(with_third: Package) -> None:
    with_third.assay("run", "third-paper", code=1, TRIAL_TROUBLE="raise")
    module = with_third.root / "assay" / "continuum" / "third_paper.py"
    module.write_text(module.read_text().replace("size + seed", "size + seed + 1"))
    assert with_third.json("run", "third-paper")["resumed"] == 0


def test_worker_that_dies(with_third: Package) -> None:
    said = one_line(with_third.assay("run", "third-paper", code=1, TRIAL_TROUBLE="die").stderr)
    assert "SIGKILL" in said
    assert "size=3, seed=1" in said


def test_missing_module_in_a_case(with_third: Package) -> None:
    said = one_line(with_third.assay("run", "third-paper", code=2, TRIAL_TROUBLE="import").stderr)
    assert "torch_that_is_not_there" in said
    assert "pip install" in said


def test_missing_extra(package: Package) -> None:
    package.add(source="import cupy\n")
    said = one_line(package.assay("run", "third-paper", code=2).stderr)
    assert "cupy" in said
    assert "[gpu]" in said


def test_several_keys_go_on_after_a_failure(with_third: Package) -> None:
    ended = with_third.assay("run", "edgeserving", "third-paper", "--json", code=2)
    failed, result = json.loads(ended.stdout)
    assert failed == {"key": "edgeserving", "error": failed["error"]}
    assert result["key"] == "third-paper"
    one_line(ended.stderr)


@pytest.fixture
def blocked(with_third: Package, tmp_path: Path):
    """A run that has finished cases and hangs in one of them."""
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    process = with_third.start("run", "third-paper", TRIAL_TROUBLE="block", TRIAL_LOG=log, TRIAL_FIFO=fifo)
    wait_for(lambda: log.exists() and (3, 4) in trials(log))  # the other worker has reached the end
    wait_for(lambda: len(list((with_third.home / "unfinished").glob("*/*/*/*.json"))) == 14)
    yield process, log
    process.kill()
    process.wait()


def resumes_after(with_third: Package, log: Path) -> None:
    log.write_text("")
    result = with_third.json("run", "third-paper", TRIAL_LOG=log)
    assert trials(log) == [(3, 1)]  # only the case that had not finished
    assert result["resumed"] == 14
    assert [row["worth"] for row in result["table"]] == [size + seed for size in (1, 2, 3) for seed in range(5)]


def test_interrupt_keeps_what_finished(with_third: Package, blocked) -> None:
    process, log = blocked
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "14 finished cases are kept" in one_line(err)
    resumes_after(with_third, log)


def test_kill_9_keeps_what_finished_and_leaves_no_worker(with_third: Package, blocked) -> None:
    process, log = blocked
    workers = {int(line.split()[2]) for line in log.read_text().splitlines()}
    process.kill()
    process.wait()

    def all_gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in workers)

    if Path("/proc").exists():
        wait_for(all_gone, 30)
    resumes_after(with_third, log)


def test_a_living_run_is_not_taken_over(with_third: Package, blocked, tmp_path: Path) -> None:
    second = tmp_path / "second"
    assert with_third.json("run", "third-paper", TRIAL_LOG=second)["resumed"] == 0
    assert len(trials(second)) == 15
    assert len(list((with_third.home / "unfinished").glob("*/*/*/*.json"))) == 14  # the living run's are untouched


def test_two_runs_at_once(with_third: Package) -> None:
    pair = [with_third.start("run", "third-paper", "--json") for _ in range(2)]
    tables = [json.loads(process.communicate(timeout=120)[0])["table"] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert tables[0] == tables[1]
    assert len(list((with_third.home / "results" / "third-paper").glob("*.json"))) == 2


def test_corrupt_store(with_third: Package) -> None:
    with_third.json("run", "third-paper")
    (path,) = (with_third.home / "results" / "third-paper").glob("*.json")
    (path.parent / "99990101T000000Z-quick-truncated.json").write_bytes(path.read_bytes()[:200])
    (path.parent / "99990101T000000Z-quick-garbage.json").write_bytes(b"\xff\x00garbage")
    listed = with_third.assay("list", "--json")
    assert [line.startswith("assay: warning: skipped the corrupt result") for line in listed.stderr.splitlines()] == [
        True
    ] * 2
    row = next(row for row in json.loads(listed.stdout) if row["key"] == "third-paper")
    assert row["headline"] == "1 of 2"  # the good result is still found


FULL_DISK = """
import errno, os
real = os.fsync
def fsync(handle):
    path = os.readlink(f"/proc/self/fd/{{handle}}")
    if "{place}" in path and not os.path.isdir(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real(handle)
os.fsync = fsync
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the fault is injected by path, through /proc")
def test_full_disk_while_cases_finish(with_third: Package) -> None:
    (with_third.root / "sitecustomize.py").write_text(FULL_DISK.format(place="/unfinished/"))
    said = one_line(with_third.assay("run", "third-paper", code=1).stderr)
    assert os.strerror(errno.ENOSPC) in said
    assert "ASSAY_HOME" in said


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the fault is injected by path, through /proc")
def test_full_disk_at_the_end_still_shows_the_result(with_third: Package) -> None:
    (with_third.root / "sitecustomize.py").write_text(FULL_DISK.format(place="/results/"))
    ended = with_third.assay("run", "third-paper", "--json", code=1)
    assert len(json.loads(ended.stdout)["table"]) == 15
    assert "not stored" in one_line(ended.stderr)
    assert not list(with_third.home.glob("results/*/*"))  # whole or not at all
    (with_third.root / "sitecustomize.py").unlink()
    assert with_third.json("run", "third-paper")["resumed"] == 15  # nothing finished was lost


def test_home_that_is_a_file(with_third: Package) -> None:
    with_third.home.write_text("")
    assert str(with_third.home) in one_line(with_third.assay("run", "third-paper", code=1).stderr)


def test_broken_claim_does_not_cost_the_table(with_third: Package) -> None:
    module = with_third.root / "assay" / "continuum" / "third_paper.py"
    module.write_text(module.read_text().replace('mean("worth", size=3)', 'mean("wroth", size=3)'))
    ended = with_third.assay("run", "third-paper", "--json", code=1)
    result = json.loads(ended.stdout)
    assert len(result["table"]) == 15
    assert result["claims"][0]["verdict"] == "not measured here"
    assert "wroth" in one_line(ended.stderr)


def test_broken_plot_does_not_cost_the_result(with_third: Package) -> None:
    module = with_third.root / "assay" / "continuum" / "third_paper.py"
    module.write_text(module.read_text() + "def plot(table):\n    raise RuntimeError('no ink')\n")
    assert "no ink" in one_line(with_third.assay("run", "third-paper").stderr)
    assert with_third.json("list", "--built")


def test_entry_without_an_answer(package: Package) -> None:
    from tests.conftest import THIRD_ENTRY, THIRD_PAPER

    package.add(THIRD_PAPER.replace('Claim("large"', 'Claim("larger"'), THIRD_ENTRY)
    said = one_line(package.assay("run", "third-paper", code=2).stderr)
    assert "does not answer the claim 'large' of papers.toml (closest: 'larger')" in said


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('Claim("twice"', 'Claim("small"', "twice"),
        ('asks="Middling cases are worth more than one.", ', "", "needs 'asks' and 'kind'"),
        ('toward="up"', "", "toward"),
        ("more than one.", "more than", "whole sentence"),
        ('mean("worth", size=1)', 'mean("worth", size=1), asks="Is it?"', "is the paper's"),
    ],
)
def test_a_claim_that_nobody_could_judge_is_one_line(package: Package, old: str, new: str, word: str) -> None:
    from tests.conftest import THIRD_ENTRY, THIRD_PAPER

    package.add(THIRD_PAPER.replace(old, new), THIRD_ENTRY)
    assert word in one_line(package.assay("run", "third-paper", code=2).stderr)


def test_a_best_case_that_does_not_say_of_what_is_a_defect(package: Package) -> None:
    from tests.conftest import THIRD_ENTRY, THIRD_PAPER

    package.add(THIRD_PAPER, THIRD_ENTRY.replace("value = 4.0,", 'value = 4.0, over = "best",'))
    ended = package.assay("run", "third-paper", "--json", code=1)
    assert "over which cases" in one_line(ended.stderr)


def test_a_case_that_was_written_counts_also_where_an_interrupt_came_before_it_was_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), Journal("third-paper", "f") as journal:
        (journal.folder / "0123.json").write_text("[]")  # written whole, and then the signal
        assert journal.finished == 1
        raise KeyboardInterrupt
    assert list(tmp_path.glob("unfinished/*/*/*/0123.json"))
