"""What was measured once at full size is told beside every quick result that says otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from assay.record import catalogue, full_size, sources
from assay.record.types import Evidence, Result, Verdict
from tests.conftest import THIRD_ENTRY, THIRD_PAPER, Package
from tests.record.test_faults import trials, wait_for

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "full_size.py"


def test_kept_runs_are_of_built_papers_and_of_claims_of_today() -> None:
    assert full_size.runs()
    for key, run in full_size.runs().items():
        paper = catalogue.paper(key)
        assert catalogue.is_built(paper), key
        assert run.answers, key
        assert run.seconds <= 600, key  # a size that nobody runs is no size
        assert {answer.id for answer in run.answers} <= {claim.id for claim in paper.claims}


def test_only_another_verdict_is_a_contradiction() -> None:
    key, run = next((k, r) for k, r in full_size.runs().items() if r.answers[0].measured is not None)
    first = run.answers[0]
    same = Result(key, Evidence.MODEL, "quick", 1.0, {}, [], (first,))
    assert full_size.contradictions(same) == {}
    other = replace(first, verdict=next(v for v in Verdict if v is not first.verdict))
    assert full_size.contradictions(replace(same, claims=(other,))) == {first.id: first}
    assert full_size.contradictions(replace(same, size="full", claims=(other,))) == {}


def test_what_is_written_is_read_again() -> None:
    key, run = next(iter(full_size.runs().items()))
    result = Result(key, Evidence.MODEL, "full", 12.0, {"cpu": 'a "cpu"', "cores": 2}, [], run.answers, seeds=(3, 4))
    entry = tomllib.loads(full_size.as_toml([result]))[key]
    assert (entry["machine"], entry["seeds"], entry["seconds"]) == ('a "cpu", 2 cores', 2, 12.0)
    assert entry["claims"][run.answers[0].id].get("measured") == run.answers[0].measured


def test_entries_of_other_papers_are_kept() -> None:
    before = full_size.FILE.read_text(encoding="utf-8")
    (key, run), *others = full_size.runs().items()
    result = Result(key, Evidence.MODEL, "full", 12.0, {"cpu": "one", "cores": 2}, [], run.answers, seeds=(3, 4))
    after = tomllib.loads(full_size.as_toml([result], before))
    assert after[key]["seconds"] == 12.0
    assert {name: after[name] for name, _ in others} == {name: tomllib.loads(before)[name] for name, _ in others}


def test_an_entry_whose_code_has_changed_is_stale_and_says_so() -> None:
    key, run = next(iter(full_size.runs().items()))
    version = sources.digest(catalogue.paper(key).module)
    assert not replace(run, source=version).stale
    assert "stale" not in replace(run, source=version).where
    for other in ("", "0123456789abcdef"):  # of an entry without a digest nobody knows what it measured
        assert replace(run, source=other).stale
        assert full_size.STALE in replace(run, source=other).where


def test_the_digest_is_written_and_read_again() -> None:
    key, run = next(iter(full_size.runs().items()))
    result = Result(key, Evidence.MODEL, "full", 12.0, {}, [], run.answers, source="0123456789abcdef")
    assert tomllib.loads(full_size.as_toml([result]))[key]["source"] == "0123456789abcdef"


def entries(package: Package) -> dict[str, dict[str, object]]:
    return tomllib.loads((package.root / "assay" / "record" / "full_size.toml").read_text(encoding="utf-8"))


def two_papers(package: Package) -> None:
    """The third paper, and one like it that logs as sizes from 11 on."""
    package.add()
    (package.root / "assay" / "continuum" / "fourth_paper.py").write_text(
        THIRD_PAPER.replace("(1, 2, 3)", "(11, 12, 13)").replace("size=3", "size=13").replace("size=2", "size=12")
        .replace("size=1)", "size=11)")
    )  # fmt: skip
    with (package.root / "assay" / "record" / "papers.toml").open("a") as file:
        file.write(THIRD_ENTRY.replace("third-paper", "fourth-paper"))


def full(package: Package, *words: str, **environment: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], env=package.environment(**environment), cwd=package.root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_full_run_that_is_killed_goes_on_where_it_was(package: Package, tmp_path: Path) -> None:
    two_papers(package)
    before, log, fifo = entries(package), tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    keys = ("fourth-paper", "third-paper")
    killed = full(package, *keys, TRIAL_TROUBLE="block", TRIAL_LOG=log, TRIAL_FIFO=fifo)
    try:
        unfinished = package.home / "unfinished" / "third-paper"
        wait_for(lambda: len(list(unfinished.glob("*/*/*.json"))) == 29 or killed.poll() is not None, 120)
        assert killed.poll() is None, killed.stderr and killed.stderr.read()
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    kept = entries(package)
    assert set(kept) == {*before, "fourth-paper"}  # what was finished is in the file already
    log.write_text("")
    again = full(package, *keys, TRIAL_LOG=log)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert trials(log) == [(3, 1)]  # of the paper under way only the case that had not finished, of the other none
    assert "third-paper" in out and "29 cases resumed" in out and "fourth-paper" not in out
    after = entries(package)
    assert set(after) == {*before, *keys}
    assert after["fourth-paper"] == kept["fourth-paper"]
    assert {key: after[key] for key in before} == before
    assert after["third-paper"]["seeds"] == 10 and after["third-paper"]["source"]


def recorded(package: Package) -> tuple[str, bool]:
    (row,) = [row for row in package.json("record", "--room", "continuum") if row["key"] == "third-paper"]
    return row["size"], row["current"]


def test_a_stale_figure_is_said_to_be_stale_wherever_it_is_quoted(package: Package) -> None:
    package.add()
    done = full(package, "third-paper")
    assert done.wait(120) == 0, done.stderr and done.stderr.read()
    package.assay("run", "third-paper", "--seeds", "1")  # nothing is certain of one: another verdict than in full
    for words in (("run", "third-paper", "--seeds", "1"), ("show", "third-paper")):
        now = package.assay(*words).stdout
        assert "At full size (" in now and "stale" not in now, now
    assert recorded(package) == ("full", True)  # which a quick run later does not hide
    paper = package.root / "assay" / "continuum" / "third_paper.py"
    paper.write_text(paper.read_text() + "\n# another version\n")
    for words in (("run", "third-paper", "--seeds", "1"), ("show", "third-paper")):
        assert full_size.STALE in " ".join(package.assay(*words).stdout.split())
    assert recorded(package) == ("quick", True)  # another code's full size does not hide a quick run of today's
    package.assay("record", "--room", "continuum", "--html", "site")
    page = (package.root / "site" / "papers" / "third-paper.html").read_text(encoding="utf-8")
    assert full_size.STALE in page
    for path in (package.home / "results" / "third-paper").iterdir():
        path.unlink()
    assert "stale" in package.assay("show", "third-paper").stdout  # before anything was measured here, too
